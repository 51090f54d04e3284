"""Which runs the figures need, and how a step size is chosen."""

from __future__ import annotations

from dataclasses import replace

from prlc.experiments.settings import FIGURES, methods_of, paper
from prlc.experiments.specs import RunSpec
from prlc.experiments.sweep import Tuned, choose, replays, run_specs, tuning_specs
from prlc.report import Run

from .builders import run

PROBLEM = paper().problem("logistic", "smoke")


def test_names_of_runs_are_unique_and_stable() -> None:
    figures = [paper().figure(name) for name in FIGURES]
    names = []
    for name in ("logistic", "resnet"):
        problem = paper().problem(name, "quick")
        for lr in (0.1, 0.03):
            step_sizes = dict.fromkeys(methods_of(figures), lr)
            names += [spec.name for spec in run_specs(figures, problem, 3, step_sizes)]
        names += [spec.name for m in methods_of(figures) for spec in tuning_specs(problem, m)]
        names += [replay.name for replay in replays(figures, problem, 3)]
    assert len(names) == len(set(names))
    assert "runs/logistic/prlc-0.4-lr-0.1-seed-0" in names
    assert "runs/logistic/asgd-lr-0.1-seed-0-full" in names
    assert "tuning/logistic/nsgd-lr-0.03-seed-1000" in names
    assert "clocks/resnet/prlc-0.4-seed-2-half-barrier.json" in names


def test_figures_share_runs() -> None:
    def specs(*names: str) -> set[RunSpec]:
        figures = [paper().figure(name) for name in names]
        return set(run_specs(figures, PROBLEM, 1, dict.fromkeys(methods_of(figures), 0.1)))

    assert specs("fig1") & specs("fig2") & specs("fig3")
    assert len(specs(*FIGURES)) < sum(len(specs(name)) for name in FIGURES)


# -- Tuning ---------------------------------------------------------------------------------------


def test_tuning_is_the_same_effort_for_all_and_on_a_seed_of_its_own() -> None:
    problem = paper().problem("logistic", "paper")
    for method in methods_of([paper().figure(name) for name in FIGURES]):
        specs = tuning_specs(problem, method)
        assert [spec.lr for spec in specs] == list(problem.grid)
        assert all(spec.seed not in range(100) for spec in specs)
        assert {spec.steps for spec in specs} == {4500}


def test_the_lowest_final_loss_is_chosen_and_an_edge_is_reported() -> None:
    problem = replace(PROBLEM, grid=(0.1, 0.01, 1.0))
    losses = {0.01: 2.0, 0.1: 1.0, 1.0: 3.0}

    def load(spec: RunSpec) -> Run:
        return run([2.3, losses[spec.lr]], finished=spec.lr < 1)

    tuned = choose(problem, "nsgd", load)
    assert tuned == Tuned("logistic", "nsgd", 0.1, ((0.01, 2.0), (0.1, 1.0), (1.0, float("inf"))))
    assert not tuned.at_edge
    losses[0.01] = 1.0
    assert choose(problem, "nsgd", load).lr == 0.01
    assert choose(problem, "nsgd", load).at_edge


def test_tuning_runs_are_apart_from_the_figures_runs() -> None:
    names = {spec.name for spec in tuning_specs(PROBLEM, "nsgd")}
    assert all(name.startswith("tuning/") for name in names)
    assert len(names) == len(PROBLEM.grid)
