"""Measures the constants of the paper's assumptions for a model, a loss and a data set.

L, sigma^2, G, Delta and mu are what the bounds of `prlc.theory` need, and what nobody knows about
their own problem. Each is estimated from curvature and noise at the start and along a short SGD
run, with an interval and an explanation. Also available as `prlc.constants`.

objective.py  the loss as a function of one flat vector; gradient noise
curvature.py  extreme Hessian eigenvalues (Lanczos)
survey.py     the measurements at each model
estimates.py  constants concluded from them
"""

from __future__ import annotations

import copy
import math
import time

import torch
from torch import Tensor, nn

from prlc.data import Dataset
from prlc.draws import Purpose, torch_seed
from prlc.engines import Loss
from prlc.errors import ConfigError
from prlc.theory.measure import estimates
from prlc.theory.measure.curvature import End, Spectrum, extreme_eigenvalues, softmax_smoothness
from prlc.theory.measure.estimates import Cost, Estimate, MeasuredConstants
from prlc.theory.measure.objective import Objective
from prlc.theory.measure.survey import Point, Progress, Subset, Survey

__all__ = [
    "Cost",
    "End",
    "Estimate",
    "MeasuredConstants",
    "Point",
    "Progress",
    "Spectrum",
    "extreme_eigenvalues",
    "measure_constants",
    "softmax_smoothness",
]


def measure_constants(
    model: nn.Module,
    loss: Loss,
    data: object,
    *,
    batch_size: int,
    seed: int = 0,
    samples: int = 2000,
    device: torch.device | str = "cpu",
    points: int = 2,
    steps: int = 200,
    strong_convexity: bool = False,
    lower_bound: float | None = 0.0,
    tolerance: float = 1e-3,
    max_products: int = 100,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> MeasuredConstants:
    """L, sigma^2, G, Delta and, if asked for, mu of the mean of `loss` over the training data.

    Measures `points` models: the given one, then evenly spaced ones along a run of `steps` SGD
    steps from it. Curvature, noise and loss come from at most `samples` training samples; if there
    are more, a random subset stands for all, and the intervals widen accordingly. `lower_bound` is
    a number that the loss never falls below, or None. Curvature is refined until its relative
    residual is at most `tolerance`, or for `max_products` Hessian-vector products, each computed
    `chunk_size` samples at a time.

    Works on a copy of the model in eval() mode and leaves torch's generators and gradient mode
    unchanged; the same seed gives the same result.
    """
    began = time.perf_counter()
    dataset, device = Dataset.of(data), torch.device(device)
    _check_settings(dataset, batch_size, samples, points, steps, tolerance, max_products)
    _check_at_least("chunk_size", chunk_size, 1)
    forked = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=forked),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        torch.default_generator.manual_seed(torch_seed(seed, Purpose.EVALUATION, 0))
        own = copy.deepcopy(model).to(device)
        objective = Objective(own, loss, dataset.to(device))
        subset = Subset(dataset.num_train, samples, chunk_size, seed)
        objective.check(objective.indices(subset.samples[:16]))
        notes = []
        if _differs_in_training(own, objective, objective.indices(subset.samples[:batch_size])):
            notes.append(
                "The model computes differently in train() mode (dropout, batch normalisation); "
                "all values are for its eval() mode."
            )
        survey = Survey(
            objective,
            subset,
            batch_size,
            seed,
            tolerance,
            max_products,
            both_ends=strong_convexity,
            progress=progress or _silent,
        )
        survey.run(points, steps)
        mu = estimates.strong_convexity(survey) if strong_convexity else None
        return MeasuredConstants(
            smoothness=estimates.smoothness(survey),
            variance=estimates.variance(survey),
            gradient_bound=estimates.gradient_bound(survey),
            gradient_quantile=estimates.gradient_quantile(survey),
            initial_gap=estimates.initial_gap(survey, lower_bound, mu),
            strong_convexity=mu,
            batch_size=batch_size,
            points=tuple(at.point for at in survey.points),
            notes=(*notes, *survey.notes()),
            cost=Cost(math.ceil(objective.work), time.perf_counter() - began),
        )


def _check_settings(
    dataset: Dataset,
    batch_size: int,
    samples: int,
    points: int,
    steps: int,
    tolerance: float,
    max_products: int,
) -> None:
    N = dataset.num_train
    if not 1 <= batch_size <= N:
        raise ConfigError(
            f"batch_size should be between 1 and the {N} training samples of {dataset.name}, but "
            f"is {batch_size}: use a smaller batch or more data."
        )
    if samples < min(max(batch_size, 2), N):
        raise ConfigError(
            f"samples should be at least 2 and at least the batch_size {batch_size}, but is "
            f"{samples}: raise it."
        )
    _check_at_least("points", points, 1)
    _check_at_least("steps", steps, points - 1)
    _check_at_least("max_products", max_products, 1)
    if not 0 < tolerance < 1:
        raise ConfigError(f"tolerance should be in (0, 1), but is {tolerance!r}: try 1e-3.")


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} should be at least {least}, but is {value}: raise it.")


def _differs_in_training(model: nn.Module, objective: Objective, batch: Tensor) -> bool:
    """Whether the loss of a batch changes in train() mode; runs on a copy, for its buffers."""
    trial = copy.deepcopy(model)
    with torch.no_grad():
        evaluating = objective.loss_with(trial.eval(), batch)
        training = objective.loss_with(trial.train(), batch)
    return not torch.allclose(evaluating, training, rtol=1e3 * objective.rounding)


def _silent(what: str, done: int, total: int) -> None:
    """Reports no progress."""
