"""What a comparison says of each run, as rows, as a table, and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from prlc.report.series import Series
from prlc.training import Result
from prlc.units import format_bytes, format_seconds

#: What a comparison says of each method, in this order.
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

_NAMES = ("method", "seed")  # not figures

#: What tables for people show, and under which heading.
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


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One object per run, with the keys of `COLUMNS`."""
    return [{column: result.summary[column] for column in COLUMNS} for result in results]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """The same as a table."""
    return pd.DataFrame(rows(results), columns=list(COLUMNS))


def series_rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """One object per curve: its label, the means over its seeds, and which seeds they are."""
    return [
        {
            "method": each.label,
            **{name: _mean(each.figures(name)) for name in COLUMNS if name not in _NAMES},
            "seeds": [run.seed for run in each.runs],
            "finished": each.finished,
        }
        for each in series
    ]


def best_of(content: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The best of every column, if there is one, among finished runs: others are cheap by chance.

    Where all are alike, none is the best.
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


def rich_table(results: Sequence[Result], title: str | None = None) -> Table:
    """A row per run for the terminal; the best of a column is bold."""
    return _rich(rows(results), title)


def rich_series_table(series: Sequence[Series], title: str | None = None) -> Table:
    """A row per curve for the terminal, with means over seeds; the best of a column is bold."""
    shown = _rich(series_rows(series), title)
    shown.columns[0].no_wrap = False  # labels that tell runs apart can be long
    return shown


def _rich(content: Sequence[Mapping[str, Any]], title: str | None) -> Table:
    title = escape(title) if title else None
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for name, heading in HEADINGS.items():
        shown.add_column(heading, justify="left" if name == "method" else "right", no_wrap=True)
    best = best_of(content)
    for row in content:
        cells = [escape(str(row["method"]))]
        for name, highest in best.items():
            text = show_figure(name, row[name])
            cells.append(f"[bold]{text}[/bold]" if is_best(row[name], highest) else text)
        shown.add_row(*cells)
    return shown


def show_figure(name: str, value: float | None) -> str:
    """A figure as a table shows it."""
    return "–" if value is None else _FORMATS[name](value)


def is_best(value: float | None, best: float | None) -> bool:
    return value is not None and best is not None and math.isclose(value, best, rel_tol=1e-9)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


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
