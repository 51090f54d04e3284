"""`prlc train`: one run, on disk, that can be interrupted and resumed."""

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
from prlc.cli.lines import printable
from prlc.cli.progress import LiveProgress, stop
from prlc.engines import find_runtime
from prlc.engines.processes import Cluster
from prlc.engines.schema import FormError, Table, check, of_settings
from prlc.errors import ConfigError, DivergedError, RunError
from prlc.methods import Method, parse_method, recommended
from prlc.network.units import parse_seconds
from prlc.report import rich_table
from prlc.runs.config import usual_method
from prlc.runs.folder import RunFolder, fresh_folder
from prlc.text import names_a_file


@o.takes_request(schedule="step")
def train(
    request: o.Request,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Method: see `prlc methods`; prlc:0.1 sets r as well; FILE.py:CLASS is your own "
            f"(default: {recommended()}, as suits the optimizer; nsgd with --optimizer-at server).",
        ),
    ] = None,
    pull_ratio: Annotated[
        float | None,
        typer.Option(help="r: the share of pushes at which a worker pulls, in (0, 1]."),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(help="H: communicate every H-th step only."),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(help="Steps between checkpoints (default: a twentieth of the run)."),
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
    layout: o.Layout = "server",
    window: o.Window = 4,
    peer_timeout: o.PeerTimeout = "10min",
    on_bad_update: o.OnBadUpdate = "stop",
    on_long_update: o.OnLongUpdate = "warn",
    length_bound: o.LengthBound = 100.0,
    record_timeline: o.RecordTimeline = False,
    emulate_compute: o.EmulateCompute = False,
    as_json: o.AsJson = False,
) -> None:
    """Train one model by one method.

    Everything lands in one folder: config.json, metrics.csv, checkpoints, model.pt, summary.json.
    Ctrl-C stops after the step and keeps it; `--resume` continues to the same result.

    `prlc train --method prlc --pull-ratio 0.1`

    `prlc train -m prlc:0.1:every=5:delay=5:up=topk,0.01`    # rare, late and small messages

    `prlc train --optimizer adamw --optimizer-at server -m nsgd --lr 0.001 --schedule cosine`

    `prlc train -m prlc:0.1 --data cifar10 --data-dir DIR --model resnet18 --epochs 90`

    `prlc train --resume runs/0001-prlc-logistic-digits`

    `torchrun --nproc-per-node 5 -m prlc train --engine distributed --workers 4 --out runs/real`
    """
    own = _Own(
        method=method,
        pull_ratio=pull_ratio,
        every=every,
        checkpoint_every=checkpoint_every,
        tensorboard=tensorboard,
        layout=layout,
        window=window,
        peer_timeout=peer_timeout,
        on_bad_update=on_bad_update,
        on_long_update=on_long_update,
        length_bound=length_bound,
        record_timeline=record_timeline,
        emulate_compute=emulate_compute,
    )
    if resume is None:
        _run(request, own, out, as_json)
        return
    given = dataclasses.replace(request, data_dir=None)
    if (own, out, given) != (_Own(method=method), None, o.Request(schedule="step")):
        raise ConfigError(
            "A resumed run keeps all its settings: give --resume alone (with --data-dir where the "
            "data has moved, --method where it comes from a file of your own, and --json)."
        )
    before, began = _typed_before(RunFolder.open(resume))
    if request.data_dir is not None:
        before = dataclasses.replace(before, data_dir=request.data_dir)
    began = dataclasses.replace(began, method=_named_again(resume, began.method, method))
    _run(before, began, resume, as_json, resume=True)


def _named_again(run: Path, before: str | None, now: str | None) -> str | None:
    """The method of a run to resume. A folder may be anybody's, so it never says which file to run.

    If it is another method than before, the run's settings differ, and it is refused for that.
    """
    if before is None or not names_a_file(before):
        if now is not None:
            raise ConfigError("A resumed run keeps its method: leave out --method.")
        return before
    if now is None:
        raise ConfigError(
            f"{run} trains by a method from a file, and prlc runs a file only if you name it. If "
            f"it is yours, add: --method {before}"
        )
    return now


