"""Keeping the global model where it is known beforehand who pushes and who pulls."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from prlc.engines.base import StepReport
from prlc.engines.distributed.keeper import Keeper, add, mean_loss
from prlc.engines.distributed.packing import is_finite
from prlc.engines.distributed.wire import Kind
from prlc.errors import ConfigError, DivergedError
from prlc.methods import Mask, Scheduled


class ScheduledKeeper(Keeper):
    """Adds pushes in the order of the workers, so that the sum is the same to the bit however they
    arrive. A worker's next push is asked for once its last one was added; until then it waits in
    the worker, so one buffer for each is all that is kept here."""

    def begin(self) -> None:
        for worker in range(self.terms.num_workers):
            self._inbox.expect(worker)

    def step(self, step: int) -> StepReport | None:
        P, method = self.terms.num_workers, cast(Scheduled, self.terms.method)
        due = bool(method.due(step))
        pulls = method.pulls(self.terms.seed, np.arange(P), step)
        pushes = np.zeros(P, bool)
        loss = math.nan
        if due:
            losses = self._gather(step, pulls, pushes)
            if losses is None:
                return None
            loss = mean_loss(losses)
        for worker in np.flatnonzero(pulls).tolist():
            self._outbox.model(worker, self.shard.values)
            if due:  # after the model, as the worker does
                self._expect(worker, step)
        if self.terms.saves(step + 1):
            self._on_save()
        return StepReport(loss, np.ones(P, bool), pushes, pulls)

    def _expect(self, worker: int, step: int) -> None:
        """Ask for the push after this step's, if there is to be one."""
        period = cast(Scheduled, self.terms.method).period
        if self.terms.steps is None or step + period < self.terms.steps:
            self._inbox.expect(worker)

    def _gather(self, step: int, pulls: Mask, pushes: Mask) -> list[float] | None:
        """Take everybody's push and apply the mean; None if all said goodbye instead."""
        P, what = self.terms.num_workers, f"its update of step {step}"
        total, losses, gone = self._zeros(), [], []
        for worker in range(P):
            note = self._inbox.note(worker, what)
            if note.kind is Kind.BYE:
                gone.append((worker, note.step))
                continue
            losses.append(note.loss)
            update = self._inbox.update(worker, what) if note.kind is Kind.UPDATE else []
            if self._accepts(note, update, worker):
                add(total, update)
                pushes[worker] = True
            if not pulls[worker]:
                self._expect(worker, step)
        if len(gone) == P:
            return None
        if gone:
            raise ConfigError(
                f"Worker {gone[0][0]} stopped after {gone[0][1]} steps while others go on. With "
                f"{self.terms.method.label} all must take as many steps: give each as many batches."
            )
        if not is_finite(total):  # each was, but they are too large together
            raise DivergedError(int(np.flatnonzero(pushes)[0]), step, "sum of updates with that")
        self._outbox.settle_all()  # nobody is still taking the model that changes now
        if pushes.any():
            self._apply([flat / int(pushes.sum()) for flat in total])
        return losses
