"""Measurements at the start and along a short SGD run; estimates.py concludes from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc.data.batches import Batches
from prlc.draws import Purpose, bits, torch_seed
from prlc.theory.measure.curvature import Spectrum, extreme_eigenvalues
from prlc.theory.measure.objective import Noise, Objective, Parts, gradient_noise

__all__ = ["MeasuredPoint", "Point", "Progress", "Subset", "Survey", "mean_and_error"]

Progress = Callable[[str, int, int], None]
"""Called with the task under way, the units done, and the most units it may take."""

_GROUPS = 20  # enough for a standard error from the spread between them
_ATTEMPTS = 8  # step sizes tried for the short run


# ---- The samples used ---------------------------------------------------------------------------


class Subset:
    """Up to `samples` training samples in random order, and as many fresh ones for checks."""

    def __init__(self, num_train: int, samples: int, chunk_size: int, seed: int) -> None:
        keys = bits(seed, Purpose.EVALUATION, 1, np.arange(num_train))
        order = np.argsort(keys, kind="stable")
        n = min(samples, num_train)
        self.num_train = num_train
        self.samples: NDArray[np.int64] = order[:n]
        self.share = n / num_train
        rest = order[n : 2 * n]
        self.rest_share = len(rest) / (num_train - n) if n < num_train else 1.0
        """The fresh samples as a share of all samples left out."""
        chunk = chunk_size if n == num_train else min(chunk_size, -(-n // _GROUPS))
        self.parts = _chunks(self.samples, chunk)
        self.rest_parts = _chunks(rest, chunk)

    @property
    def note(self) -> str:
        """The end of an estimate's explanation."""
        if self.share == 1:
            return ""
        return f"; on {len(self.samples)} of {self.num_train} samples"


def _chunks(samples: NDArray[np.int64], chunk: int) -> list[NDArray[np.int64]]:
    return [samples[i : i + chunk] for i in range(0, len(samples), chunk)]


def mean_and_error(values: Tensor, parts: Sequence[Tensor]) -> tuple[float, float]:
    """The mean over all samples from the means of their parts, and its standard error.

    The error assumes draws with replacement; without, multiply it by sqrt(1 - share).
    """
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.float64)
    weights, count = sizes / sizes.sum(), len(parts)
    mean = float(weights @ values)
    if count < 2:
        return mean, 0.0
    spread = float((weights.square() * (values - mean).square()).sum()) * count / (count - 1)
    return mean, math.sqrt(spread)


# ---- A short SGD run: where else to measure, and how far the loss falls -------------------------


@dataclass(eq=False)
class Trajectory:
    """The models at the chosen steps, their losses, and the norms of the batch gradients."""

    steps: list[int]
    models: list[Tensor]
    losses: list[Tensor]
    """At each model, the mean loss of each part of the samples, shape (parts,)."""
    norms: list[float] = field(default_factory=list)
    step_size: float | None = None
    """The initial step size; None if every one tried raised the loss."""


def _short_run(
    objective: Objective,
    parts: Parts,
    batches: Batches,
    stops: Sequence[int],
    step_size: float,
    progress: Callable[[int], None],
) -> Trajectory:
    """SGD from the start, with a step size that falls linearly to zero at the last of `stops`.

    A run that ends above its start is repeated with a quarter of the step size.
    """
    start, sizes = objective.start, torch.tensor([len(part) for part in parts]).double()
    first = objective.losses(start, parts)
    for attempt in range(_ATTEMPTS):
        eta = step_size / 4**attempt
        run = _attempt(objective, batches, stops, eta, progress)
        if run is None:
            continue
        run.losses = [first, *(objective.losses(w, parts) for w in run.models[1:])]
        # A loss that is not finite fails this comparison too.
        if float(sizes @ run.losses[-1]) <= float(sizes @ first):
            return run
    return Trajectory([0], [start], [first])


def _attempt(
    objective: Objective,
    batches: Batches,
    stops: Sequence[int],
    step_size: float,
    progress: Callable[[int], None],
) -> Trajectory | None:
    w, last = objective.start, stops[-1]
    run = Trajectory([0], [w], [], step_size=step_size)
    for step in range(last):
        samples = batches.take(np.asarray([0]), np.asarray([step]))[0]
        loss, g = objective.gradient(w, [objective.indices(samples)])
        norm = float(g.norm())
        if not np.isfinite([loss, norm]).all():
            return None
        run.norms.append(norm)
        w = w - step_size * (1 - step / last) * g
        if step + 1 in stops:
            run.steps.append(step + 1)
            run.models.append(w)
        progress(step + 1)
    return run


