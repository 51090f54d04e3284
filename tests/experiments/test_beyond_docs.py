"""docs/beyond.md says what the records of the runs say, and those match the settings."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prlc.experiments.beyond.settings import beyond
from prlc.methods import parse_method, recommended
from prlc.runs.config import usual_method

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "beyond.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(ROOT / "docs" / "plots")
    return runpy.run_path(str(ROOT / "docs" / "plots" / "beyond.py"))


def test_nothing_generated_is_typed_by_hand(script: dict[str, Any]) -> None:
    page = PAGE.read_text()
    assert script["filled"](page, script["read_records"]()) == page


def test_the_page_is_made_from_folders_of_runs(script: dict[str, Any], tmp_path: Path) -> None:
    docs, made = tmp_path / "docs", script["main"].__globals__
    (docs / "images").mkdir(parents=True)
    made.update(DOCS=docs, RECORDS=docs / "beyond", PAGE=docs / "beyond.md")
    parts = r"((?:verdicts|results|tuning): generated -->\n).*?(<!-- end)"
    bare = re.sub(parts, r"\1\2", PAGE.read_text(), flags=re.S)
    (docs / "beyond.md").write_text(bare)
    folders = []
    for record in (ROOT / "docs" / "beyond").glob("*.json"):
        folders.append(tmp_path / record.stem)
        folders[-1].mkdir()
        (folders[-1] / "beyond.json").write_text(record.read_text())
        name = json.loads(record.read_text())["problems"][0]["name"]
        (folders[-1] / f"beyond-{name}.png").write_bytes(b"a figure")
    script["main"](folders)
    assert (docs / "beyond.md").read_text() == PAGE.read_text()
    assert len(list((docs / "images").iterdir())) == len(folders) > 0


def test_records_were_made_with_the_frozen_settings(script: dict[str, Any]) -> None:
    for record in script["read_records"]():
        (kept,) = record["problems"]
        (problem,) = beyond().problems(record["scale"], kept["name"])
        expected = json.loads(json.dumps(asdict(problem) | {"seeds": kept["seeds"]}))
        assert {key: kept[key] for key in expected} == expected
        assert record["limits"] == asdict(beyond().limits)
        assert record["recommended"] == recommended()
        assert [*record["clocks"]] == [*beyond().networks]
        rows = [row.method for row in beyond().rows_of(problem)]
        assert [row["method"] for row in record["results"]] == rows + ["plan"] * (
            problem.plan_trials > 0
        )
        for row in record["results"][1:]:
            longest = beyond().limits.steps * problem.steps
            assert row["arrived"] == row["seeds"] or row["trained"] == longest
        stem = script["stem"](record["scale"], kept["name"])
        assert (ROOT / "docs" / "images" / f"beyond-{stem}.png").is_file()


def test_the_page_writes_the_recommended_method_out() -> None:
    line = next(line for line in PAGE.read_text().splitlines() if "-m whisper   " in line)
    written = parse_method(line.partition("=")[2].strip())
    ours = parse_method("whisper").options()
    assert written.options() == ours


def test_what_adamw_gets_without_a_method_is_written_out() -> None:
    usual = usual_method("adamw", "workers")
    assert f"    {usual}\n" in PAGE.read_text()
