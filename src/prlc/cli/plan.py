"""`prlc plan`: a pull ratio and a step size for a network, before a long run."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from prlc import planner
from prlc.cli import options as o
from prlc.cli.progress import LiveProgress
from prlc.errors import ConfigError, RunError
from prlc.planner import render
from prlc.runs.folder import fresh_folder

# Options that the recommended `prlc train` shares with the plan.
_PASSED_ON = (
    *("data", "data_dir", "model", "norm", "partition", "workers", "batch_size", "seed"),
    *("network", "net", "device"),
)
# Options that go to `planner.advise`.
_TAKEN = (
    *("workers", "batch_size", "network", "partition", "seed", "device"),
    *("execution", "eval_samples"),
)
# Options of `prlc train` that a plan does not take, or takes in its own sense.
_WITHOUT = (
    *("epochs", "steps", "lr", "schedule", "optimizer", "optimizer_at"),
    *("server_optimizer", "engine", "eval_every"),
)


@o.takes_request(without=_WITHOUT)
def plan(
    request: o.Request,
    ratio: Annotated[
        list[float] | None,
        typer.Option(
            "--ratio",
            "-r",
            help="A pull ratio to consider, in (0, 1]. May be repeated. "
            f"Default: {', '.join(f'{r:g}' for r in planner.RATIOS)}.",
        ),
    ] = None,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="A learning rate to consider. May be repeated. Default: from the stability limit "
            "2/L down, in halves."
        ),
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option(help="Training loss to reach. Default: NSGD's lowest within --steps."),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Steps of NSGD, which set the target and the length of trials.")
    ] = 200,
    constants: Annotated[
        str | None,
        typer.Option(
            metavar="L=..,sigma2=..,G=..,gap=..",
            help="The constants of the theory, if known. Default: measured.",
        ),
    ] = None,
    trials: Annotated[
        bool,
        typer.Option(
            "--trials/--no-trials", help="Run trials in the simulator, or rely on the bounds alone."
        ),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the plot and plan.json (default: runs/NNNN-plan)."),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Find the pull ratio and step size of PRLC that reach a loss soonest on a network.

    Measures the constants of the problem, asks the network clock how long a step takes and where
    its bottleneck is, and runs short trials in the simulator. Prints a table against NSGD, a
    recommendation and its basis.

    `prlc plan --network wan`                               built-in digits, under a minute

    `prlc plan --network paper --net server_up=10MB/s`      a preset with single values changed

    `prlc plan --model mlp --ratio 0.1 --lr 0.2 --json`     what would this choice cost?
    """
    settings = request.settings(default_epochs=1.0)
    if settings["network"] is None:
        raise ConfigError("A plan is for a network: name one with --network.")
    known = planner.parse_constants(constants) if constants is not None else None
    with LiveProgress() as live:
        advice = planner.advise(
            *request.problem(),
            **{name: settings[name] for name in _TAKEN},
            ratios=ratio or planner.RATIOS,
            learning_rates=lr or None,
            target_loss=target_loss,
            steps=steps,
            constants=known,
            use_trials=trials,
            on_trial=lambda progress: _show_trial(live, progress),
            on_measure=live.show,
        )
    with contextlib.nullcontext(out) if out else fresh_folder("runs", "plan") as folder:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}.") from None
        _show(request, advice, folder, as_json)


def _show(request: o.Request, advice: planner.Advice, folder: Path, as_json: bool) -> None:
    changes = f" ({', '.join(request.net)})" if request.net else ""
    title = f"{request.describe(with_lr=False)}, network {request.network}{changes}"
    render.plot(advice, folder / "plan.png", title)
    content = json.dumps({**advice.as_json(), "plot": str(folder / "plan.png")}, indent=2)
    (folder / "plan.json").write_text(content + "\n")
    if as_json:
        typer.echo(content)
        return
    console = Console()
    console.print(render.rich_table(advice, title))
    console.print()
    for sentence in render.sentences(advice):
        console.print(sentence, highlight=False, markup=False)
    console.print(o.describe_network(advice.network), highlight=False)
    row = advice.recommended
    method = "nsgd" if row is advice.nsgd else f"prlc:{row.pull_ratio:g}"
    command = f"prlc train -m {method} --lr {row.lr:.3g} --schedule constant"
    if row.steps is not None:
        command += f" --steps {math.ceil(row.steps)}"
    words = f"Next: {command} {request.typed(*_PASSED_ON)}"
    console.print(words, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Plot: {folder / 'plan.png'}", markup=False, highlight=False, soft_wrap=True)


def _show_trial(live: LiveProgress, progress: planner.TrialProgress) -> None:
    r = progress.method.pull_ratio
    label = "trials of NSGD" if r == 1 else f"trials r={r:g}"
    live.show(label, progress.steps, progress.total, f"loss {progress.loss:7.4f}")
