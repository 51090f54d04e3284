"""The search: NSGD's best step size sets the target; then successive halving over the family.

What a run takes by default goes first, to its end, then what is next to it in the family and
cheaper, so that whatever is dearer is given up without training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from prlc.errors import ConfigError
from prlc.methods import NSGD, Scheduled, parse_method
from prlc.methods.check import check_optimizer_at
from prlc.network import Network
from prlc.planner.cost import Cost, Price
from prlc.planner.family import STEP_SIZES, Member
from prlc.planner.trials import Candidate, Trial, Trials
from prlc.runs.config import usual_method

LONGEST = 2  # a trial, in multiples of NSGD's steps; whole rounds
LENGTHS = (1.0, 1.4, 2.0)  # the same, where the step size follows a schedule to the end of the run
RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of a trial; the better ones go on
_OWN_ROUNDS = 2  # in which step sizes compete within a method
_FEWEST = 8  # that always go on
WITHIN = 0.01  # of NSGD's lowest loss: who comes as close has reached it

_NSGD_RUNGS = (1 / 8, 1 / 2, 1.0)
_NSGD_STEP_SIZES = (4.0, 1.0, 0.25, 0.06, 0.016, 0.004, 0.001)
_MOST_CLIMBS = 5  # halvings or doublings of NSGD's step size beyond those that it began with
_NEARBY = 4  # one trial around the best for so many to begin with
_SLOWEST = 0.01  # the progress of who is not below the first loss yet
_TIE = 1.05  # of those within this factor of the best, the one that saves most of the other wins


@dataclass(frozen=True)
class Choice:
    """A candidate, and what it costs to reach the target."""

    candidate: Candidate
    steps: int
    """Until it was there; if it was not, as far as it was tried."""
    cost: Cost
    """If it was not there: what it would cost at the pace so far."""
    loss: float
    reached: bool
    """On all seeds."""


@dataclass(frozen=True)
class SearchProgress:
    """How far the search is: which round, how many of its trials are over, the best cost so far."""

    label: str
    done: int
    total: int
    best: Cost | None = None


OnSearch = Callable[[SearchProgress], None]


class Search:
    """Looks for the candidate that reaches a loss at the least cost."""

    def __init__(
        self,
        family: Mapping[Scheduled, Member],
        trials: Trials,
        network: Network,
        goal: str,
        *,
        optimizer_at: str | None = None,
        step_sizes: Sequence[float] | None = None,
        target: float | None = None,
        rehearsals: int = 0,
        on_search: OnSearch | None = None,
    ) -> None:
        """`optimizer_at`: None for wherever a method lets it run, the server if it may."""
        self._family, self._trials, self._network, self._goal = family, trials, network, goal
        self._rehearsals = [trials.on_another_seed(number) for number in range(1, rehearsals + 1)]
        self._optimizer_at, self._given, self._wanted = optimizer_at, step_sizes, target
        self._on_search = on_search or (lambda _: None)
        self._prices: dict[tuple[Scheduled, str, int], Price] = {}
        self._constant = trials.schedule == "constant"
        self._weighed: dict[Candidate, Choice] = {}

    # ---- the target --------------------------------------------------------------------------

    @cached_property
    def nsgd(self) -> Choice:
        """NSGD at the step size with the lowest loss, or soonest at a given target."""
        at, T = self._place(NSGD()), self._trials.steps
        if at is None:
            raise ConfigError(f"NSGD does not run with the optimizer on the {self._optimizer_at}.")

        def score(lr: float, until: int = T) -> tuple[float, float]:
            trial = self._trials(Candidate(NSGD(), at, lr, T))
            soonest = None if self._wanted is None else trial.reaches(self._wanted, until)
            return (math.inf if soonest is None else soonest, min(trial.losses(until)))

        left = sorted(self._given or _NSGD_STEP_SIZES)
        for number, rung in enumerate(_NSGD_RUNGS):
            self._on_search(SearchProgress("NSGD", number, len(_NSGD_RUNGS)))
            left.sort(key=lambda lr: score(lr, math.ceil(rung * T)))
            left = left[: max(2, math.ceil(len(left) / 2))]
        best = left[0] if self._given else _climbed(left[0], score)
        self._on_search(SearchProgress("NSGD", len(_NSGD_RUNGS), len(_NSGD_RUNGS)))
        return self._nsgd_at(self._trials(Candidate(NSGD(), at, best, T)))

    def _nsgd_at(self, trial: Trial) -> Choice:
        T, candidate = self._trials.steps, trial.candidate
        losses = trial.losses(T)
        start, lowest = losses[0], min(losses)
        if self._wanted is not None and not self._wanted < start:
            raise ConfigError(
                f"The target loss {self._wanted:g} should be below {start:.4g}, the loss at the "
                "start: give a smaller one."
            )
        if not lowest < start:
            raise ConfigError(
                f"No step size tried lowered the loss of {start:.4g} in {T} steps of NSGD. Give "
                "other step sizes (--lr) or more steps."
            )
        target = _near(lowest) if self._wanted is None else self._wanted
        reached = trial.reaches(target, T)
        if reached is None:
            raise ConfigError(
                f"NSGD did not reach the target loss {target:g} in {T} steps; its lowest was "
                f"{lowest:.4g}. Give a higher target or more steps."
            )
        steps = reached if self._constant else candidate.steps
        self.target = target
        loss = trial.losses(steps)[-1]
        return Choice(candidate, steps, self._exact(candidate, steps), loss, reached=True)

    @cached_property
    def _pace(self) -> dict[float, int]:
        """The losses at which NSGD was lower than ever before, and their steps."""
        trial = self._trials(self.nsgd.candidate)
        pace: dict[float, int] = {}
        for number, loss in enumerate(trial.losses(self._trials.steps)):
            if not pace or loss < min(pace):
                pace[loss] = number * trial.every
        return pace

    def _progress(self, loss: float) -> float:
        """The share of NSGD's way to the target after which it has this loss."""
        steps = np.interp(
            [-loss, -self.target], [-each for each in self._pace], [*self._pace.values()]
        )
        return float(steps[0] / steps[1])

    # ---- the family --------------------------------------------------------------------------

    def run(self, most_trials: int) -> list[Choice]:
        """All that were weighed; the chosen one first, then NSGD."""
        self._weighed = {self.nsgd.candidate: self.nsgd}
        nearby = math.ceil(most_trials / _NEARBY)
        self._lead()
        self._look_around(nearby)
        alive = [each for each in self._begin(most_trials) if each not in self._weighed]
        for number, rung in enumerate(RUNGS):
            label = f"round {number + 1} of {len(RUNGS)}"
            tried = [
                self._try(candidate, rung, SearchProgress(label, done + 1, len(alive)))
                for done, candidate in enumerate(alive)
            ]
            still_open = [found for found in tried if found is not None and not found.reached]
            alive = [choice.candidate for choice in self._survivors(still_open, number)]
        self._look_around(nearby)
        chosen = self._choose()
        rest = [each for each in self._weighed.values() if each not in (chosen, self.nsgd)]
        return list(dict.fromkeys([chosen, self.nsgd, *sorted(rest, key=self._of)]))

    @property
    def _cheapest(self) -> Choice:
        return min((each for each in self._weighed.values() if each.reached), key=self._of)

    def _try(self, candidate: Candidate, rung: float, progress: SearchProgress) -> Choice | None:
        """Weigh a candidate against the cheapest so far, and remember it."""
        best = self._cheapest
        self._on_search(replace(progress, best=best.cost))
        found = self._weigh(candidate, rung, best)
        if found is not None:
            self._weighed[candidate] = found
        return found

    def _lead(self) -> None:
        """Try what a run takes by default to its end: what is dearer need not be trained then.

        If it does not get there, the dearest of its kind is tried in its place.
        """
        method = parse_method(usual_method(self._trials.config.optimizer, "workers"))
        if not isinstance(method, Scheduled) or method not in self._family:
            return
        if not self._gets_there(method):
            self._gets_there(self._dearest_like(method))

    def _gets_there(self, method: Scheduled) -> bool:
        """Whether the method reaches the target; if so, the shorter lengths are tried, too."""
        there = False
        for group in reversed(self._lengths_of(method)):
            reached = False
            for candidate in group:
                found = self._try(candidate, 1.0, SearchProgress(method.label, 0, 1))
                reached |= found is not None and found.reached
                if reached and not self._constant:
                    break  # at any other step size it costs as much
            if not reached:
                break
            there = True
        return there

    def _dearest_like(self, method: Scheduled) -> Scheduled:
        """The end of the way from neighbour to neighbour that is always the dearest."""

        def price(each: Scheduled) -> float:
            at, T = self._place(each), self._trials.steps
            if at is None:
                return 0.0
            return self._price(Candidate(each, at, 1.0, T)).of(self._goal, T)

        while (dearer := max([method, *self._family[method].neighbours], key=price)) != method:
            method = dearer
        return method

    def _look_around(self, most: int) -> None:
        """Go from the best to what is next to it and cheaper, in at most so many trials."""
        tried, best = {*self._weighed}, self._cheapest
        while best is not self.nsgd:
            untried = (each for each in self._next_to(best) if each not in tried)
            for candidate in islice(untried, most):
                most -= 1
                tried.add(candidate)
                self._try(candidate, 1.0, SearchProgress("around the best", 0, 1))
                if self._cheapest is not best:
                    break
            if self._cheapest is best:
                return
            best = self._cheapest

    def _next_to(self, best: Choice) -> Iterator[Candidate]:
        """What may be cheaper: the method at other step sizes or shorter, then its neighbours.

        A neighbour is tried at the greatest length that is not too dear.
        """
        own = best.candidate

        def at_sizes(lengths: list[list[Candidate]], sizes: list[float]) -> Iterator[Candidate]:
            affordable = [group[0] for group in lengths if self._affordable(group[0], 1.0, best)]
            for longest in affordable[-1:]:
                for lr in self._given or sizes:
                    yield replace(longest, lr=lr)

        lengths, around = self._lengths_of(own.method), [own.lr, own.lr / 2, 2 * own.lr]
        shorter = [group for group in lengths if group[0].steps < own.steps]
        yield from at_sizes(lengths if self._constant else shorter, around)
        for method in self._family[own.method].neighbours:
            yield from at_sizes(self._lengths_of(method), around[:2])

    def _survivors(self, choices: list[Choice], number: int) -> list[Choice]:
        """Who goes on: at first each method without its worst step size, then half of all.

        A large step size starts slowly and may end sooner, so they are given up one by one.
        Methods are ranked by how many others beat them both in price and in progress, step by
        step: neither the cheapest, which may never get there, crowd out the fastest, nor the other
        way round.
        """
        own: dict[Scheduled, list[Choice]] = {}
        for each in sorted(choices, key=lambda each: (self._of(each), each.loss)):
            own.setdefault(each.candidate.method, []).append(each)
        if number < _OWN_ROUNDS and len(own) < len(choices):
            return [each for group in own.values() for each in group[: max(1, len(group) - 1)]]
        progress = np.array([max(self._progress(each.loss), _SLOWEST) for each in choices])
        pace = progress / np.array([each.steps for each in choices])
        price = np.array([self._of(each) for each in choices]) * pace
        beaten = [int(((price < p) & (pace > q)).sum()) for p, q in zip(price, pace, strict=True)]
        order = sorted(range(len(choices)), key=lambda k: (beaten[k], self._of(choices[k])))
        return [choices[k] for k in order[: max(_FEWEST, math.ceil(len(choices) / 2))]]

    def _begin(self, most: int) -> list[Candidate]:
        """The candidates that go together, at their first step sizes.

        If there are too many: without the largest and the smallest step size, then fewer methods,
        evenly in the order of their price.
        """
        T, best = self._trials.steps, self._cheapest
        groups = [
            group
            for method in self._family
            if method != NSGD()
            for group in self._lengths_of(method)
            if self._affordable(group[0], 1.0, best)
        ]
        if sum(map(len, groups)) > most and not self._given:
            groups = [sorted(group, key=lambda each: -each.lr)[1:-1] for group in groups]
        if sum(map(len, groups)) > most:
            groups.sort(key=lambda group: self._price(group[0]).of(self._goal, T))
            many = max(1, most // len(groups[0]))
            groups = [groups[k] for k in np.linspace(0, len(groups) - 1, many).round().astype(int)]
        return [candidate for group in groups for candidate in group][:most]

    def _lengths_of(self, method: Scheduled) -> list[list[Candidate]]:
        """A group for each length, the shortest first: the method at all its first step sizes."""
        at, T = self._place(method), self._trials.steps
        if at is None:
            return []
        middle = self.nsgd.candidate.lr * self._family[method].step
        sizes = self._given or [middle * each for each in STEP_SIZES]
        lengths = (LONGEST,) if self._constant else LENGTHS
        whole = [self._in_whole_rounds(method, at, length * T) for length in lengths]
        return [
            [Candidate(method, at, lr, steps) for lr in sizes]
            for steps in dict.fromkeys(whole)
            if method.delay < steps
        ]

    def _in_whole_rounds(self, method: Scheduled, at: str, steps: float) -> int:
        """At least so many steps, at the end of which the loss is measured."""
        every = self._trials(Candidate(method, at, 1.0, self._trials.steps)).every
        return math.ceil(steps / every) * every

    def _affordable(self, candidate: Candidate, rung: float, best: Choice) -> int:
        """The steps up to a rung that cost no more than the best; 0: none."""
        trial, price, most = self._trials(candidate), self._price(candidate), _TIE * self._of(best)
        every = trial.every
        until = max(1, math.floor(rung * candidate.steps / every)) * every
        if not self._constant and price.of(self._goal, candidate.steps) > most:
            return 0
        while until > 0 and price.of(self._goal, until) > most:
            until -= every
        return until

    def _weigh(self, candidate: Candidate, rung: float, best: Choice) -> Choice | None:
        """Train up to a rung; None if it diverges, or is already dearer than the best."""
        trial, price = self._trials(candidate), self._price(candidate)
        wanted = max(1, math.floor(rung * candidate.steps / trial.every)) * trial.every
        until = self._affordable(candidate, rung, best)
        if until == 0:
            return None
        if self._constant:
            steps = trial.reaches(self.target, until)
        else:
            ends = until == candidate.steps
            steps = until if ends and trial.losses(until)[-1] <= self.target else None
        if steps is not None:
            cost, loss = self._exact(candidate, steps), trial.losses(steps)[-1]
            there = all(self._rehearse(candidate, trials) for trials in self._rehearsals)
            return Choice(candidate, steps, cost, loss, reached=there)
        losses = trial.losses(until)
        if until < wanted or not math.isfinite(losses[-1]):
            return None
        lowest = min(losses)
        progress = max(self._progress(lowest), _SLOWEST)
        cost = price.after(until).times(1 / progress)
        if not self._constant:
            whole = price.after(candidate.steps)
            cost = Cost(max(cost.seconds, whole.seconds), max(cost.bytes, whole.bytes))
        return Choice(candidate, until, cost, lowest, reached=False)

    def _choose(self) -> Choice:
        """The cheapest, or of those about as cheap the one that saves most of the other."""
        most = _TIE * self._of(self._cheapest)
        other = "bytes" if self._goal == "time" else "time"
        there = [each for each in self._weighed.values() if each.reached]
        tied = [each for each in there if self._of(each) <= most]
        return min(tied, key=lambda choice: (choice.cost.of(other), self._of(choice)))

    def _rehearse(self, candidate: Candidate, trials: Trials) -> bool:
        """Whether a candidate gets to NSGD's loss on another seed, too."""
        target = self._wanted
        if target is None:
            target = _near(min(trials(self.nsgd.candidate).losses(trials.steps)))
        trial = trials(candidate)
        if self._constant:
            return trial.reaches(target, candidate.steps) is not None
        return trial.losses(candidate.steps)[-1] <= target

    # ---- costs -------------------------------------------------------------------------------

    def _of(self, choice: Choice) -> float:
        return choice.cost.of(self._goal)

    def _price(self, candidate: Candidate) -> Price:
        key = candidate.method, candidate.optimizer_at, candidate.steps
        if key not in self._prices:
            self._prices[key] = Price(self._trials(candidate).job, self._network)
        return self._prices[key]

    def _exact(self, candidate: Candidate, steps: int) -> Cost:
        """The cost of a run of so many steps, with its end."""
        job = self._trials.job(replace(candidate, steps=steps))
        return Price(job, self._network).after(steps)

    def _place(self, method: Scheduled) -> str | None:
        """Where the optimizer runs; None if it cannot."""
        places = ["server", "workers"] if self._optimizer_at is None else [self._optimizer_at]
        if self._optimizer_at is None and self._trials.config.optimizer == "sgd":
            places = ["workers"]  # its step is the same at either place
        for place in places:
            try:
                check_optimizer_at(place, method, server_optimizer=method.server != "add")
            except ConfigError:
                continue
            return place
        return None


def _near(loss: float) -> float:
    return loss + WITHIN * abs(loss)


def _climbed(lr: float, score: Callable[[float], float | tuple[float, float]]) -> float:
    """The step size, doubled or halved while that lowers its score."""
    best = score(lr)
    for factor in (2.0, 0.5):
        for _ in range(_MOST_CLIMBS):
            found = score(lr * factor)
            if not found < best:  # type: ignore[operator]
                break
            lr, best = lr * factor, found
    return lr
