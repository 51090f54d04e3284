"""The search: NSGD's best step size sets the target; then the family is tried for what is cheaper.

Each line of the family is bisected: of its methods, in order of price, the one in the middle is
tried. If it gets to the target, what is dearer need not be tried; if it cannot, neither need what
says less. What a run takes by default goes first; whoever costs more than the best so far stops.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice, product, zip_longest

from scipy.special import stdtrit

from prlc.methods import NSGD, Method, Scheduled, parse_method
from prlc.planner.cost import Cost
from prlc.planner.family import STEP_SIZES, Member
from prlc.planner.prices import Choice, Prices
from prlc.planner.target import Target
from prlc.planner.trials import Candidate, Trial, Trials
from prlc.runs.config import usual_method

_SIZES = 2  # step sizes at which a method is tried, once it is known where in its line
_SOONEST = 1 / 2  # of NSGD's steps: nothing is expected to get there sooner
_LOOKS = (1 / 4, 1 / 2)  # of a trial, where it is given up
_SLOW = 1 / 2  # if it has come less than this part of that of NSGD's way
_DEFAULT = 1 / 2  # of all trials are over at the most when the default's line is,
_LINES = 3 / 4  # and when all are; the rest is for what is next to the best
_SHORTER = 7 / 8  # of the steps of the best: so long is a run of it at another step size
_ENOUGH = 3  # seeds whose losses say how much those of others may differ:
_CONFIDENCE = 0.9  # so sure is a plan that it holds on one more
_FEWER = 0.8  # of the steps may be enough for what says more
_TIE = 1.05  # of those within this factor of the best, the one that saves most of the other wins


@dataclass(frozen=True)
class SearchProgress:
    """How far the search is: in what, how much of that is over, the best cost so far."""

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
        self._rehearsed = {self.nsgd.candidate}
        self._tried = 0  # methods and step sizes
        self._progress = SearchProgress("lines of the family", 0, 0)

    @property
    def nsgd(self) -> Choice:
        return self.target.nsgd

    def run(self, most_trials: int) -> list[Choice]:
        """All that were weighed; the chosen one first, then NSGD."""
        for number, methods in enumerate(lines := self._lines()):
            self._progress = replace(self._progress, done=number, total=len(lines))
            share = _DEFAULT if self._default in methods else _LINES
            self._bisect(methods, math.ceil(share * most_trials))
        self._progress = SearchProgress("around the best", 0, 1)
        self._look_around(most_trials - self._tried)
        chosen = self._choose()
        rest = [each for each in self._weighed.values() if each not in (chosen, self.nsgd)]
        return list(dict.fromkeys([chosen, self.nsgd, *sorted(rest, key=self._prices.of)]))

    @property
    def _cheapest(self) -> Choice:
        return min((each for each in self._weighed.values() if each.reached), key=self._prices.of)

    # -- where to look -----------------------------------------------------------------------------

    def _lines(self) -> list[list[Scheduled]]:
        """The methods of each line, the dearest first; the line of the default before the others.

        Those that do not fit are left out.
        """
        lines: dict[str, list[Scheduled]] = {}
        for method in sorted(self._family, key=self._prices.of_method, reverse=True):
            if self._begin(method):
                lines.setdefault(self._family[method].line, []).append(method)
        return sorted(lines.values(), key=lambda methods: self._default not in methods)

    @cached_property
    def _default(self) -> Method:
        """What a run takes."""
        return parse_method(usual_method(self._trials.config.optimizer, "workers"))

    def _bisect(self, left: Sequence[Scheduled], until: int) -> None:
        """Narrow a line down, while fewer trials than `until` are over."""
        sizes = every_size = [candidate.lr for candidate in self._begin(left[0])]
        first = self._default if self._default in left else left[0]
        price = self._prices.of_method
        while (left := [each for each in left if self._may_win(each)]) and self._tried < until:
            method = first if first in left else left[len(left) // 2]
            longest = self._begin(method)[0]
            dear = self._affordable(longest) < longest.steps
            there, best = self._tune(longest, sizes[: until - self._tried])
            sizes = sorted(every_size, key=lambda lr: abs(math.log(lr / best)))[:_SIZES]
            if there or dear:
                left = [each for each in left if price(each) < price(method)]
            else:
                less = self._family[method].less
                left = [each for each in left if each != method and each not in less]

    def _tune(self, longest: Candidate, sizes: Sequence[float]) -> tuple[bool, float]:
        """Whether a method gets there at one of some step sizes, and the best of them."""
        losses: dict[float, float] = {}
        for lr in sizes:
            self._tried += 1
            own = replace(longest, lr=lr, steps=self._length(longest))
            if self._try(own):
                return True, lr
            losses[lr] = self._weighed[own].loss if own in self._weighed else math.inf
        return False, min(losses, key=lambda lr: losses[lr])

    def _may_win(self, method: Scheduled) -> bool:
        """Whether it is cheaper than the best if it gets there as soon as any may."""
        soon = self._prices.so_far(self._begin(method)[0], math.ceil(_SOONEST * self.nsgd.steps))
        return soon.of(self._prices.goal) < self._prices.of(self._cheapest)

    def _look_around(self, most: int) -> None:
        """Go from the best to what is next to it and cheaper, in at most so many trials."""
        tried, best = {*self._weighed}, self._cheapest
        while best is not self.nsgd:
            untried = (each for each in self._next_to(best) if each not in tried)
            for candidate in islice(untried, most):
                most -= 1
                tried.add(candidate)
                self._try(candidate)
                if self._cheapest is not best:
                    break
            if self._cheapest is best:
                return
            best = self._cheapest

    def _next_to(self, best: Choice) -> Iterator[Candidate]:
        """What may be cheaper: the method at other step sizes, then its neighbours.

        Neighbours are tried at the greatest length that is not too dear, the most promising first;
        of those that promise the same, one each before any other.
        """
        own = best.candidate
        around = [own.lr, own.lr / 2, 2 * own.lr]
        if self._given:
            around = sorted(self._given, key=lambda lr: abs(math.log(lr / own.lr)))[:3]
        shorter = own.steps
        if not self._trials.constant:
            shorter = self._prices.in_whole_rounds(own, _SHORTER * own.steps)
        yield from (replace(own, lr=lr, steps=shorter) for lr in around[1:])
        price, here = self._prices.of_method, self._prices.of_method(own.method)

        def promise(method: Scheduled) -> float:
            return price(method) * (_FEWER if price(method) > here else 1.0)

        nearby = sorted(self._family[own.method].neighbours, key=promise)
        alike = [list(group) for _, group in groupby(nearby, key=promise)]
        in_turn = [each for rank in zip_longest(*alike) for each in rank if each is not None]
        for lr, method in product(around[:2], in_turn):
            for candidate in self._begin(method)[:1]:
                if self._affordable(candidate) > method.delay:
                    yield replace(candidate, lr=lr, steps=self._length(candidate))

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

    # -- trials ------------------------------------------------------------------------------------

    def _length(self, longest: Candidate) -> int:
        """How long a trial is: with a schedule no longer than what may cost less than the best."""
        if self._trials.constant:
            return longest.steps
        return self._affordable(longest) or longest.steps

    def _affordable(self, candidate: Candidate) -> int:
        """The steps that cost no more than the best; 0: none."""
        most = _TIE * self._prices.of(self._cheapest)
        return self._prices.within(most, candidate, candidate.steps)

    def _try(self, candidate: Candidate) -> bool:
        """Whether a candidate gets there; the cheapest does so on every seed."""
        if candidate in self._weighed:
            return self._weighed[candidate].reached
        self._on_search(replace(self._progress, best=self._cheapest.cost))
        found = self._weigh(candidate)
        if found is None:
            return False
        self._weighed[candidate] = found
        if found.reached and not self._trials.constant:
            self._shorten(candidate)
        while not self._holds(self._cheapest):
            pass  # the next one then
        return self._weighed[candidate].reached

    def _shorten(self, candidate: Candidate) -> None:
        """Where the step size follows a schedule, a shorter run is another run.

        While one gets there, the next ends halfway between its end and where it was as low as the
        target first.
        """
        sooner = self._trials(candidate).reaches(self.target.loss, candidate.steps)
        assert sooner is not None
        halfway = (sooner + candidate.steps) / 2
        self._try(replace(candidate, steps=self._prices.in_whole_rounds(candidate, halfway)))

    def _weigh(self, candidate: Candidate) -> Choice | None:
        """Train until it is there, or dearer than the best; None if it diverges or is too dear.

        A run whose step size follows a schedule counts as a whole.
        """
        trial, target = self._trials(candidate), self.target
        until = self._affordable(candidate)
        if until == 0 or (until < candidate.steps and not self._trials.constant):
            return None
        if self._trials.constant:
            steps, until = self._reaches(trial, until)
        else:
            steps = until if trial.losses(until)[-1] <= target.loss else None
        if steps is not None:
            cost, loss = self._prices.whole(candidate, steps), trial.losses(steps)[-1]
            return Choice(candidate, steps, cost, loss, reached=True)
        losses = trial.losses(until)
        if not math.isfinite(losses[-1]):
            return None
        lowest = min(losses)
        cost = self._prices.so_far(candidate, until).times(1 / target.progress(lowest))
        return Choice(candidate, until, cost, lowest, reached=False)

    def _reaches(self, trial: Trial, until: int) -> tuple[int | None, int]:
        """When it is there; and how far it was trained, if it is not or is given up on its way."""
        for part in _LOOKS:
            at = max(1, int(part * until) // trial.every) * trial.every
            steps = trial.reaches(self.target.loss, at)
            if steps is not None or self.target.progress(min(trial.losses(at))) < _SLOW * part:
                return steps, at
        return trial.reaches(self.target.loss, until), until

    def _choose(self) -> Choice:
        """The cheapest, or of those about as cheap the one that saves most of the other."""
        other = "bytes" if self._prices.goal == "time" else "time"
        while True:
            most = _TIE * self._prices.of(self._cheapest)
            there = [each for each in self._weighed.values() if each.reached]
            tied = [each for each in there if self._prices.of(each) <= most]
            chosen = min(tied, key=lambda choice: (choice.cost.of(other), self._prices.of(choice)))
            if self._holds(chosen):
                return chosen

    def _holds(self, choice: Choice) -> bool:
        """Whether a choice has passed its rehearsals, and is what it seemed to be before them.

        Else it has not reached the target, or takes as long as on the slowest seed.
        """
        if choice.candidate in self._rehearsed:
            return True
        self._rehearsed.add(choice.candidate)
        steps = self._rehearse(choice)
        if steps == choice.steps:
            return True
        changed = replace(choice, reached=False)
        if steps is not None:
            cost = self._prices.whole(choice.candidate, steps)
            loss = self._trials(choice.candidate).losses(steps)[-1]
            changed = replace(choice, steps=steps, cost=cost, loss=loss)
        self._weighed[choice.candidate] = changed
        return False

    def _rehearse(self, choice: Choice) -> int | None:
        """The steps in which a choice gets to NSGD's loss on all seeds; None if it does not.

        Where the end of a run counts, it should on a new seed, too.
        """
        candidate, longest = choice.candidate, choice.steps
        gaps, whole = [], not self._trials.constant
        if whole:
            gaps.append(_gap(self._trials(candidate), candidate.steps, self.target.loss))
        for number, trials in enumerate(self._rehearsals):
            progress = SearchProgress("rehearsals", number, len(self._rehearsals))
            self._on_search(replace(progress, best=self._cheapest.cost))
            target, trial = self.target.on_another_seed(trials), trials(candidate)
            if whole:
                gaps.append(_gap(trial, candidate.steps, target))
                steps = candidate.steps if gaps[-1] <= 0 else None
            else:
                steps = trial.reaches(target, candidate.steps)
            trial.release()
            if steps is None:  # where one fails, others are likely to: there first from now on
                self._rehearsals.insert(0, self._rehearsals.pop(number))
                return None
            longest = max(longest, steps)
        return longest if len(gaps) < _ENOUGH or prediction_bound(gaps) <= 0 else None


def _gap(trial: Trial, steps: int, target: float) -> float:
    """How far the loss at the end is above the target, in parts of it."""
    return (trial.losses(steps)[-1] - target) / (abs(target) or 1.0)


def prediction_bound(values: Sequence[float], confidence: float = _CONFIDENCE) -> float:
    """What one more value stays below with this confidence, if all are normal and alike."""
    n = len(values)
    spread = statistics.stdev(values) * math.sqrt(1 + 1 / n)
    return statistics.fmean(values) + float(stdtrit(n - 1, confidence)) * spread
