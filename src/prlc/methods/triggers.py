"""When a lazy worker's message is worth sending.

A trigger is settings, a state with a row per worker, and a pure function of what the worker would
send (`Candidate`) and of the server's last steps (`history`).

Change     what would be sent is large beside the server's steps     LAG, LAQ
Agreement  its signs agree with those of the server's last step      CMFL
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from prlc.errors import ConfigError
from prlc.methods.compensation import State
from prlc.methods.settings import check_number, check_steps
from prlc.text import is_number


class Candidate(NamedTuple):
    """What is known of each worker's next message, in double precision: (workers,)."""

    change_sq: Tensor
    """The squared length of what it would change at the server."""
    error_sq: Tensor
    """The squared length of what its encoding would leave out."""
    agreement: Tensor
    """The share of its numbers that have the sign of the server's last step that was not zero."""
    step: int


class Trigger(ABC):
    """Decides who pushes. In the first step everybody does, unasked."""

    #: How many of the server's past steps it looks at.
    window: int = 1
    #: Whether it looks at signs.
    compares_signs: ClassVar[bool] = False

    def init(self, num_workers: int, device: torch.device | None = None) -> State:
        """What it remembers of the workers: by name, with a first axis of workers."""
        del num_workers, device
        return {}

    @abstractmethod
    def fires(self, state: State, candidate: Candidate, history: Tensor) -> Tensor:
        """Which messages are worth sending: (workers,), boolean.

        `history`: the squared lengths of the server's last `window` steps, each divided by the
        squared learning rate of its step.
        """

    def decided(self, state: State, candidate: Candidate, pushes: Tensor) -> State:
        """The state after a step in which `pushes` (workers,) says who pushed."""
        del candidate, pushes
        return state


@dataclass(frozen=True)
class Change(Trigger):
    """LAG's (15), with LAQ's terms for what its encoding left out, now and in the last message.

    left side  >  xi * sum of history  +  3 (error now + error last)

    Or `longest` steps have passed since the worker's last push.
    """

    xi: float = 0.1
    window: int = 10
    longest: float = math.inf

    def __post_init__(self) -> None:
        check_number("xi", self.xi)
        check_steps("window", self.window, most=10**6)
        if self.longest != math.inf:
            check_steps("longest", self.longest)

    def init(self, num_workers: int, device: torch.device | None = None) -> State:
        zeros = torch.zeros(num_workers, dtype=torch.float64, device=device)
        return {"error_sq": zeros, "age": zeros.clone()}

    def fires(self, state: State, candidate: Candidate, history: Tensor) -> Tensor:
        left_out = 3.0 * (candidate.error_sq + state["error_sq"])
        large = candidate.change_sq > self.xi * history.sum() + left_out
        return large | (state["age"] + 1 >= self.longest)

    def decided(self, state: State, candidate: Candidate, pushes: Tensor) -> State:
        return {
            "error_sq": torch.where(pushes, candidate.error_sq, state["error_sq"]),
            "age": torch.where(pushes, 0.0, state["age"] + 1),
        }


@dataclass(frozen=True)
class Agreement(Trigger):
    """CMFL: at least `threshold` of the signs agree; with `decay`, threshold / sqrt(step)."""

    threshold: float = 0.5
    decay: bool = False

    compares_signs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (is_number(self.threshold) and 0 <= self.threshold <= 1):
            raise ConfigError(
                "CMFL's threshold must be a share of all numbers in [0, 1] but is "
                f"{self.threshold!r}."
            )
        if not isinstance(self.decay, bool):
            raise ConfigError(f"CMFL's decay must be yes or no but is {self.decay!r}.")

    def fires(self, state: State, candidate: Candidate, history: Tensor) -> Tensor:
        del state, history
        fade = math.sqrt(max(1, candidate.step)) if self.decay else 1.0
        return candidate.agreement >= self.threshold / fade
