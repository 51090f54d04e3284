"""Where the optimizer of a candidate runs, how long it may train, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from prlc.errors import ConfigError
from prlc.methods import Scheduled
from prlc.methods.check import check_optimizer_at
from prlc.network import Network
from prlc.planner.cost import Cost, Price
from prlc.planner.trials import Candidate, Trials

LONGEST = 2  # a trial, in multiples of NSGD's steps; whole rounds


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


class Prices:
    """What candidates cost on a network, by the goal of a plan; each method is timed once."""

    def __init__(
        self, trials: Trials, network: Network, goal: str, optimizer_at: str | None
    ) -> None:
        """`optimizer_at`: None for wherever a method lets it run, the server if it may."""
        self.goal = goal
        self._trials, self._network, self._optimizer_at = trials, network, optimizer_at
        self._prices: dict[tuple[Scheduled, str], Price] = {}

    def place(self, method: Scheduled) -> str | None:
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

    def longest(self, method: Scheduled, at: str) -> Candidate:
        """As long as a trial may be; its step size is still to be chosen."""
        one = Candidate(method, at, 1.0, self._trials.steps)
        return replace(one, steps=self.in_whole_rounds(one, LONGEST * one.steps))

    def in_whole_rounds(self, candidate: Candidate, steps: float) -> int:
        """At least so many steps, at the end of which the loss is measured, and a pull is used."""
        every = self._trials(candidate).every
        return math.ceil(max(steps, candidate.method.delay + 1) / every) * every

    def of(self, choice: Choice) -> float:
        return choice.cost.of(self.goal)

    def of_method(self, method: Scheduled) -> float:
        """What as many steps as NSGD's cost; 0 if the method does not fit."""
        at = self.place(method)
        return 0.0 if at is None else self._price(method, at).of(self.goal, self._trials.steps)

    def within(self, most: float, candidate: Candidate, steps: float) -> int:
        """The steps, up to so many, that cost no more; 0: none."""
        price = self._price(candidate.method, candidate.optimizer_at)
        every = self._trials(candidate).every
        most_rounds, rounds = max(1, math.floor(steps / every)), 0
        while rounds < most_rounds and price.of(self.goal, (rounds + 1) * every) <= most:
            rounds += 1
        return rounds * every

    def so_far(self, candidate: Candidate, steps: int) -> Cost:
        """What the first steps of a longer run cost."""
        return self._price(candidate.method, candidate.optimizer_at).after(steps)

    def whole(self, candidate: Candidate, steps: int) -> Cost:
        """The cost of a run of so many steps, with its end."""
        job = self._trials.job(replace(candidate, steps=steps))
        return Price(job, self._network).after(steps)

    def _price(self, method: Scheduled, at: str) -> Price:
        """Of the longest run; that of a shorter one differs in its last steps alone."""
        if (method, at) not in self._prices:
            job = self._trials.job(self.longest(method, at))
            self._prices[method, at] = Price(job, self._network)
        return self._prices[method, at]
