"""`prlc reproduce`: redraw the paper's figures from our own runs, and judge its claims."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from prlc.cli import options as o
from prlc.cli.progress import LiveProgress, stop
from prlc.experiments import FIGURES, MODELS, SCALES, Reproduction, beyond
from prlc.experiments import reproduce as run
from prlc.experiments.beyond import Study, study
from prlc.experiments.beyond.reached import Race, record_row
from prlc.experiments.claims import ClaimVerdict
from prlc.experiments.curves import ratio
from prlc.experiments.pool import stops_on_sigterm
from prlc.experiments.sweep import Tuned
from prlc.methods import parse_method
from prlc.network.units import format_bytes, format_seconds
from prlc.report import Outcome, share

BEYOND = "beyond"

_LOOK: dict[str, Any] = {
    "title_justify": "left",
    "box": SIMPLE_HEAD,
    "padding": (0, 1, 0, 0),
    "show_edge": False,
}
_COLOURS = {Outcome.HOLDS: "green", Outcome.IN_PART: "yellow", Outcome.FAILS: "red"}


def reproduce(
    figure: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(FIGURES)} or all of the paper, or some as in fig1,fig2; or {BEYOND}: "
            "every method's way to NSGD's loss."
        ),
    ] = "all",
    scale: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(SCALES)}: seconds on built-in data, minutes on CIFAR-10, hours, or "
            f"the paper's full setting. For {BEYOND}: {', '.join(beyond.SCALES)}."
        ),
    ] = "quick",
    model: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(MODELS)} (default: both). For {BEYOND}: a problem, or all."),
    ] = None,
    data_dir: o.DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for runs and results (default: runs/reproduce-SCALE, or "
            f"runs/{BEYOND}-SCALE)."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs per curve (default: the scale's own).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes side by side (default: one per core).")
    ] = None,
    device: o.Device = "cpu",
    as_json: o.AsJson = False,
) -> None:
    """Redraw the paper's figures from our own runs, with a verdict on each of its claims.

    Every method runs at the paper's step size and at its own tuned one, over several seeds.
    After Ctrl-C the same command continues; finished runs are reused.

    `prlc reproduce all --scale smoke`                        seconds, on built-in data

    `prlc reproduce all --scale quick --data-dir DIR`         CIFAR-10, minutes on two cores

    `prlc reproduce fig1 --scale paper --model logistic --data-dir DIR`

    `prlc reproduce all --scale paper --model resnet --data-dir DIR --device cuda`

    `prlc reproduce beyond --scale quick --data-dir DIR`      which method, for bytes and for time?
    """
    further = figure == BEYOND
    folder = out or Path("runs") / f"{BEYOND if further else 'reproduce'}-{scale}"
    if model is None:
        model = "all" if further else "both"
    command = shlex.join(["prlc", "reproduce", figure, "--scale", scale, "--model", model])
    if (scale, device) == ("paper", "cpu") and model != "logistic":
        Console(stderr=True).print(
            "ResNet-18 at paper scale takes months on a CPU: --device cuda runs it on a GPU, "
            "--model logistic leaves it out.",
            highlight=False,
        )
    try:
        with LiveProgress() as live, stops_on_sigterm():
            begin = partial(study, problem=model) if further else partial(run, figure, model=model)
            found = begin(
                scale=scale,
                out=folder,
                seeds=seeds,
                jobs=_cores() if jobs is None else jobs,
                data_dir=data_dir,
                device=device,
                command=command,
                on_work=lambda done, total, running: _show_work(live, done, total, running),
                on_download=lambda done, total: live.show("downloading", done, total),
            )
    except KeyboardInterrupt:
        stop(f"the runs are kept in {folder}. Repeat the command to continue.")
    if as_json:
        typer.echo(json.dumps(found.record, indent=2))
        return
    if isinstance(found, Study):
        for race in found.races:
            Console().print(_race_table(race))
        _show(found, f"{command}: does it hold?", "claim", folder)
    else:
        _show(found, f"{command}: does the paper hold?", "the paper's claim", folder)


def _show(found: Reproduction | Study, title: str, heading: str, folder: Path) -> None:
    console = Console()
    console.print(_verdict_table(found.verdicts, title, heading))
    sentences = [_count(found.verdicts), *found.problems, *_tuning_sentences(found.tuned)]
    for sentence in sentences:
        console.print(sentence, highlight=False)
    names = ", ".join(str(file.relative_to(folder)) for file in found.files)
    console.print(f"In {folder}: {names}", markup=False, highlight=False, soft_wrap=True)


def _race_table(race: Race) -> Table:
    """A row per method: its loss, and what it took to NSGD's."""
    rows = [each.row for each in race.reached.values() if each.row.planned]
    caption = "\n".join(f"The {row.label}: {row.method}" for row in rows) or None
    table = Table(title=race.problem.title, caption=caption, **_LOOK)
    table.add_column("method", min_width=22, max_width=22)
    for heading in ("final\nloss", "pulls", "bytes", "of\nNSGD's", *race.fastest):
        table.add_column(heading.replace("-", "\n"), justify="right", no_wrap=True)
    for each in race.reached.values():
        row = record_row(race, each)
        parts = ratio(each.bytes, race.baseline.bytes)
        times = (row["seconds"].get(clock) for clock in race.fastest)
        table.add_row(
            each.row.label,
            "diverged" if row["loss"] is None else f"{row['loss']:.4f}",
            "–" if row["pulls"] is None else f"{row['pulls']:,.0f}",
            "–" if row["bytes"] is None else format_bytes(row["bytes"]),
            "–" if parts is None else share(parts.mean),
            *("–" if time is None else format_seconds(time) for time in times),
        )
    return table


