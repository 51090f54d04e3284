"""What a comparison says of each run, as rows, as a table, and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

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


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One object per run, with the keys of `COLUMNS`."""
    return [{column: result.summary[column] for column in COLUMNS} for result in results]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """The same as a table."""
    return pd.DataFrame(rows(results), columns=list(COLUMNS))


def rich_table(results: Sequence[Result], title: str | None = None) -> Table:
    """The same for the terminal; the best of a column is bold."""
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    headings = {
        "method": "method",
        "train_loss": "train\nloss",
        "test_accuracy": "test\naccuracy",
        "pulls_per_worker": "pulls per\nworker",
        "pull_fraction": "of NSGD's\npulls",
        "bytes_up": "bytes\nup",
        "bytes_down": "bytes\ndown",
        "simulated_seconds": "simulated\ntime",
    }
    for name, heading in headings.items():
        shown.add_column(heading, justify="left" if name == "method" else "right", no_wrap=True)
    content = rows(results)
    best = {
        name: (max if name == "test_accuracy" else min)(
            (row[name] for row in content if row[name] is not None), default=None
        )
        for name in headings
        if name != "method"
    }
    for row in content:
        cells = [str(row["method"])]
        for name in list(headings)[1:]:
            text = "–" if row[name] is None else _FORMATS[name](row[name])
            cells.append(f"[bold]{text}[/bold]" if _equal(row[name], best[name]) else text)
        shown.add_row(*cells)
    return shown


_FORMATS: dict[str, Callable[[float], str]] = {
    "train_loss": "{:.4f}".format,
    "test_accuracy": "{:.1%}".format,
    "pulls_per_worker": lambda pulls: f"{pulls:,.0f}" if pulls >= 100 else f"{pulls:.1f}",
    "pull_fraction": "{:.3f}".format,
    "bytes_up": format_bytes,
    "bytes_down": format_bytes,
    "simulated_seconds": format_seconds,
}


def _equal(value: float | None, best: float | None) -> bool:
    return value is not None and best is not None and math.isclose(value, best, rel_tol=1e-9)
