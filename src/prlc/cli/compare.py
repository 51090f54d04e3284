"""`prlc compare`: several methods on the same problem."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prlc import api
from prlc.cli import options as o
from prlc.cli.lines import command_line
from prlc.cli.progress import LiveProgress, stop
from prlc.errors import ConfigError
from prlc.methods import METHODS, parse_method, recommended
from prlc.report import describe_winners, rich_table, save_figure
from prlc.runs.folder import fresh_folder

#: Every method: the paper's at the ratios that it compares, the others as they are.
DEFAULT_METHODS = ["nsgd", recommended(), "prlc:0.4", "prlc:0.1", "pr:0.1"]
DEFAULT_METHODS += [name for name in METHODS if name not in (*DEFAULT_METHODS, "prlc", "pr")]


@o.takes_request(model="mlp", lr=0.5)
def compare(
    request: o.Request,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="A method, such as nsgd, prlc:0.1, prlc:0.1:every=4, local-sgd:10. May be "
            "repeated. Default: every method. See `prlc methods`.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs, the table, the plot and the page (default: "
            "runs/NNNN-compare)."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the unfinished comparison in --out.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Train the same model on the same data by several methods, and show what each one cost.

    Prints a table (training loss, test accuracy, pulls, bytes, simulated time) and who won on bytes
    and on time among those within 2% of NSGD's loss, draws the loss against steps, traffic and
    simulated time, and writes report.html: one interactive page that needs no network.

    `prlc compare`                                          built-in digits, no network needed

    `prlc compare -m nsgd -m prlc:0.05 -m pr:0.05 --lr 0.5`   how low may the pull ratio go?

    `prlc compare --data cifar10 --data-dir DIR --model logistic --lr 0.01 --epochs 5`
    """
    if resume and out is None:
        raise ConfigError("To resume a comparison, name its folder with --out.")
    methods = [parse_method(text) for text in method or DEFAULT_METHODS]
    settings = request.settings(default_epochs=60.0)
    problem = request.problem()
    line = command_line(compare, {"method": method, **dataclasses.asdict(request)})
    with contextlib.nullcontext(out) if out else fresh_folder("runs", "compare") as folder:
        try:
            with LiveProgress() as live:
                comparison = api.compare(
                    *problem,
                    methods=methods,
                    folder=folder,
                    resume=resume,
                    extra_config={"command": line},
                    on_progress=lambda m, progress: live.update(m.label, progress),
                    **settings,
                )
        except KeyboardInterrupt:
            stop(f"the runs are kept. Continue with the same command and: --out {folder} --resume")
        title, network = request.describe(), o.describe_network(settings["network"])
        comparison.table.to_csv(folder / "comparison.csv", index=False)
        save_figure(comparison.plot(title=title), folder / "comparison")
        lead = " ".join(filter(None, [describe_winners(comparison.results), network]))
        comparison.page(folder / "report.html", title, lead=lead, command=line)
        if as_json:
            typer.echo(json.dumps(comparison.rows(), indent=2))
        else:
            _show(comparison, title, network, folder)


def _show(comparison: api.Comparison, title: str, network: str, folder: Path) -> None:
    console = Console()
    console.print(rich_table(comparison.results, title))
    console.print(describe_winners(comparison.results), style="bold", highlight=False)
    console.print(network, highlight=False)
    for name, path in (
        ("Plot", folder / "comparison.png"),
        ("Page", folder / "report.html"),
        ("Runs", folder),
    ):
        console.print(f"{name}: {path}", markup=False, highlight=False, soft_wrap=True)
