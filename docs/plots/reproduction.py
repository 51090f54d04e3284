"""Fill in the generated parts of docs/reproduction.md from finished runs.

    python docs/plots/reproduction.py FOLDER...

A folder comes from `prlc reproduce all --scale paper --model logistic`, `--scale quick` or `--scale
medium`. Its record and figures are copied into docs/, and the marked parts of the page are
generated from all records that are there.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generated import fill, table

from prlc.methods import parse_method

DOCS = Path(__file__).resolve().parent.parent
RECORDS = DOCS / "reproduction"
PAGE = DOCS / "reproduction.md"
#: The problem shown of each scale: logistic regression as in the paper, and a small ResNet that
#: needs no GPU.
SHOWN = {"paper": "logistic", "quick": "resnet", "medium": "resnet"}

Record = dict[str, Any]


def main(folders: Sequence[Path]) -> None:
    """Copy what the page needs from the folders, if any are given, then write it."""
    for folder in folders:
        copy_results(folder)
    PAGE.write_text(filled(PAGE.read_text(), read_records()))


def copy_results(folder: Path) -> None:
    """Copy a record without the problems that are not shown, and the figures."""
    record = json.loads((folder / "verdicts.json").read_text())
    scale = record["scale"]
    if scale not in SHOWN:
        sys.exit(f"{folder} is of scale {scale}, but the page shows {', '.join(SHOWN)}.")
    problem = SHOWN[scale]
    clock = "clock" if scale == next(iter(SHOWN)) else None  # the same in every record: keep one
    record["tasks"] = [each for each in record["tasks"] if each["name"] == problem]
    for part in ("tuning", "results", "times", "verdicts"):
        record[part] = [each for each in record[part] if each["task"] in (problem, clock)]
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{scale}-{problem}.json").write_text(json.dumps(record, indent=1) + "\n")
    for figure in record["figures"]:
        shown = DOCS / "images" / f"reproduction-{figure}-{problem}-{scale}.png"
        shutil.copyfile(folder / f"{figure}-{problem}.png", shown)


def read_records() -> list[Record]:
    files = [RECORDS / f"{scale}-{problem}.json" for scale, problem in SHOWN.items()]
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def filled(page: str, records: Sequence[Record]) -> str:
    """The page with its marked parts regenerated."""
    parts = {
        "summary": summary(records),
        "details": details(records),
        "tuning": tuning(records),
        "results": results(records),
    }
    return fill(page, parts)


def summary(records: Sequence[Record]) -> str:
    """A row per claim and clock, a column per setting."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for record in records:
        for verdict in record["verdicts"]:
            if verdict["task"] == "clock":
                continue
            trained_on = ", ".join(verdict["setting"].split(", ")[:2])  # without the clock
            duplex = verdict["setting"].removeprefix(trained_on)
            column = f"{trained_on} ({record['scale']} scale)"
            columns.setdefault(column)
            cells = rows.setdefault((verdict["figure"], f"{verdict['text']}{duplex}"), {})
            cells[column] = _cell(verdict)
    lines = [[*key, *(cells.get(column, "–") for column in columns)] for key, cells in rows.items()]
    timed = [v for record in records for v in record["verdicts"] if v["task"] == "clock"]
    listed = "; ".join(f"{v['setting'].split(', ')[-1]} {_cell(v)}" for v in timed)
    claims = table(["figure", "the paper's claim", *columns], lines)
    return f"{claims}\n\nResNet-18's time per step, by the clock alone: {listed}."


def details(records: Sequence[Record]) -> str:
    """Every verdict with its numbers."""
    verdicts = [(record["scale"], v) for record in records for v in record["verdicts"]]
    order = list(dict.fromkeys(v["text"] for _, v in verdicts))
    verdicts.sort(key=lambda pair: order.index(pair[1]["text"]))
    lines = []
    for scale, v in verdicts:
        where = v["setting"] if v["task"] == "clock" else f"{v['setting']} ({scale})"
        lines.append([v["figure"], v["text"], where, v["measured"], v["outcome"]])
    return table(["figure", "claim", "tried on", "measured", "verdict"], lines)


def tuning(records: Sequence[Record]) -> str:
    """The whole grid: final training losses, each method's best in bold."""
    tables = []
    for record in records:
        grid = [lr for lr, _ in record["tuning"][0]["losses"]]
        lines = []
        for each in record["tuning"]:
            cells = [_loss(loss, bold=lr == each["lr"]) for lr, loss in each["losses"]]
            edge = "at the edge" if each["at_edge"] else ""
            lines.append([parse_method(each["method"]).label, *cells, edge])
        title = f"{record['tasks'][0]['name']}, {record['scale']} scale"
        tables.append(table([title, *(f"{lr:g}" for lr in grid), ""], lines))
    return "\n\n".join(tables)


def results(records: Sequence[Record]) -> str:
    """What every method ended with."""
    lines = []
    for record in records:
        for each in record["results"]:
            low, high = each["train_loss_low"], each["train_loss_high"]
            spread = "diverged" if each["diverged"] else f"{low:.4f} to {high:.4f}"
            lines.append(
                [
                    f"{each['setting']} ({record['scale']})",
                    each["label"],
                    f"{each['lr']:g}",
                    _loss(each["train_loss"]),
                    spread,
                    f"{each['test_accuracy']:.1%}",
                    f"{each['pulls_per_worker']:,.0f}",
                ]
            )
    headings = ["setting", "method", "step size", "final training loss", "over the seeds"]
    return table([*headings, "test accuracy", "pulls per worker"], lines)


def _cell(verdict: Record) -> str:
    return f"{_bold(verdict['outcome'])} ({verdict['short']})"


def _loss(loss: float | None, *, bold: bool = False) -> str:
    text = "diverged" if loss is None else f"{loss:.4f}"
    return _bold(text) if bold else text


def _bold(text: str) -> str:
    return f"**{text}**"


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
