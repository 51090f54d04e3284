"""Trial runs: the losses of a real run, trained only as far as asked, however often interrupted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from torch.nn import functional as F

import prlc
from prlc.data import Dataset, load_digits
from prlc.engines.simulator.execution import Execution
from prlc.methods import PRLC
from prlc.models import build
from prlc.planner import Trials, make_trials
from prlc.planner import trials as module

SETTINGS: dict[str, Any] = {"workers": 5, "batch_size": 4, "seed": 3, "execution": Execution(5, 1)}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits().take(200, seed=0)


def trials(digits: Dataset, steps: int = 80) -> Trials:
    model = build("logistic", digits.sample_shape, digits.num_classes, 0)
    return make_trials(model, F.cross_entropy, digits, steps=steps, **SETTINGS)


def test_a_trial_is_a_run(digits: Dataset) -> None:
    model = build("logistic", digits.sample_shape, digits.num_classes, 0)
    run = prlc.train(
        model, F.cross_entropy, digits, method=PRLC(0.3), lr=0.2, steps=20, eval_every=2, **SETTINGS
    )
    losses = trials(digits)(PRLC(0.3), 0.2).losses(20)
    assert losses.tolist() == run.metrics["train_loss"].tolist()


def test_the_crossing_is_interpolated_and_no_more_is_trained(digits: Dataset) -> None:
    every = trials(digits)
    trial = every(PRLC(0.3), 0.2)
    losses = trial.losses(10)
    target = float(losses[3] + losses[4]) / 2
    assert trial.crossing(target, 10) == pytest.approx(7.0)
    assert trial.crossing(0.0, 10) is None
    fresh = trials(digits)
    assert fresh(PRLC(0.3), 0.2).crossing(target, 80) == pytest.approx(7.0)
    assert fresh.steps_trained == 8
    assert trial.crossing(1e9, 10) == 0


def test_released_trials_are_replayed_to_the_same_losses(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = trials(digits)
    monkeypatch.setattr(module, "_MEMORY_BYTES", 1)
    short = trials(digits)
    for until in (4, 8):
        for lr in (0.1, 0.2, 0.4):
            for ratio in (1.0, 0.1):
                method = PRLC(ratio)
                assert np.array_equal(
                    kept(method, lr).losses(until), short(method, lr).losses(until)
                )
    assert kept.steps_trained == 6 * 8
    assert short.steps_trained == 6 * (4 + 8)


def test_a_divergence_is_an_infinite_loss(digits: Dataset) -> None:
    trial = trials(digits)(PRLC(0.5), 1e37)
    losses = trial.losses(40)
    assert math.isfinite(losses[0])
    assert losses[-1] == math.inf
    assert trial.crossing(losses[0] / 2, 40) is None
