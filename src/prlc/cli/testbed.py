"""`prlc testbed`: the paper's cluster on one machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from prlc.cli import options as o
from prlc.errors import ConfigError
from prlc.methods import parse_method
from prlc.runs import fresh_folder
from prlc.testbed import Testbed, clean, survey, torchrun
from prlc.testbed.trials import Task, Trial, run_trial
from prlc.units import format_bytes, format_seconds, parse_bandwidth, parse_seconds

DEFAULT_METHODS = ["nsgd", "prlc:0.4", "asgd"]


def bed(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND", help="Run this on every node instead of training by methods."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="A method to train by, such as prlc:0.4; may be repeated. "
            f"Default: {', '.join(DEFAULT_METHODS)}.",
        ),
    ] = None,
    model: o.Model = Task.model,
    data: o.Data = Task.data,
    data_dir: o.DataDir = None,
    batch_size: o.BatchSize = Task.batch_size,
    lr: o.LearningRate = Task.lr,
    steps: Annotated[int, typer.Option(min=2, help="How long, in steps.")] = Task.steps,
    seed: o.Seed = Task.seed,
    window: o.Window = Task.window,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Number of workers.")] = 20,
    bandwidth: Annotated[
        str, typer.Option(help="Of the server's link, in payload: 100MB/s, 1Gbit/s.")
    ] = "100MB/s",
    half_duplex: Annotated[
        bool, typer.Option("--half-duplex", help="One budget for both directions together.")
    ] = False,
    latency: Annotated[str, typer.Option(help="One way: 5ms. Needs netem.")] = "0ms",
    loss: Annotated[str, typer.Option(help="Of packets, each way: 0.1% or 0.001.")] = "0%",
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often torchrun restarts processes that failed.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for runs and the output of each node (default: runs/NNNN-testbed)."
        ),
    ] = None,
    as_json: o.AsJson = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what the testbed needs and what is missing here.")
    ] = False,
    cleaning: Annotated[
        bool,
        typer.Option("--clean", help="Remove what a killed testbed left behind, and nothing else."),
    ] = False,
) -> None:
    """Train on a server and workers that are joined by links with limits.

    Each node is a network namespace of this machine, without a route out, and runs one process
    under torchrun: rank 0 is the server. Prints how long each method took, beside what the network
    clock says of it. Or runs any command on every node. Needs root on Linux.

    `prlc testbed --check`

    `prlc testbed --workers 20 --bandwidth 100MB/s --half-duplex`

    `prlc testbed --workers 4 -- python my_script.py`

    `prlc testbed --clean`
    """
    if check:
        _check()
    elif cleaning:
        _clean()
    else:
        if command:
            _refuse_training_options(context)
        made = make_testbed(workers, bandwidth, half_duplex, latency, loss)
        task = Task(model, data, data_dir, batch_size, lr, steps, seed, window)
        with nullcontext(out) if out else fresh_folder("runs", "testbed") as folder:
            if command:
                run_on(made, command, folder, max_restarts)
            else:
                methods = method or DEFAULT_METHODS
                try_methods(made, methods, task, folder, as_json, max_restarts)


def _refuse_training_options(context: typer.Context) -> None:
    """What says how to train says nothing to a command."""
    for name in ("method", *(field.name for field in fields(Task)), "as_json"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is for training by methods, but a command was given to run instead. "
                "Leave it out, or give it to the command after the --."
            )


def make_testbed(
    workers: int, bandwidth: str, half_duplex: bool, latency: str, loss: str
) -> Testbed:
    """A testbed from options as they were typed; it is there once it is entered."""
    return Testbed(
        workers,
        parse_bandwidth(bandwidth),
        half_duplex,
        parse_seconds(latency),
        parse_share(loss),
    )


def run_on(bed: Testbed, command: list[str], logs: Path, max_restarts: int = 0) -> None:
    """Run the command on all nodes of the testbed to its end, showing what the server prints."""
    with bed:
        _tell(f"{bed.topology.describe()}; logs in {logs}")
        processes = torchrun.start(bed, command, logs=logs, max_restarts=max_restarts)
        with processes["server"].log.open(errors="replace") as printed:
            processes.wait(meanwhile=lambda: typer.echo(printed.read(), nl=False))


def try_methods(
    bed: Testbed,
    methods: Sequence[str],
    task: Task,
    folder: Path,
    as_json: bool,
    max_restarts: int = 0,
) -> None:
    """Train by each method in turn, and show how long each took."""
    for text in methods:
        parse_method(text)  # whatever is wrong with one shows before the first has run
    trials = []
    with bed:
        for text in methods:
            trials.append(run_trial(bed, text, task, folder, max_restarts))
            _tell(f"{trials[-1].method}: {format_seconds(trials[-1].measured_seconds)}")
    described = {"limits": bed.topology.describe(), "trials": [asdict(trial) for trial in trials]}
    (folder / "testbed.json").write_text(json.dumps(described, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    title = f"{task.model} on {task.data}, {bed.topology.describe()}"
    Console().print(trials_table(trials, title))


def trials_table(trials: Sequence[Trial], title: str) -> Table:
    """Measured beside predicted; the last column against ASGD, as the paper does."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in ("measured", "predicted", "ratio", "compute\na step", "bytes\nup", "bytes\ndown",
                    "of ASGD's\ntime"):  # fmt: skip
        table.add_column(heading, justify="right")
    asgd = next((t.measured_seconds for t in trials if t.method.startswith("ASGD")), None)
    for trial in trials:
        predicted = trial.predicted_seconds
        table.add_row(
            trial.method,
            format_seconds(trial.measured_seconds),
            "–" if predicted is None else format_seconds(predicted),
            "–" if predicted is None else f"{trial.measured_seconds / predicted:.2f}",
            format_seconds(trial.compute_seconds),
            format_bytes(trial.bytes_up),
            format_bytes(trial.bytes_down),
            "–" if asgd is None else f"{trial.measured_seconds / asgd:.2f}",
        )
    return table


def parse_share(text: str) -> float:
    """A fraction from "0.1%" or "0.001"."""
    number, percent, rest = text.strip().partition("%")
    try:
        if rest:
            raise ValueError
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise ConfigError(
            f'Expected a share such as "0.1%" or "0.001", but got {text!r}.'
        ) from None


def _tell(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)


def _check() -> None:
    table = Table("", "for", "here", title="What the testbed needs", title_justify="left")
    found = survey()
    for need, there in found:
        answer = "yes" if there else "cannot be tried" if there is None else f"no: {need.remedy}"
        table.add_row(need.what, need.purpose, answer)
    Console().print(table)
    if not all(there for need, there in found if need.always):
        raise typer.Exit(1)


def _clean() -> None:
    done = clean()
    for name in done.removed:
        typer.echo(f"Removed the testbed {name}.")
    for record in done.in_use:
        typer.echo(f"Left alone: the testbed {record.name}, which process {record.pid} is using.")
    if done.unknown:
        typer.echo(
            f"Left alone, since nothing is recorded of them here: {', '.join(done.unknown)}. "
            "`ip netns delete NAME` removes a namespace."
        )
    if not (done.removed or done.in_use or done.unknown):
        typer.echo("There is nothing to remove.")
