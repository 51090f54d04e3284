"""Communication-mitigated federated learning (Wang et al. 2019): irrelevant updates stay home."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from prlc.draws import Purpose, bits
from prlc.methods.base import Lazy
from prlc.methods.triggers import Agreement


@dataclass(frozen=True)
class CMFL(Lazy):
    """A worker pushes only if enough signs of its update are those of the server's last step.

    The server adds the mean of what was pushed. One worker, drawn anew at each step, always pushes,
    so that something is.
    """

    threshold: float = 0.5
    decay: bool = False

    summary: ClassVar[str] = "push only updates whose signs agree with the last step; all pull"
    paper: ClassVar[str] = "Wang et al. 2019 (CMFL, ICDCS)"
    name: ClassVar[str] = "cmfl"
    reuses: ClassVar[bool] = False
    when: ClassVar[str] = "on agreeing signs"

    def __post_init__(self) -> None:
        _ = self.trigger

    @property
    def label(self) -> str:
        return "CMFL" + self._settings()

    @cached_property
    def trigger(self) -> Agreement:
        return Agreement(self.threshold, self.decay)

    def always_pushes(self, seed: int, step: int, num_workers: int) -> int:
        return int(bits(seed, Purpose.ALWAYS_PUSHES, step)) % num_workers
