"""Local SGD, also known as FedAvg with everybody taking part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prlc.methods.base import Scheduled, check_steps


@dataclass(frozen=True)
class LocalSGD(Scheduled):
    """Every worker takes `every` steps of its own, then all push their sums and pull."""

    every: int = 10

    summary: ClassVar[str] = "H local steps, then all push the sum and pull"
    name: ClassVar[str] = "local-sgd"
    compensation: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_steps("every", self.every)

    @property
    def period(self) -> int:
        return self.every

    @property
    def label(self) -> str:
        return f"Local SGD H={self.every}"
