"""Asynchronous SGD (Downpour with one push and one fetch a step)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prlc.errors import ConfigError
from prlc.methods.base import Asynchronous


@dataclass(frozen=True)
class ASGD(Asynchronous):
    """The server adds each update on arrival and returns the new model to its worker.

    An update counts 1/P, so P arrivals weigh as much as one synchronous step at the same
    learning rate. With `staleness_aware`, an update that missed s others counts 1/(1+s)
    (Zhang et al. 2016): the same for workers of equal speed, less for stragglers.
    """

    staleness_aware: bool = False

    summary: ClassVar[str] = "push and pull when done; nobody waits"
    paper: ClassVar[str] = "Dean et al. 2012 (Downpour SGD); Zhang et al. 2016, arXiv:1511.05950"
    name: ClassVar[str] = "asgd"

    def __post_init__(self) -> None:
        if not isinstance(self.staleness_aware, bool):
            raise ConfigError(
                f"ASGD's staleness_aware must be true or false but is {self.staleness_aware!r}."
            )

    @property
    def label(self) -> str:
        return "ASGD, staleness-aware" if self.staleness_aware else "ASGD"

    def share(self, staleness: int, num_workers: int) -> float:
        return 1.0 / (1 + staleness) if self.staleness_aware else 1.0 / num_workers
