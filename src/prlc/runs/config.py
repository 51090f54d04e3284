"""All settings of a run, checked, in a form that prints, compares and becomes JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from prlc.data import IID, Partition
from prlc.engines import Runtime, find_runtime
from prlc.engines.processes import Cluster
from prlc.engines.simulator.execution import Execution
from prlc.errors import ConfigError
from prlc.methods import PRLC, Asynchronous, Method, recommended
from prlc.methods.check import check_optimizer, check_optimizer_at
from prlc.network import PRESETS, Network
from prlc.optim.optimizers import OptimizerFactory
from prlc.optim.schedules import Constant, LRSchedule
from prlc.text import file_digests, is_number

_LONGEST = 10**9  # steps of a run


@dataclass(frozen=True, kw_only=True)
class Config:
    """How to train. Either `steps` or `epochs` says how long."""

    method: Method = field(default_factory=PRLC)
    workers: int = 20
    batch_size: int = 10
    epochs: float | None = None
    steps: int | None = None
    schedule: LRSchedule = field(default_factory=lambda: Constant(0.1))
    optimizer: str | OptimizerFactory = "sgd"
    optimizer_at: str = "workers"
    server_optimizer: str | OptimizerFactory | None = None
    """None: the method's own."""
    partition: Partition = field(default_factory=IID)
    network: Network | None = PRESETS["paper"]
    """The network of the simulated time; None: no clock."""
    seed: int = 0
    engine: str = "simulator"
    execution: Execution | None = None
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
        if self.steps is not None:
            _check_length(self.steps)
        if not (type(self.seed) is int and 0 <= self.seed < 2**63):
            raise ConfigError(
                f"The seed must be a whole number from 0 to 2^63-1 but is {self.seed!r}."
            )
        if (self.steps is None) == (self.epochs is None):
            given = "both are" if self.steps is not None else "neither is"
            raise ConfigError(f"Give either steps or epochs; {given} given.")
        if self.epochs is not None and not (is_number(self.epochs) and 0 < self.epochs < math.inf):
            raise ConfigError(f"epochs must be a positive number but is {self.epochs!r}.")
        self._check_network()
        check_device(self.device)
        server = self.server_optimizer or self.method.server
        check_optimizer_at(self.optimizer_at, self.method, server_optimizer=server != "add")
        check_optimizer(self.method, plain_sgd=self.optimizer == "sgd")

    def _check_network(self) -> None:
        real = find_runtime(self.engine).multi_process
        if self.network is not None:
            return
        if isinstance(self.method, Asynchronous) and not real:
            raise ConfigError(
                f"{self.method.label} applies updates in the order in which a network delivers "
                "them, so it needs one: name a network, or run it in real processes."
            )
        if self.cluster.emulate_compute:
            raise ConfigError(
                "Steps can be slowed down to the compute time of a network only if there is one: "
                "name a network, or leave out emulate_compute."
            )

    def steps_per_epoch(self, num_samples: int) -> float:
        """Steps in which all workers together see as many samples as the data has."""
        return num_samples / (self.workers * self.batch_size)

    def total_steps(self, num_samples: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        steps = self.epochs * self.steps_per_epoch(num_samples)
        _check_length(steps)
        return max(1, round(steps))

    def as_json(self) -> dict[str, Any]:
        """Everything that decides the result, as JSON would hold it."""
        files = file_digests(self.method)
        return {
            "method": str(self.method),
            **({"files": files} if files else {}),
            "workers": self.workers,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "steps": self.steps,
            "schedule": {"name": self.schedule.name, **vars(self.schedule)},
            "optimizer": _name(self.optimizer),
            "optimizer_at": self.optimizer_at,
            "server_optimizer": _name(self.server_optimizer or self.method.server),
            "partition": str(self.partition),
            "network": self.network and _finite(dataclasses.asdict(self.network)),
            "seed": self.seed,
            "engine": self.engine,
            "device": self.device,
            "eval_every": self.eval_every,
            "eval_samples": self.eval_samples,
            **self.runtime().describe(),
        }

    def runtime(self) -> Runtime:
        """Where the run takes place."""
        return find_runtime(self.engine)(execution=self.execution, cluster=self.cluster)


#: The recommended method's settings for optimizers whose steps do not shrink with the gradient:
#: rarer messages, and remainders that fade (docs/beyond.md).
_WITH = {
    "adamw": ":16:up=topk,0.01,bits=1,decay=0.95:down=topk,0.05,bits=1:meanwhile=ahead-snr",
}


def usual_method(optimizer: object, optimizer_at: str) -> str:
    """The default method; with the optimizer on the server, synchronous SGD."""
    if optimizer_at == "server":
        return "nsgd"
    name = optimizer.partition(",")[0] if isinstance(optimizer, str) else ""
    return recommended() + _WITH.get(name, "")


def check_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        float(torch.zeros(1, device=device))  # not on "meta", which holds no numbers
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
    if value >= 2**63:
        raise ConfigError(f"{name} must be below 2^63 but is {value:,}.")


def _check_length(steps: float) -> None:
    if steps > _LONGEST:
        raise ConfigError(
            f"A run has {_LONGEST:,} steps at most, but {steps:.3g} were asked for: give fewer "
            "steps or epochs."
        )


def _name(optimizer: str | OptimizerFactory) -> str:
    return optimizer if isinstance(optimizer, str) else repr(optimizer).split(" at 0x")[0]


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return "inf" if value == math.inf else value
