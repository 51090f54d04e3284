"""The search: NSGD's best step size sets the target; then the family is tried for what is cheaper.

What a run takes by default goes first, to its end, then what is next to it in the family and
cheaper, so that whatever is dearer is given up without training. The rest follows by successive
halving; or, where there are too few trials for that or the middle of a run says little about its
end, by one of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, product, zip_longest

import numpy as np

from prlc.methods import NSGD, Scheduled, parse_method
from prlc.planner.cost import Cost
from prlc.planner.family import STEP_SIZES, Member
from prlc.planner.prices import Choice, Prices
from prlc.planner.target import Target
from prlc.planner.trials import Candidate, Trials
from prlc.runs.config import usual_method

RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of a trial; the better ones go on
_OWN_ROUNDS = 2  # in which step sizes compete within a method
_FEWEST = 8  # that always go on
_NEARBY = 4  # of so many trials one is next to the best, before the others and after them
_LEADING = 3  # step sizes at which the default is tried
_SHORTER = 7 / 8  # of the steps of the best: so long is a run of it at another step size
_TIE = 1.05  # of those within this factor of the best, the one that saves most of the other wins


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
        prices: Prices,
        *,
        step_sizes: Sequence[float] | None = None,
        target: float | None = None,
        within: float = 0.01,
        rehearsals: int = 0,
        on_search: OnSearch | None = None,
    ) -> None:
        """`step_sizes`, `target`: None to find them; `within` says how close to NSGD's loss."""
        self._family, self._trials, self._prices = family, trials, prices
        self._given, self._on_search = step_sizes, on_search or (lambda _: None)
        self._rehearsals = [trials.on_another_seed(number) for number in range(1, rehearsals + 1)]
        self.target = Target(
            trials,
            prices,
            step_sizes,
            target,
            within,
            lambda done, total: self._on_search(SearchProgress("NSGD", done, total)),
        )
        self._weighed = {self.nsgd.candidate: self.nsgd}

    @property
    def nsgd(self) -> Choice:
        return self.target.nsgd

    def run(self, most_trials: int) -> list[Choice]:
        """All that were weighed; the chosen one first, then NSGD."""
        nearby = math.ceil(most_trials / _NEARBY)
        self._lead()
        self._look_around(nearby)
        everything = [each for method in self._family for each in self._begin(method)]
        if self._trials.constant and len(everything) <= most_trials:
            self._halve(everything)
        else:
            self._try_one_of_each(most_trials - 2 * nearby)
        self._look_around(nearby)
        chosen = self._choose()
        rest = [each for each in self._weighed.values() if each not in (chosen, self.nsgd)]
        return list(dict.fromkeys([chosen, self.nsgd, *sorted(rest, key=self._prices.of)]))

    @property
    def _cheapest(self) -> Choice:
        return min((each for each in self._weighed.values() if each.reached), key=self._prices.of)

    def _try(self, candidate: Candidate, rung: float, progress: SearchProgress) -> Choice | None:
        """Weigh a candidate against the cheapest so far, and remember it."""
        best = self._cheapest
        self._on_search(replace(progress, best=best.cost))
        found = self._weigh(candidate, rung, best)
        if found is not None:
            self._weighed[candidate] = found
        return found

    def _try_to_the_end(self, candidate: Candidate, label: str) -> bool:
        """Whether a candidate that is new gets there."""
        if candidate in self._weighed:
            return False
        found = self._try(candidate, 1.0, SearchProgress(label, 0, 1))
        if found is None or not found.reached:
            return False
        self._shorten(candidate, label)
        return True

    def _shorten(self, candidate: Candidate, label: str) -> None:
        """Where the step size follows a schedule, a shorter run is another run.

        While one gets there, the next ends halfway between its end and where it was as low as the
        target first.
        """
        while not self._trials.constant:
            sooner = self._trials(candidate).reaches(self.target.loss, candidate.steps)
            assert sooner is not None
            halfway = (sooner + candidate.steps) / 2
            candidate = replace(candidate, steps=self._prices.in_whole_rounds(candidate, halfway))
            if candidate in self._weighed:
                return
            found = self._try(candidate, 1.0, SearchProgress(label, 0, 1))
            if found is None or not found.reached:
                return

    def _lead(self) -> None:
        """Try what a run takes by default to its end: what is dearer need not be trained then.

        If it does not get there, its dearest neighbour follows, and so on.
        """
        method = parse_method(usual_method(self._trials.config.optimizer, "workers"))
        if not isinstance(method, Scheduled) or method not in self._family:
            return
        sizes = [candidate.lr for candidate in self._begin(method)[:_LEADING]]
        while not self._gets_there(method, sizes):
            tried = [each for each in self._weighed.values() if each.candidate.method == method]
            if tried:
                sizes = [min(tried, key=lambda each: each.loss).candidate.lr]
            dearer = max([method, *self._family[method].neighbours], key=self._prices.of_method)
            if dearer == method:
                return
            method = dearer

    def _gets_there(self, method: Scheduled, sizes: Sequence[float]) -> bool:
        """Whether the method reaches the target at one of some step sizes, on every seed."""
        there = False
        for candidate in self._begin(method)[:1]:
            for lr in sizes:
                own = replace(candidate, lr=lr)
                found = self._try(own, 1.0, SearchProgress(method.label, 0, 1))
                if found is None or not found.reached or not self._holds(found):
                    continue
                there = True
                self._shorten(own, method.label)
                if not self._trials.constant:
                    break  # at any other step size as long a run costs as much
        return there

    def _try_one_of_each(self, most: int) -> None:
        """Try one method of each line that is new, at two step sizes, in at most so many trials.

        It is the dearest that is still cheaper than the best after as many steps as NSGD's: the
        more is said, the likelier it gets there.
        """
        lines: dict[str, list[Scheduled]] = {}
        for method, member in self._family.items():
            lines.setdefault(member.line, []).append(method)
        tried = {candidate.method for candidate in self._weighed}
        for methods in lines.values():
            bar = self._prices.of(self._cheapest)
            if not tried.isdisjoint(methods):
                continue
            cheaper = [method for method in methods if 0 < self._prices.of_method(method) < bar]
            if not cheaper:
                continue
            for candidate in self._begin(max(cheaper, key=self._prices.of_method))[:2]:
                if most <= 0:
                    return
                most -= 1
                if self._try_to_the_end(candidate, "one of each kind"):
                    break

    def _look_around(self, most: int) -> None:
        """Go from the best to what is next to it and cheaper, in at most so many trials."""
        tried, best = {*self._weighed}, self._cheapest
        while best is not self.nsgd:
            untried = (each for each in self._next_to(best) if each not in tried)
            for candidate in islice(untried, most):
                most -= 1
                tried.add(candidate)
                self._try_to_the_end(candidate, "around the best")
                if self._cheapest is not best:
                    break
            if self._cheapest is best:
                return
            best = self._cheapest

    def _next_to(self, best: Choice) -> Iterator[Candidate]:
        """What may be cheaper: the method at other step sizes, then its neighbours.

        Neighbours are tried at the greatest length that is not too dear, the cheapest first; of
        those that cost the same, one each before any other.
        """
        own = best.candidate
        around = [own.lr, own.lr / 2, 2 * own.lr]
        if self._given:
            around = sorted(self._given, key=lambda lr: abs(math.log(lr / own.lr)))[:3]
        shorter = own.steps
        if not self._trials.constant:
            shorter = self._prices.in_whole_rounds(own, _SHORTER * own.steps)
        yield from (replace(own, lr=lr, steps=shorter) for lr in around[1:])
        nearby = sorted(self._family[own.method].neighbours, key=self._prices.of_method)
        alike = [list(group) for _, group in groupby(nearby, key=self._prices.of_method)]
        in_turn = [each for rank in zip_longest(*alike) for each in rank if each is not None]
        for lr, method in product(around[:2], in_turn):
            for candidate in self._begin(method)[:1]:
                steps = self._affordable(candidate, 1.0, best)
                if steps > method.delay:
                    steps = candidate.steps if self._trials.constant else steps
                    yield replace(candidate, lr=lr, steps=steps)

    def _halve(self, alive: list[Candidate]) -> None:
        """Train all of them further and further; the better ones go on."""
        best = self._cheapest
        alive = [
            each
            for each in alive
            if each not in self._weighed and self._affordable(each, 1.0, best)
        ]
        for number, rung in enumerate(RUNGS):
            label = f"round {number + 1} of {len(RUNGS)}"
            tried = [
                self._try(candidate, rung, SearchProgress(label, done + 1, len(alive)))
                for done, candidate in enumerate(alive)
            ]
            still_open = [found for found in tried if found is not None and not found.reached]
            alive = [choice.candidate for choice in self._survivors(still_open, number)]

    def _survivors(self, choices: list[Choice], number: int) -> list[Choice]:
        """Who goes on: at first each method without its worst step size, then half of all.

        A large step size starts slowly and may end sooner, so they are given up one by one.
        Methods are ranked by how many others beat them both in price and in progress, step by
        step: neither the cheapest, which may never get there, crowd out the fastest, nor the other
        way round.
        """
        own: dict[Scheduled, list[Choice]] = {}
        for each in sorted(choices, key=lambda each: (self._prices.of(each), each.loss)):
            own.setdefault(each.candidate.method, []).append(each)
        if number < _OWN_ROUNDS and len(own) < len(choices):
            return [each for group in own.values() for each in group[: max(1, len(group) - 1)]]
        progress = np.array([self.target.progress(each.loss) for each in choices])
        pace = progress / np.array([each.steps for each in choices])
        price = np.array([self._prices.of(each) for each in choices]) * pace
        beaten = [int(((price < p) & (pace > q)).sum()) for p, q in zip(price, pace, strict=True)]
        order = sorted(range(len(choices)), key=lambda k: (beaten[k], self._prices.of(choices[k])))
        return [choices[k] for k in order[: max(_FEWEST, math.ceil(len(choices) / 2))]]

    def _begin(self, method: Scheduled) -> list[Candidate]:
        """The method at its first step sizes, the likeliest first, as long as a trial may be.

        None if it is NSGD, which has been tried, or does not fit the optimizer or the length.
        """
        at = self._prices.place(method)
        if at is None or method == NSGD():
            return []
        middle = self.nsgd.candidate.lr * self._family[method].step
        sizes = [middle * each for each in STEP_SIZES]
        if self._given:
            sizes = sorted(self._given, key=lambda lr: abs(math.log(lr / middle)))
        longest = self._prices.longest(method, at)
        return [replace(longest, lr=lr) for lr in sizes] if method.delay < longest.steps else []

    def _affordable(self, candidate: Candidate, rung: float, best: Choice) -> int:
        """The steps up to a rung that cost no more than the best; 0: none."""
        most = _TIE * self._prices.of(best)
        return self._prices.within(most, candidate, rung * candidate.steps)

    def _weigh(self, candidate: Candidate, rung: float, best: Choice) -> Choice | None:
        """Train up to a rung; None if it diverges, or is already dearer than the best.

        A run whose step size follows a schedule counts as a whole.
        """
        trial = self._trials(candidate)
        wanted = max(1, math.floor(rung * candidate.steps / trial.every)) * trial.every
        until = self._affordable(candidate, rung, best)
        if until == 0 or (until < wanted and not self._trials.constant):
            return None
        if self._trials.constant:
            steps = trial.reaches(self.target.loss, until)
        else:
            steps = until if trial.losses(until)[-1] <= self.target.loss else None
        if steps is not None:
            cost, loss = self._prices.whole(candidate, steps), trial.losses(steps)[-1]
            return Choice(candidate, steps, cost, loss, reached=True)
        losses = trial.losses(until)
        if until < wanted or not math.isfinite(losses[-1]):
            return None
        lowest = min(losses)
        cost = self._prices.so_far(candidate, until).times(1 / self.target.progress(lowest))
        return Choice(candidate, until, cost, lowest, reached=False)

    def _choose(self) -> Choice:
        """The cheapest, or of those about as cheap the one that saves most of the other."""
        other = "bytes" if self._prices.goal == "time" else "time"
        while True:
            most = _TIE * self._prices.of(self._cheapest)
            there = [each for each in self._weighed.values() if each.reached]
            tied = [each for each in there if self._prices.of(each) <= most]
            chosen = min(tied, key=lambda choice: (choice.cost.of(other), self._prices.of(choice)))
            if chosen is self.nsgd or self._holds(chosen):
                return chosen

    def _holds(self, choice: Choice) -> bool:
        """Whether a choice passes its rehearsals; else it has not reached the target."""
        if self._rehearse(choice.candidate):
            return True
        self._weighed[choice.candidate] = replace(choice, reached=False)
        return False

    def _rehearse(self, candidate: Candidate) -> bool:
        """Whether a candidate gets to NSGD's loss on the other seeds, too."""
        for number, trials in enumerate(self._rehearsals):
            progress = SearchProgress("rehearsals", number, len(self._rehearsals))
            self._on_search(replace(progress, best=self._cheapest.cost))
            target, trial = self.target.on_another_seed(trials), trials(candidate)
            if self._trials.constant:
                there = trial.reaches(target, candidate.steps) is not None
            else:
                there = trial.losses(candidate.steps)[-1] <= target
            trial.release()
            if not there:
                return False
        return True