@dataclasses.dataclass(frozen=True)
class _Own:
    """The options of this command alone that decide a run, as they were typed."""

    method: str | None = None
    pull_ratio: float | None = None
    every: int | None = None
    checkpoint_every: int | None = None
    tensorboard: bool = False
    layout: str = "server"
    window: int = 4
    peer_timeout: str = "10min"
    on_bad_update: str = "stop"
    on_long_update: str = "warn"
    length_bound: float = 100.0
    record_timeline: bool = False
    emulate_compute: bool = False

    def cluster(self) -> Cluster:
        return Cluster(
            layout=self.layout,
            window=self.window,
            peer_timeout=parse_seconds(self.peer_timeout),
            on_bad_update=self.on_bad_update,
            on_long_update=self.on_long_update,
            length_bound=self.length_bound,
            record_timeline=self.record_timeline,
            emulate_compute=self.emulate_compute,
        )

    def text(self, request: o.Request) -> str:
        """The method as it was typed."""
        if self.method is not None:
            return self.method
        return usual_method(request.optimizer, request.optimizer_at)

    def chosen(self, request: o.Request) -> Method:
        options = {"pull_ratio": self.pull_ratio, "every": self.every}
        given = [f":{key}={value}" for key, value in options.items() if value is not None]
        return parse_method(self.text(request) + "".join(given))


def _run(
    request: o.Request, own: _Own, out: Path | None, as_json: bool, resume: bool = False
) -> None:
    method = own.chosen(request)
    settings = request.settings(default_epochs=30.0) | {"cluster": own.cluster()}
    multi_process = find_runtime(request.engine).multi_process
    if multi_process and out is None:
        raise ConfigError(
            "A run in real processes needs a folder to continue from after a restart: name it with "
            "--out."
        )
    problem = request.problem()
    typed = {**dataclasses.asdict(request), **dataclasses.asdict(own)}
    typed["data_dir"] = str(request.data_dir) if request.data_dir else None
    label = f"{api.slug(str(method))}-{request.model}-{request.data}"
    with contextlib.nullcontext(out) if out else fresh_folder("runs", label) as folder:
        try:
            with LiveProgress(on=not multi_process) as live:
                result = api.train(
                    *problem,
                    method=method,
                    folder=folder,
                    resume=resume,
                    checkpoint_every=own.checkpoint_every,
                    tensorboard=own.tensorboard,
                    extra_config={"command": typed},
                    on_progress=lambda progress: live.update(method.label, progress),
                    **settings,
                )
        except KeyboardInterrupt:
            again = "the same command" if multi_process else f"prlc train --resume {folder}"
            stop(f"the run is kept. Continue it with: {again}")
        except DivergedError as error:
            error.args = (f"{error} The last checkpoint is kept in {folder}.",)
            raise
    if result.folder is None:
        return  # this process assisted; the one that led has the folder and prints
    if as_json:
        typer.echo(json.dumps({**result.summary, "folder": str(folder)}, indent=2))
        return
    console = Console()
    console.print(rich_table([result], request.describe()))
    console.print(f"Run: {printable(folder)}", markup=False, highlight=False, soft_wrap=True)


def _typed_before(run: RunFolder) -> tuple[o.Request, _Own]:
    """The options that a run was begun with."""
    command = run.config().get("command")
    if not isinstance(command, dict):
        raise ConfigError(
            f"{run.path} was begun by a Python program, not by `prlc train`. Resume it there, with "
            "prlc.train(..., folder=..., resume=True)."
        )
    both = of_settings(o.Request).fields, of_settings(_Own).fields
    try:
        check(command, Table({**both[0], **both[1]}), "command")
    except FormError as error:
        raise RunError(
            f"{run.path / 'config.json'} was written by another version of prlc, or changed by "
            f"hand: {error}. Resume the run with the version that wrote it, or begin anew."
        ) from None
    request = o.Request(**{name: command[name] for name in both[0]})
    return request, _Own(**{name: command[name] for name in both[1]})
