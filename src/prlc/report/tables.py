"""Tables of results: a row per run or per curve, for programs and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from prlc.methods import NSGD
from prlc.network.units import format_bytes, format_seconds
from prlc.report.series import Series
from prlc.runs.training import Result

#: How close to NSGD's loss a method must come to be a winner.
CLOSE = 0.02

#: The columns of a comparison, in this order.
COLUMNS = (
    "method",
    "train_loss",
    "test_accuracy",
    "pulls_per_worker",
    "pull_fraction",
    "bytes_up",
    "bytes_down",
    "simulated_seconds",
    "steps",
    "seed",
)

#: The columns that people see, with their headings.
HEADINGS = {
    "method": "method",
    "train_loss": "train\nloss",
    "test_accuracy": "test\naccuracy",
    "pulls_per_worker": "pulls per\nworker",
    "pull_fraction": "of NSGD's\npulls",
    "bytes_up": "bytes\nup",
    "bytes_down": "bytes\ndown",
    "simulated_seconds": "simulated\ntime",
}

_FORMATS: dict[str, Callable[[float], str]] = {
    "train_loss": "{:.4f}".format,
    "test_accuracy": "{:.1%}".format,
    "pulls_per_worker": lambda pulls: f"{pulls:,.0f}" if pulls >= 100 else f"{pulls:.1f}",
    "pull_fraction": "{:.3f}".format,
    "bytes_up": format_bytes,
    "bytes_down": format_bytes,
    "simulated_seconds": format_seconds,
    "steps": "{:,.0f}".format,
}


# ---- for programs --------------------------------------------------------------------------------


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One object per run, with the keys of `COLUMNS`."""
    return [{column: result.summary[column] for column in COLUMNS} for result in results]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """The same as a table."""
    return pd.DataFrame(rows(results), columns=list(COLUMNS))


def series_rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """One object per curve: its label, the means over its seeds, and the seeds."""
    return [
        {
            "method": each.label,
            **{name: _mean(each.finals(name)) for name in COLUMNS if name in _FORMATS},
            "seeds": [run.seed for run in each.runs],
            "finished": each.finished,
        }
        for each in series
    ]


def best_of(content: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The best value of each column, or None if all are alike.

    Unfinished runs do not compete: they spent less only because they stopped early.
    """
    best: dict[str, float | None] = {}
    for name in HEADINGS:
        if name != "method":
            known = [r[name] for r in content if r[name] is not None and r.get("finished", True)]
            choose = max if name == "test_accuracy" else min
            first = choose(known, default=None)
            alike = all(is_best(value, first) for value in known)
            best[name] = None if alike else first
    return best


def is_best(value: float | None, best: float | None) -> bool:
    return value is not None and best is not None and math.isclose(value, best, rel_tol=1e-9)


@dataclass(frozen=True)
class Winner:
    """The method that needed least of something, of those that came close to NSGD's loss."""

    method: str
    value: float
    of_nsgd: float
    """The same, over NSGD's."""


def winners(results: Sequence[Result]) -> dict[str, Winner]:
    """The winners on `bytes` and on `simulated_seconds`; none if NSGD is not among the methods."""
    content = [row | {"bytes": row["bytes_up"] + row["bytes_down"]} for row in rows(results)]
    nsgd = next((row for row in content if row["method"] == NSGD().label), None)
    if nsgd is None:
        return {}
    close = [row for row in content if row["train_loss"] <= (1 + CLOSE) * nsgd["train_loss"]]
    found = {}
    for name in ("bytes", "simulated_seconds"):
        if nsgd[name]:
            best = min(close, key=lambda row: row[name])
            found[name] = Winner(best["method"], best[name], best[name] / nsgd[name])
    return found


def describe_winners(results: Sequence[Result]) -> str:
    """The winners in a sentence; empty if there is nothing to compare with."""
    found = winners(results)
    parts = [
        f"{what}: {found[name].method}, {write(found[name].value)} "
        f"({share(found[name].of_nsgd)} of NSGD's)"
        for name, what, write in (
            ("bytes", "fewest bytes", format_bytes),
            ("simulated_seconds", "shortest time", format_seconds),
        )
        if name in found
    ]
    return f"Within {CLOSE:.0%} of NSGD's loss, {'; '.join(parts)}." if parts else ""


def share(value: float) -> str:
    """A share as people read it: 1/250, 0.71."""
    return f"1/{1 / value:,.0f}" if value < 0.5 else f"{value:.2f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ---- for people ----------------------------------------------------------------------------------


def rich_table(results: Sequence[Result], title: str | None = None) -> Table:
    """A row per run for the terminal; the best of each column is bold."""
    return _rich(rows(results), title)


def rich_series_table(series: Sequence[Series], title: str | None = None) -> Table:
    """A row per curve for the terminal, with means over seeds; the best of each column is bold."""
    return _rich(series_rows(series), title)


def _rich(content: Sequence[Mapping[str, Any]], title: str | None) -> Table:
    title = escape(title) if title else None
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for name, heading in HEADINGS.items():
        label = name == "method"  # which can be long
        shown.add_column(heading, justify="left" if label else "right", no_wrap=not label)
    best = best_of(content)
    for row in content:
        cells = [escape(str(row["method"]))]
        for name, highest in best.items():
            text = format_value(name, row[name])
            cells.append(f"[bold]{text}[/bold]" if is_best(row[name], highest) else text)
        shown.add_row(*cells)
    return shown


def format_value(name: str, value: float | None) -> str:
    """A value of the column `name`; a dash if there is none."""
    return "–" if value is None else _FORMATS[name](value)
