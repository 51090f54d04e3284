"""What an engine may know of a method.

Every method is a frozen dataclass of hyper-parameters with pure functions, and belongs to one of
three families, which differ in when it is known who communicates:

Scheduled     beforehand: a pure function of (seed, worker, step)       NSGD, PR, PRLC, Local SGD
Lazy          online: a trigger compares what changed with a threshold  LAG-PS, LAG-WK
Asynchronous  never: whoever is done communicates                       ASGD

Steps count from 0. In one step a worker computes an update at its own model, may push it, the
server adds the mean, and the worker may pull the result.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from prlc.errors import ConfigError

Mask = NDArray[np.bool_]


class Method(ABC):
    """A way for P workers and a server to train one model."""

    #: How it is called on the command line: a key of `prlc.methods.METHODS`.
    name: ClassVar[str]
    #: What it does, in a line.
    summary: ClassVar[str]

    @property
    @abstractmethod
    def label(self) -> str:
        """How tables and plots call it, with the settings that matter."""

    def options(self) -> dict[str, Any]:
        """Its hyper-parameters, from which `prlc.methods.create` makes it again."""
        if not dataclasses.is_dataclass(self):
            raise TypeError(f"{type(self).__name__} must be a dataclass")
        return dataclasses.asdict(self)


class Scheduled(Method):
    """Who pushes and who pulls is known beforehand."""

    #: The share of its own update by which a worker that does not pull moves its model:
    #: 0 holds still (PR), 1 is the paper's local compensation (PRLC).
    compensation: ClassVar[float] = 0.0

    @property
    def period(self) -> int:
        """H: workers communicate at steps H-1, 2H-1, ...; a push is the sum of H updates."""
        return 1

    def due(self, steps: ArrayLike) -> Mask:
        """Whether the workers push at each of `steps`."""
        due: Mask = np.equal((np.asarray(steps) + 1) % self.period, 0)
        return due

    def pulls(self, seed: int, workers: ArrayLike, steps: ArrayLike) -> Mask:
        """Who pulls, for the broadcast of `workers` and `steps`: all of them when it is due."""
        del seed
        due, _ = np.broadcast_arrays(self.due(steps), np.asarray(workers))
        return due


class Lazy(Method):
    """The server keeps every worker's last gradient and uses it until a fresh one is worth it."""

    #: How many past steps of the server the trigger looks back on (D in the LAG paper).
    window: int
    #: True if the server asks for gradients (LAG-PS), False if the workers decide (LAG-WK).
    asked_by_server: ClassVar[bool]

    @abstractmethod
    def worthwhile(self, change_sq: Tensor, smoothness: Tensor, history: Tensor) -> Tensor:
        """Which workers are to communicate, as a boolean tensor over them.

        `change_sq`: squared distance since a worker's last communication, of its gradient
        (LAG-WK) or of the server's model (LAG-PS). `history`: the squared norms of the server's
        last `window` steps, each divided by the squared learning rate of its step.
        """

    @abstractmethod
    def initial_smoothness(self) -> float:
        """L_m of every worker before anything is known."""

    @abstractmethod
    def refine(self, smoothness: Tensor, gradient_sq: Tensor, model_sq: Tensor) -> Tensor:
        """L_m after a gradient changed by `gradient_sq` while the model moved by `model_sq`."""


class Asynchronous(Method):
    """The server applies an update whenever one arrives; no worker waits for another."""

    @abstractmethod
    def share(self, staleness: int, num_workers: int) -> float:
        """By how much of an arriving update the server's model moves.

        `staleness` counts the updates of others that were applied since that worker's pull.
        """


def changed(method: Method) -> str:
    """The settings that differ from their defaults, for a label: " xi=2"."""
    usual = type(method)().options()
    differing = {k: v for k, v in method.options().items() if v != usual[k]}
    return "".join(f" {key}={value:g}" for key, value in differing.items())


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number; Python counts truth values as such."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_ratio(pull_ratio: object) -> None:
    """Refuse a probability of pulling outside (0, 1]."""
    if not (is_number(pull_ratio) and 0.0 < pull_ratio <= 1.0):
        raise ConfigError(
            f"The pull ratio must lie in (0, 1] but is {pull_ratio}: it is the probability that a "
            "worker pulls at a step. Take 1 to pull at every step, 0.1 at every tenth."
        )


def check_steps(name: str, steps: object) -> None:
    """Refuse a number of steps that is not a positive whole number."""
    if type(steps) is not int or steps < 1:
        raise ConfigError(
            f"`{name}` must be a whole number of steps, at least 1, but is {steps!r}."
        )


def check_number(name: str, value: object, *, least: float = 0.0) -> None:
    """Refuse a setting that is not a finite number of at least `least`."""
    if not (is_number(value) and math.isfinite(value) and value >= least):
        raise ConfigError(f"{name} must be a finite number of at least {least:g} but is {value!r}.")
