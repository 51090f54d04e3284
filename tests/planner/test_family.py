"""The list of candidates: every line is a method, and a line is all it takes to add one."""

from __future__ import annotations

import pytest

from prlc.errors import ConfigError
from prlc.methods import LocalSGD, Scheduled, parse_method
from prlc.planner import recommend
from prlc.planner.family import FAMILY, STEP_SIZES, VALUES, Line, candidates
from prlc.runs.config import usual_method


def test_every_line_is_a_method() -> None:
    methods = candidates()
    assert all(isinstance(method, Scheduled) for method in methods)
    assert len(methods) == len({str(method) for method in methods})
    assert len(candidates([*FAMILY, Line("pr:0.123")])) == len(methods) + 1
    assert len(methods) * len(STEP_SIZES) <= recommend._TRIALS, "a plan has room for all of them"


def test_names_in_braces_stand_for_values() -> None:
    lengths = [2, 5, 10, 25, 50]
    assert [*VALUES["H"]] == lengths
    assert [*candidates(["local-sgd:{H}"])] == [LocalSGD(H) for H in lengths]
    # The same name has the same value everywhere in a line.
    alike = candidates(["nsgd:up={small}:down={small}"])
    assert len(alike) == len(VALUES["small"])
    assert all(str(method.up) == str(method.down.encoding) for method in alike)
    assert len(candidates(["local-sgd:{H}:up={small}"])) == len(VALUES["H"]) * len(VALUES["small"])


def test_a_line_may_have_a_step_size_of_its_own() -> None:
    members = candidates([Line("nsgd", step=0.1), "pr:0.5"])
    assert [member.step for member in members.values()] == [0.1, 1.0]


def test_neighbours_differ_in_one_value_by_one_place() -> None:
    members = candidates(["local-sgd:{H}:up={small}"])
    middle = parse_method("local-sgd:10:up=int4")
    assert isinstance(middle, Scheduled)
    assert {str(each) for each in members[middle].neighbours} == {
        "local-sgd:5:up=int4",
        "local-sgd:25:up=int4",
        "local-sgd:up=int8",
        "local-sgd:up=topk,0.05",
    }
    corner = parse_method("local-sgd:2:up=int8")
    assert isinstance(corner, Scheduled)
    assert len(members[corner].neighbours) == 2


def test_values_in_no_order_are_all_next_to_each_other() -> None:
    members = candidates(["local-sgd:{H}:meanwhile={guess}:up=topk"])
    first = next(iter(members))
    assert [(each.every, each.meanwhile.name) for each in members[first].neighbours] == [
        (5, "ahead-snr"),
        (5, "ahead"),
    ]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_default_is_a_member_that_has_neighbours(optimizer: str) -> None:
    method = parse_method(usual_method(optimizer, "workers"))
    assert isinstance(method, Scheduled)
    assert candidates()[method].neighbours


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "local-sgd:{steps}",
            "stand for H, h, long, r, ternary, fading, small, guess, as in local-sgd:{H}; got",
        ),
        ("local-sgd:{H", "Braces in a method"),
        ("local-sgd:{}", "Braces in a method"),
        ("asgd", "ASGD decides online"),
        ("lag-wk", "decides online"),
        ("nonsense", "nonsense"),
    ],
)
def test_what_is_no_candidate_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        candidates([text])
