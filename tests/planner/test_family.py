"""The list of candidates: every line is a method, and a line is all it takes to add one."""

from __future__ import annotations

import pytest

from prlc.errors import ConfigError
from prlc.methods import LocalSGD, Scheduled, parse_method
from prlc.planner.family import FAMILY, VALUES, Line, candidates
from prlc.runs.config import usual_method


def test_every_line_is_a_method() -> None:
    methods = candidates()
    assert all(isinstance(method, Scheduled) for method in methods)
    assert len(methods) == len({str(method) for method in methods})
    assert len(candidates([*FAMILY, Line("pr:0.123")])) == len(methods) + 1


def test_names_in_braces_stand_for_values() -> None:
    lengths = [2, 5, 10, 25, 50]
    assert [*VALUES["H"]] == lengths
    assert [*candidates(["local-sgd:{H}"])] == [LocalSGD(H) for H in lengths]
    # The same name has the same value everywhere in a line.
    alike = candidates(["nsgd:up={message}:down={message}"])
    assert len(alike) == len(VALUES["message"])
    assert all(str(method.up) == str(method.down.encoding) for method in alike)
    assert len(candidates(["local-sgd:{H}:up={message}"])) == len(VALUES["H"]) * len(
        VALUES["message"]
    )


def test_a_line_may_have_a_step_size_of_its_own() -> None:
    members = candidates([Line("nsgd", step=0.1), "pr:0.5"])
    assert [member.step for member in members.values()] == [0.1, 1.0]


def test_neighbours_differ_in_one_value_by_one_place() -> None:
    members = candidates(["local-sgd:{H}:up={message}"])
    middle = parse_method("local-sgd:10:up=int4")
    assert isinstance(middle, Scheduled)
    assert {str(each) for each in members[middle].neighbours} == {
        "local-sgd:5:up=int4",
        "local-sgd:25:up=int4",
        "local-sgd:up=int8",
        "local-sgd:up=topk,0.05",
    }
    corner = parse_method("local-sgd:2")
    assert isinstance(corner, Scheduled)
    assert len(members[corner].neighbours) == 2


def test_less_is_said_where_no_value_is_dearer() -> None:
    members = candidates(["local-sgd:{H}:up={message}", "local-sgd:{H}:up=topk:meanwhile={guess}"])
    own, guessing = map(
        parse_method, ["local-sgd:25:up=int4", "local-sgd:25:up=topk:meanwhile=ahead"]
    )
    assert isinstance(own, Scheduled)
    assert isinstance(guessing, Scheduled)
    assert {str(each) for each in members[own].less} == {
        f"local-sgd:{H}:up={message}" for H in (25, 50) for message in ("int4", "topk,0.05", "topk")
    } - {"local-sgd:25:up=int4"}
    assert {str(each) for each in members[guessing].less} == {
        "local-sgd:50:up=topk:meanwhile=ahead"
    }


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
            "stand for H, h, long, r, up, down, fading, message, guess, as in local-sgd:{H}; got",
        ),
        ("local-sgd:{H", "Braces in a method"),
        ("local-sgd:{}", "Braces in a method"),
        ("local-sgd:{H:x}", "Braces in a method"),
        ("local-sgd:{H:{r}}", "Braces in a method"),
        ("nsgd:up={message!s}", "Braces in a method"),
        ("asgd", "ASGD decides online"),
        ("lag-wk", "decides online"),
        ("nonsense", "nonsense"),
    ],
)
def test_what_is_no_candidate_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        candidates([text])
