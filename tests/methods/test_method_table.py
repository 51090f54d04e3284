"""What every method can do for free, because it is a frozen dataclass."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from itertools import pairwise

import numpy as np
import pytest

from prlc import methods
from prlc.methods import (
    LAGPS,
    METHODS,
    NSGD,
    PR,
    PRLC,
    Asynchronous,
    Lazy,
    LocalSGD,
    Method,
    Scheduled,
    create,
)

SCHEDULED = [NSGD(), PR(0.3), PRLC(0.3), PRLC(0.5, every=4), LocalSGD(5)]


def test_it_prints_as_it_is_written(any_method: Method) -> None:
    assert eval(repr(any_method), vars(methods)) == any_method


def test_it_compares_and_hashes_by_value(any_method: Method) -> None:
    twin = copy.deepcopy(any_method)
    assert twin == any_method
    assert hash(twin) == hash(any_method)
    others = [kind() for name, kind in METHODS.items() if name != any_method.name]
    assert any_method not in others


def test_it_pickles(any_method: Method) -> None:
    assert pickle.loads(pickle.dumps(any_method)) == any_method


def test_it_cannot_be_changed(any_method: Method) -> None:
    for field in dataclasses.fields(any_method):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(any_method, field.name, 1)


def test_its_options_make_it_again(any_method: Method) -> None:
    assert create(any_method.name, **any_method.options()) == any_method
    assert list(any_method.options()) == methods.option_names(any_method.name)


def test_it_has_a_name_a_label_and_a_summary(any_method: Method) -> None:
    assert METHODS[any_method.name] is type(any_method)
    assert any_method.label
    assert any_method.summary
    assert "\n" not in any_method.label + any_method.summary


def test_it_belongs_to_one_family(any_method: Method) -> None:
    families = [isinstance(any_method, family) for family in (Scheduled, Lazy, Asynchronous)]
    assert sum(families) == 1


def test_every_named_method_works_without_settings() -> None:
    for name, kind in METHODS.items():
        assert create(name) == kind()
        assert kind.name == name


def test_labels_tell_settings_apart() -> None:
    assert PR(0.3).label == "PR r=0.3"
    assert PRLC(0.3).label == "PRLC r=0.3"
    assert PRLC(0.5, every=4).label == "PRLC r=0.5, every 4"
    assert LocalSGD(7).label == "Local SGD H=7"
    assert LAGPS().label == "LAG-PS"
    assert LAGPS(xi=2.0, smoothness=3.0).label == "LAG-PS xi=2 smoothness=3"


@pytest.mark.parametrize("any_method", SCHEDULED, ids=repr)
def test_who_communicates_is_a_pure_function(any_method: Scheduled) -> None:
    workers, steps = np.arange(5), np.arange(40)
    table = any_method.pulls(7, workers, steps[:, None])
    assert table.shape == (40, 5)
    assert table.dtype == np.bool_
    for step in (39, 0, 17):
        for worker in (4, 2):
            assert any_method.pulls(7, worker, step) == table[step, worker]
        assert np.array_equal(any_method.pulls(7, workers, step), table[step])
    assert not table[~any_method.due(steps)].any(), "nobody pulls where nobody pushes"


def test_communication_is_due_at_the_end_of_each_period() -> None:
    assert LocalSGD(3).due(np.arange(7)).tolist() == [False, False, True] * 2 + [False]
    assert PRLC(0.5, every=3).due(5)
    assert not PRLC(0.5, every=3).due(6)
    assert PRLC(0.5).due(np.arange(5)).all()


def test_a_larger_ratio_pulls_wherever_a_smaller_one_does() -> None:
    workers, steps = np.arange(10), np.arange(100)[:, None]
    tables = [PRLC(r).pulls(3, workers, steps) for r in (0.1, 0.4, 0.8, 1.0)]
    for few, many in pairwise(tables):
        assert not (few & ~many).any()
    assert tables[-1].all()


def test_compensation_is_all_that_sets_prlc_apart() -> None:
    assert PR.compensation == 0.0
    assert PRLC.compensation == LocalSGD.compensation == 1.0
    steps = np.arange(50)[:, None]
    assert np.array_equal(PR(0.2).pulls(1, range(4), steps), PRLC(0.2).pulls(1, range(4), steps))
