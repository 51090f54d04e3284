"""`prlc methods`: what there is to choose from."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table

from prlc.cli import options as o
from prlc.methods import METHODS, Asynchronous, Lazy, create


def methods(as_json: o.AsJson = False) -> None:
    """List the methods, their settings and what they send."""
    made = [create(name) for name in METHODS]
    if as_json:
        listed = [
            {"method": method.name, "summary": method.summary, "settings": method.options()}
            for method in made
        ]
        typer.echo(json.dumps(listed, indent=2))
        return
    table = Table(title="Methods", title_justify="left")
    for column in ("method", "what it does", "who decides", "settings (defaults)"):
        table.add_column(column)
    for method in made:
        settings = ", ".join(f"{key}={value}" for key, value in method.options().items())
        table.add_row(method.name, method.summary, _decides(method), settings or "none")
    console = Console()
    console.print(table)
    console.print(
        "Write settings after a colon: prlc:0.1 (the first one), prlc:0.1:every=4, lag-ps:xi=2.",
        highlight=False,
    )


def _decides(method: object) -> str:
    if isinstance(method, Asynchronous):
        return "the order of arrival"
    if isinstance(method, Lazy):
        return "the server" if method.asked_by_server else "each worker"
    return "a schedule"
