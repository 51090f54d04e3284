"""Fill in the generated parts of docs/beyond.md from finished runs.

    python docs/plots/beyond.py [FOLDER]...

A FOLDER comes from `prlc reproduce beyond`. Its record, cut into one for each problem, and its
figures are copied into docs/. The marked parts of the page are generated from all records there. A
problem recorded again at the same scale replaces the record before.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generated import fill, table

from prlc.experiments.beyond.settings import SCALES, beyond
from prlc.methods import parse_method
from prlc.network.units import format_bytes, format_seconds
from prlc.report import share

DOCS = Path(__file__).resolve().parent.parent
RECORDS = DOCS / "beyond"
PAGE = DOCS / "beyond.md"

Record = dict[str, Any]


def main(folders: Sequence[Path]) -> None:
    """Copy what the page needs from the folders, then write it."""
    for folder in folders:
        copy_results(folder)
    PAGE.write_text(filled(PAGE.read_text(), read_records()))


def copy_results(folder: Path) -> None:
    """Copy a record, problem by problem, and its figures."""
    whole = json.loads((folder / "beyond.json").read_text())
    RECORDS.mkdir(exist_ok=True)
    for problem in whole["problems"]:
        name = problem["name"]
        record = whole | {"problems": [problem]}
        for part, key in (("tuning", "task"), ("results", "problem"), ("verdicts", "task")):
            record[part] = [each for each in whole[part] if each[key] == name]
        kept = stem(whole["scale"], name)
        (RECORDS / f"{kept}.json").write_text(json.dumps(record, indent=1) + "\n")
        picture = DOCS / "images" / f"beyond-{kept}.png"
        shutil.copyfile(folder / f"beyond-{name}.png", picture)


def stem(scale: str, problem: str) -> str:
    """What the files of a problem are called."""
    return problem if scale == "quick" else f"{scale}-{problem}"


def read_records() -> list[Record]:
    """In the order of the settings: smaller scales and IID data first."""
    found = {file.stem: json.loads(file.read_text()) for file in RECORDS.glob("*.json")}
    known = [stem(each, p.name) for each in SCALES for p in beyond().problems(each, "all")]
    return [found[name] for name in known if name in found]


def filled(page: str, records: Sequence[Record]) -> str:
    """The page with its marked parts regenerated."""
    parts = {
        "verdicts": verdicts(records),
        "results": "\n\n".join(map(results, records)),
        "tuning": "\n\n".join(map(tuning, records)),
    }
    return fill(page, parts)


def verdicts(records: Sequence[Record]) -> str:
    """Every verdict with its numbers, claim by claim."""
    found = [v for record in records for v in record["verdicts"]]
    order = list(dict.fromkeys(v["claim"] for v in found))
    found.sort(key=lambda v: order.index(v["claim"]))
    lines = [[v["text"], v["setting"], v["measured"], v["outcome"]] for v in found]
    return table(["claim", "tried on", "measured", "verdict"], lines)


def results(record: Record) -> str:
    """A problem's methods, its picture, and how long computing alone takes."""
    (problem,), rows, clocks = record["problems"], record["results"], list(record["clocks"])
    lines = []
    for row in rows:
        name = f"**{row['label']}**" if row["method"] == record["recommended"] else row["label"]
        cells = ["not reached", *[""] * (2 + len(clocks))]
        run = f"{row['trained']:,}"
        if row["bytes"] is not None:
            part = share(row["bytes"] / rows[0]["bytes"])
            times = [row["seconds"].get(clock) for clock in clocks]
            cells = [f"{row['steps']:,.0f}", f"{row['pulls']:,.0f}"]
            cells += [f"{format_bytes(row['bytes'])} ({part})"]
            cells += ["–" if time is None else format_seconds(time) for time in times]
        lines.append([name, f"{row['lr']:g}", run, _loss(row["loss"]), *cells])
    alone = [format_seconds(problem["computing_alone"][clock]) for clock in clocks]
    lines.append(["*computing alone*", *[""] * 6, *alone])
    headings = ["method", "step size", "trained", "final loss", "steps", "pulls", "bytes", *clocks]
    (settings,) = beyond().problems(record["scale"], problem["name"])
    about = f"{record['scale'].capitalize()} scale. {settings.describe(problem['seeds'])}"
    for row in rows:
        if setting := row["setting"]:
            uses, how = ", ".join(setting["for"]), "planned" if setting["planned"] else "by hand"
            about += f" For {uses} ({how}): `{setting['method']}`."
    kept = stem(record["scale"], problem["name"])
    picture = f"![{problem['title']}](images/beyond-{kept}.png)"
    return f"### {problem['title']}\n\n{about}\n\n{table(headings, lines)}\n\n{picture}"


def tuning(record: Record) -> str:
    """The whole grid: final losses, each method's best in bold."""
    lines, grid = [], record["problems"][0]["grid"]
    for each in record["tuning"]:
        cells = [_loss(loss, bold=lr == each["lr"]) for lr, loss in each["losses"]]
        edge = "at the edge" if each["at_edge"] else ""
        factor = each["losses"][0][0] / grid[0]
        label = parse_method(each["method"]).label
        named = label if math.isclose(factor, 1.0) else f"{label}, at {factor:g} times these"
        lines.append([named, *cells, edge])
    return table([record["problems"][0]["title"], *(f"{lr:g}" for lr in grid), ""], lines)


def _loss(loss: float | None, *, bold: bool = False) -> str:
    text = "diverged" if loss is None else f"{loss:.4f}"
    return f"**{text}**" if bold else text


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
