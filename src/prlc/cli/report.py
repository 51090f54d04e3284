"""`prlc report`: a page, figures and a table of runs on disk."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from prlc import report as reports
from prlc.cli import options as o
from prlc.cli.lines import command_line
from prlc.cli.train import train
from prlc.errors import ConfigError, RunError
from prlc.report import Chart, Run


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="A run's folder, or a folder that contains runs: a comparison, a sweep.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page, such as report.html (default: report.html in RUN, or here if several "
            "are given). The figures go beside it."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page and the figures.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Show runs on disk: an interactive page, figures and a table.

    The page is one file that needs no network: curves against steps, epochs, pulls, bytes or
    simulated time, the table, all settings, and the commands. PNG and SVG figures go beside it.

    Runs that differ only in the seed become one curve with a band. An unfinished run is shown as
    far as it got. A run that cannot be shown is named and left out, and the exit status is 1.

    `prlc report runs/0001-compare`

    `prlc report runs/0002-prlc-logistic-digits runs/0003-nsgd-logistic-digits --out both.html`
    """
    page = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out names a page, such as report.html, but is {page}.")
    runs, errors = reports.read_runs(folders)
    if not runs:
        raise RunError(" ".join(errors))
    warn = Console(stderr=True, soft_wrap=True)
    for error in errors:
        warn.print(f"Left out: {error}", markup=False, highlight=False)
    charts = reports.group(runs)
    heading = title or reports.describe(runs)
    command = _commands(runs, folders, out, title)
    reports.write_page(page, heading, charts, lead=_lead(charts), command=command)
    figure = reports.draw_charts(charts, title=heading)
    reports.save_figure(figure, page.with_suffix(""))
    if as_json:
        typer.echo(json.dumps(_as_json(page, charts, errors), indent=2))
    else:
        _show(page, heading, charts)
    if errors:
        raise typer.Exit(1)


def _show(page: Path, heading: str, charts: Sequence[Chart]) -> None:
    console = Console()
    for chart in charts:
        console.print(reports.rich_series_table(chart.series, chart.title or heading))
    console.print(_lead(charts), highlight=False)
    for name, path in (("Page", page), ("Plot", page.with_suffix(".png"))):
        console.print(f"{name}: {path}", markup=False, highlight=False, soft_wrap=True)


def _lead(charts: Sequence[Chart]) -> str:
    """How many runs the page shows, and what a curve is."""
    curves = [series for chart in charts for series in chart.series]
    runs = [run for series in curves for run in series.runs]
    words = f"{len(runs)} runs" if len(runs) > 1 else "1 run"
    if len(runs) > len(curves):
        words += f" as {len(curves)} curves" if len(curves) > 1 else " as one curve"
        words += ": the mean over the seeds, and a band from the lowest to the highest"
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        words += f"; {unfinished} not finished, shown up to the last evaluation"
    return f"{words}."


def _commands(
    runs: Sequence[Run], folders: Sequence[Path], out: Path | None, title: str | None
) -> str:
    """The command lines that repeat these runs and this page."""
    lines = dict.fromkeys(_command(run) for run in runs)
    own = command_line(report, {"out": out, "title": title})
    return "\n".join([*lines, f"{own} {shlex.join(map(str, folders))}"])


def _command(run: Run) -> str:
    command = run.config.get("command")
    if isinstance(command, dict):
        return f"{command_line(train, command)}  # {run.folder}"
    if isinstance(command, str):
        return command
    return f"# {run.folder}: made by a Python program, or an older prlc"


def _as_json(page: Path, charts: Sequence[Chart], errors: Sequence[str]) -> dict[str, Any]:
    return {
        "page": str(page),
        "figures": [str(page.with_suffix(ending)) for ending in (".png", ".svg")],
        "curves": [
            {"chart": chart.title, **row, "folders": [str(run.folder) for run in series.runs]}
            for chart in charts
            for series, row in zip(chart.series, reports.series_rows(chart.series), strict=True)
        ],
        "left_out": list(errors),
    }
