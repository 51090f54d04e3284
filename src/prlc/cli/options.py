"""The options that commands share, and what they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn
from torch.nn import functional as F

from prlc.data import DATASETS, Dataset, load
from prlc.engines import Loss, Plan
from prlc.errors import ConfigError
from prlc.models import MODELS, build
from prlc.network import PRESETS, Network

_WHAT, _HOW, _NET, _RUN = "What to train", "How to train", "Simulated network", "Running"

Data = Annotated[str, typer.Option(help=f"Data set: {', '.join(DATASETS)}.", rich_help_panel=_WHAT)]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the data set's published files.", rich_help_panel=_WHAT),
]
Model = Annotated[str, typer.Option(help=f"Model: {', '.join(MODELS)}.", rich_help_panel=_WHAT)]
Norm = Annotated[
    str | None,
    typer.Option(help="Normalisation of a ResNet: group or batch.", rich_help_panel=_WHAT),
]
Partition = Annotated[
    str,
    typer.Option(
        help="Who owns which samples: iid, dirichlet:ALPHA, shards:PER_WORKER.",
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
    typer.Option(help="On the workers: sgd, momentum, nesterov, adamw.", rich_help_panel=_HOW),
]
ServerOptimizer = Annotated[
    str,
    typer.Option(help="On the server: add, nesterov (as in DiLoCo).", rich_help_panel=_HOW),
]
Seed = Annotated[int, typer.Option(help="Same seed, same result.", rich_help_panel=_HOW)]
NetworkName = Annotated[
    str, typer.Option("--network", help=f"Preset: {', '.join(PRESETS)}.", rich_help_panel=_NET)
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
    str, typer.Option("--engine", help="simulator or reference.", rich_help_panel=_RUN)
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
    typer.Option(help="Steps between evaluations (default: 50 in a run).", rich_help_panel=_RUN),
]
EvalSamples = Annotated[
    int,
    typer.Option(help="Training samples evaluated on during the run.", rich_help_panel=_RUN),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program to read.", rich_help_panel=_RUN)
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the shared options ask for, as they were typed."""

    data: str
    data_dir: Path | str | None
    model: str
    norm: str | None
    partition: str
    workers: int
    batch_size: int
    epochs: float | None
    steps: int | None
    lr: float
    schedule: str
    optimizer: str
    server_optimizer: str
    seed: int
    network: str
    net: list[str]
    engine: str
    device: str
    chunk: int | None
    threads: int | None
    eval_every: int | None
    eval_samples: int

    def problem(self) -> tuple[nn.Module, Loss, Dataset]:
        """The model, the loss and the data."""
        data = load(self.data, self.data_dir)
        options = {} if self.norm is None else {"norm": self.norm}
        model = build(self.model, data.sample_shape, data.num_classes, self.seed, **options)
        return model, F.cross_entropy, data

    def settings(self) -> dict[str, Any]:
        """The rest, as `prlc.train` takes it."""
        if (self.chunk is None) != (self.threads is None):
            raise ConfigError("Give --chunk and --threads together, or neither.")
        plan = Plan(self.chunk, self.threads) if self.chunk and self.threads else None
        return {
            "partition": self.partition,
            "workers": self.workers,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "steps": self.steps,
            "lr": self.lr,
            "schedule": self.schedule,
            "optimizer": self.optimizer,
            "server_optimizer": self.server_optimizer,
            "seed": self.seed,
            "network": read_network(self.network, self.net),
            "engine": self.engine,
            "device": self.device,
            "plan": plan,
            "eval_every": self.eval_every,
            "eval_samples": self.eval_samples,
        }

    def describe(self) -> str:
        """What is trained, for a title."""
        shards = "" if self.partition == "iid" else f", {self.partition}"
        return f"{self.model} on {self.data}{shards}, {self.workers} workers, lr {self.lr:g}"


def read_network(preset: str, settings: list[str]) -> Network:
    """A preset with `setting=value` changes."""
    changes: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--net takes setting=value, such as latency=35ms; got {setting!r}.")
        changes[key.replace("-", "_")] = _plain_value(value)
    return Network.of(preset, **changes)


def _plain_value(text: str) -> object:
    if text.lower() in ("yes", "true", "no", "false"):
        return text.lower() in ("yes", "true")
    try:
        return float(text)
    except ValueError:
        return text
