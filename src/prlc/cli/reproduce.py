"""`prlc reproduce`: the paper's figures from our own runs, and whether its claims hold."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prlc.cli import options as o
from prlc.cli.progress import LiveProgress, stop
from prlc.experiments import FIGURES, SCALES, Reproduction
from prlc.experiments import reproduce as run
from prlc.experiments.pool import stops_on_sigterm
from prlc.experiments.reproduction import MODELS
from prlc.experiments.show import count_sentence, tuning_sentences, verdict_table


def reproduce(
    figure: Annotated[str, typer.Argument(help=f"{', '.join(FIGURES)} or all.")] = "all",
    scale: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(SCALES)}: seconds on built-in data, minutes on CIFAR-10, or the "
            "paper's full setting."
        ),
    ] = "quick",
    model: Annotated[str, typer.Option(help=f"{', '.join(MODELS)}.")] = "both",
    data_dir: o.DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs and results (default: runs/reproduce-SCALE)."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each curve (default: as the scale says).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes side by side (default: one per core).")
    ] = None,
    device: o.Device = "cpu",
    as_json: o.AsJson = False,
) -> None:
    """Redraw the paper's figures from our own runs, with a verdict on each of its claims.

    Every method runs at the paper's step size and at its own tuned one, over several seeds.
    Ctrl-C keeps what is done: the same command goes on from there, and finished runs are reused.

    `prlc reproduce all --scale smoke`                        seconds, on built-in data

    `prlc reproduce all --scale quick --data-dir DIR`         CIFAR-10, minutes on two cores

    `prlc reproduce fig1 --scale paper --model logistic --data-dir DIR`

    `prlc reproduce all --scale paper --model resnet --data-dir DIR --device cuda`
    """
    folder = out or Path("runs") / f"reproduce-{scale}"
    command = shlex.join(["prlc", "reproduce", figure, "--scale", scale, "--model", model])
    if (scale, device) == ("paper", "cpu") and model != "logistic":
        Console(stderr=True).print(
            "ResNet-18 at paper scale takes months on a CPU: --device cuda runs it on a GPU, "
            "--model logistic leaves it out.",
            highlight=False,
        )
    try:
        with LiveProgress() as live, stops_on_sigterm():
            found = run(
                figure,
                scale,
                out=folder,
                model=model,
                seeds=seeds,
                jobs=_cores() if jobs is None else jobs,
                data_dir=data_dir,
                device=device,
                command=command,
                on_work=lambda done, total, now: _show_work(live, done, total, now),
                on_download=lambda done, total: live.show("downloading", done, total or done),
            )
    except KeyboardInterrupt:
        stop(f"what is done is kept in {folder}. Go on with the same command.")
    if as_json:
        typer.echo(json.dumps(found.record, indent=2))
        return
    _show(found, f"{command}: does the paper hold?", folder)


def _show(found: Reproduction, title: str, folder: Path) -> None:
    console = Console()
    console.print(verdict_table(found.judged, title))
    sentences = [count_sentence(found.judged), *found.tasks, *tuning_sentences(found.tuned)]
    for sentence in sentences:
        console.print(sentence, highlight=False)
    names = ", ".join(str(file.relative_to(folder)) for file in found.files)
    console.print(f"In {folder}: {names}", highlight=False, soft_wrap=True)


def _show_work(live: LiveProgress, done: float, total: float, now: Sequence[str]) -> None:
    state = now[0].partition("/")[2] if now else ""
    if len(now) > 1:
        state += f" +{len(now) - 1}"
    live.show("work", int(done), max(1, int(total)), state)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