def _verdict_table(verdicts: Sequence[ClaimVerdict], title: str, heading: str) -> Table:
    """A row per verdict; each claim is named in its first row only."""
    table = Table(title=title, expand=True, **_LOOK)
    for name, width in ((heading, 22), ("tried on", 15), ("measured", 30)):
        table.add_column(name, ratio=width)
    table.add_column("verdict", no_wrap=True)
    before = None
    for verdict in verdicts:
        if before not in (None, verdict.key):
            table.add_section()
        figure = "" if verdict.figure == BEYOND else f"{verdict.figure}: "
        claim = "" if before == verdict.key else f"{figure}{verdict.claim}"
        outcome = f"[{_COLOURS[verdict.outcome]}]{verdict.outcome}[/]"
        table.add_row(claim, verdict.setting, verdict.measured, outcome)
        before = verdict.key
    return table


def _count(verdicts: Sequence[ClaimVerdict]) -> str:
    outcomes = [verdict.outcome for verdict in verdicts]
    counts = [f"{outcomes.count(outcome)} {outcome}" for outcome in Outcome]
    return f"Of {len(outcomes)} verdicts: {', '.join(counts)}."


def _tuning_sentences(tuned: Sequence[Tuned]) -> list[str]:
    """The chosen step sizes, and those that a wider grid might change."""
    sentences = []
    for problem in dict.fromkeys(each.problem for each in tuned):
        own = [each for each in tuned if each.problem == problem]
        listed = ", ".join(f"{parse_method(each.method).label} {each.lr:g}" for each in own)
        sentences.append(f"Tuned step sizes, {problem}: {listed}.")
        edges = [parse_method(each.method).label for each in own if each.at_edge]
        if edges:
            grid = ", ".join(f"{lr:g}" for lr, _ in own[0].losses)
            sentences.append(f"At the edge of the grid ({grid}): {', '.join(edges)}.")
    return sentences


def _show_work(live: LiveProgress, done: float, total: float, running: Sequence[str]) -> None:
    state = running[0].partition("/")[2] if running else ""
    if len(running) > 1:
        state += f" +{len(running) - 1}"
    live.show("work", int(done), max(1, int(total)), state)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
