"""Runs are reused, resumed, and kept if they diverge; clocks replay without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from torch.nn import functional as F

import prlc
from prlc.engines import Simulator
from prlc.experiments.curves import final_loss
from prlc.experiments.settings import paper
from prlc.experiments.specs import Replay, RunSpec, Workspace, load_data, seconds_per_step
from prlc.network.timeline import Timeline

PROBLEM = paper().problem("logistic", "smoke")
SPEC = RunSpec(PROBLEM, "prlc:0.4", 0.1, seed=0)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails if a step is taken."""
    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "step", lambda _: pytest.fail("a step was taken"))
        yield


def test_a_finished_run_is_reused(workspace: Workspace, request: pytest.FixtureRequest) -> None:
    SPEC.make(workspace)
    first = SPEC.load(workspace)
    request.getfixturevalue("idle")
    SPEC.make(workspace)
    pd.testing.assert_frame_equal(first.metrics, SPEC.load(workspace).metrics)
    assert first.label == "PRLC r=0.4"
    assert first.finished
    assert not list((workspace.out / SPEC.name).glob("checkpoint*"))  # it would fill the disk


def test_a_resnet_runs_too(workspace: Workspace) -> None:
    spec = replace(SPEC, problem=paper().problem("resnet", "smoke"))
    spec.make(workspace)
    assert spec.load(workspace).finished


def test_an_interrupted_run_is_resumed(workspace: Workspace, tmp_path: Path) -> None:
    def interrupt(done: float) -> None:
        if round(done * SPEC.steps) == 17:
            raise KeyboardInterrupt

    undisturbed = Workspace(tmp_path / "undisturbed")
    SPEC.make(undisturbed)
    with pytest.raises(KeyboardInterrupt):
        SPEC.make(workspace, interrupt)
    steps: list[int] = []
    SPEC.make(workspace, lambda done: steps.append(round(done * SPEC.steps)))
    assert 1 < steps[0] <= 18
    ours, theirs = (SPEC.load(each).metrics for each in (workspace, undisturbed))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


def test_a_run_that_diverges_is_a_result(
    workspace: Workspace, request: pytest.FixtureRequest
) -> None:
    wild = replace(SPEC, lr=1e38)
    wild.make(workspace)
    found = wild.load(workspace)
    assert not found.finished
    assert final_loss(found) == float("inf")
    assert "not finite" in (workspace.out / wild.name / "diverged.json").read_text()
    request.getfixturevalue("idle")
    wild.make(workspace)


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prlc:0.4", "nsgd", "prlc:0.5:every=3", "asgd"])
@pytest.mark.parametrize("clock", ["half", "full"])
@pytest.mark.parametrize("run_ahead", [True, False])
def test_a_replayed_clock_agrees_with_a_real_run(method: str, clock: str, run_ahead: bool) -> None:
    network = replace(paper().networks[clock], run_ahead=run_ahead)
    spec, data = replace(SPEC, method=method), load_data(PROBLEM, None)
    settings = {**spec.settings("cpu"), "network": network}
    real = prlc.train(spec.model(data), F.cross_entropy, data, **settings).metrics
    steps = real["step"].tolist()
    assert spec.job(data).timeline(network).replay(steps) == real["simulated_seconds"].tolist()
    assert Replay(spec, clock, run_ahead).steps() == steps


def test_replayed_times_are_kept(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Replay(SPEC, "full", run_ahead=False)
    replay.make(workspace)
    times = replay.load(workspace)
    assert list(times) == replay.steps()
    assert list(times.values()) == sorted(times.values())
    monkeypatch.setattr(Timeline, "replay", lambda *_: pytest.fail("made again"))
    replay.make(workspace)
    other = Replay(replace(SPEC, lr=0.03), "full", run_ahead=False)
    assert other.name == replay.name  # who pulls when does not depend on the learning rate
    assert Replay(SPEC, "half", run_ahead=True).is_redundant


def test_the_clock_alone_explains_the_papers_figure() -> None:
    """With one budget for both directions a step moves 1+r models a worker, against ASGD's 2."""
    only = replace(paper().clock_only, steps=40)
    half, full = paper().networks.values()
    prlc_half, asgd_half = (seconds_per_step(only, m, half) for m in ("prlc:0.4", "asgd"))
    prlc_full, asgd_full = (seconds_per_step(only, m, full) for m in ("prlc:0.4", "asgd"))
    assert prlc_half / asgd_half == pytest.approx(0.7, abs=0.03)
    assert prlc_full / asgd_full > 0.9
