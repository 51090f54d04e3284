"""What every method can do for free, because it is a frozen dataclass."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from itertools import pairwise

import numpy as np
import pytest

from prlc import methods
from prlc.encodings import ENCODINGS, Down
from prlc.methods import (
    COMPENSATIONS,
    LAGPS,
    METHODS,
    NSGD,
    PR,
    PRLC,
    Asynchronous,
    FedProx,
    Lazy,
    LocalSGD,
    Mask,
    Method,
    Scheduled,
    Timetable,
    create,
    parse_method,
)

SCHEDULED: list[Scheduled] = [NSGD(), PR(0.3), PRLC(0.3), PRLC(0.5, every=4), LocalSGD(5)]


#: What a method's repr may name.
NAMES = {
    **{name: value for name, value in vars(methods).items() if isinstance(value, type)},
    **{kind.__name__: kind for kind in (*ENCODINGS.values(), *COMPENSATIONS.values(), Down)},
}


def pulls_of(method: Scheduled, num_workers: int, seed: int, steps: int) -> Mask:
    """Who pulls at each step: (steps, workers)."""
    timetable = Timetable(method, num_workers, seed)
    return np.array([timetable[step].pulls for step in range(steps)])


def test_it_prints_as_it_is_written(any_method: Method) -> None:
    if not isinstance(any_method, FedProx):  # whose compensation follows from mu
        assert eval(repr(any_method), NAMES) == any_method


def test_its_text_is_read_back_rule_23(any_method: Method) -> None:
    text = str(any_method)
    assert parse_method(text) == any_method
    assert str(parse_method(text)) == text
    twin = create(any_method.name, **any_method.options())
    assert str(twin) == text, "equal methods have equal texts"


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


@pytest.mark.parametrize(
    "text",
    [
        "cocod-sgd:20:delay=10",  # the default delay, but not the round's length
        "cocod-sgd:5",
        "fedprox:5:mu=0.5",
        "sparseloco:5:up=plain",
        "prlc:0.1:every=5:delay=5:up=topk,0.01,bits=4:down=int8:schedule=staggered",
        "pr:meanwhile=share,0.25",
        "ef21-p:down=topk,0.02,bits=32",
        "nsgd:up=int4:down=int4,what=mean",
        "local-sgd:sample=0.1:weights=samples",
    ],
)
def test_settings_away_from_a_preset_survive_rule_23(text: str) -> None:
    method = parse_method(text)
    assert parse_method(str(method)) == method
    assert method == create(method.name, **method.options())


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


@pytest.mark.parametrize("any_method", SCHEDULED, ids=str)
def test_who_communicates_is_a_pure_function(any_method: Scheduled) -> None:
    timetable = Timetable(any_method, 5, 7)
    table = np.array([timetable[step].pulls for step in range(40)])
    assert table.shape == (40, 5)
    assert table.dtype == np.bool_
    for step in (39, 0, 17):
        assert np.array_equal(Timetable(any_method, 5, 7)[step].pulls, table[step])
        fewer = Timetable(any_method, 3, 7)[step].pulls
        assert np.array_equal(fewer, table[step, :3]), "whoever else there is"
    due = [timetable[step].is_push for step in range(40)]
    assert not table[~np.array(due)].any(), "nobody pulls where nobody pushes"


def test_communication_is_due_at_the_end_of_each_period() -> None:
    def due(method: Scheduled, steps: int) -> list[bool]:
        timetable = Timetable(method, 2, 0)
        return [timetable[step].is_push for step in range(steps)]

    assert due(LocalSGD(3), 7) == [False, False, True] * 2 + [False]
    assert due(PRLC(0.5, every=3), 7)[5:] == [True, False]
    assert all(due(PRLC(0.5), 5))


def test_a_larger_ratio_pulls_wherever_a_smaller_one_does() -> None:
    tables = [pulls_of(PRLC(r), 10, 3, 100) for r in (0.1, 0.4, 0.8, 1.0)]
    for few, many in pairwise(tables):
        assert not (few & ~many).any()
    assert tables[-1].all()


def test_compensation_is_all_that_sets_prlc_apart() -> None:
    assert PR().gain == 0.0
    assert PRLC().gain == LocalSGD().gain == 1.0
    assert np.array_equal(pulls_of(PR(0.2), 4, 1, 50), pulls_of(PRLC(0.2), 4, 1, 50))
