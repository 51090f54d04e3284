"""Real processes compute what the reference computes: every method, in both layouts."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch

import prlc
from prlc.methods import Scheduled, parse_method

from .launch import Ended, launch
from .problems import outcome, problem, settings
from .run_cases import Case

METHODS = {
    "nsgd": "nsgd",
    "pr": "pr:0.3",
    "prlc": "prlc:0.3",
    "prlc every 4": "prlc:0.5:every=4",
    "local-sgd": "local-sgd:5",
    "lag-ps": "lag-ps",
    "lag-ps L=1": "lag-ps:smoothness=1",
    "lag-wk": "lag-wk",
}
SLOW = {"lr": 0.02, "schedule": "cosine"}
#: Other optimizers, models and windows, in the layout that asks more of them.
VARIANTS: dict[str, dict[str, Any]] = {
    "momentum": {"settings": {"method": "prlc:0.3", "optimizer": "momentum", **SLOW}},
    "adamw": {"settings": {"method": "pr:0.3", "optimizer": "adamw", **SLOW}},
    "lag-wk adamw": {"settings": {"method": "lag-wk", "optimizer": "adamw", **SLOW}},
    "nesterov": {"settings": {"method": "local-sgd:5", "server_optimizer": "nesterov", **SLOW}},
    "mixed": {"settings": {"method": "prlc:0.3"}, "model": "mixed"},
    "mixed nesterov": {
        "settings": {"method": "nsgd", "server_optimizer": "nesterov", **SLOW},
        "model": "mixed",
    },
    "frozen": {"settings": {"method": "prlc:0.3"}, "model": "frozen"},
    "tiny": {"settings": {"method": "prlc:0.3"}, "model": "tiny"},
    "tiny lag-ps": {"settings": {"method": "lag-ps"}, "model": "tiny"},
    "window 1": {"settings": {"method": "prlc:0.1"}, "cluster": {"window": 1}},
}
SAME = {name: {"settings": {"method": method}} for name, method in METHODS.items()} | VARIANTS
#: The last updates are not sent, nor the losses that go with them.
UNSENT: dict[str, dict[str, Any]] = {
    "steps that H does not divide": {"settings": {"method": "local-sgd:7", "eval_every": 60}},
    "fewer steps than H": {"settings": {"method": "local-sgd:5", "steps": 3, "eval_every": 3}},
}
ASGD: dict[str, dict[str, Any]] = {
    "asgd": {"settings": {"method": "asgd"}},
    "asgd aware": {"settings": {"method": "asgd:staleness_aware=true", "checkpoint_every": 1}},
}
ALL = SAME | UNSENT | ASGD
LAYOUTS = ["server", "sharded"]


@pytest.fixture(scope="module", params=LAYOUTS)
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ended]:
    """All runs in one layout."""
    layout = request.param
    alone = Case(name="one worker", layout=layout, workers=1, settings={"method": "asgd"})
    late = Case(
        name="late updates",
        layout=layout,
        workers=2,
        settings={"method": "asgd", "steps": 40, "eval_every": 40, "checkpoint_every": 40},
        trouble={"what": "slow payload", "worker": 1, "step": 0},
    )
    shown = [name for name in ALL if layout == "sharded" or name not in VARIANTS]
    cases = [Case(name=name, layout=layout, **ALL[name]) for name in shown]
    return launch([*cases, alone, late], f"equality-{layout}", tmp_path_factory)


@cache
def expected(name: str) -> dict[str, Any]:
    """What the reference says of a run."""
    given = (SAME | UNSENT)[name]
    return by_reference(given.get("model", "bn"), given["settings"], workers=4)


def by_reference(model: str, given: dict[str, Any], workers: int) -> dict[str, Any]:
    result = prlc.train(*problem(model), engine="reference", **settings(given, workers))
    return outcome(result)


def assert_same_tensors(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["tensors"].keys() == theirs["tensors"].keys()
    for name, tensor in ours["tensors"].items():
        other = theirs["tensors"][name]
        assert tensor.dtype == other.dtype
        close = 1e-10 if tensor.dtype == torch.float64 else 1e-6
        assert float((tensor - other).abs().max()) < close, name


def assert_same_numbers(ours: dict[str, Any], theirs: dict[str, Any], *without: str) -> None:
    """Counts to the last, losses as close as double precision allows."""
    table = pd.DataFrame(ours["metrics"]).drop(columns=["wall_seconds", *without])
    other = pd.DataFrame(theirs["metrics"]).drop(columns=[*without])
    counted = ["step", "pulls_per_worker", "pushes_per_worker", "bytes_up", "bytes_down"]
    pd.testing.assert_frame_equal(table[counted], other[counted], check_exact=True)
    pd.testing.assert_frame_equal(table, other, rtol=1e-9, atol=1e-12)
    for key in (*counted[1:], "pull_fraction", "steps"):
        assert ours["summary"].get(key) == theirs["summary"].get(key), key


@pytest.mark.parametrize(
    ("ended", "name"),
    [(layout, name) for layout in LAYOUTS for name in SAME | UNSENT
     if layout == "sharded" or name not in VARIANTS],
    indirect=["ended"],
)  # fmt: skip
def test_the_same_as_the_reference(ended: dict[str, Ended], name: str) -> None:
    ours, theirs = ended[name].of_rank(), expected(name)
    if name not in UNSENT:
        start = problem(ended[name].case.model)[0].state_dict()
        moved = [float((t - start[key]).abs().max()) for key, t in ours["tensors"].items()]
        assert max(moved) > 1e-3
    assert_same_tensors(ours, theirs)
    assert ours["counters"] == theirs["counters"]
    assert_same_numbers(ours, theirs, *(["batch_loss"] if name in UNSENT else []))
    assert ours["summary"]["bad_updates"] == [0] * 4
    sent = ours["summary"]["payload_sent"]
    assert sum(sent["up"]) == theirs["summary"]["bytes_up"]
    assert sum(sent["down"]) == theirs["summary"]["bytes_down"]


@pytest.mark.parametrize("name", ["prlc", "local-sgd"])
def test_payload_is_counted_by_worker(ended: dict[str, Ended], name: str) -> None:
    ours = ended[name].of_rank()
    payload = sum(t.numel() * t.element_size() for t in ours["tensors"].values())
    method = cast(Scheduled, parse_method(METHODS[name]))
    pulls = method.pulls(0, np.arange(4)[:, None], np.arange(60)).sum(1)
    pushes = int(method.due(np.arange(60)).sum())
    sent = ours["summary"]["payload_sent"]
    assert sent == {"up": [pushes * payload] * 4, "down": (pulls * payload).tolist()}


def test_every_process_is_given_the_result(ended: dict[str, Ended]) -> None:
    for name in ("prlc", "lag-ps", "asgd"):
        first, *others = ended[name].of_all()
        for other in others:
            assert other["summary"] == first["summary"]
            assert all(torch.equal(t, first["tensors"][k]) for k, t in other["tensors"].items())
            pd.testing.assert_frame_equal(
                pd.DataFrame(other["metrics"]), pd.DataFrame(first["metrics"])
            )


@pytest.mark.parametrize("name", ASGD)
def test_asgd_takes_what_arrives_and_learns(ended: dict[str, Ended], name: str) -> None:
    ours = ended[name].of_rank()
    summary, metrics = ours["summary"], ours["metrics"]
    payload = sum(t.numel() * t.element_size() for t in ours["tensors"].values())
    # Whoever pushes is answered with a model, but for the last push, which comes too late.
    assert summary["pulls_per_worker"] == 60
    assert 60 < summary["pushes_per_worker"] <= 61
    assert summary["bytes_down"] == 4 * 60 * payload
    assert summary["bytes_up"] == summary["pushes_per_worker"] * 4 * payload
    assert metrics["train_loss"][-1] < 0.6 * metrics["train_loss"][0]
    assert all(0 <= value <= 40 for value in metrics["staleness"][1:])


def test_asgd_does_not_wait_for_an_update_that_was_only_announced(
    ended: dict[str, Ended],
) -> None:
    fast, slow = ended["late updates"].of_rank()["summary"]["payload_sent"]["up"]
    assert fast > 4 * slow


def test_asgd_with_one_worker_is_synchronous_sgd(ended: dict[str, Ended]) -> None:
    ours = ended["one worker"].of_rank()
    theirs = by_reference("bn", {"method": "nsgd"}, workers=1)
    assert_same_tensors(ours, theirs)
    assert ours["summary"]["pulls_per_worker"] == 60
    assert ours["metrics"]["train_loss"] == pytest.approx(theirs["metrics"]["train_loss"])
    assert ours["metrics"]["staleness"][1:] == [0.0] * 3
