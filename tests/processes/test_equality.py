"""Real processes compute what the reference computes: every method, in both layouts.

The table of methods is in tests/conftest.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import prlc
from golden import Golden, trace
from prlc.methods import ASGD, Asynchronous, Method, Scheduled, Timetable, parse_method

from .launch import Ended, asked_for, launch, some_slow
from .problems import outcome, problem, settings
from .run_cases import Case

WORKERS = 3
SLOW = {"lr": 0.02, "schedule": "cosine"}
#: Other optimizers, models and windows, in the layout that asks more of them.
VARIANTS: dict[str, dict[str, Any]] = {
    "momentum": {"settings": {"method": "prlc:0.3", "optimizer": "momentum", **SLOW}},
    "adamw": {"settings": {"method": "pr:0.3", "optimizer": "adamw", **SLOW}},
    "lag-wk adamw": {"settings": {"method": "lag-wk", "optimizer": "adamw", **SLOW}},
    "mixed laq": {"settings": {"method": "laq:3:up=grid,chunk=16"}, "model": "mixed"},
    "tiny laq": {"settings": {"method": "laq:up=int8"}, "model": "tiny"},
    "nesterov": {"settings": {"method": "local-sgd:5", "server_optimizer": "nesterov", **SLOW}},
    "mixed": {"settings": {"method": "prlc:0.3"}, "model": "mixed"},
    "mixed nesterov": {
        "settings": {"method": "nsgd", "server_optimizer": "nesterov", **SLOW},
        "model": "mixed",
    },
    "frozen": {"settings": {"method": "prlc:0.3"}, "model": "frozen"},
    "text": {"settings": {"method": "prlc:0.3", "optimizer": "adamw", **SLOW}, "model": "text"},
    "tiny": {"settings": {"method": "prlc:0.3"}, "model": "tiny"},
    "tiny lag-ps": {"settings": {"method": "lag-ps"}, "model": "tiny"},
    "window 1": {"settings": {"method": "prlc:0.1"}, "cluster": {"window": 1}},
    "window 1 delay": {"settings": {"method": "prlc:0.3:delay=7"}, "cluster": {"window": 1}},
    "blocks": {"settings": {"method": "prlc:0.5:blocks=3:delay=1"}},
    "aligned": {"settings": {"method": "pr:0.25:schedule=aligned:meanwhile=share,0.5:delay=3"}},
    "float16": {"settings": {"method": "nsgd:up=float16:down=float32"}},
    "ternary": {"settings": {"method": "nsgd:up=ternary,chunk=16,ef=yes:down=int2,chunk=32"}},
    "sample": {"settings": {"method": "local-sgd:5:sample=0.5:down=int4,chunk=16"}},
    "mean": {"settings": {"method": "nsgd:up=int4,chunk=16:down=int4,chunk=16,what=mean"}},
    "adamw at the server": {
        "settings": {"method": "nsgd", "optimizer": "adamw", "optimizer_at": "server", **SLOW}
    },
    "adamw at the server, 4 bits": {
        "settings": {
            "method": "nsgd:up=int4:down=int4,what=mean",
            "optimizer": "adamw",
            "optimizer_at": "server",
            **SLOW,
        }
    },
    "mixed parts": {"settings": {"method": "prlc:0.3:up=topk,0.1"}, "model": "mixed"},
    "tiny parts": {"settings": {"method": "prlc:0.3:up=topk,0.5:delay=2"}, "model": "tiny"},
}
#: Of these, what roles in memory are tested with as well: `make test-slow`.
RARE = {
    "lag-wk adamw", "mixed laq", "mixed nesterov", "text", "tiny lag-ps", "window 1 delay",
    "aligned", "float16", "ternary", "sample", "mean", "tiny parts", "momentum", "blocks", "frozen",
    "mixed parts",
}  # fmt: skip
#: The last round is shorter (rule 8); the mean loss of a round is reported at its end.
SHORTER: dict[str, dict[str, Any]] = {
    "steps that H does not divide": {"settings": {"method": "local-sgd:7", "eval_every": 60}},
    "fewer steps than H": {"settings": {"method": "local-sgd:5", "steps": 3, "eval_every": 3}},
}
#: Those whose result depends on the order of arrival, unless there is but one worker.
ALONE = ["asgd", "ssp"]
LAYOUTS = ["server", "sharded"]
REST = "server, the rest"  # what takes minutes more: `make test-slow`


def comes_first(method: Method) -> bool:
    """Whether a method is run with a server by default: those with no parts, or with several."""
    return (
        not isinstance(method, Scheduled) or method.trivial or type(method).name in ("prlc", "pr")
    )


def case_of(name: str, layout: str, **more: Any) -> Case:
    return Case(name=name, layout=layout, workers=WORKERS, **more)


@pytest.fixture(scope="module", params=LAYOUTS)
def ended(
    request: pytest.FixtureRequest,
    all_methods: list[Method],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Ended]:
    """All runs in one layout: the methods of the table, and the cases above."""
    layout = request.param
    if layout == REST:
        rest = [str(method) for method in all_methods if not comes_first(method)]
        return launch(
            [case_of(name, "server", settings={"method": name}) for name in rest],
            "equality-rest",
            tmp_path_factory,
        )
    methods = [m for m in all_methods if layout == "sharded" or comes_first(m)]
    alone = [
        Case(name=f"one worker, {name}", layout=layout, workers=1, settings={"method": name})
        for name in ALONE
    ]
    late = Case(
        name="late updates",
        layout=layout,
        workers=2,
        settings={"method": "asgd", "steps": 40, "eval_every": 40, "checkpoint_every": 40},
        trouble={"what": "slow payload", "worker": 1, "step": 0},
    )
    short = {"method": "ssp:2", "steps": 8, "eval_every": 8, "folder": "late-in-a-window"}
    window = replace(
        late, name="late in a window", settings=short, cluster={"record_timeline": True}
    )
    given: dict[str, dict[str, Any]]
    given = {str(method): {"settings": {"method": str(method)}} for method in methods}
    given |= SHORTER
    if layout == "sharded":
        given |= {name: VARIANTS[name] for name in VARIANTS if name in asked_for(request)}
    cases = [case_of(name, layout, **each) for name, each in given.items()]
    return launch([*cases, *alone, late, window], f"equality-{layout}", tmp_path_factory, at_once=2)


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


@cache
def expected(model: str, given: str) -> dict[str, Any]:
    return by_reference(model, json.loads(given), workers=WORKERS)


def assert_as_the_reference(run: Ended, *without: str, update_golden: bool) -> None:
    """The parameters, the metrics but for `without`, the payload measured, the golden trace."""
    ours, theirs = run.of_rank(), expected(run.case.model, json.dumps(run.case.settings))
    assert_same_tensors(ours, theirs)
    assert ours["counters"] == theirs["counters"]
    assert_same_numbers(ours, theirs, *without)
    assert ours["summary"]["bad_updates"] == [0] * WORKERS
    sent = ours["summary"]["payload_sent"]
    assert sum(sent["up"]) == theirs["summary"]["bytes_up"]
    assert sum(sent["down"]) == theirs["summary"]["bytes_down"]
    assert "is the bound that" not in run.everything(), "lengths have a bound for mistakes alone"
    found = trace(ours["tensors"], ours["summary"])
    method = parse_method(run.case.settings["method"])
    Golden("processes", update_golden).check(f"{run.case.name} {run.case.layout}", found, method)


def assert_moved(run: Ended) -> None:
    start = problem(run.case.model)[0].state_dict()
    tensors = run.of_rank()["tensors"]
    assert max(float((t - start[key]).abs().max()) for key, t in tensors.items()) > 1e-3


@pytest.mark.parametrize("ended", ["sharded"], indirect=True)
def test_every_method_is_as_the_reference(
    ended: dict[str, Ended], repeatable_method: Method, update_golden: bool
) -> None:
    assert_method_as_the_reference(ended, repeatable_method, update_golden)


@pytest.mark.parametrize(
    "ended", ["server", pytest.param(REST, marks=pytest.mark.slow)], indirect=True
)
def test_with_a_server_it_is_as_the_reference_too(
    ended: dict[str, Ended], all_methods: list[Method], update_golden: bool
) -> None:
    chosen = [m for m in all_methods if str(m) in ended and not isinstance(m, Asynchronous)]
    assert chosen
    for method in chosen:
        assert_method_as_the_reference(ended, method, update_golden)


def assert_method_as_the_reference(
    ended: dict[str, Ended], method: Method, update_golden: bool
) -> None:
    run = ended[str(method)]
    assert_moved(run)
    every = getattr(method, "every", 1)
    split = [] if 20 % every == 0 else ["batch_loss"]  # rounds that an evaluation falls into
    assert_as_the_reference(run, *split, update_golden=update_golden)


@pytest.mark.parametrize("ended", ["sharded"], indirect=True)
@pytest.mark.parametrize("name", some_slow(VARIANTS, RARE))
def test_every_variant_is_as_the_reference(
    ended: dict[str, Ended], name: str, update_golden: bool
) -> None:
    assert_moved(ended[name])
    assert_as_the_reference(ended[name], update_golden=update_golden)


@pytest.mark.parametrize("name", SHORTER)
def test_rule_8_the_last_shorter_round_is_pushed(
    ended: dict[str, Ended], name: str, update_golden: bool
) -> None:
    assert_as_the_reference(ended[name], "batch_loss", update_golden=update_golden)


def test_payload_is_measured_by_worker(ended: dict[str, Ended], all_methods: list[Method]) -> None:
    for method in all_methods:
        if isinstance(method, Scheduled) and method.trivial:
            ours = ended[str(method)].of_rank()
            payload = sum(t.numel() * t.element_size() for t in ours["tensors"].values())
            turns = [Timetable(method, WORKERS, 0, 60)[step] for step in range(60)]
            pulls = np.sum([turn.pulls for turn in turns], axis=0)
            pushes = sum(turn.is_push for turn in turns)
            sent = ours["summary"]["payload_sent"]
            assert sent == {"up": [pushes * payload] * WORKERS, "down": (pulls * payload).tolist()}


def test_every_process_is_given_the_result(
    ended: dict[str, Ended], all_methods: list[Method]
) -> None:
    for method in (method for method in all_methods if str(method) in ended):
        first, *others = ended[str(method)].of_all()
        for other in others:
            assert other["summary"] == first["summary"]
            assert all(torch.equal(t, first["tensors"][k]) for k, t in other["tensors"].items())
            pd.testing.assert_frame_equal(
                pd.DataFrame(other["metrics"]), pd.DataFrame(first["metrics"])
            )


def test_asgd_takes_what_arrives_and_learns(
    ended: dict[str, Ended], asynchronous_method: Method
) -> None:
    ours = ended[str(asynchronous_method)].of_rank()
    summary, metrics = ours["summary"], ours["metrics"]
    payload = sum(t.numel() * t.element_size() for t in ours["tensors"].values())
    # Whoever pushes is answered with a model, but for the last push, which comes too late, and for
    # those who are too far ahead at the end, who have pushed their last.
    waiting = round(WORKERS * (60 - summary["pulls_per_worker"]))
    assert waiting == 0 if isinstance(asynchronous_method, ASGD) else 0 <= waiting < WORKERS
    assert 60 <= summary["pushes_per_worker"] <= 61 - waiting / WORKERS
    assert summary["bytes_down"] == (WORKERS * 60 - waiting) * payload
    assert summary["bytes_up"] == summary["pushes_per_worker"] * WORKERS * payload
    sent = summary["payload_sent"]
    assert sum(sent["up"]) == summary["bytes_up"]
    if isinstance(asynchronous_method, ASGD):
        assert sum(sent["down"]) == summary["bytes_down"]
    else:  # each shard has an order of arrivals, so at the end each holds back workers of its own
        assert abs(sum(sent["down"]) - summary["bytes_down"]) < WORKERS * payload
    assert metrics["train_loss"][-1] < 0.6 * metrics["train_loss"][0]
    assert all(0 <= value <= 40 for value in metrics["staleness"][1:])


def test_asgd_does_not_wait_for_an_update_that_was_only_announced(
    ended: dict[str, Ended],
) -> None:
    fast, slow = ended["late updates"].of_rank()["summary"]["payload_sent"]["up"]
    assert fast > 4 * slow


def test_with_ssp_nobody_is_further_ahead_than_the_window(ended: dict[str, Ended]) -> None:
    run = ended["late in a window"]
    sent = run.of_rank()["summary"]["payload_sent"]["up"]
    payload = sum(t.numel() * t.element_size() for t in run.of_rank()["tensors"].values())
    fast, slow = (size / payload for size in sent)
    assert 0 < fast - slow <= 2 + 1, "whoever waits has finished one step more"
    recorded = pd.read_csv(run.run / "timeline.csv")
    computed = recorded[recorded["what"] == "compute"]
    starts, ends = (computed.groupby("step")[column] for column in ("start", "end"))
    first, last = starts.min(), ends.max()
    assert all(first[step] >= last[step - 3] for step in first.index if step > 2)


@pytest.mark.parametrize("method", ALONE)
def test_asgd_with_one_worker_is_synchronous_sgd(ended: dict[str, Ended], method: str) -> None:
    ours = ended[f"one worker, {method}"].of_rank()
    theirs = by_reference("bn", {"method": "nsgd"}, workers=1)
    assert_same_tensors(ours, theirs)
    assert ours["summary"]["pulls_per_worker"] == 60
    assert ours["metrics"]["train_loss"] == pytest.approx(theirs["metrics"]["train_loss"])
    assert ours["metrics"]["staleness"][1:] == [0.0] * 3
