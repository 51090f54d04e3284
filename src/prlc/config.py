"""All settings of a run, checked, in a form that prints, compares and becomes JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from prlc.data import IID, Partition
from prlc.engines.distributed.terms import Cluster
from prlc.engines.plan import Plan
from prlc.errors import ConfigError
from prlc.methods import PRLC, Method
from prlc.network import PRESETS, Network
from prlc.optimizers import OptimizerFactory
from prlc.schedules import Constant, Schedule

ENGINES = ("simulator", "reference", "distributed")


@dataclass(frozen=True, kw_only=True)
class Config:
    """How to train. Either `steps` or `epochs` says how long."""

    method: Method = field(default_factory=PRLC)
    workers: int = 20
    batch_size: int = 10
    epochs: float | None = None
    steps: int | None = None
    schedule: Schedule = field(default_factory=lambda: Constant(0.1))
    optimizer: str | OptimizerFactory = "sgd"
    server_optimizer: str | OptimizerFactory = "add"
    partition: Partition = field(default_factory=IID)
    network: Network = PRESETS["paper"]
    seed: int = 0
    engine: str = "simulator"
    plan: Plan | None = None
    cluster: Cluster = field(default_factory=Cluster)
    device: str = "cpu"
    eval_every: int | None = None
    eval_samples: int | None = 10_000
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "batch_size"):
            _check_whole(name, getattr(self, name))
        for name in ("steps", "eval_every", "eval_samples", "checkpoint_every"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name))
        if not (type(self.seed) is int and 0 <= self.seed < 2**63):
            raise ConfigError(
                f"The seed must be a whole number from 0 to 2^63-1 but is {self.seed!r}."
            )
        if (self.steps is None) == (self.epochs is None):
            given = "both are" if self.steps is not None else "neither is"
            raise ConfigError(f"Give either steps or epochs; {given} given.")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ConfigError(f"epochs must be a positive number but is {self.epochs!r}.")
        if self.engine not in ENGINES:
            raise ConfigError(
                f"There is no engine {self.engine!r}. Choose one of: {', '.join(ENGINES)}."
            )
        check_device(self.device)

    def steps_per_epoch(self, num_samples: int) -> float:
        """Steps in which all workers together see as many samples as there are."""
        return num_samples / (self.workers * self.batch_size)

    def total_steps(self, num_samples: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * self.steps_per_epoch(num_samples)))

    def as_json(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON would hold it."""
        together = {"cluster": self.cluster.as_json()} if self.engine == "distributed" else {}
        return {
            "method": {"name": self.method.name, **self.method.options()},
            "workers": self.workers,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "steps": self.steps,
            "schedule": {"name": self.schedule.name, **vars(self.schedule)},
            "optimizer": _name(self.optimizer),
            "server_optimizer": _name(self.server_optimizer),
            "partition": str(self.partition),
            "network": {k: _finite(v) for k, v in dataclasses.asdict(self.network).items()},
            "seed": self.seed,
            "engine": self.engine,
            "device": self.device,
            "eval_every": self.eval_every,
            "eval_samples": self.eval_samples,
            **together,
        }


def check_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise ConfigError(
            f"The device {name!r} cannot be used here ({reason}). Take cpu, or cuda where there "
            "is a GPU and a torch built for it."
        ) from None
    return device


def _check_whole(name: str, value: object) -> None:
    if not (type(value) is int and value >= 1):
        raise ConfigError(f"{name} must be a whole number, 1 or more, but is {value!r}.")


def _name(optimizer: str | OptimizerFactory) -> str:
    return optimizer if isinstance(optimizer, str) else repr(optimizer).split(" at 0x")[0]


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return "inf" if value == math.inf else value
