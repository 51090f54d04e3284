"""Trial runs: the losses of a real run, trained only as far as asked, however often interrupted."""

from __future__ import annotations

import math

import pytest
from torch import nn
from torch.nn import functional as F

import prlc
from prlc.data import Dataset
from prlc.methods import NSGD, Scheduled, parse_method
from prlc.planner import Candidate, Trials
from prlc.planner import trials as module
from prlc.runs.config import Config


@pytest.fixture
def trials(model: nn.Module, digits: Dataset) -> Trials:
    return make(model, digits)


def make(model: nn.Module, digits: Dataset, schedule: str = "constant") -> Trials:
    config = Config(
        method=NSGD(), workers=5, batch_size=4, seed=3, steps=80, execution=prlc.Execution(5, 1)
    )
    return Trials(model, F.cross_entropy, digits, config, schedule)


def candidate(text: str, lr: float = 0.2, steps: int = 80) -> Candidate:
    method = parse_method(text)
    assert isinstance(method, Scheduled)
    return Candidate(method, "workers", lr, steps)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("text", ["prlc:0.3", "local-sgd:4:up=int8"])
def test_a_trial_is_a_run(model: nn.Module, digits: Dataset, text: str, schedule: str) -> None:
    trial = make(model, digits, schedule)(candidate(text, steps=20))
    run = prlc.train(
        model, F.cross_entropy, digits, method=text, lr=0.2, steps=20, eval_every=trial.every,
        schedule=schedule, workers=5, batch_size=4, seed=3, execution=prlc.Execution(5, 1),
    )  # fmt: skip
    assert trial.losses(20) == run.metrics["train_loss"].tolist()


def test_losses_are_measured_where_the_server_has_just_been_told(trials: Trials) -> None:
    assert trials.every == 2
    assert trials(candidate("prlc:0.3")).every == 2
    assert trials(candidate("local-sgd:3")).every == 3
    assert trials(candidate("local-sgd:25")).every == 25


def test_no_more_is_trained_than_it_takes(
    trials: Trials, model: nn.Module, digits: Dataset
) -> None:
    trial = trials(candidate("prlc:0.3"))
    losses = trial.losses(10)
    assert trial.reaches((losses[3] + losses[4]) / 2, 10) == 8
    assert trial.reaches(0.0, 10) is None
    fresh = make(model, digits)
    assert fresh(candidate("prlc:0.3")).reaches((losses[3] + losses[4]) / 2, 80) == 8
    assert fresh.steps_trained == 8


def test_released_trials_are_replayed_to_the_same_losses(
    trials: Trials, model: nn.Module, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MEMORY_BYTES", 1)
    short = make(model, digits)
    for until in (4, 8):
        for lr in (0.1, 0.2, 0.4):
            for text in ("nsgd", "prlc:0.1:up=topk,0.1"):
                each = candidate(text, lr)
                assert trials(each).losses(until) == short(each).losses(until)
    assert trials.steps_trained == 6 * 8
    assert short.steps_trained == 6 * (4 + 8)


def test_a_divergence_is_an_infinite_loss(trials: Trials) -> None:
    losses = trials(candidate("prlc:0.5", lr=1e37)).losses(40)
    assert math.isfinite(losses[0])
    assert losses[-1] == math.inf
