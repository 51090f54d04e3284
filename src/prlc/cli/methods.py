"""`prlc methods`: the methods, their choices and settings."""

from __future__ import annotations

import json
import re

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prlc import text
from prlc.cli import options as o
from prlc.encodings import ENCODINGS
from prlc.methods import COMPENSATIONS, METHODS, SETTINGS, Method, Scheduled, create

_HEADINGS = ("method", "takes part", "push", "message", "server", "pull", "meanwhile", "paper")


def methods(as_json: o.AsJson = False) -> None:
    """List the methods: who pushes what, who pulls what when, and what a worker does meanwhile."""
    made = [create(name) for name in METHODS]
    if as_json:
        typer.echo(json.dumps([_as_json(method) for method in made], indent=2))
        return
    console = Console()
    console.print(_table(made))
    name = next(method.name for method in made if method.recommended)
    console.print(f"Recommended, and taken where no method is named: {name}\n", highlight=False)
    console.print("A method's own settings:", highlight=False)
    for method in made:
        shared = SETTINGS if isinstance(method, Scheduled) else {}
        own = {k: v for k, v in method.options().items() if k not in shared}
        if own:
            console.print(f"  {method.name}: {_defaults(own)}", highlight=False)
    *some, last = [method.name for method in made if not isinstance(method, Scheduled)]
    console.print(f"\nSettings of all but {', '.join(some)} and {last}:", highlight=False)
    shown = Table.grid(padding=(0, 2))
    for name, meaning in SETTINGS.items():
        shown.add_row(f"  {name}", meaning)
    shown.add_row("", f"[dim]encodings: {', '.join(ENCODINGS)}[/dim]")
    shown.add_row("", f"[dim]meanwhile: {', '.join(COMPENSATIONS)}[/dim]")
    console.print(shown, highlight=False)
    console.print(
        "\nA method's settings follow colons, a part's follow commas: "
        "prlc:0.1:every=5:up=topk,0.01,bits=4. The first\nof a method's own settings may go "
        "without its name. "
        "Your own class is FILE.py:CLASS. "
        "docs/methods.md explains each.",
        highlight=False,
        soft_wrap=True,
    )


def _table(made: list[Method]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, collapse_padding=True)
    for heading in _HEADINGS:
        most = None if heading in ("method", "paper") else 14
        table.add_column(heading, no_wrap=heading == "method", max_width=most)
    for method in made:
        # Lines may break between a part's settings; the papers' numbers are in docs/methods.md.
        cells = [re.sub(r",\b", ", ", cell) for cell in method.columns().values()]
        paper = re.sub(r",? arXiv:[\d.]+", "", method.paper)
        table.add_row(*map(escape, (method.name, *cells, paper)))
    return table


def _as_json(method: Method) -> dict[str, object]:
    settings = {
        name: value if isinstance(value, int | float | None) else str(value)
        for name, value in method.options().items()
    }
    return {
        "name": method.name,
        "recommended": method.recommended,
        **method.columns(),
        "paper": method.paper,
        "settings": settings,
    }


def _defaults(settings: dict[str, object]) -> str:
    return ", ".join(f"{name}={text.write_value(value)}" for name, value in settings.items())