# ---- What is measured at each model -------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Measurements at one model: the start, or a step of the short SGD run."""

    step: int
    loss: float
    gradient_norm: float
    curvature: float
    """The Hessian eigenvalue of largest absolute value, with its sign."""
    lowest_curvature: float
    """The smallest Hessian eigenvalue found; converged only if strong convexity was asked for."""
    residual: float
    """|H v - curvature v|: a true eigenvalue is that close."""
    products: int
    """Hessian-vector products used."""
    variance: float

    @property
    def name(self) -> str:
        return "the start" if self.step == 0 else f"step {self.step}"


@dataclass(frozen=True, eq=False)
class MeasuredPoint:
    """One model w of shape (size,) with its full measurements."""

    w: Tensor
    spectrum: Spectrum
    noise: Noise
    point: Point


class Survey:
    """The measurements at the start and along a short SGD run."""

    trajectory: Trajectory

    def __init__(
        self,
        objective: Objective,
        subset: Subset,
        batch_size: int,
        seed: int,
        tolerance: float,
        max_products: int,
        both_ends: bool,
        progress: Progress,
    ) -> None:
        self.objective, self.subset = objective, subset
        self.parts: Parts = [objective.indices(part) for part in subset.parts]
        self.rest: Parts = [objective.indices(part) for part in subset.rest_parts]
        self.points: list[MeasuredPoint] = []
        self._batch_size, self._seed = batch_size, seed
        self._tolerance, self._max_products = tolerance, max_products
        self._both_ends = both_ends
        self._progress = progress

    def run(self, points: int, steps: int) -> None:
        """Measure at `points` models, the last one after `steps` steps."""
        self.points = [self._measure(0, self.objective.start)]
        L = abs(self.points[0].point.curvature)
        stops = {round(steps * i / max(points - 1, 1)) for i in range(points)}
        self.trajectory = _short_run(
            self.objective,
            self.parts,
            Batches([np.arange(self.subset.num_train)], self._batch_size, self._seed),
            sorted(stops | {0, steps}),
            step_size=1 / L if L > 0 else 1.0,
            progress=lambda done: self._progress("short SGD run", done, steps),
        )
        for step, w in zip(self.trajectory.steps, self.trajectory.models, strict=True):
            if step > 0 and points > 1:
                self.points.append(self._measure(step, w))

    def _measure(self, step: int, w: Tensor) -> MeasuredPoint:
        where = "the start" if step == 0 else f"step {step}"
        loss, gradient = self.objective.gradient(w, self.parts)
        self.objective.require_finite("gradient", gradient)
        spectrum = extreme_eigenvalues(
            self.objective.hessian(w, self.parts),
            self.objective.size,
            seed=torch_seed(self._seed, Purpose.EVALUATION, 2, step),
            tolerance=self._tolerance,
            max_products=self._max_products,
            both=self._both_ends,
            rounding=self.objective.rounding,
            progress=lambda done: self._progress(f"curvature at {where}", done, self._max_products),
        )
        self._progress(f"noise at {where}", 0, 1)
        samples = self.objective.indices(self.subset.samples)
        noise = gradient_noise(
            self.objective, w, gradient, samples, self._batch_size, self.subset.num_train
        )
        self._progress(f"noise at {where}", 1, 1)
        point = Point(
            step=step,
            loss=loss,
            gradient_norm=float(gradient.norm()),
            curvature=spectrum.largest.value,
            lowest_curvature=spectrum.lowest.value,
            residual=spectrum.largest.residual,
            products=spectrum.products,
            variance=noise.variance,
        )
        return MeasuredPoint(w, spectrum, noise, point)

    def notes(self) -> list[str]:
        """Cautions: a run that never fell, curvature that did not converge."""
        notes = []
        if self.trajectory.step_size is None:
            notes.append(
                "No step size tried lowered the loss in the short SGD run; only the given model "
                "was measured."
            )
        slow = [at.point.name for at in self.points if not at.spectrum.converged]
        if slow:
            notes.append(
                f"The curvature at {' and '.join(slow)} has not converged after "
                f"{self._max_products} products; raise max_products for a narrower interval."
            )
        return notes
