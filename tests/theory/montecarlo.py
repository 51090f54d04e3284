"""PR and PRLC (Algorithms 2 and 1) on small objectives, many runs at once, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SyntheticObjective:
    """F as a sum over coordinates, with what is known of it."""

    value: Callable[[Array], Array]
    gradient: Callable[[Array], Array]
    smoothness: float
    largest_slope: float | None  # of one coordinate
    strong_convexity: float | None


def quadratic(curvatures: Array) -> SyntheticObjective:
    return SyntheticObjective(
        value=lambda w: 0.5 * (curvatures * w**2).sum(-1),
        gradient=lambda w: curvatures * w,
        smoothness=float(curvatures.max()),
        largest_slope=None,
        strong_convexity=float(curvatures.min()),
    )


def log_cosh(scale: float) -> SyntheticObjective:
    """Convex, and its gradient is bounded everywhere."""
    return SyntheticObjective(
        value=lambda w: scale * (np.logaddexp(w, -w) - np.log(2)).sum(-1),
        gradient=lambda w: scale * np.tanh(w),
        smoothness=scale,
        largest_slope=scale,
        strong_convexity=None,
    )


def redescending(scale: float) -> SyntheticObjective:
    """scale/2 * w^2/(1 + w^2): not convex, and its gradient is bounded everywhere."""
    return SyntheticObjective(
        value=lambda w: scale / 2 * (w**2 / (1 + w**2)).sum(-1),
        gradient=lambda w: scale * w / (1 + w**2) ** 2,
        smoothness=scale,
        largest_slope=scale * 9 / (16 * np.sqrt(3)),
        strong_convexity=None,
    )


@dataclass(frozen=True)
class Setting:
    method: str
    step_size: float
    pull_ratio: float
    num_workers: int
    num_iterations: int
    runs: int = 64
    sigma: float = 1.0
    shared_coin: bool = False


def iterate(
    objective: SyntheticObjective, start: Array, setting: Setting, seed: int = 0
) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Yields w_t (runs, d), w_t^i (runs, P, d), its gradients, and who pulls, for t = 1..T."""
    rng = np.random.default_rng(seed)
    eta, P, shape = setting.step_size, setting.num_workers, (setting.runs, setting.num_workers)
    w = np.broadcast_to(start, (setting.runs, *start.shape)).copy()
    local = np.repeat(w[:, None], P, axis=1)
    for _ in range(setting.num_iterations):
        noise = rng.standard_normal(local.shape)
        noise *= setting.sigma / np.linalg.norm(noise, axis=-1, keepdims=True)
        g = objective.gradient(local) + noise
        coins = rng.random((setting.runs, 1) if setting.shared_coin else shape)
        pulls = np.broadcast_to(coins < setting.pull_ratio, shape)
        yield w, local, g, pulls.astype(np.float64)
        w = w - eta * g.mean(1)
        stay = local - eta * g if setting.method == "prlc" else local
        local = np.where(pulls[..., None], w[:, None], stay)


@dataclass(frozen=True)
class Outcome:
    mean_squared_gradient: float  # over runs and iterations 1..T, the left side of Theorems 1 and 3
    largest_gradient: float  # G, as seen on the path
    gaps: Array  # E[F(w_t) - F*], t = 1..T


def measure(
    objective: SyntheticObjective, start: Array, setting: Setting, seed: int = 0
) -> Outcome:
    squares, largest, gaps = [], 0.0, []
    for w, _, g, _ in iterate(objective, start, setting, seed):
        squares.append((objective.gradient(w) ** 2).sum(-1).mean())
        gaps.append(objective.value(w).mean())
        largest = max(largest, float(np.linalg.norm(g, axis=-1).max()))
    return Outcome(float(np.mean(squares)), largest, np.array(gaps))
