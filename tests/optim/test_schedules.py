"""Learning-rate schedules."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prlc.errors import ConfigError
from prlc.optim.schedules import Constant, Cosine, LRSchedule, StepDecay, parse_lr_schedule

SCHEDULES: list[LRSchedule] = [Constant(0.1), StepDecay(0.1), StepDecay(0.2, 9, 0.5), Cosine(0.3)]


def test_constant_stays() -> None:
    assert [Constant(0.1).at(epoch, 90) for epoch in (0, 45.5, 90, 1000)] == [0.1] * 4


def test_the_paper_s_decay_is_a_tenth_every_thirty_epochs() -> None:
    decay = StepDecay(0.1)
    expected = {0: 0.1, 29.99: 0.1, 30: 0.01, 59.99: 0.01, 60: 0.001, 90: 0.0001}
    for epoch, lr in expected.items():
        assert decay.at(epoch, 90) == pytest.approx(lr)


def test_decay_falls_at_the_epoch_although_sums_of_steps_are_inexact() -> None:
    decay = StepDecay(1.0, every=3, factor=0.5)
    assert decay.at(math.nextafter(3.0, 0.0), 10) == 0.5
    assert decay.at(2.9999, 10) == 1.0


def test_cosine_goes_from_all_to_nothing() -> None:
    cosine = Cosine(0.4)
    assert cosine.at(0, 10) == pytest.approx(0.4)
    assert cosine.at(5, 10) == pytest.approx(0.2)
    assert cosine.at(10, 10) == pytest.approx(0.0)
    assert cosine.at(12, 10) == pytest.approx(0.0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@given(a=st.floats(0, 100), b=st.floats(0, 100))
def test_no_schedule_ever_rises(schedule: LRSchedule, a: float, b: float) -> None:
    first, second = sorted((a, b))
    assert 0.0 <= schedule.at(second, 100) <= schedule.at(first, 100) <= 0.3
    assert math.isfinite(schedule.at(first, 100))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_compare_hash_and_pickle(schedule: LRSchedule) -> None:
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert hash(pickle.loads(pickle.dumps(schedule))) == hash(schedule)
    assert schedule in SCHEDULES
    assert SCHEDULES.count(schedule) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", Constant(0.5)),
        ("cosine", Cosine(0.5)),
        ("step", StepDecay(0.5)),
        ("step:9", StepDecay(0.5, 9.0)),
        ("step:9:0.2", StepDecay(0.5, 9.0, 0.2)),
    ],
)
def test_schedules_are_read_from_text(text: str, expected: LRSchedule) -> None:
    assert parse_lr_schedule(text, 0.5) == expected


@pytest.mark.parametrize(
    "text", ["", "steps", "constant:1", "cosine:2", "step:1:0.1:3", "step:x", "step:1:", "STEP"]
)
def test_unknown_schedules_are_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ConfigError, match=r"constant, cosine, step.*step:EPOCHS:FACTOR") as error:
        parse_lr_schedule(text, 0.5)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["step:0", "step:-3", "step:nan", "step:3:0", "step:3:2"])
def test_decays_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"above 0 epochs and a factor in \(0, 1\]"):
        parse_lr_schedule(text, 0.5)


@pytest.mark.parametrize("lr", [0, -0.1, math.nan, math.inf, "x", None])
@pytest.mark.parametrize("kind", [Constant, StepDecay, Cosine])
def test_learning_rates_must_be_positive_numbers(kind: Any, lr: object) -> None:
    with pytest.raises(ConfigError, match=f"positive number but is {lr!r}"):
        kind(lr)
