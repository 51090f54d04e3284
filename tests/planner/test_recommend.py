"""The recommendation: near the best of a full grid, repeatable, and refused for bad input."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn
from torch.nn import functional as F

import prlc
from prlc.data import Dataset, load_digits
from prlc.engines.simulator.execution import Execution
from prlc.errors import ConfigError
from prlc.methods import PRLC, Timetable
from prlc.models import build
from prlc.network import PRESETS
from prlc.network.clock import RunAheadClock
from prlc.planner import Advice, Work, advise, make_trials, render
from prlc.theory import Constants
from prlc.theory.measure import measure_constants

NETWORKS = ("paper", "wan", "mobile")
P, STEPS = 20, 60
SETTINGS: dict[str, Any] = {"workers": P, "batch_size": 10, "seed": 0, "execution": Execution(P, 1)}
KNOWN = Constants(smoothness=3.25, variance=5.7, gradient_bound=3.5, initial_gap=2.1)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


@pytest.fixture(scope="module")
def model(digits: Dataset) -> nn.Module:
    return build("logistic", digits.sample_shape, digits.num_classes, 0)


@pytest.fixture(scope="module")
def plans(model: nn.Module, digits: Dataset) -> dict[str, Advice]:
    """A plan for each network, from the same trials."""
    trials = make_trials(model, F.cross_entropy, digits, steps=STEPS, **SETTINGS)
    measured = measure_constants(model, F.cross_entropy, digits, batch_size=10, samples=500)
    return {
        name: advise(
            model, F.cross_entropy, digits, network=name, steps=STEPS, constants=measured,
            trials=trials, **SETTINGS,
        )
        for name in NETWORKS
    }  # fmt: skip


def finish_times(network: str, work: Work, method: PRLC, steps: int) -> list[float]:
    """When each step is over, straight from the clock."""
    timetable = Timetable(method, P, 0)
    clock = RunAheadClock(
        PRESETS[network], P, bytes_up=work.bytes_up, bytes_down=work.bytes_down,
        step_seconds=work.step_seconds, seed=0,
        schedule=lambda step: (True, timetable[step].pulls),
    )  # fmt: skip
    return [0.0, *(clock.finish(step) for step in range(steps))]


def first_crossing(seconds: np.ndarray, losses: np.ndarray, target: float) -> float:
    """When the loss is first at the target; infinite if never."""
    below = np.flatnonzero(losses <= target)
    if len(below) == 0:
        return math.inf
    at = below[0]
    return float(np.interp(-target, -losses[at - 1 : at + 1], seconds[at - 1 : at + 1]))


@pytest.mark.slow
def test_the_choice_is_near_the_best_of_an_exhaustive_grid(
    plans: dict[str, Advice], model: nn.Module, digits: Dataset
) -> None:
    """Every ratio of a grid of this test's own, at every learning rate of the plan, in full."""
    target, rates = plans["paper"].target_loss, plans["paper"].learning_rates
    assert target is not None
    assert all(plan.target_loss == target for plan in plans.values())
    chosen = {plan.recommended.pull_ratio for plan in plans.values()}
    job = make_trials(model, F.cross_entropy, digits, **SETTINGS).job
    best: dict[str, dict[float, float]] = {name: {} for name in NETWORKS}
    for ratio in sorted({1.0, 0.4, 0.15, 0.07, 0.03, 0.01} | chosen):
        steps = 150 if ratio > 0.05 else 400
        method = PRLC(ratio)
        runs: list[pd.DataFrame] = [
            prlc.train(model, F.cross_entropy, digits, method=method, lr=lr, steps=steps,
                       eval_every=2, **SETTINGS).metrics
            for lr in rates
        ]  # fmt: skip
        for name in NETWORKS:
            over = finish_times(name, Work.of(job, PRESETS[name]), method, steps)
            best[name][ratio] = min(
                first_crossing(
                    np.array([over[int(step)] for step in run["step"]]),
                    run["train_loss"].to_numpy(),
                    target,
                )
                for run in runs
            )
    for name, plan in plans.items():
        own = best[name][plan.recommended.pull_ratio]
        assert own <= 1.25 * min(best[name].values()), (name, best[name])
        assert plan.recommended.seconds == pytest.approx(own, rel=0.05)
    # The question has more than one answer: the networks differ in what they prefer.
    assert len(chosen) > 1


