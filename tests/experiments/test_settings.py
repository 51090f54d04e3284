"""The frozen settings are complete, fit the package, and say what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from prlc.data import DATASETS
from prlc.errors import ConfigError
from prlc.experiments import settings
from prlc.experiments.claims import CLAIMS
from prlc.experiments.settings import FIGURES, SCALES, paper
from prlc.experiments.specs import RunSpec, load_data
from prlc.methods import parse_method
from prlc.models import MODELS
from prlc.report import AXES

PROBLEMS = ("logistic", "resnet")


def test_figures_make_every_claim_once_and_name_what_exists() -> None:
    figures = [paper().figure(name) for name in FIGURES]
    assert [claim for each in figures for claim in each.claims] == list(CLAIMS)
    for each in figures:
        assert set(each.axes) <= set(AXES)
        for method in each.methods:
            parse_method(method)
        assert set(each.clocks) <= set(paper().networks)


def test_the_papers_figures() -> None:
    assert paper().figure("fig1").methods == ("nsgd", "lag-ps", "prlc:0.4")
    assert {"nsgd", "prlc:0.01"} <= set(paper().figure("fig2").methods)
    assert {"pr:0.01", "prlc:0.01"} <= set(paper().figure("fig3").methods)
    assert paper().figure("fig4").methods == ("asgd", "prlc:0.4")
    half, full = paper().networks.values()
    assert (half.server_up, half.half_duplex) == (100e6, True)
    assert (full.server_up, full.server_down, full.half_duplex) == (100e6, 100e6, False)
    assert half.spread == full.spread > 0


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for scale in SCALES for name in paper().problems(scale)]
)
def test_every_problem_can_be_run(name: str, scale: str) -> None:
    problem = paper().problem(name, scale)
    assert problem.data in DATASETS
    assert problem.model in MODELS
    assert problem.title
    assert list(problem.grid) == sorted(set(problem.grid))
    assert scale != "smoke" or problem.data == "digits"
    assert paper().lr in problem.grid
    assert problem.workers * problem.batch_size <= problem.samples
    for spec in (RunSpec(problem, "nsgd", 0.1, 0), RunSpec(problem, "nsgd", 0.1, 0, tuning=True)):
        assert spec.steps >= problem.stages
        # Claims look at halves of stages.
        every = spec.settings("cpu")["eval_every"]
        assert spec.tuning or every <= spec.steps / problem.stages / 2


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_papers_scale_is_the_papers(name: str) -> None:
    problem = paper().problem(name, "paper")
    assert (problem.data, problem.samples, problem.shrink) == ("cifar10", 50_000, 1)
    assert (problem.workers, problem.batch_size, problem.stage) == (20, 10, 30)
    assert (paper().lr, paper().decay) == (0.1, 0.1)
    assert problem.model == {"logistic": "logistic", "resnet": "resnet18"}[name]


def test_medium_scale_is_larger_and_longer_than_quick_scale() -> None:
    quick, medium = (paper().problem("resnet", scale) for scale in ("quick", "medium"))
    assert medium.shrink < quick.shrink
    steps = [RunSpec(problem, "nsgd", 0.1, 0).steps for problem in (quick, medium)]
    assert steps[1] > 5 * steps[0]


def test_a_problem_takes_its_part_of_the_data() -> None:
    problem = paper().problem("resnet", "smoke")
    data = load_data(problem, None)
    assert (data.num_train, data.sample_shape) == (problem.samples, (1, 4, 4))
    assert data.test_targets is not None
    assert len(data.test_targets) == problem.test_samples


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no figure 'fig5'. Choose one of: fig1, .* or all"):
        paper().figure("fig5")
    with pytest.raises(ConfigError, match=r"no scale .huge.. Choose one of: smoke, .*, paper"):
        paper().problem("logistic", "huge")
    with pytest.raises(ConfigError, match=r"no model 'logistic' at medium scale.* resnet"):
        paper().problem("logistic", "medium")


def test_the_settings_come_with_the_package() -> None:
    here = Path(settings.__file__).parent
    assert {file.name for file in here.glob("*.toml")} == {"paper.toml"}
    assert tuple(paper().figures) == FIGURES
    assert tuple(paper().scales) == SCALES
