"""Goes to each model in turn and measures there; draws no conclusions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from prlc.constants.estimates import Point
from prlc.constants.lanczos import Spectrum, extreme_eigenvalues
from prlc.constants.noise import Noise, gradient_noise
from prlc.constants.objective import Objective, Parts
from prlc.constants.path import Path, short_run
from prlc.constants.sampling import Subset
from prlc.data.batches import Batches
from prlc.draws import Purpose, torch_seed

__all__ = ["Place", "Progress", "Survey"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is at most."""


@dataclass(frozen=True, eq=False)
class Place:
    """One model and all that was found there."""

    w: Tensor
    spectrum: Spectrum
    noise: Noise
    point: Point


class Survey:
    """The measurements at the start and along a short SGD run."""

    path: Path

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
        self.parts: Parts = [objective.numbers(part) for part in subset.parts]
        self.rest: Parts = [objective.numbers(part) for part in subset.rest_parts]
        self.places: list[Place] = []
        self._batch_size, self._seed = batch_size, seed
        self._tolerance, self._max_products = tolerance, max_products
        self._both_ends = both_ends
        self._progress = progress

    def run(self, points: int, steps: int) -> None:
        """Measure at `points` models, the last of them after `steps` steps."""
        self.places = [self._measured(0, self.objective.start)]
        L = abs(self.places[0].point.curvature)
        stops = {round(steps * i / max(points - 1, 1)) for i in range(points)}
        self.path = short_run(
            self.objective,
            self.parts,
            Batches([np.arange(self.subset.num_train)], self._batch_size, self._seed),
            sorted(stops | {0, steps}),
            step_size=1 / L if L > 0 else 1.0,
            progress=lambda done: self._progress("short SGD run", done, steps),
        )
        for step, w in zip(self.path.steps, self.path.models, strict=True):
            if step > 0 and points > 1:
                self.places.append(self._measured(step, w))

    def _measured(self, step: int, w: Tensor) -> Place:
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
        samples = self.objective.numbers(self.subset.samples)
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
        return Place(w, spectrum, noise, point)

    def notes(self) -> list[str]:
        """What did not go as wished."""
        notes = []
        if self.path.step_size is None:
            notes.append(
                "No step size tried lowered the loss in the short SGD run; only the given model "
                "was measured."
            )
        slow = [place.point.name for place in self.places if not place.spectrum.converged]
        if slow:
            notes.append(
                f"The curvature at {' and '.join(slow)} is not converged after "
                f"{self._max_products} products; raise max_products for a narrower interval."
            )
        return notes
