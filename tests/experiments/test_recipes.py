"""Runs are reused, gone on with, and kept where they diverge; clocks replay without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from torch.nn import functional as F

import prlc
from prlc.engines import Simulator
from prlc.experiments.clocks import Replay, seconds_per_step
from prlc.experiments.recipes import Place, Recipe, load_data, load_run, train
from prlc.experiments.settings import shared
from prlc.experiments.tuning import Tuned, choose, final_loss, tuning_recipes
from prlc.report import Run
from prlc.timeline import replay
from prlc.training import Progress

from .curves import run

TASK = shared().task("logistic", "smoke")
RECIPE = Recipe(TASK, "prlc:0.4", 0.1, seed=0)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No step may be taken."""
    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "step", lambda _: pytest.fail("a step was taken"))
        yield


def test_a_finished_run_is_reused(place: Place, request: pytest.FixtureRequest) -> None:
    train(RECIPE, place)
    first = load_run(RECIPE, place)
    request.getfixturevalue("idle")
    train(RECIPE, place)
    pd.testing.assert_frame_equal(first.metrics, load_run(RECIPE, place).metrics)
    assert first.label == "PRLC r=0.4"
    assert first.finished
    assert not list((place.out / RECIPE.name).glob("checkpoint*"))  # it would fill the disk


def test_a_resnet_runs_too(place: Place) -> None:
    recipe = replace(RECIPE, task=shared().task("resnet", "smoke"))
    train(recipe, place)
    assert load_run(recipe, place).finished


def test_an_interrupted_run_is_gone_on_with(place: Place, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step == 17:
            raise KeyboardInterrupt

    undisturbed = Place(tmp_path / "undisturbed")
    train(RECIPE, undisturbed)
    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, place, interrupt)
    steps: list[int] = []
    train(RECIPE, place, lambda progress: steps.append(progress.step))
    assert 1 < steps[0] <= 18
    ours, theirs = (load_run(RECIPE, each).metrics for each in (place, undisturbed))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


def test_a_run_that_diverges_is_a_result(place: Place, request: pytest.FixtureRequest) -> None:
    wild = replace(RECIPE, lr=1e38)
    train(wild, place)
    found = load_run(wild, place)
    assert not found.finished
    assert final_loss(found) == float("inf")
    assert "not finite" in (place.out / wild.name / "diverged.json").read_text()
    request.getfixturevalue("idle")
    train(wild, place)


# -- tuning ---------------------------------------------------------------------------------------


def test_the_lowest_final_loss_is_chosen_and_an_edge_is_reported() -> None:
    task = replace(TASK, grid=(0.1, 0.01, 1.0))
    losses = {0.01: 2.0, 0.1: 1.0, 1.0: 3.0}

    def run_of(recipe: Recipe) -> Run:
        return run([2.3, losses[recipe.lr]], finished=recipe.lr < 1)

    tuned = choose(task, "nsgd", run_of)
    assert tuned == Tuned("logistic", "nsgd", 0.1, ((0.01, 2.0), (0.1, 1.0), (1.0, float("inf"))))
    assert not tuned.at_edge
    losses[0.01] = 1.0
    assert choose(task, "nsgd", run_of).lr == 0.01
    assert choose(task, "nsgd", run_of).at_edge


def test_tuning_runs_are_apart_from_the_figures_runs() -> None:
    names = {recipe.name for recipe in tuning_recipes(TASK, "nsgd")}
    assert all(name.startswith("tuning/") for name in names)
    assert len(names) == len(TASK.grid)


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["prlc:0.4", "nsgd", "prlc:0.5:every=3", "asgd"])
@pytest.mark.parametrize("clock", ["half", "full"])
@pytest.mark.parametrize("run_ahead", [True, False])
def test_a_replayed_clock_is_that_of_a_real_run(method: str, clock: str, run_ahead: bool) -> None:
    network = replace(shared().networks[clock], run_ahead=run_ahead)
    recipe, data = replace(RECIPE, method=method), load_data(TASK, None)
    settings = {**recipe.settings("cpu"), "network": network}
    real = prlc.train(recipe.model(data), F.cross_entropy, data, **settings).metrics
    steps = real["step"].tolist()
    assert replay(recipe.job(data), network, steps) == real["simulated_seconds"].tolist()
    assert Replay(recipe, clock, run_ahead).steps() == steps


def test_replayed_times_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Replay(RECIPE, "full", run_ahead=False)
    seen.make(place)
    times = seen.load(place)
    assert list(times) == seen.steps()
    assert list(times.values()) == sorted(times.values())
    monkeypatch.setattr("prlc.experiments.clocks.replay", lambda *_: pytest.fail("made again"))
    seen.make(place)
    other = Replay(replace(RECIPE, lr=0.03), "full", run_ahead=False)
    assert other.name == seen.name  # who pulls when does not depend on the learning rate
    assert Replay(RECIPE, "half", run_ahead=True).is_the_runs_own


def test_the_clock_alone_explains_the_papers_figure() -> None:
    """With one budget for both directions a step moves 1+r models a worker, against ASGD's 2."""
    only = replace(shared().clock_only, steps=40)
    half, full = shared().networks.values()
    prlc_half, asgd_half = (seconds_per_step(only, m, half) for m in ("prlc:0.4", "asgd"))
    prlc_full, asgd_full = (seconds_per_step(only, m, full) for m in ("prlc:0.4", "asgd"))
    assert prlc_half / asgd_half == pytest.approx(0.7, abs=0.03)
    assert prlc_full / asgd_full > 0.9
