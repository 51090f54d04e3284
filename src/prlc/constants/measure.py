"""Measures the constants: curvature and noise at the start and along a short SGD run.

Everything is measured in eval() mode on a copy of the model, so that there is one function to
speak of. If there are more training samples than `samples`, a random subset stands for them and
the intervals say what that costs.
"""

from __future__ import annotations

import copy
import math
import time

import torch
from torch import Tensor, nn

from prlc.constants import conclusions
from prlc.constants.estimates import Cost, MeasuredConstants
from prlc.constants.objective import Objective
from prlc.constants.sampling import Subset
from prlc.constants.survey import Progress, Survey
from prlc.data import Dataset
from prlc.draws import Purpose, torch_seed
from prlc.engines import Loss
from prlc.errors import ConfigError

__all__ = ["Progress", "measure_constants"]


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
    """L, sigma^2, G, Delta and, if asked, mu of the mean of `loss` over the training data.

    `points` models are measured: the given one, then some of a run of `steps` SGD steps from it,
    evenly spaced to its end. `samples` training samples are used for curvature, noise and loss.
    `lower_bound` is a number that the loss never falls below, None if there is none. Curvature
    is refined until its residual is at most `tolerance` of it, or for `max_products` products
    with the Hessian, of `chunk_size` samples at a time.

    The model, torch's generators and its gradient mode are left as they were; the same seed
    gives the same result.
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
        objective.check(objective.numbers(subset.samples[:16]))
        notes = []
        if _differs_in_training(own, objective, objective.numbers(subset.samples[:batch_size])):
            notes.append(
                "The model computes differently in train() mode (dropout, batch normalisation); "
                "all values are of its eval() mode."
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
        mu = conclusions.strong_convexity(survey) if strong_convexity else None
        return MeasuredConstants(
            smoothness=conclusions.smoothness(survey),
            variance=conclusions.variance(survey),
            gradient_bound=conclusions.gradient_bound(survey),
            gradient_quantile=conclusions.gradient_quantile(survey),
            initial_gap=conclusions.initial_gap(survey, lower_bound, mu),
            strong_convexity=mu,
            batch_size=batch_size,
            points=tuple(place.point for place in survey.places),
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
    """Whether the loss of a batch changes in train() mode. Buffers of the copy may change."""
    trained = copy.deepcopy(model)
    with torch.no_grad():
        still = objective.loss_with(trained.eval(), batch)
        moving = objective.loss_with(trained.train(), batch)
    return not torch.allclose(still, moving, rtol=1e3 * objective.rounding)


def _silent(what: str, done: int, total: int) -> None:
    """No progress wanted."""
