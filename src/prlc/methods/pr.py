"""Pulling reduction without compensation: Algorithm 2 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from prlc.draws import Purpose, uniform
from prlc.methods.base import Mask, Scheduled, check_ratio, check_steps


@dataclass(frozen=True)
class PR(Scheduled):
    """Each worker pulls with probability `pull_ratio`, otherwise its model holds still.

    With `every=H`, pulls are drawn only at each H-th step and H updates travel as one push.
    """

    pull_ratio: float = 0.1
    every: int = 1

    summary: ClassVar[str] = "pull with probability r, else hold still"
    name: ClassVar[str] = "pr"

    def __post_init__(self) -> None:
        check_ratio(self.pull_ratio)
        check_steps("every", self.every)

    @property
    def period(self) -> int:
        return self.every

    @property
    def label(self) -> str:
        period = "" if self.every == 1 else f", every {self.every}"
        return f"{type(self).__name__} r={self.pull_ratio:g}{period}"

    def pulls(self, seed: int, workers: ArrayLike, steps: ArrayLike) -> Mask:
        coin = uniform(seed, Purpose.PULL, workers, steps) < self.pull_ratio  # line 5
        return np.logical_and(coin, self.due(steps))
