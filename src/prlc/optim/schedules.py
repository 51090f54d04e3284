"""Learning-rate schedules: pure functions of training progress in epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from prlc.errors import ConfigError


class LRSchedule(Protocol):
    """A learning rate for every moment of a run; implementations are dataclasses."""

    name: ClassVar[str]

    def at(self, epoch: float, total: float) -> float:
        """The learning rate after `epoch` of `total` epochs."""


def _check_lr(lr: object) -> None:
    if not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise ConfigError(f"The learning rate must be a positive number but is {lr!r}.")


@dataclass(frozen=True)
class Constant:
    """The same learning rate throughout."""

    lr: float
    name: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def at(self, epoch: float, total: float) -> float:
        del epoch, total
        return self.lr


@dataclass(frozen=True)
class StepDecay:
    """Multiplied by `factor` every `every` epochs; the paper takes 0.1 and these defaults."""

    lr: float
    every: float = 30.0
    factor: float = 0.1
    name: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        _check_lr(self.lr)
        if not (self.every > 0 and 0 < self.factor <= 1):
            raise ConfigError(
                "Step decay needs a period above 0 epochs and a factor in (0, 1], "
                f"but these are {self.every!r} and {self.factor!r}."
            )

    def at(self, epoch: float, total: float) -> float:
        del total
        return self.lr * self.factor ** math.floor(epoch / self.every + 1e-9)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine, from `lr` at the start to zero at the end."""

    lr: float
    name: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def at(self, epoch: float, total: float) -> float:
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * min(epoch / total, 1.0)))


def parse_lr_schedule(text: str, lr: float) -> LRSchedule:
    """The schedule named by `constant`, `cosine`, `step` or `step:EPOCHS:FACTOR`."""
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
        if kind == "constant" and not values:
            return Constant(lr)
        if kind == "cosine" and not values:
            return Cosine(lr)
        if kind == "step" and len(values) <= 2:
            return StepDecay(lr, *values)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
    raise ConfigError(
        f"There is no schedule {text!r}. Choose constant, cosine, step (times 0.1 every 30 epochs, "
        "as in the paper) or step:EPOCHS:FACTOR, for example step:9:0.1."
    )