def test_the_bottleneck_depends_on_the_network(plans: dict[str, Advice]) -> None:
    assert plans["paper"].recommended.price.bottleneck == "uplink"
    assert plans["wan"].recommended.price.bottleneck == "latency"
    for plan in plans.values():
        times = [row.price.seconds_per_step for row in plan.rows]
        assert times[0] == max(times)  # NSGD's steps are the slowest


def test_rows_add_up(plans: dict[str, Advice]) -> None:
    for plan in plans.values():
        assert plan.nsgd.pull_ratio == 1
        assert plan.nsgd.against_nsgd == 1
        for row in plan.rows:
            if row.steps is None:
                assert row.seconds is row.bytes is row.pulls_per_worker is None
                continue
            size = 650 * 4
            assert row.bytes_up == row.steps * P * size
            assert row.bytes_down == pytest.approx(row.pull_ratio * row.steps * P * size)
            assert row.pulls_per_worker == pytest.approx(row.pull_ratio * row.steps)
            assert row.seconds is not None
            assert plan.nsgd.seconds is not None
            assert row.against_nsgd == pytest.approx(row.seconds / plan.nsgd.seconds)


def test_the_words_say_what_matters(plans: dict[str, Advice]) -> None:
    said = " ".join(render.sentences(plans["wan"]))
    row = plans["wan"].recommended
    for part in (
        f"pull ratio {row.pull_ratio:g}", "pulls per worker", "of traffic", "simulated time",
        "Bottleneck: latency", "short trial runs", "successive halving", "bounds are loose",
        f"at most {row.limits.theorem1:.3g}", "L = ", " to ", "cost:", "gradients of a sample",
    ):  # fmt: skip
        assert part in said


QUICK: dict[str, Any] = {
    "workers": 4, "batch_size": 5, "steps": 16, "ratios": (1.0, 0.2), "constants": KNOWN,
    "learning_rates": (0.1, 0.3), "execution": Execution(4, 1),
}  # fmt: skip


def quick(model: nn.Module, data: Dataset, **changes: Any) -> Advice:
    return advise(model, F.cross_entropy, data, **{**QUICK, **changes})


