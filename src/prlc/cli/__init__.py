"""The command line: parses, calls the package, prints."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import prlc
from prlc.cli.compare import compare
from prlc.cli.lines import printable
from prlc.cli.methods import methods
from prlc.cli.plan import plan
from prlc.cli.report import report
from prlc.cli.reproduce import reproduce
from prlc.cli.testbed import bed
from prlc.cli.train import train
from prlc.engines.processes.connection import refuse
from prlc.errors import PrlcError

app = typer.Typer(
    epilog="Begin with `prlc compare`: every method on built-in data, in under a minute.",
    invoke_without_command=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Train one model on many workers that rarely wait for one another."""
    if show:
        typer.echo(f"prlc {prlc.__version__}")
        raise typer.Exit


app.command()(compare)
app.command()(train)
app.command()(methods)
app.command()(plan)
app.command()(report)
app.command()(reproduce)
app.command("testbed")(bed)


def main() -> None:
    """Entry point: every expected failure is one sentence and a non-zero exit."""
    console = Console(stderr=True, soft_wrap=True)
    try:
        app()
    except PrlcError as error:
        who = f" (rank {os.environ['RANK']})" if "RANK" in os.environ else ""
        if who:
            refuse(error)
        said = " ".join(printable(line) for line in str(error).splitlines())
        console.print(Text.assemble((f"error{who}:", "bold red"), f" {said}"))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.print("Interrupted.")
        sys.exit(130)
