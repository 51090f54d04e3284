"""Who takes part, pushes and pulls what at each step of a scheduled method.

A pure function of (seed, worker, step): every engine makes the same draws, a resumed run repeats
them, and both sides agree without a message. Many steps are drawn at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prlc.draws import Purpose, bits, uniform
from prlc.methods.base import Mask, Scheduled

_AHEAD = 128  # steps drawn at once


class Turn(NamedTuple):
    """What happens in a step. Masks have one flag per worker."""

    computes: Mask
    pushes: Mask
    """At a push step, everybody who computes; otherwise nobody."""
    pulls: Mask
    """Whose pull begins at the end of the step."""
    pulling: list[int]
    """The same as a list of workers."""
    uses: list[int]
    """Whose pull, begun `delay` steps ago, is used at the end of the step."""
    block: int
    """The block of the model that is pulled."""
    used_block: int
    """The block of the model that is used."""
    push_blocks: range
    """The blocks of the model that are pushed, at a push step."""

    @property
    def is_push(self) -> bool:
        return bool(self.pushes.any())


class Timetable:
    """The turns of a run of `steps` steps (None: no known end)."""

    def __init__(
        self, method: Scheduled, num_workers: int, seed: int, steps: int | None = None
    ) -> None:
        self._method, self._P, self._seed, self._steps = method, num_workers, seed, steps
        self._workers = np.arange(num_workers)
        self._turns: list[Turn] = []
        self._first = 0
        # A coin that falls during a pull is dropped, so all earlier ones must be known.
        self._sequential = method.delay > 0 and method.pull_ratio < 1.0
        self._busy_until = np.zeros(num_workers, np.int64)
        self._begun: list[NDArray[np.bool_]] = []  # the masks of the last `delay` steps
        self._next = 0
        #: How many push steps a round has.
        self.turns_a_round = method.blocks if method.in_turn else 1

    def __getitem__(self, step: int) -> Turn:
        if not self._first <= step < self._first + len(self._turns):
            self._draw(step)
        return self._turns[step - self._first]

    def is_over(self, step: int) -> bool:
        """Whether the run ends before this step."""
        return self._steps is not None and step >= self._steps

    @cached_property
    def beyond(self) -> Timetable:
        """The same without an end, for workers that have run ahead of the last step."""
        return Timetable(self._method, self._P, self._seed)

    def next_push(self, step: int) -> int | None:
        """The first push step from `step` on; None if the run ends before."""
        if self.is_over(step):
            return None
        H, n = self._method.every, self.turns_a_round
        passed = step % H + 1
        turn = -(-passed * n // H)
        end = turn * H // n
        if end < passed:
            end = (turn + 1) * H // n
        found = step - step % H + end - 1
        return found if self._steps is None else min(found, self._steps - 1)

    def pushes(self, steps: NDArray[np.int64]) -> Mask:
        """Whether each of `steps` is a push step: every H-th (of a block), and the run's last."""
        H, n = self._method.every, self.turns_a_round
        passed = steps % H + 1  # of the round; turn k ends at step k H / n of it
        due: Mask = -(-passed * n // H) * H // n == passed
        if self._steps is not None:
            due |= steps == self._steps - 1
        return due

    def _draw(self, step: int) -> None:
        m = self._method
        if self._sequential and step != self._next:
            self._busy_until[:] = 0
            self._begun, self._next = [], 0
            while self._next + _AHEAD <= step:
                self._pulls(np.arange(self._next, self._next + _AHEAD))
        start = self._next if self._sequential else step
        steps = np.arange(start, start + _AHEAD)
        if self._steps is not None:
            steps = steps[: max(1, self._steps - start)]
        push = self.pushes(steps)
        computes, following = self._samples(steps // m.every), self._samples(steps // m.every + 1)
        if self._sequential:
            before = list(self._begun)
            pulls = self._pulls(steps)
            history = np.array([*before, *pulls]).reshape(-1, self._P)
            offset = len(before)
        else:
            back = min(m.delay, start)
            earlier = np.arange(start - back, start)
            all_steps = np.concatenate([earlier, steps])
            history = self._wants(all_steps) & self.pushes(all_steps)[:, None]
            history &= self._in_time(all_steps)[:, None]
            if m.sample < 1.0:
                history &= following
            offset = back
            pulls = history[offset:]
        self._first, self._turns = start, []
        pushes = computes & push[:, None]
        pulling = [np.flatnonzero(each).tolist() for each in history]
        for k, each in enumerate(steps.tolist()):
            at = offset + k
            self._turns.append(
                Turn(
                    computes[k],
                    pushes[k],
                    pulls[k],
                    pulling[at],
                    pulling[at - m.delay] if at >= m.delay else [],
                    self.block(each),
                    self.block(max(0, each - m.delay)),
                    self.pushed_blocks(each),
                )
            )

    def block(self, step: int) -> int:
        """The block of the model that is pulled at a step."""
        if self._method.in_turn:
            passed = step % self._method.every + 1
            return -(-passed * self.turns_a_round // self._method.every) - 1
        return (step // self._method.every) % self._method.blocks

    def pushed_blocks(self, step: int) -> range:
        """The blocks of the model that are pushed at a push step; in the last step, all."""
        m = self._method
        if not m.in_turn or (self._steps is not None and step == self._steps - 1):
            return range(m.blocks)
        block = self.block(step)
        return range(block, block + 1)

    def _in_time(self, steps: NDArray[np.int64]) -> Mask:
        """Whether a pull would be used before the run ends; otherwise it does not begin."""
        if self._steps is None:
            return np.ones(len(steps), bool)
        in_time: Mask = steps + self._method.delay < self._steps
        return in_time

    def _pulls(self, steps: NDArray[np.int64]) -> Mask:
        """Whose pulls begin, from the next step on. A worker with a pull under way begins none."""
        m = self._method
        wanted = self._wants(steps) & (self.pushes(steps) & self._in_time(steps))[:, None]
        begun = np.zeros_like(wanted)
        for k, step in enumerate(steps.tolist()):
            begun[k] = wanted[k] & (self._busy_until <= step)
            self._busy_until[begun[k]] = step + m.delay
        self._begun = [*self._begun, *begun][-m.delay :]
        self._next = int(steps[-1]) + 1
        return begun

    def _wants(self, steps: NDArray[np.int64]) -> Mask:
        """Who would pull at each of `steps` if it were a push step: (steps, workers)."""
        m, r, workers = self._method, self._method.pull_ratio, self._workers
        if r == 1.0:
            return np.ones((len(steps), self._P), bool)
        if m.schedule == "coins":
            return uniform(self._seed, Purpose.PULL, workers, steps[:, None]) < r
        if m.schedule == "exact":
            count = max(1, round(r * self._P))
            return self._lowest(Purpose.PULL, steps, count)
        # Staggered pulls keep the server's load constant.
        n, rounds = round(1 / r), steps // m.every
        offsets = workers * n // self._P if m.schedule == "staggered" else np.zeros_like(workers)
        periodic: Mask = (rounds[:, None] + 1 + offsets) % n == 0
        return periodic

    def _samples(self, rounds: NDArray[np.int64]) -> Mask:
        """Who takes part in each of `rounds`: (rounds, workers)."""
        f = self._method.sample
        if f == 1.0:
            return np.ones((len(rounds), self._P), bool)
        return self._lowest(Purpose.SAMPLE, rounds, max(1, round(f * self._P)))

    def _lowest(self, purpose: Purpose, when: NDArray[np.int64], count: int) -> Mask:
        """Exactly `count` workers each time, drawn without replacement."""
        drawn = bits(self._seed, purpose, self._workers, when[:, None])
        order = np.argsort(drawn, axis=1, kind="stable")[:, :count]
        chosen = np.zeros(drawn.shape, bool)
        np.put_along_axis(chosen, order, True, axis=1)
        return chosen
