"""Updates that are not finite or misshapen never reach the model; the run stops or leaves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import prlc
from prlc.data import Dataset
from prlc.optim.schedules import Constant
from prlc.runs.config import Config
from prlc.runs.jobs import make_job

from .launch import Ended, asked_for, launch, some_slow
from .problems import outcome, problem, settings
from .run_cases import Case

SKIP = {"on_bad_update": "skip"}
NAN, INFINITE, SHAPE, TYPE = "nan loss", "infinite gradient", "new shape", "new type"
POISON, LONG = "poison", "long gradient"
#: Trouble with worker 2 at step 12; stopped, started again, and then left alone.
STOPPED = {
    "nan loss": ("server", NAN, "prlc:0.3"),
    "nan loss, sharded": ("sharded", NAN, "prlc:0.3"),
    "infinite gradient": ("server", INFINITE, "lag-wk"),
    "in a sum of several": ("server", INFINITE, "local-sgd:5"),
    "new shape": ("server", SHAPE, "prlc:0.3"),
    "new shape, sharded": ("sharded", SHAPE, "nsgd"),
    "new type": ("server", TYPE, "prlc:0.3"),
    "poison": ("server", POISON, "prlc:0.3"),
    "poison, sharded": ("sharded", POISON, "pr:0.3"),
}
#: Trouble with worker 1 once; the others go on, and so does it.
SKIPPED: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "nan loss": ("server", NAN, {"method": "prlc:0.3"}, 12),
    "sharded": ("sharded", INFINITE, {"method": "prlc:0.3", "optimizer": "momentum"}, 12),
    "in a sum of several": ("server", INFINITE, {"method": "prlc:0.5:every=4"}, 12),
    "asked for": ("server", INFINITE, {"method": "lag-ps"}, 0),
    "lag-wk": ("sharded", NAN, {"method": "lag-wk"}, 12),
    "asgd": ("server", INFINITE, {"method": "asgd"}, 12),
    "new shape": ("server", SHAPE, {"method": "prlc:0.3"}, 12),
    "new shape, sharded": ("sharded", SHAPE, {"method": "nsgd", "optimizer": "adamw"}, 12),
    "poison": ("server", POISON, {"method": "nsgd"}, 12),
    "poison, lag-wk": ("server", POISON, {"method": "lag-wk"}, 12),
    "long": ("server", LONG, {"method": "prlc:0.3"}, 0),
    "long, encoded": ("server", LONG, {"method": "nsgd:up=int8"}, 12),
    "long, lag-ps": ("server", LONG, {"method": "lag-ps"}, 0),
    "long, asgd": ("server", LONG, {"method": "asgd"}, 12),
}
SLOW = {
    "new shape, sharded", "poison, sharded", "infinite gradient", "poison, lag-wk", "long, lag-ps",
    "long, asgd",
}  # fmt: skip
LIMIT = 60.0


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ended]:
    names = asked_for(request)
    cases = [
        Case(
            name=f"stopped: {name}",
            layout=layout,
            settings={"method": method, "checkpoint_every": 5, "folder": f"run-{name}"},
            trouble={"what": what, "worker": 2, "step": 12},
            starts=2,
            limit=LIMIT,
        )
        for name, (layout, what, method) in STOPPED.items()
        if name in names
    ]
    cases += [
        Case(
            name=f"skipped: {name}",
            layout=layout,
            settings={"lr": 0.05, **given},
            cluster={**SKIP, "on_long_update": "skip"},
            trouble={"what": what, "worker": 1, "step": step},
            limit=LIMIT,
        )
        for name, (layout, what, given, step) in SKIPPED.items()
        if name in names
    ]
    cases += [
        Case(
            name="one step",
            model="linear",
            settings={"method": "nsgd", "steps": 1, "eval_every": 1},
            cluster=SKIP,
            trouble={"what": NAN, "worker": 2, "step": 0},
        ),
        Case(
            name="long, stopped",
            settings={"method": "prlc:0.3"},
            cluster={"on_long_update": "stop"},
            trouble={"what": LONG, "worker": 2, "step": 0},
            limit=LIMIT,
        ),
        Case(
            name="long, warned",
            model="linear",
            settings={"method": "pr:0.1", "steps": 4, "eval_every": 4},
            trouble={"what": LONG, "worker": 2, "step": 2},
        ),
        Case(
            name="too large together",
            model="linear",
            settings={"method": "nsgd", "lr": 0.5},
            trouble={"what": "huge gradient", "step": 3},
            limit=LIMIT,
        ),
        *(
            Case(
                name=f"a mistake in the script, {layout}",
                layout=layout,
                settings={"method": "prlc:0.3"},
                trouble={"what": "raise", "worker": 2, "step": 3},
                limit=LIMIT,
            )
            for layout in ("server", "sharded")
        ),
    ]
    return launch(cases, "bad-updates-cases", tmp_path_factory, at_once=2)


@pytest.mark.parametrize("name", some_slow(STOPPED, SLOW))
def test_stopping_names_worker_and_step(ended: dict[str, Ended], name: str) -> None:
    run, (layout, what, _) = ended[f"stopped: {name}"], STOPPED[name]
    assert set(run.codes[0].values()) <= {1, 2}, run.everything()
    sentence = (
        "The model of worker 2 has other shapes or types at step 12"
        if what in (SHAPE, TYPE)
        else "The update of worker 2 is not finite at step 12"
    )
    if what != POISON:  # which only a server's check can find
        assert sentence in run.said(3 if layout == "server" else 2, start=0), run.everything()
    if layout == "server" or what == POISON:  # other servers may only see a broken connection
        assert sentence in run.said(0 if layout == "server" else 3, start=0), run.everything()


@pytest.mark.parametrize("name", some_slow(STOPPED, SLOW))
def test_stopped_and_started_again_it_ends_as_if_nothing_had_been(
    ended: dict[str, Ended], name: str
) -> None:
    run, (_, _, method) = ended[f"stopped: {name}"], STOPPED[name]
    assert len(run.codes) == 2
    ours = run.of_rank()
    theirs = outcome(
        prlc.train(*problem("bn"), engine="reference", **settings({"method": method}, 4))
    )
    for key, tensor in theirs["tensors"].items():
        assert float((ours["tensors"][key] - tensor).abs().max()) < 1e-10, key
    assert ours["summary"]["bytes_up"] == theirs["summary"]["bytes_up"]
    assert ours["metrics"]["batch_loss"][1:] == pytest.approx(theirs["metrics"]["batch_loss"][1:])


@pytest.mark.parametrize("name", some_slow(SKIPPED, SLOW))
def test_skipped_it_is_counted_and_the_run_goes_on(ended: dict[str, Ended], name: str) -> None:
    run, (layout, what, _, _) = ended[f"skipped: {name}"], SKIPPED[name]
    ours = run.of_rank()
    assert all(bool(tensor.isfinite().all()) for tensor in ours["tensors"].values())
    assert ours["summary"]["bad_updates"] == [0, 1, 0, 0]
    assert ours["metrics"]["train_loss"][-1] < ours["metrics"]["train_loss"][0]
    assert all(np.isfinite(ours["metrics"]["batch_loss"][1:]))
    start = problem("bn")[0].state_dict()
    assert all(t.shape == start[key].shape for key, t in ours["tensors"].items())
    server = run.said(0 if layout == "server" else 3)
    assert "Left out: The " in server
    assert "of worker 1 " in server
    step = 15 if name == "in a sum of several" else run.case.trouble["step"]  # type: ignore[index]
    assert f" at step {step}" in server
    assert ("bound that the other workers' updates set" in server) == (what == LONG)
    assert ("other shapes" in server) == (what == SHAPE)


def test_the_mean_is_over_the_others(ended: dict[str, Ended]) -> None:
    model, loss, data = problem("linear")
    config = Config(method=prlc.NSGD(), workers=4, batch_size=10, steps=1, schedule=Constant(0.2))
    job = make_job(model, loss, Dataset.of(data), config)
    batches = job.batches().take(np.arange(4), np.zeros(4, np.int64))
    parameters = dict(model.named_parameters())
    expected = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for worker in (0, 1, 3):
        chosen = torch.from_numpy(batches[worker])
        value = loss(model(data[0][chosen]), data[1][chosen])
        gradients = torch.autograd.grad(value, list(parameters.values()))
        for name, gradient in zip(parameters, gradients, strict=True):
            expected[name] -= 0.2 * gradient / 3
    ours = ended["one step"].of_rank()
    for name, tensor in expected.items():
        assert torch.allclose(ours["tensors"][name], tensor, rtol=0.0, atol=1e-14)
    summary = ours["summary"]
    assert summary["pushes_per_worker"] == 0.75  # what was left out did not travel
    assert summary["pulls_per_worker"] == 1
    assert summary["bad_updates"] == [0, 0, 1, 0]


def test_an_update_far_longer_than_the_others_is_said_or_stops_the_run(
    ended: dict[str, Ended],
) -> None:
    stopped, warned = ended["long, stopped"], ended["long, warned"]
    sentence = "The update of worker 2 at step 0 has length "
    assert f"DivergedError: {sentence}" in stopped.said(0), stopped.everything()
    assert set(warned.codes[0].values()) == {0}, warned.everything()
    assert "Taken all the same: The update of worker 2 at step 2 has length" in warned.said(0)


def test_updates_that_are_too_large_together(ended: dict[str, Ended]) -> None:
    run = ended["too large together"]
    assert "DivergedError: The sum of updates with that of worker 0 is not finite at step 3" in (
        run.said(0)
    )
    assert "hung" not in run.codes[0].values()


@pytest.mark.parametrize("layout", ["server", "sharded"])
def test_a_mistake_in_the_script_ends_all_processes(ended: dict[str, Ended], layout: str) -> None:
    run = ended[f"a mistake in the script, {layout}"]
    worker = 3 if layout == "server" else 2
    assert "RuntimeError: a mistake in the script" in run.said(worker)
    assert set(run.codes[0].values()) == {1}, run.everything()
