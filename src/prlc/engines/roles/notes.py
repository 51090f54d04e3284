"""The few numbers that accompany a message, or replace it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from prlc.errors import ConfigError, DivergedError, PrlcError

NO_MORE = -1
"""Instead of a checkpoint's number: this worker's run ends, and it sends no more states."""


class Kind(IntEnum):
    """What a note says."""

    UPDATE = 1  # worker: an update comes with this note
    NOTHING = 2  # worker: no update this time (LAG-WK)
    INFINITE = 3  # worker: no update, it was not finite
    MISSHAPEN = 4  # worker: no update, its shapes or types were not the agreed ones
    BYE = 5  # worker: I have taken my last step
    GO = 6  # server: a model comes with this note; compute the named step
    WAIT = 7  # server: not your turn, but I am alive, and may want your state
    LAST = 8  # server: a model comes with this note, and the run is over
    OVER = 9  # server: the run is over
    FETCH = 10  # worker: send me the model as it is
    CHANGE = 11  # worker: from here on other tensors train
    PAUSE = 12  # worker: I wait for the other workers; listen to them first


class Note(NamedTuple):
    """The few numbers that accompany a message."""

    kind: Kind
    step: int = 0
    loss: float = 0.0
    lr: float = 0.0
    save: int = 0
    """Server: send your state for this checkpoint. Worker: the last one that I sent it for."""
    bad: int = 0
    """Worker: how many unusable updates were left out of this push."""

    def tensor(self) -> Tensor:
        return torch.tensor(self, dtype=torch.float64)

    @classmethod
    def of(cls, tensor: Tensor) -> Note:
        kind, step, loss, lr, save, bad = tensor.tolist()
        return cls(Kind(int(kind)), int(step), loss, lr, int(save), int(bad))

    @staticmethod
    def blank() -> Tensor:
        return torch.zeros(len(Note._fields), dtype=torch.float64)


def bad_update(kind: Kind, worker: int, step: int) -> PrlcError:
    """The error for an unusable update of this kind."""
    if kind is Kind.MISSHAPEN:
        return ConfigError(
            f"The model of worker {worker} has other shapes or types at step {step} than those "
            "that all agreed on at the start. Change a model before training, not during it."
        )
    return DivergedError(worker, step, "update")
