"""`prlc compare`: every method on the same problem."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prlc import api
from prlc.cli import options as o
from prlc.cli.progress import LiveProgress, stop
from prlc.errors import ConfigError
from prlc.methods import parse_method
from prlc.network import Network
from prlc.report import rich_table
from prlc.runs import fresh_folder

DEFAULT_METHODS = [
    "nsgd",
    "prlc:0.4",
    "prlc:0.1",
    "pr:0.1",
    "lag-ps",
    "lag-wk",
    "local-sgd:10",
    "asgd",
]


@o.takes_request(model="mlp", lr=0.2)
def compare(
    request: o.Request,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="A method, such as nsgd, prlc:0.1, prlc:0.1:every=4, local-sgd:10. May be "
            f"repeated. Default: {', '.join(DEFAULT_METHODS)}. See `prlc methods`.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs, the table and the plot (default: runs/NNNN-compare)."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the unfinished comparison in --out.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Train the same model on the same data by every method, and show what each one cost.

    Prints a table (training loss, test accuracy, pulls, bytes, simulated time) and draws the loss
    against steps, pulls and simulated time.

    `prlc compare`                                          built-in digits, no network needed

    `prlc compare -m nsgd -m prlc:0.05 -m pr:0.05 --lr 0.5`   how low may the pull ratio go?

    `prlc compare --data cifar10 --data-dir DIR --model logistic --lr 0.01 --epochs 5`
    """
    if resume and out is None:
        raise ConfigError("To resume a comparison, name its folder with --out.")
    methods = [parse_method(text) for text in method or DEFAULT_METHODS]
    settings = request.settings(default_epochs=60.0)
    problem = request.problem()
    with contextlib.nullcontext(out) if out else fresh_folder("runs", "compare") as folder:
        try:
            with LiveProgress() as live:
                comparison = api.compare(
                    *problem,
                    methods=methods,
                    folder=folder,
                    resume=resume,
                    on_progress=lambda m, progress: live.update(m.label, progress),
                    **settings,
                )
        except KeyboardInterrupt:
            stop(f"the runs are kept. Go on with the same command and: --out {folder} --resume")
        _show(request, comparison, settings["network"], folder, as_json)


def _show(
    request: o.Request,
    comparison: api.Comparison,
    network: Network,
    folder: Path,
    as_json: bool,
) -> None:
    comparison.table.to_csv(folder / "comparison.csv", index=False)
    comparison.plot(folder / "comparison.png", request.describe())
    if as_json:
        typer.echo(json.dumps(comparison.rows(), indent=2))
        return
    console = Console()
    console.print(rich_table(comparison.results, request.describe()))
    console.print(f"Simulated network: {network.describe()}.", highlight=False)
    console.print(f"Plot: {folder / 'comparison.png'}", highlight=False, soft_wrap=True)
    console.print(f"Runs: {folder}", highlight=False, soft_wrap=True)
