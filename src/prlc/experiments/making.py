"""Making all the runs: at the paper's step size, to tune by, and at the tuned step sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prlc.experiments import work
from prlc.experiments.pool import Piece, Pool
from prlc.experiments.recipes import Place, load_run
from prlc.experiments.settings import Figure, Task, methods_of, shared
from prlc.experiments.tuning import Tuned, choose, tuning_recipes

__all__ = ["OnWork", "make_runs", "rates_of"]

OnWork = Callable[[float, float, Sequence[str]], None]
"""Called with the seconds of work done and in all (about, on one core), and what runs now."""


def rates_of(task: Task, tuned: Sequence[Tuned] | None) -> Callable[[str], float]:
    """The step size of a method: its own, or without any tuned the paper's for all."""
    if tuned is None:
        return lambda _: shared().lr
    own = {each.method: each.lr for each in tuned if each.task == task.name}
    return lambda method: own[method]


def make_runs(
    figures: Sequence[Figure],
    tasks: Mapping[Task, int],
    place: Place,
    pool: Pool,
    on_work: OnWork | None,
) -> list[Tuned]:
    """Make every run of the tasks, with so many seeds each; gives the tuned step sizes."""
    # The longest runs first, so that no process is left alone with one at the end.
    ordered = sorted(tasks, key=lambda task: -task.step_ms)
    methods = methods_of(figures)

    def at(tuned: Sequence[Tuned] | None) -> list[work.Making]:
        return [
            work.Making(recipe, place)
            for task in ordered
            for recipe in work.recipes(figures, task, tasks[task], rates_of(task, tuned))
        ]

    trials = [
        work.Making(recipe, place)
        for task in ordered
        for method in methods
        for recipe in tuning_recipes(task, method)
    ]
    clocks = [
        work.Clocking(replay, place)
        for task in ordered
        for replay in work.replays(figures, task, tasks[task])
    ]
    papers = at(None)
    tally = _Tally(on_work, expected=sum(piece.cost for piece in papers))
    tally.run(pool, [*trials, *papers, *clocks])
    tuned = [choose(task, m, lambda r: load_run(r, place)) for task in tasks for m in methods]
    tally.expected = 0.0
    tally.run(pool, at(tuned))
    return tuned


@dataclass
class _Tally:
    """How far all the work is, in seconds on one core."""

    on_work: OnWork | None
    expected: float
    """Work that will come, but of which the step sizes are not known yet."""
    costs: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)

    def run(self, pool: Pool, pieces: Sequence[work.Piece]) -> None:
        """Do them all, and tell how far they are."""
        self.costs |= {piece.name: piece.cost for piece in pieces}
        pool.run(pieces, self._seen)

    def _seen(self, piece: Piece, part: float) -> None:
        self.parts[piece.name] = part
        if self.on_work is not None:
            done = sum(self.costs[name] * part for name, part in self.parts.items())
            running = [name for name, part in self.parts.items() if part < 1]
            self.on_work(done, sum(self.costs.values()) + self.expected, running)
