"""docs/reproduction.md says what the records of the runs say, and those match the settings."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from prlc.experiments.claims import CLAIMS, LIMITS
from prlc.experiments.reproduction import make_record
from prlc.experiments.settings import paper

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reproduction.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(ROOT / "docs" / "plots")
    return runpy.run_path(str(ROOT / "docs" / "plots" / "reproduction.py"))


def test_nothing_generated_is_typed_by_hand(script: dict[str, Any]) -> None:
    page = PAGE.read_text()
    assert script["filled"](page, script["read_records"]()) == page


def test_the_page_is_made_from_folders_of_runs(script: dict[str, Any], tmp_path: Path) -> None:
    docs, made = tmp_path / "docs", script["main"].__globals__
    (docs / "images").mkdir(parents=True)
    made.update(DOCS=docs, RECORDS=docs / "reproduction", PAGE=docs / "reproduction.md")
    bare = re.sub(r"(generated -->\n).*?(<!-- end)", r"\1\2", PAGE.read_text(), flags=re.S)
    (docs / "reproduction.md").write_text(bare)
    folders = []
    for scale, task in script["SHOWN"]:
        folder = tmp_path / scale
        folder.mkdir()
        record = ROOT / "docs" / "reproduction" / f"{scale}-{task}.json"
        (folder / "verdicts.json").write_text(record.read_text())
        for figure in script["FIGURES"]:
            (folder / f"{figure}-{task}.png").write_bytes(b"a figure")
        folders.append(folder)
    script["main"](folders)
    assert (docs / "reproduction.md").read_text() == PAGE.read_text()
    assert len(list((docs / "images").iterdir())) == 8
    with pytest.raises(SystemExit, match="should hold `prlc reproduce all --scale paper`"):
        script["main"](folders[::-1])


def test_records_were_made_with_the_frozen_settings(script: dict[str, Any]) -> None:
    for (scale, name), record in zip(script["SHOWN"], script["read_records"](), strict=True):
        problem = paper().problem(name, scale)
        fresh = make_record(scale, ["fig1"], {problem: record["tasks"][0]["seeds"]}, [], [], [])
        again = json.loads(json.dumps(fresh))
        for part in ("scale", "tasks", "lr", "network", "limits"):
            assert record[part] == again[part]
        assert {verdict["claim"] for verdict in record["verdicts"]} == set(CLAIMS)
        assert all(
            verdict["text"] == CLAIMS[verdict["claim"]].text for verdict in record["verdicts"]
        )


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    table = PAGE.read_text().partition("| claim | measure |")[2].partition("\n\n")[0]
    shown = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", table.replace("%", ""))}
    for name, limit in dataclasses.asdict(LIMITS).items():
        for value in limit if isinstance(limit, tuple) else (limit,):
            assert {value, round(100 * value)} & shown or name == "shrunk", name


def test_figures_are_there_and_small() -> None:
    shown = re.findall(r"\(images/(reproduction-[\w-]+\.png)\)", PAGE.read_text())
    assert len(shown) == 8
    for name in shown:
        assert 10_000 < (PAGE.parent / "images" / name).stat().st_size < 250_000
