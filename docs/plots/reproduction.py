"""Fill in the generated parts of docs/reproduction.md from finished runs.

    python docs/plots/reproduction.py PAPER_FOLDER QUICK_FOLDER

PAPER_FOLDER comes from `prlc reproduce all --scale paper --model logistic`, QUICK_FOLDER from
`prlc reproduce all --scale quick`. Their records and figures are copied into docs/, and the marked
parts of the page are generated from the records. Without folders, the page is generated from the
records already in docs/.
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
#: Scale and problem: logistic regression as in the paper, a small ResNet that needs no GPU.
SHOWN = (("paper", "logistic"), ("quick", "resnet"))
FIGURES = ("fig1", "fig2", "fig3", "fig4")

Record = dict[str, Any]


def main(folders: Sequence[Path]) -> None:
    """Copy what the page needs from the folders, if any are given, then write it."""
    if len(folders) not in (0, len(SHOWN)):
        sys.exit(__doc__)
    for folder, (scale, problem) in zip(folders, SHOWN, strict=bool(folders)):
        copy_results(folder, scale, problem)
    PAGE.write_text(filled(PAGE.read_text(), read_records()))


def copy_results(folder: Path, scale: str, problem: str) -> None:
    """Copy the problem's part of a record, and its figures."""
    record = json.loads((folder / "verdicts.json").read_text())
    if record["scale"] != scale or record["figures"] != list(FIGURES):
        sys.exit(f"{folder} should hold `prlc reproduce all --scale {scale}`, but does not.")
    clock = "clock" if problem == SHOWN[0][1] else None  # the same in every record: keep one
    record["tasks"] = [each for each in record["tasks"] if each["name"] == problem]
    for part in ("tuning", "results", "times", "verdicts"):
        record[part] = [each for each in record[part] if each["task"] in (problem, clock)]
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{scale}-{problem}.json").write_text(json.dumps(record, indent=1) + "\n")
    for figure in FIGURES:
        name = f"{figure}-{problem}.png"
        shutil.copyfile(folder / name, DOCS / "images" / f"reproduction-{name}")


def read_records() -> list[Record]:
    return [json.loads((RECORDS / f"{scale}-{name}.json").read_text()) for scale, name in SHOWN]


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
    trained = [v for record in records for v in record["verdicts"] if v["task"] != "clock"]
    columns = list(dict.fromkeys(_trained_on(v["setting"]) for v in trained))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for verdict in trained:
        duplex = verdict["setting"].removeprefix(_trained_on(verdict["setting"]))
        claim = f"{verdict['text']}{duplex}"
        cells = rows.setdefault((verdict["figure"], claim), {})
        cells[_trained_on(verdict["setting"])] = _cell(verdict)
    lines = [[*key, *(cells.get(column, "–") for column in columns)] for key, cells in rows.items()]
    scales = {
        _trained_on(v["setting"]): record["scale"] for record in records for v in record["verdicts"]
    }
    titles = [f"{column} ({scales[column]} scale)" for column in columns]
    timed = [v for record in records for v in record["verdicts"] if v["task"] == "clock"]
    listed = "; ".join(f"{v['setting'].split(', ')[-1]} {_cell(v)}" for v in timed)
    claims = table(["figure", "the paper's claim", *titles], lines)
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


def _trained_on(setting: str) -> str:
    """The setting without the clock."""
    return ", ".join(setting.split(", ")[:2])


def _loss(loss: float | None, *, bold: bool = False) -> str:
    text = "diverged" if loss is None else f"{loss:.4f}"
    return _bold(text) if bold else text


def _bold(text: str) -> str:
    return f"**{text}**"


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
