"""`prlc train`: one run, on disk, that can be interrupted and resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from prlc import api
from prlc.cli import options as o
from prlc.cli.progress import LiveProgress, stop
from prlc.errors import ConfigError, DivergedError, RunError
from prlc.methods import create, parse_method
from prlc.report import rich_table
from prlc.runs import RunFolder, fresh_folder

_DEFAULT_REQUEST = o.Request(schedule="step")
_DEFAULTS = ("prlc", None, None, None, None, False)


@o.takes_request(schedule="step")
def train(
    request: o.Request,
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="Method: see `prlc methods`; prlc:0.1 sets r as well."),
    ] = "prlc",
    pull_ratio: Annotated[
        float | None, typer.Option(help="r of PR and PRLC: probability of a pull, in (0, 1].")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(help="H of PR, PRLC and Local SGD: communicate every H-th step only."),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default: 20 in a run).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: runs/NNNN-METHOD-MODEL-DATA).")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Continue the run in this folder; all its settings are kept."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard events into the folder.")
    ] = False,
    as_json: o.AsJson = False,
) -> None:
    """Train one model by one method.

    Everything lands in one folder: config.json, metrics.csv, checkpoints, model.pt, summary.json.
    Ctrl-C stops after the step and keeps it; `--resume` goes on to the same result.

    `prlc train --method prlc --pull-ratio 0.1`

    `prlc train -m prlc:0.1 --data cifar10 --data-dir DIR --model resnet18 --epochs 90`

    `prlc train --resume runs/0001-prlc-logistic-digits`
    """
    if resume is not None:
        moved = request.data_dir
        own = (method, pull_ratio, every, checkpoint_every, out, tensorboard)
        if own != _DEFAULTS or dataclasses.replace(request, data_dir=None) != _DEFAULT_REQUEST:
            raise ConfigError(
                "A resumed run keeps all its settings: give --resume alone (with --data-dir where "
                "the data has moved, and --json)."
            )
        request, options = _typed_before(RunFolder.open(resume))
        if moved is not None:
            request = dataclasses.replace(request, data_dir=moved)
        _run(request, options, resume, True, as_json)
    else:
        options = {
            "method": method,
            "pull_ratio": pull_ratio,
            "every": every,
            "checkpoint_every": checkpoint_every,
            "tensorboard": tensorboard,
        }
        label = f"{api.slug(method)}-{request.model}-{request.data}"
        with contextlib.nullcontext(out) if out else fresh_folder("runs", label) as folder:
            _run(request, options, folder, False, as_json)


def _run(
    request: o.Request, options: dict[str, Any], folder: Path, resume: bool, as_json: bool
) -> None:
    chosen = parse_method(options["method"])
    given = {key: options[key] for key in ("pull_ratio", "every") if options[key] is not None}
    if given:
        chosen = create(chosen.name, **{**chosen.options(), **given})
    settings = request.settings(default_epochs=30.0)
    problem = request.problem()
    typed = {**dataclasses.asdict(request), **options}
    typed["data_dir"] = str(request.data_dir) if request.data_dir else None
    try:
        with LiveProgress() as live:
            result = api.train(
                *problem,
                method=chosen,
                folder=folder,
                resume=resume,
                checkpoint_every=options["checkpoint_every"],
                tensorboard=options["tensorboard"],
                extra_config={"command": typed},
                on_progress=lambda progress: live.update(chosen.label, progress),
                **settings,
            )
    except KeyboardInterrupt:
        stop(f"the run is kept. Continue it with: prlc train --resume {folder}")
    except DivergedError as error:
        error.args = (f"{error} The last checkpoint is kept in {folder}.",)
        raise
    if as_json:
        typer.echo(json.dumps({**result.summary, "folder": str(folder)}, indent=2))
        return
    console = Console()
    console.print(rich_table([result], request.describe()))
    console.print(f"Run: {folder}", highlight=False, soft_wrap=True)


def _typed_before(run: RunFolder) -> tuple[o.Request, dict[str, Any]]:
    """The options that a run was begun with."""
    command = run.config().get("command")
    names = [field.name for field in dataclasses.fields(o.Request)]
    others = ["method", "pull_ratio", "every", "checkpoint_every", "tensorboard"]
    if not isinstance(command, dict):
        raise ConfigError(
            f"{run.path} was begun by a Python program, not by `prlc train`. Resume it there, with "
            "prlc.train(..., folder=..., resume=True)."
        )
    if sorted(command) != sorted([*names, *others]):
        raise RunError(
            f"{run.path / 'config.json'} was written by another version of prlc, or changed by "
            "hand: its `command` has other settings than expected."
        )
    request = o.Request(**{name: command[name] for name in names})
    return request, {name: command[name] for name in others}
