"""`prlc plan`: which member of the family to train with on a network, before a long run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prlc import planner
from prlc.cli import options as o
from prlc.cli.progress import LiveProgress, stop
from prlc.errors import ConfigError, RunError
from prlc.network.units import format_bytes, format_seconds
from prlc.planner import render
from prlc.runs.folder import fresh_folder

# Options that the chosen `prlc train` shares with the plan.
_PASSED_ON = (
    *("data", "data_dir", "model", "norm", "partition", "workers", "batch_size", "optimizer"),
    *("seed", "network", "net", "device", "chunk", "threads"),
)
# Options that go to `prlc.plan`.
_TAKEN = (
    *("workers", "batch_size", "network", "partition", "seed", "device", "optimizer"),
    *("schedule", "execution"),
)
# Options of `prlc train` that a plan does not take, or takes in its own sense.
_WITHOUT = (
    *("epochs", "steps", "lr", "optimizer_at", "server_optimizer", "engine"),
    *("eval_every", "eval_samples"),
)


@o.takes_request(without=_WITHOUT)
def plan(
    request: o.Request,
    goal: Annotated[str, typer.Option("--for", help="What to save: time or bytes.")] = "time",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="A method to consider; {H}, {r} and {message} stand for several values, as in "
            "'local-sgd:{H}:up={message}'. May be repeated. Default: the family of docs/plan.md.",
        ),
    ] = None,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="A step size to consider. May be repeated. Default: found by doubling and halving."
        ),
    ] = None,
    optimizer_at: Annotated[
        str | None,
        typer.Option(
            help="Where --optimizer runs: workers or server. Default: the server, where a method "
            "allows it."
        ),
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option(
            help="Training loss to reach. Default: NSGD's lowest within --steps, to --within."
        ),
    ] = None,
    within: Annotated[
        float, typer.Option(help="How close to NSGD's lowest loss is close enough: 0.01 is 1%.")
    ] = planner.WITHIN,
    steps: Annotated[
        int, typer.Option(help="Steps of NSGD, which set the target; trials take at most twice.")
    ] = 200,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Pairs of method and step size to try, at most (default: 320, or fewer for a "
            "model that computes for long)."
        ),
    ] = None,
    rehearsals: Annotated[
        int,
        typer.Option(
            help="Further seeds on which a candidate has to get to NSGD's loss, too; with a "
            "schedule, with a margin for those not tried."
        ),
    ] = 0,
    eval_samples: Annotated[
        int, typer.Option(help="Samples of the training data to measure losses on (0: all).")
    ] = planner.EVAL_SAMPLES,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the plot, plan.json and the trials, which are not made twice "
            "(default: runs/NNNN-plan)."
        ),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Find the method and step size that reach NSGD's loss soonest, or with the fewest bytes.

    Tries the family of methods in the simulator, priced by the network clock.
    Prints a table against NSGD, how close the choice is to a network that takes no time, and the
    command that trains with it.

    `prlc plan --network wan`                               built-in digits, a minute of one core

    `prlc plan --network mobile --for bytes --model cnn`    what sends least?

    `prlc plan -m 'local-sgd:{H}' -m prlc:0.1 --lr 0.2`     a choice of your own
    """
    settings = request.settings(default_epochs=1.0)
    if settings["network"] is None:
        raise ConfigError("A plan is for a network: name one with --network.")
    model, loss, data = request.problem()
    with _made(out) if out else fresh_folder("runs", "plan") as folder:
        try:
            with LiveProgress() as live:
                found = planner.plan(
                    model,
                    loss,
                    data,
                    **{name: settings[name] for name in _TAKEN},
                    goal=goal,
                    methods=method or planner.FAMILY,
                    learning_rates=lr or None,
                    optimizer_at=optimizer_at,
                    target_loss=target_loss,
                    within=within,
                    steps=steps,
                    most_trials=trials,
                    rehearsals=rehearsals,
                    eval_samples=eval_samples or None,
                    journal=folder / "trials.jsonl",
                    on_search=lambda progress: _show_progress(live, progress),
                )
        except KeyboardInterrupt:
            stop(f"the trials are kept. Continue with the same command and: --out {folder}")
        _show(request, found, data.num_train, folder, as_json)


@contextmanager
def _made(folder: Path) -> Iterator[Path]:
    """The folder, made before anything is computed; removed if left empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from None
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def _show(
    request: o.Request, found: planner.Plan, num_train: int, folder: Path, as_json: bool
) -> None:
    changes = f" ({', '.join(request.net)})" if request.net else ""
    title = f"{request.describe(with_lr=False)}, network {request.network}{changes}"
    found.plot(folder / "plan.png", title)
    command = _command(request, found, num_train)
    content = json.dumps(
        {"command": command, **found.as_json(), "plot": str(folder / "plan.png")}, indent=2
    )
    (folder / "plan.json").write_text(content + "\n")
    if as_json:
        typer.echo(content)
        return
    console = Console()
    console.print(render.rich_table(found, title))
    console.print()
    for sentence in render.sentences(found):
        console.print(sentence, highlight=False, markup=False)
    console.print(o.describe_network(found.network), highlight=False)
    console.print(f"Next: {command}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Plot: {folder / 'plan.png'}", markup=False, highlight=False, soft_wrap=True)


def _command(request: o.Request, found: planner.Plan, num_train: int) -> str:
    """The `prlc train` of the chosen candidate, as typed."""
    settings = found.settings
    words = ["prlc", "train", "-m", settings["method"], "--lr", repr(settings["lr"])]
    words += ["--schedule", found.schedule, "--steps", str(settings["steps"])]
    if settings["optimizer_at"] != "workers":
        words += ["--optimizer-at", settings["optimizer_at"]]
    samples = settings["eval_samples"] or num_train
    if min(samples, num_train) != min(request.eval_samples, num_train):
        words += ["--eval-samples", str(samples)]
    return f"{shlex.join(words)} {request.typed(*_PASSED_ON)}".strip()


def _show_progress(live: LiveProgress, progress: planner.SearchProgress) -> None:
    best = progress.best
    state = "" if best is None else f"{format_seconds(best.seconds)}, {format_bytes(best.bytes)}"
    live.show(progress.label, progress.done, progress.total, state)
