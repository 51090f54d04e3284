"""Server and worker where it is known beforehand who pushes and who pulls."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from prlc.engines.base import StepReport
from prlc.engines.distributed.keeper import Keeper, mean_loss
from prlc.engines.distributed.member import Member
from prlc.engines.distributed.packing import Vector, is_finite
from prlc.engines.distributed.wire import Kind
from prlc.errors import ConfigError, DivergedError
from prlc.methods import Mask, Scheduled


class ScheduledKeeper(Keeper):
    """Adds pushes in the order of the workers, so that the sum is the same to the bit however they
    arrive. While one worker is waited for, the next pushes of the others go on arriving, as many as
    there are buffers for; further ones wait in their worker."""

    depth = 2

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._method = cast(Scheduled, self.terms.method)
        self._total = self._zeros()

    def begin(self, step: int) -> None:
        P, period = self.terms.num_workers, self._method.period
        self._asked = np.full(P, step - step % period - 1)  # the last step whose push was asked for
        for worker in range(P):
            self._expect(worker)

    def step(self, step: int) -> StepReport | None:
        P = self.terms.num_workers
        pulls = self._method.pulls(self.terms.seed, np.arange(P), step)
        pushes = np.zeros(P, bool)
        loss = math.nan
        if self._method.due(step):
            gathered = self._gather(step)
            if gathered is None:
                return None
            losses, pushes = gathered
            loss = mean_loss(losses)
            for worker in range(P):
                self._expect(worker)
                if pulls[worker]:
                    self._outbox.model(worker, self.shard.values)
        if self.terms.saves(step + 1):
            self._on_save()
        return StepReport(loss, np.ones(P, bool), pushes, pulls)

    def _expect(self, worker: int) -> None:
        """Ask for the worker's next pushes, as far as there is room."""
        while self._inbox.has_room(worker):
            next_push = self._asked[worker] + self._method.period
            if self.terms.steps is not None and next_push >= self.terms.steps:
                return
            self._asked[worker] = next_push
            self._inbox.expect(worker)

    def _gather(self, step: int) -> tuple[list[float], Mask] | None:
        """Take everybody's push and apply the mean; None if all said goodbye instead."""
        P, what = self.terms.num_workers, f"its update of step {step}"
        updates: dict[int, Vector] = {}
        losses, gone = [], []
        for worker in range(P):
            note = self._inbox.note(worker, what)
            if note.kind is Kind.BYE:
                gone.append((worker, note.step))
                continue
            losses.append(note.loss)
            if self._accepts(note, worker):
                updates[worker] = self._inbox.update(worker, what)
                self._add(updates[worker], first=len(updates) == 1)
        if len(gone) == P:
            return None
        if gone:
            raise ConfigError(
                f"Worker {gone[0][0]} stopped after {gone[0][1]} steps while others go on. With "
                f"{self._method.label} all must take as many steps: give each as many batches."
            )
        pushes = np.isin(np.arange(P), list(updates))
        if updates and not is_finite(self._total):
            self._leave_out_bad_ones(updates, step)
        self._outbox.settle_all()  # nobody is still taking the model that changes now
        if updates:
            for flat in self._total:
                flat.div_(len(updates))
            self._apply(self._total)
        return losses, pushes

    def _add(self, update: Vector, first: bool) -> None:
        for total, change in zip(self._total, update, strict=True):
            if first:
                total.copy_(change)
            else:
                total.add_(change)

    def _leave_out_bad_ones(self, updates: dict[int, Vector], step: int) -> None:
        """Find whose updates spoilt the sum, and make it again without them."""
        for worker in [w for w, update in updates.items() if not is_finite(update)]:
            self._refuse(Kind.INFINITE, worker, step)
            del updates[worker]
        for number, update in enumerate(updates.values()):
            self._add(update, first=number == 0)
        if updates and not is_finite(self._total):  # each is, but they are too large together
            raise DivergedError(min(updates), step, "sum of updates with that")


class ScheduledMember(Member):
    """Pushes every update, or with a period the sum of several, and never waits but to pull."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._method = cast(Scheduled, self.terms.method)
        merges = self._method.period > 1
        self._update = self._packing.zeros() if merges else []  # of one step, and ...
        self._unsent = self._packing.zeros() if merges else []  # ... the sum of those not pushed

    def _step(self, step: int, loss: float | None) -> bool:
        if self._method.period == 1:
            update = self._room(step)
            self._push(update, step, self._compute(update, step, loss))
        else:
            update = self._update
            kind = self._compute(update, step, loss)
            for total, change in zip(self._unsent, update, strict=True):
                total.add_(change)
            if self._method.due(step):
                self._push_unsent(step, kind)
        if self._method.pulls(self.terms.seed, self.worker, step):
            self._pull(step, "the model of step")
        else:
            self.own.move(update, self._method.compensation)
        return self._stepped()

    def _push_unsent(self, step: int, kind: Kind) -> None:
        """Push the sum of the last updates; it counts if any of them was usable."""
        total = self._room(step)
        for into, flat in zip(total, self._unsent, strict=True):
            into.copy_(flat)
            flat.zero_()
        self._push(total, step, Kind.UPDATE if self._bad < self._num_updates else kind)

    def state(self) -> dict[str, Any]:
        return super().state() | {"unsent": self._unsent}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._unsent = state["unsent"]
