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
from prlc.network.units import format_bytes, format_seconds, parse_bandwidth, parse_seconds
from prlc.runs.folder import fresh_folder
from prlc.testbed import Testbed, check_machine, clean, torchrun
from prlc.testbed.timing import Timing, TimingSettings, time_method

DEFAULT_METHODS = ["nsgd", "prlc:0.4", "asgd"]


def bed(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Run this on every node instead of training."),
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
    model: o.Model = TimingSettings.model,
    data: o.Data = TimingSettings.data,
    data_dir: o.DataDir = None,
    batch_size: o.BatchSize = TimingSettings.batch_size,
    lr: o.LearningRate = TimingSettings.lr,
    steps: Annotated[int, typer.Option(min=2, help="Number of steps.")] = TimingSettings.steps,
    seed: o.Seed = TimingSettings.seed,
    window: o.Window = TimingSettings.window,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Number of workers.")] = 20,
    bandwidth: Annotated[
        str, typer.Option(help="Payload over the server's link: 100MB/s, 1Gbit/s.")
    ] = "100MB/s",
    half_duplex: Annotated[
        bool, typer.Option("--half-duplex", help="One budget for both directions together.")
    ] = False,
    latency: Annotated[str, typer.Option(help="One way: 5ms. Needs netem.")] = "0ms",
    loss: Annotated[str, typer.Option(help="Packets lost, each way: 0.1% or 0.001.")] = "0%",
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often torchrun restarts failed processes.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs and each node's output (default: runs/NNNN-testbed)."
        ),
    ] = None,
    as_json: o.AsJson = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Show what the testbed needs and what is missing here."),
    ] = False,
    cleaning: Annotated[
        bool,
        typer.Option("--clean", help="Remove what killed testbeds left behind, and nothing else."),
    ] = False,
) -> None:
    """Train on a server and workers joined by links with limits.

    Each node is a network namespace of this machine, without a route out, and runs one process
    under torchrun; rank 0 is the server. Prints how long each method took beside what the network
    clock predicts. Can also run any command on every node. Needs root on Linux.

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
        made = Testbed(
            workers,
            parse_bandwidth(bandwidth),
            half_duplex,
            parse_seconds(latency),
            parse_fraction(loss),
        )
        settings = TimingSettings(model, data, data_dir, batch_size, lr, steps, seed, window)
        with nullcontext(out) if out else fresh_folder("runs", "testbed") as folder:
            if command:
                run_on(made, command, folder, max_restarts)
            else:
                methods = method or DEFAULT_METHODS
                time_methods(made, methods, settings, folder, as_json, max_restarts)


def _refuse_training_options(context: typer.Context) -> None:
    """Raise ConfigError if an option for training was given along with a command."""
    for name in ("method", *(field.name for field in fields(TimingSettings)), "as_json"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is for training by methods, but a command was given to run instead. "
                "Leave it out, or give it to the command after the --."
            )


def run_on(bed: Testbed, command: list[str], logs: Path, max_restarts: int = 0) -> None:
    """Run a command on all nodes until it ends, showing the server's output."""
    with bed:
        _tell(f"{bed.topology.describe()}; logs in {logs}")
        processes = torchrun.start(bed, command, logs=logs, max_restarts=max_restarts)
        with processes["server"].log.open(errors="replace") as printed:
            processes.wait(meanwhile=lambda: typer.echo(printed.read(), nl=False))


def time_methods(
    bed: Testbed,
    methods: Sequence[str],
    settings: TimingSettings,
    folder: Path,
    as_json: bool,
    max_restarts: int = 0,
) -> None:
    """Train by each method in turn, and show how long each took."""
    for text in methods:
        parse_method(text)  # refuse a wrong one before the first has run
    timings = []
    with bed:
        for text in methods:
            timing = time_method(bed, text, settings, folder, max_restarts)
            timings.append(timing)
            _tell(f"{timing.method}: {format_seconds(timing.measured_seconds)}")
    results = {"limits": bed.topology.describe(), "trials": [asdict(each) for each in timings]}
    (folder / "testbed.json").write_text(json.dumps(results, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    title = f"{settings.model} on {settings.data}, {bed.topology.describe()}"
    Console().print(timings_table(timings, title))


def timings_table(timings: Sequence[Timing], title: str) -> Table:
    """Measured beside predicted times; the last column compares with ASGD, as the paper does."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in ("measured", "predicted", "ratio", "compute\na step", "waiting", "bytes\nup",
                    "bytes\ndown", "of ASGD's\ntime"):  # fmt: skip
        table.add_column(heading, justify="right")
    asgd = next((t.measured_seconds for t in timings if t.method.startswith("ASGD")), None)
    for timing in timings:
        predicted = timing.predicted_seconds
        table.add_row(
            timing.method,
            format_seconds(timing.measured_seconds),
            "–" if predicted is None else format_seconds(predicted),
            "–" if predicted is None else f"{timing.measured_seconds / predicted:.2f}",
            format_seconds(timing.compute_seconds),
            f"{timing.waiting:.0%}",
            format_bytes(timing.bytes_up),
            format_bytes(timing.bytes_down),
            "–" if asgd is None else f"{timing.measured_seconds / asgd:.2f}",
        )
    return table


def parse_fraction(text: str) -> float:
    """A fraction from "0.1%" or "0.001"."""
    number, percent, rest = text.strip().partition("%")
    try:
        if rest:
            raise ValueError
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise ConfigError(
            f'Expected a fraction such as "0.1%" or "0.001", but got {text!r}.'
        ) from None


def _tell(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)


def _check() -> None:
    table = Table("", "for", "here", title="What the testbed needs", title_justify="left")
    found = check_machine()
    for need, met in found:
        answer = "yes" if met else "cannot be tested" if met is None else f"no: {need.remedy}"
        table.add_row(need.name, need.purpose, answer)
    Console().print(table)
    if not all(met for need, met in found if need.always):
        raise typer.Exit(1)


def _clean() -> None:
    done = clean()
    for name in done.removed:
        typer.echo(f"Removed the testbed {name}.")
    for record in done.in_use:
        typer.echo(f"Kept the testbed {record.name}: process {record.pid} is using it.")
    if done.unknown:
        typer.echo(
            f"Kept namespaces without a record here: {', '.join(done.unknown)}. "
            "`ip netns delete NAME` removes one."
        )
    if not (done.removed or done.in_use or done.unknown):
        typer.echo("There is nothing to remove.")
