"""The frozen settings are complete, fit the package, and say what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from prlc.data import DATASETS
from prlc.errors import ConfigError
from prlc.experiments import work
from prlc.experiments.claims import CLAIMS
from prlc.experiments.recipes import Recipe, load_data
from prlc.experiments.settings import FIGURES, SCALES, figure, methods_of, shared
from prlc.experiments.tuning import tuning_recipes
from prlc.methods import parse_method
from prlc.models import MODELS
from prlc.report.axes import AXES

TASKS = ("logistic", "resnet")


def test_figures_make_every_claim_once_and_name_what_exists() -> None:
    figures = [figure(name) for name in FIGURES]
    assert [claim for each in figures for claim in each.claims] == list(CLAIMS)
    for each in figures:
        assert set(each.axes) <= set(AXES)
        for method in each.methods:
            parse_method(method)
        assert set(each.clocks) <= set(shared().networks)


def test_the_papers_figures() -> None:
    assert figure("fig1").methods == ("nsgd", "lag-ps", "prlc:0.4")
    assert {"nsgd", "prlc:0.01"} <= set(figure("fig2").methods)
    assert {"pr:0.01", "prlc:0.01"} <= set(figure("fig3").methods)
    assert figure("fig4").methods == ("asgd", "prlc:0.4")
    half, full = shared().networks.values()
    assert (half.server_up, half.half_duplex) == (100e6, True)
    assert (full.server_up, full.server_down, full.half_duplex) == (100e6, 100e6, False)
    assert half.spread == full.spread > 0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_run(name: str, scale: str) -> None:
    task = shared().task(name, scale)
    assert task.data in DATASETS
    assert task.model in MODELS
    assert task.title
    assert list(task.grid) == sorted(set(task.grid))
    assert scale != "smoke" or task.data == "digits"
    assert shared().lr in task.grid
    assert task.workers * task.batch_size <= task.samples
    for recipe in (Recipe(task, "nsgd", 0.1, 0), Recipe(task, "nsgd", 0.1, 0, tuning=True)):
        assert recipe.steps >= task.stages
        # Claims look at halves of stages.
        every = recipe.settings("cpu")["eval_every"]
        assert recipe.tuning or every <= recipe.steps / task.stages / 2


@pytest.mark.parametrize("name", TASKS)
def test_the_papers_scale_is_the_papers(name: str) -> None:
    task = shared().task(name, "paper")
    assert (task.data, task.samples, task.shrink) == ("cifar10", 50_000, 1)
    assert (task.workers, task.batch_size, task.stage) == (20, 10, 30)
    assert (shared().lr, shared().decay) == (0.1, 0.1)
    assert task.model == {"logistic": "logistic", "resnet": "resnet18"}[name]


def test_a_task_takes_its_part_of_the_data() -> None:
    task = shared().task("resnet", "smoke")
    data = load_data(task, None)
    assert (data.num_train, data.sample_shape) == (task.samples, (1, 4, 4))
    assert data.test_targets is not None
    assert len(data.test_targets) == task.test_samples


def test_names_of_runs_are_unique_and_stable() -> None:
    figures = [figure(name) for name in FIGURES]
    names = []
    for name in TASKS:
        task = shared().task(name, "quick")
        for lr in (0.1, 0.03):
            names += [r.name for r in work.recipes(figures, task, 3, lambda _, lr=lr: lr)]  # type: ignore[misc]
        names += [r.name for m in methods_of(figures) for r in tuning_recipes(task, m)]
        names += [replay.name for replay in work.replays(figures, task, 3)]
    assert len(names) == len(set(names))
    assert "runs/logistic/prlc-0.4-lr-0.1-seed-0" in names
    assert "runs/logistic/asgd-lr-0.1-seed-0-full" in names
    assert "tuning/logistic/nsgd-lr-0.03-seed-1000" in names
    assert "clocks/resnet/prlc-0.4-seed-2-half-barrier.json" in names


def test_figures_share_runs() -> None:
    task = shared().task("logistic", "smoke")

    def runs(*names: str) -> set[Recipe]:
        return set(work.recipes([figure(name) for name in names], task, 1, lambda _: 0.1))

    assert runs("fig1") & runs("fig2") & runs("fig3")
    assert len(runs(*FIGURES)) < sum(len(runs(name)) for name in FIGURES)


def test_tuning_is_the_same_effort_for_all_and_on_a_seed_of_its_own() -> None:
    task = shared().task("logistic", "paper")
    for method in methods_of([figure(name) for name in FIGURES]):
        recipes = tuning_recipes(task, method)
        assert [recipe.lr for recipe in recipes] == list(task.grid)
        assert all(recipe.seed not in range(100) for recipe in recipes)
        assert {recipe.steps for recipe in recipes} == {4500}


def test_what_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"no figure 'fig5'. Choose one of: fig1, .* or all"):
        figure("fig5")
    with pytest.raises(ConfigError, match=r"no scale 'huge'. Choose one of: smoke, quick, paper"):
        shared().task("logistic", "huge")


def test_the_settings_come_with_the_package() -> None:
    here = Path(work.__file__).parent
    assert {file.name for file in here.glob("*.toml")} == {
        "shared.toml",
        *(f"{name}.toml" for name in FIGURES),
    }
