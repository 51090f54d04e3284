"""The options that commands share."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from torch import nn

from prlc.cli.progress import LiveProgress
from prlc.data import DATASETS, Dataset, load
from prlc.engines import ENGINES, Execution, Loss
from prlc.errors import ConfigError
from prlc.models import MODELS, build, cross_entropy
from prlc.network import PRESETS, Network
from prlc.text import value_of

_WHAT, _HOW, _NET, _RUN = "What to train", "How to train", "Simulated network", "Running"
_REAL = "Real processes (--engine distributed, under torchrun)"

Data = Annotated[str, typer.Option(help=f"Data set: {', '.join(DATASETS)}.", rich_help_panel=_WHAT)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the data set's published files (default: $PRLC_DATA_DIR, else they are "
        "downloaded into the cache).",
        rich_help_panel=_WHAT,
    ),
]
Model = Annotated[str, typer.Option(help=f"Model: {', '.join(MODELS)}.", rich_help_panel=_WHAT)]
Norm = Annotated[
    str | None,
    typer.Option(help="Normalisation of a ResNet: group or batch.", rich_help_panel=_WHAT),
]
Partition = Annotated[
    str,
    typer.Option(
        help="Who owns which samples: iid, contiguous, dirichlet:ALPHA, shards:PER_WORKER.",
        rich_help_panel=_WHAT,
    ),
]
Workers = Annotated[int, typer.Option("--workers", "-w", help="Number of workers.",
                                      rich_help_panel=_HOW)]  # fmt: skip
BatchSize = Annotated[int, typer.Option(help="Samples per worker and step.", rich_help_panel=_HOW)]
Epochs = Annotated[
    float | None, typer.Option(help="How long, in passes over the data.", rich_help_panel=_HOW)
]
Steps = Annotated[int | None, typer.Option(help="How long, in steps.", rich_help_panel=_HOW)]
LearningRate = Annotated[float, typer.Option("--lr", help="Learning rate.", rich_help_panel=_HOW)]
ScheduleText = Annotated[
    str,
    typer.Option(
        help="Learning rate over time: constant, cosine, step (times 0.1 every 30 epochs, as in "
        "the paper), step:EPOCHS:FACTOR.",
        rich_help_panel=_HOW,
    ),
]
Optimizer = Annotated[
    str,
    typer.Option(help="Turns gradients into updates: sgd, momentum, nesterov, adamw.",
                 rich_help_panel=_HOW),
]  # fmt: skip
OptimizerAt = Annotated[
    str,
    typer.Option(
        help="Where --optimizer runs: on the workers, which push updates, or on the server, to "
        "which they push gradients.",
        rich_help_panel=_HOW,
    ),
]
ServerOptimizer = Annotated[
    str | None,
    typer.Option(
        help="What the server does with mean updates: add, nesterov, sign, with settings such as "
        "nesterov,lr=0.4 (default: the method's own; nesterov for DiLoCo, add for most).",
        rich_help_panel=_HOW,
    ),
]
Seed = Annotated[int, typer.Option(help="Same seed, same result.", rich_help_panel=_HOW)]
NetworkName = Annotated[
    str,
    typer.Option(
        "--network",
        help=f"Preset: {', '.join(PRESETS)}; none: no simulated time.",
        rich_help_panel=_NET,
    ),
]
NetworkSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--net",
        metavar="SETTING=VALUE",
        help="Change the preset, e.g. --net server_up=10MB/s --net latency=35ms --net "
        "run_ahead=no. May be repeated.",
        rich_help_panel=_NET,
    ),
]
EngineName = Annotated[
    str, typer.Option("--engine", help=f"{', '.join(ENGINES)}.", rich_help_panel=_RUN)
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...", rich_help_panel=_RUN)]
Chunk = Annotated[
    int | None,
    typer.Option(
        help="Workers computed at once (1: one by one). Measured if not given.",
        rich_help_panel=_RUN,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads to compute on; goes with --chunk.", rich_help_panel=_RUN),
]
EvalEvery = Annotated[
    int | None,
    typer.Option(
        help="Steps between evaluations (default: a fiftieth of the run).", rich_help_panel=_RUN
    ),
]
EvalSamples = Annotated[
    int,
    typer.Option(
        help="Samples of the training and of the test data to evaluate on (0: all).",
        rich_help_panel=_RUN,
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        help="Who keeps the global model: server (rank 0) or sharded (every rank a part).",
        rich_help_panel=_REAL,
    ),
]
Window = Annotated[
    int,
    typer.Option(help="How many pushes of a worker may be under way.", rich_help_panel=_REAL),
]
PeerTimeout = Annotated[
    str,
    typer.Option(
        help="After how long a silent process counts as hung, e.g. 30s.", rich_help_panel=_REAL
    ),
]
OnBadUpdate = Annotated[
    str,
    typer.Option(
        help="An update that is not finite or misshapen: stop, or skip it.", rich_help_panel=_REAL
    ),
]
OnLongUpdate = Annotated[
    str,
    typer.Option(
        help="An update that is far longer than the other workers': warn, stop, or skip it.",
        rich_help_panel=_REAL,
    ),
]
LengthBound = Annotated[
    float,
    typer.Option(
        help="How many times as long as the longest of the others' an update may be.",
        rich_help_panel=_REAL,
    ),
]
RecordTimeline = Annotated[
    bool,
    typer.Option(
        "--record-timeline",
        help="Write what every worker did when to timeline.csv.",
        rich_help_panel=_REAL,
    ),
]
EmulateCompute = Annotated[
    bool,
    typer.Option(
        "--emulate-compute",
        help="Slow every step down to the compute time of --network and --net.",
        rich_help_panel=_REAL,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program to read.", rich_help_panel=_RUN)
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The shared options, as typed."""

    data: Data = "digits"
    data_dir: DataDir = None
    model: Model = "logistic"
    norm: Norm = None
    partition: Partition = "iid"
    workers: Workers = 20
    batch_size: BatchSize = 10
    epochs: Epochs = None
    steps: Steps = None
    lr: LearningRate = 0.1
    schedule: ScheduleText = "constant"
    optimizer: Optimizer = "sgd"
    optimizer_at: OptimizerAt = "workers"
    server_optimizer: ServerOptimizer = None
    seed: Seed = 0
    network: NetworkName = "paper"
    net: NetworkSettings = None
    engine: EngineName = "simulator"
    device: Device = "cpu"
    chunk: Chunk = None
    threads: Threads = None
    eval_every: EvalEvery = None
    eval_samples: EvalSamples = 10_000

    def problem(self) -> tuple[nn.Module, Loss, Dataset]:
        """The model, the loss and the data."""
        with LiveProgress() as live:
            data = load(
                self.data,
                self.data_dir,
                progress=lambda done, total: live.show("downloading", done, total),
            )
        options = {} if self.norm is None else {"norm": self.norm}
        model = build(self.model, data.sample_shape, data.num_classes, self.seed, **options)
        return model, cross_entropy, data

    def settings(self, default_epochs: float) -> dict[str, Any]:
        """The rest, as `prlc.train` takes it."""
        if (self.chunk is None) != (self.threads is None):
            raise ConfigError("Give --chunk and --threads together, or neither.")
        execution = Execution(self.chunk, self.threads) if self.chunk and self.threads else None
        return {
            "partition": self.partition,
            "workers": self.workers,
            "batch_size": self.batch_size,
            "epochs": default_epochs if self.epochs is self.steps is None else self.epochs,
            "steps": self.steps,
            "lr": self.lr,
            "schedule": self.schedule,
            "optimizer": self.optimizer,
            "optimizer_at": self.optimizer_at,
            "server_optimizer": self.server_optimizer,
            "seed": self.seed,
            "network": read_network(self.network, self.net or []),
            "engine": self.engine,
            "device": self.device,
            "execution": execution,
            "eval_every": self.eval_every,
            "eval_samples": self.eval_samples or None,
        }

    def typed(self, *names: str) -> str:
        """The named options as they would be typed, without defaults."""
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                option = f"--{field.name.replace('_', '-')}"
                for each in value if isinstance(value, list) else [value]:
                    words += [option, shlex.quote(str(each))]
        return " ".join(words)

    def describe(self, *, with_lr: bool = True) -> str:
        """What is trained, for a title."""
        shards = "" if self.partition == "iid" else f", {self.partition}"
        lr = f", lr {self.lr:g}" if with_lr else ""
        return f"{self.model} on {self.data}{shards}, {self.workers} workers{lr}"


def takes_request(
    *, without: Sequence[str] = (), **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `Request`, but for some, with defaults of its own.

    The command gets them together as its argument `request`.
    """
    hints = get_type_hints(Request, include_extras=True)
    shared = [field for field in fields(Request) if field.name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            asked = {field.name: given.pop(field.name) for field in shared}
            command(request=Request(**asked), **given)

        own = inspect.signature(command, eval_str=True).parameters.values()
        options = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name != "request"]
        for field in shared:
            default = defaults.get(field.name, field.default)
            options.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=hints[field.name],
                )
            )
        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return run

    return decorate


def read_network(preset: str, settings: list[str]) -> Network | None:
    """A preset with `setting=value` changes; None for `none`."""
    if preset == "none":
        if settings:
            raise ConfigError("--net changes the network, but there is none: leave out one.")
        return None
    changes: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--net takes setting=value, such as latency=35ms; got {setting!r}.")
        changes[key.replace("-", "_")] = value_of(value)
    return Network.of(preset, **changes)


def describe_network(network: Network | None) -> str:
    """The network of the simulated time, in a sentence."""
    if network is None:
        return "No network, so no simulated time."
    return f"Simulated network: {network.describe()}."
