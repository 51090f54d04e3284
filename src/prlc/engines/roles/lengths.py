"""A bound on the length of an update, learnt from the other workers'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from prlc.errors import DivergedError


class TooLong(NamedTuple):
    """An update that is longer than it may be."""

    worker: int
    length: float
    bound: float

    def error(self, step: int) -> DivergedError:
        return DivergedError(
            self.worker,
            step,
            message=f"The update of worker {self.worker} at step {step} has length "
            f"{self.length:.3g}, but {self.bound:.3g} is the bound that the other workers' updates "
            "set. Look at its data and its learning rate, or raise the bound (prlc train "
            "--length-bound).",
        )


class Lengths:
    """Remembers each worker's longest update: another's may be `factor` times as long.

    Nobody's first update has a bound, unless it comes together with others.
    """

    def __init__(self, num_workers: int, factor: float) -> None:
        self._factor = factor
        self._longest = [0.0] * num_workers

    def check_step(
        self, length_of_sum: float, weight: float, measure: Callable[[], Mapping[int, float]]
    ) -> list[TooLong]:
        """Check the updates of one step, whose weights add up to `weight`.

        If their sum is no longer than it could be anyway, nobody measures each of them.
        """
        if length_of_sum <= weight * max(self._longest):
            return []
        return self.check(measure())

    def check(self, lengths: Mapping[int, float]) -> list[TooLong]:
        """Check updates that came together, and learn from them, by no more than the bound."""
        bounds = {worker: self._factor * self._of_others(worker, lengths) for worker in lengths}
        found = []
        for worker, length in lengths.items():
            bound = bounds[worker] or float("inf")
            if not length <= bound:
                found.append(TooLong(worker, length, bound))
                length = bound  # noqa: PLW2901
            self._longest[worker] = max(self._longest[worker], length)
        return found

    def _of_others(self, worker: int, now: Mapping[int, float]) -> float:
        """The longest so far or now; a lone worker is measured by itself."""
        if len(self._longest) == 1:
            return self._longest[0]
        before = [each for other, each in enumerate(self._longest) if other != worker]
        return max(*before, *(each for other, each in now.items() if other != worker), 0.0)

    def state(self) -> list[float]:
        return list(self._longest)

    def load_state(self, state: list[float]) -> None:
        self._longest = list(state)


def length_of(tensors: list[Tensor]) -> float:
    """The length of a vector; infinite if it cannot be told in the tensors' own precision."""
    squares = [float(torch.linalg.vector_norm(tensor)) ** 2 for tensor in tensors if tensor.numel()]
    return float(sum(squares) ** 0.5)
