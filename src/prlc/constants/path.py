"""A short SGD run: where else to measure, and how far the loss comes down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from prlc.constants.objective import Objective, Parts
from prlc.data.batches import Batches

__all__ = ["Path", "short_run"]

_TRIES = 8


@dataclass(eq=False)
class Path:
    """The models at the chosen steps, the losses there, and the norms of the batch gradients."""

    steps: list[int]
    models: list[Tensor]
    losses: list[Tensor]
    """Of each part of the samples."""
    norms: list[float] = field(default_factory=list)
    step_size: float | None = None
    """The first step size; None if every one tried raised the loss."""


def short_run(
    objective: Objective,
    parts: Parts,
    batches: Batches,
    stops: Sequence[int],
    step_size: float,
    progress: Callable[[int], None],
) -> Path:
    """SGD from the start, the step size falling linearly to zero at the last of `stops`.

    A run that ends above its start is repeated with a quarter of the step size.
    """
    start, sizes = objective.start, torch.tensor([len(part) for part in parts]).double()
    first = objective.losses(start, parts)
    for attempt in range(_TRIES):
        eta = step_size / 4**attempt
        path = _run(objective, batches, stops, eta, progress)
        if path is None:
            continue
        path.losses = [first, *(objective.losses(w, parts) for w in path.models[1:])]
        # A loss that is not finite fails the comparison as well.
        if float(sizes @ path.losses[-1]) <= float(sizes @ first):
            return path
    return Path([0], [start], [first])


def _run(
    objective: Objective,
    batches: Batches,
    stops: Sequence[int],
    step_size: float,
    progress: Callable[[int], None],
) -> Path | None:
    w, last = objective.start, stops[-1]
    path = Path([0], [w], [], step_size=step_size)
    for step in range(last):
        samples = batches.take(np.asarray([0]), np.asarray([step]))[0]
        loss, g = objective.gradient(w, [objective.numbers(samples)])
        norm = float(g.norm())
        if not np.isfinite([loss, norm]).all():
            return None
        path.norms.append(norm)
        w = w - step_size * (1 - step / last) * g
        if step + 1 in stops:
            path.steps.append(step + 1)
            path.models.append(w)
        progress(step + 1)
    return path
