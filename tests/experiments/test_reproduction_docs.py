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
    bare = re.sub(r"(generated -->\n).*?(<!-- end)", r"\1\2", PAGE.read_text(), flags=re.S)
    (docs / "reproduction.md").write_text(bare)
    folders = []
    for record in script["read_records"]():
        folder = tmp_path / record["scale"]
        folder.mkdir()
        (folder / "verdicts.json").write_text(json.dumps(record))
        for figure in record["figures"]:
            name = f"{figure}-{record['tasks'][0]['name']}.png"
            (folder / name).write_bytes(b"a figure")
        folders.append(folder)
    made.update(DOCS=docs, RECORDS=docs / "reproduction", PAGE=docs / "reproduction.md")
    for folder in reversed(folders):  # one by one, in any order
        script["main"]([folder])
    assert (docs / "reproduction.md").read_text() == PAGE.read_text()
    assert {file.name for file in (docs / "images").iterdir()} == set(shown_figures())
    smoke = tmp_path / "smoke"
    smoke.mkdir()
    (smoke / "verdicts.json").write_text(json.dumps({"scale": "smoke"}))
    with pytest.raises(SystemExit, match="is of scale smoke, but the page shows paper, quick"):
        script["main"]([smoke])


def test_records_were_made_with_the_frozen_settings(script: dict[str, Any]) -> None:
    for record in script["read_records"]():
        scale = record["scale"]
        problem = paper().problem(script["SHOWN"][scale], scale)
        fresh = make_record(scale, ["fig1"], {problem: record["tasks"][0]["seeds"]}, [], [], [])
        again = json.loads(json.dumps(fresh))
        for part in ("scale", "tasks", "lr", "network", "limits"):
            assert record[part] == again[part]
        claims = {claim for name in record["figures"] for claim in paper().figures[name].claims}
        assert {verdict["claim"] for verdict in record["verdicts"]} == claims
        assert all(
            verdict["text"] == CLAIMS[verdict["claim"]].text for verdict in record["verdicts"]
        )


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    table = PAGE.read_text().partition("| claim | measure |")[2].partition("\n\n")[0]
    shown = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", table.replace("%", ""))}
    for name, limit in dataclasses.asdict(LIMITS).items():
        for value in limit if isinstance(limit, tuple) else (limit,):
            assert {value, round(100 * value)} & shown or name == "shrunk", name


def shown_figures() -> list[str]:
    return re.findall(r"\(images/(reproduction-[\w-]+\.png)\)", PAGE.read_text())


def test_figures_are_there_and_small() -> None:
    for name in shown_figures():
        assert 10_000 < (PAGE.parent / "images" / name).stat().st_size < 250_000
