"""Every run that the figures need: at the paper's step size, to tune, and at tuned step sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prlc.experiments.curves import final_loss
from prlc.experiments.pool import OnFraction, Pool, WorkItem
from prlc.experiments.settings import Figure, Problem, methods_of, paper
from prlc.experiments.specs import Replay, RunSpec, Workspace
from prlc.methods import Asynchronous, Scheduled, parse_method
from prlc.report import Run

__all__ = [
    "OnWork",
    "Spec",
    "Tuned",
    "Work",
    "choose",
    "make_runs",
    "replays",
    "run_specs",
    "step_sizes_of",
    "tuning_specs",
]

OnWork = Callable[[float, float, Sequence[str]], None]
"""Called with the work done and the total, in rough seconds on one core, and what runs now."""


def make_runs(
    figures: Sequence[Figure],
    problems: Mapping[Problem, int],
    workspace: Workspace,
    pool: Pool,
    on_work: OnWork | None,
) -> list[Tuned]:
    """Make every run of the problems, each with its number of seeds; returns what tuning chose."""
    # Longest runs first, so that no process is left alone with one at the end.
    ordered = sorted(problems, key=lambda problem: -problem.step_ms)
    methods = methods_of(figures)

    def specs(tuned: Sequence[Tuned] | None) -> list[RunSpec]:
        return [
            spec
            for problem in ordered
            for spec in run_specs(
                figures, problem, problems[problem], step_sizes_of(problem, methods, tuned)
            )
        ]

    trials = [s for problem in ordered for m in methods for s in tuning_specs(problem, m)]
    timings = [r for problem in ordered for r in replays(figures, problem, problems[problem])]
    untuned = specs(None)
    # The tuned runs will cost about as much as these; which they are is not known yet.
    work = Work(workspace, pool, on_work, expected=sum(spec.cost for spec in untuned))
    work.run([*trials, *untuned, *timings])
    tuned = [
        choose(problem, method, lambda spec: spec.load(workspace))
        for problem in problems
        for method in methods
    ]
    work.expected = 0.0
    work.run(specs(tuned))
    return tuned


class Spec(Protocol):
    """Something that takes its place in a workspace; what is there already is kept."""

    @property
    def name(self) -> str: ...

    @property
    def cost(self) -> float:
        """Rough seconds on one core."""

    def make(self, workspace: Workspace, on_fraction: OnFraction | None = None) -> None: ...


@dataclass
class Work:
    """Makes specs in a pool and keeps count of how far all of them are."""

    workspace: Workspace
    pool: Pool
    on_work: OnWork | None
    expected: float
    """Cost of the work that is still to be specified."""
    costs: dict[str, float] = field(default_factory=dict)
    fractions: dict[str, float] = field(default_factory=dict)

    def run(self, specs: Iterable[Spec]) -> None:
        """Make them; those of the same name once."""
        unlike = {spec.name: spec for spec in specs}
        items = [_SpecItem(spec, self.workspace) for spec in unlike.values()]
        self.costs |= {item.name: item.spec.cost for item in items}
        self.pool.run(items, self._on_item)

    def _on_item(self, item: WorkItem, fraction: float) -> None:
        self.fractions[item.name] = fraction
        if self.on_work is not None:
            done = sum(self.costs[name] * part for name, part in self.fractions.items())
            running = [name for name, part in self.fractions.items() if part < 1]
            self.on_work(done, sum(self.costs.values()) + self.expected, running)


@dataclass(frozen=True)
class _SpecItem:
    """A spec as an item of work for the pool."""

    spec: Spec
    workspace: Workspace

    @property
    def name(self) -> str:
        return self.spec.name

    def do(self, on_fraction: OnFraction) -> None:
        self.spec.make(self.workspace, on_fraction)


# -- What the figures need -------------------------------------------------------------------------


def run_specs(
    figures: Sequence[Figure], problem: Problem, seeds: int, step_sizes: Mapping[str, float]
) -> list[RunSpec]:
    """Every run that the figures need on a problem, once each."""
    return [
        RunSpec(problem, method, step_sizes[method], seed, clock)
        for seed in range(seeds)
        for method in methods_of(figures)
        for clock in _clocks(figures, method)
    ]


def replays(figures: Sequence[Figure], problem: Problem, seeds: int) -> list[Replay]:
    """The times that the figures need beyond those of the runs themselves."""
    found = [
        Replay(RunSpec(problem, method, paper().lr, seed), clock, run_ahead)
        for figure in figures
        for method in figure.methods
        if isinstance(parse_method(method), Scheduled)
        for clock in figure.clocks
        for run_ahead in (True, False)
        for seed in range(seeds)
    ]
    return [replay for replay in found if not replay.is_redundant]


def _clocks(figures: Sequence[Figure], method: str) -> tuple[str, ...]:
    """The networks to train on. ASGD needs each: its result depends on who arrives when."""
    timed = [clock for figure in figures if method in figure.methods for clock in figure.clocks]
    if not timed or not isinstance(parse_method(method), Asynchronous):
        return (paper().main_clock,)
    return tuple(dict.fromkeys(timed))


# -- Tuning: the same grid, the same number of short runs, the same criterion for every method -----


@dataclass(frozen=True)
class Tuned:
    """The step size chosen for one method on one problem."""

    problem: str
    method: str
    lr: float
    losses: tuple[tuple[float, float], ...]
    """Each step size with its final training loss; infinite if the run diverged."""

    @classmethod
    def best_of(cls, problem: str, method: str, losses: Iterable[tuple[float, float]]) -> Tuned:
        """The step size with the lowest final loss; the smallest of equals."""
        tried = tuple(losses)
        return cls(problem, method, min(tried, key=lambda pair: (pair[1], pair[0]))[0], tried)

    @property
    def loss(self) -> float:
        """At the step size chosen."""
        return dict(self.losses)[self.lr]

    @property
    def at_edge(self) -> bool:
        """Whether the choice is the smallest or largest tried: a wider grid may do better."""
        grid = [lr for lr, _ in self.losses]
        return self.lr in (min(grid), max(grid))


def tuning_specs(problem: Problem, method: str) -> list[RunSpec]:
    """The runs that decide the method's step size."""
    seed = paper().tuning_seed
    return [RunSpec(problem, method, lr, seed, tuning=True) for lr in sorted(problem.grid)]


def choose(problem: Problem, method: str, load: Callable[[RunSpec], Run]) -> Tuned:
    """The step size with the lowest final training loss."""
    losses = ((spec.lr, final_loss(load(spec))) for spec in tuning_specs(problem, method))
    return Tuned.best_of(problem.name, method, losses)


def step_sizes_of(
    problem: Problem, methods: Sequence[str], tuned: Sequence[Tuned] | None
) -> dict[str, float]:
    """Step sizes by method: the tuned ones, or the paper's for all if `tuned` is None."""
    if tuned is None:
        return dict.fromkeys(methods, paper().lr)
    own = {each.method: each.lr for each in tuned if each.problem == problem.name}
    return {method: own[method] for method in methods}
