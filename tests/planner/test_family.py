"""The list of candidates: every line is a method, and a line is all it takes to add one."""

from __future__ import annotations

import pytest

from prlc.errors import ConfigError
from prlc.methods import LocalSGD, Scheduled
from prlc.planner.family import FAMILY, VALUES, Line, candidates


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
    alike = candidates(["nsgd:up={small}:down={small}"])
    assert len(alike) == len(VALUES["small"])
    assert all(str(method.up) == str(method.down.encoding) for method in alike)
    assert len(candidates(["local-sgd:{H}:up={small}"])) == len(VALUES["H"]) * len(VALUES["small"])


def test_a_line_may_have_a_step_size_of_its_own() -> None:
    assert candidates([Line("nsgd", step=0.1), "pr:0.5"]) == {
        **candidates(["nsgd"]),
        **candidates(["pr:0.5"]),
    } | dict.fromkeys(candidates(["nsgd"]), 0.1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "local-sgd:{steps}",
            "stand for H, r, tiny, small, as in local-sgd:{H}; got 'local-sgd:{steps}'",
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