def test_the_same_seed_repeats(model: nn.Module, digits: Dataset) -> None:
    first, second, other = (quick(model, digits, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first.target_loss != other.target_loss
    shared = make_trials(
        model,
        F.cross_entropy,
        digits,
        workers=4,
        batch_size=5,
        steps=16,
        seed=1,
        execution=Execution(4, 1),
    )
    quick(model, digits, seed=1, trials=shared, network="wan")  # trains further or less far
    again = quick(model, digits, seed=1, trials=shared)
    assert (again.rows, again.target_loss) == (first.rows, first.target_loss)


def test_json_keys_are_stable(model: nn.Module, digits: Dataset) -> None:
    for plan in (quick(model, digits), quick(model, digits, use_trials=False)):
        content = plan.as_json()
        assert json.loads(json.dumps(content, allow_nan=False)) == content
        assert list(content) == [
            "recommended", "nsgd", "rows", "rests_on", "target_loss", "target_given",
            "nsgd_steps", "trials", "constants", "theory", "learning_rates",
            "seconds_per_step_if_every_10", "workers", "network", "notes",
        ]  # fmt: skip
        assert list(content["recommended"]) == [
            "pull_ratio", "lr", "steps", "pulls_per_worker", "bytes_up", "bytes_down",
            "seconds_per_step", "seconds", "against_nsgd", "lowest_loss", "limited_by",
            "saved_if_free", "largest_step",
        ]  # fmt: skip
        assert list(content["constants"]) == [
            "measured", "smoothness", "variance", "gradient_bound", "initial_gap", "cost"
        ]  # fmt: skip
        assert list(content["theory"]) == ["theorem1", "bounded_gradients"]


def test_a_target_may_be_given(model: nn.Module, digits: Dataset) -> None:
    free = quick(model, digits)
    assert free.target_loss is not None
    plan = quick(model, digits, target_loss=free.target_loss * 1.2)
    assert plan.target_given
    assert plan.nsgd.steps is not None
    assert free.nsgd.steps is not None
    assert plan.nsgd.steps < free.nsgd.steps
    far = quick(model, digits, target_loss=free.target_loss * 0.8)  # NSGD needs more than 16 steps
    assert far.nsgd.steps is not None
    assert far.nsgd.steps > 16


def test_one_ratio_and_rate_are_priced_against_nsgd(model: nn.Module, digits: Dataset) -> None:
    plan = quick(model, digits, ratios=(0.2,), learning_rates=(0.3,))
    assert [row.pull_ratio for row in plan.rows] == [1.0, 0.2]
    assert plan.recommended.pull_ratio == 0.2
    assert plan.recommended.lr == 0.3
    assert "largest admissible is 0.01709" in plan.notes[0]  # 0.2 / (2 * 3.25 * 1.8)


def test_nsgd_is_recommended_where_nothing_else_gets_there(
    model: nn.Module, digits: Dataset
) -> None:
    slow = {"step_seconds": 1.0}  # nothing is saved by not pulling
    plan = quick(
        model, digits, ratios=(0.01,), learning_rates=(4.0,), network=slow, steps=40,
        partition="shards:2",
    )  # fmt: skip
    assert plan.rows[1].seconds is None
    assert plan.rows[1].lowest_loss is not None
    assert plan.recommended is plan.nsgd
    assert plan.recommended.price.bottleneck == "compute"
    assert "Recommended: NSGD" in render.sentences(plan)[0]
    assert any(said.startswith("Target not reached within") for said in render.sentences(plan))
    assert (
        "at r = 0.01: the largest admissible is 0.0007731" in plan.notes[0]
    )  # the ratio asked for


def test_the_bounds_alone_say_so(model: nn.Module, digits: Dataset) -> None:
    plan = quick(model, digits, use_trials=False, learning_rates=None)
    assert plan.rests_on == "theory"
    assert plan.effort is None
    assert "no trials" in " ".join(render.sentences(plan))
    assert plan.recommended.pull_ratio == plan.preferred("bounded_gradients")
    render.plot(plan)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ratios": (0.0,)}, r"must lie in \(0, 1\] but is 0"),
        ({"ratios": ()}, "at least one pull ratio"),
        ({"learning_rates": (-1.0,)}, "learning rate must be a positive number"),
        (
            {"learning_rates": (1e36,)},
            r"largest admissible .* is 0\.1538 .* 0\.6154 = 2/L",
        ),
        ({"learning_rates": (0.7,), "use_trials": False}, "use at most 0.307692"),
        ({"target_loss": 9.0}, "should be below"),
        ({"target_loss": 0.0}, "No trial reached the target loss 0 within 128 steps"),
        ({"target_loss": 1.0, "use_trials": False}, "needs trials"),
        ({"steps": 3}, "at least 8 steps"),
        ({"workers": 0}, "workers must be a whole number"),
        ({"network": "moon"}, "moon"),
    ],
)
def test_bad_input_gets_a_sentence(
    model: nn.Module, digits: Dataset, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        quick(model, digits, **changes)


def test_trials_of_another_plan_are_refused(model: nn.Module, digits: Dataset) -> None:
    other = make_trials(model, F.cross_entropy, digits, workers=3, execution=Execution(3, 1))
    with pytest.raises(ConfigError, match="make them anew"):
        quick(model, digits, trials=other)
