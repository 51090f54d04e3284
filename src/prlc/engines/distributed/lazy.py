"""Server and workers of LAG: old gradients serve until fresh ones are worth their way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from prlc.engines.base import StepReport
from prlc.engines.distributed.keeper import Keeper, mean_loss
from prlc.engines.distributed.member import Member
from prlc.engines.distributed.packing import Vector, distance_sq, is_finite
from prlc.engines.distributed.wire import Kind, Note
from prlc.errors import ConfigError, DivergedError
from prlc.methods import Lazy, Mask


class LazyKeeper(Keeper):
    """Knows every worker's last gradient, and for LAG-PS the model that each has."""

    def __init__(self, *given: Any, add_over_shards: Callable[[Tensor], None]) -> None:
        """`add_over_shards` turns the sums over this shard into sums over the whole model."""
        super().__init__(*given)
        P = self.terms.num_workers
        self._method = cast(Lazy, self.terms.method)
        self._add_over_shards = add_over_shards
        self._gradients: list[Vector | None] = [None] * P
        asks = self._method.asked_by_server
        self._seen = [self._copy() for _ in range(P if asks else 0)]  # what each worker has
        self._history: list[float] = []
        self._smoothness = np.full(P, self._method.initial_smoothness())
        self._moved_sq = np.zeros(P)
        self._asked = np.ones(P, bool)
        self._spoke = np.full(P, time.monotonic())  # when a worker was told something
        self._lr = math.nan

    def begin(self, step: int) -> None:
        del step
        for worker in np.flatnonzero(self._asked).tolist():
            self._inbox.expect(worker)

    def step(self, step: int) -> StepReport | None:
        P = self.terms.num_workers
        computes = self._asked.copy()
        pushes, losses = np.zeros(P, bool), []
        changes, buffers = np.full(P, math.nan), []
        for worker in np.flatnonzero(computes).tolist():
            what = f"its gradient of step {step}"
            note = self._inbox.note(worker, what)
            if note.kind is Kind.BYE:
                raise ConfigError(
                    f"Worker {worker} stopped at step {note.step} of {self.terms.steps}. With "
                    f"{self._method.label}, go on until step() returns False."
                )
            losses.append(note.loss)
            self._lr = note.lr
            if note.kind is Kind.NOTHING:
                continue
            update = self._checked(note, worker, what)
            if update is not None:
                pushes[worker] = True
                of_parameters, of_buffers = self.shard.split(update)
                changes[worker] = self._remember(worker, [u / note.lr for u in of_parameters])
                buffers.append([flat.clone() for flat in of_buffers])
        self._outbox.settle_all()
        moved_sq = self._move(step, buffers)
        pulls = self._decide(changes, moved_sq)
        self._hand_to(pulls, step)
        if self.terms.saves(step + 1):
            self._on_save()
        return StepReport(mean_loss(losses), computes, pushes, pulls)

    def _remember(self, worker: int, gradient: Vector) -> float:
        """Keep a worker's gradient; how far it is from the one before, squared, in this shard."""
        old, self._gradients[worker] = self._gradients[worker], gradient
        return math.nan if old is None else distance_sq(gradient, old)

    def _move(self, step: int, buffers: list[Vector]) -> float:
        """Step along the mean of all known gradients; gives the squared length in this shard."""
        lr = self.terms.lr(step) if self.terms.lr else self._lr
        self._lr = lr
        total = self._zeros()
        parameters, means = self.shard.split(total)
        for gradient in self._gradients:
            for flat, part in zip(parameters, gradient or [], strict=gradient is not None):
                flat.add_(part)
        if not is_finite(total):
            raise DivergedError(0, step, "sum of gradients with that")
        for flat in parameters:
            flat.mul_(lr).div_(self.terms.num_workers)
        for pushed in buffers:  # an old change of a running mean does not serve again
            for flat, part in zip(means, pushed, strict=True):
                flat.add_(part / len(buffers))
        before = self._copy()
        self._apply(total)
        return distance_sq(self.shard.split(self.shard.values)[0], before)

    def _decide(self, changes: Any, moved_sq: float) -> Mask:
        """Who is to pull: LAG-PS's trigger (15b). In LAG-WK everybody."""
        P, method = self.terms.num_workers, self._method
        parameters, _ = self.shard.split(self.shard.values)
        distances = [distance_sq(parameters, seen) for seen in self._seen] or [0.0] * P
        sums = torch.tensor([moved_sq, *distances, *np.nan_to_num(changes)], dtype=torch.float64)
        self._add_over_shards(sums)
        moved_sq, distance, change = float(sums[0]), sums[1 : P + 1], sums[P + 1 :]
        self._history = [*self._history, moved_sq / self._lr**2][-method.window :]
        if not method.asked_by_server:
            return np.ones(P, bool)
        known = torch.from_numpy(self._smoothness)
        refined = method.refine(known, change, torch.from_numpy(self._moved_sq))
        self._smoothness = np.where(np.isnan(changes), self._smoothness, refined.numpy())
        history = torch.tensor(self._history, dtype=torch.float64)
        pulls: Mask = method.worthwhile(
            distance, torch.from_numpy(self._smoothness), history
        ).numpy()
        self._moved_sq = np.where(pulls, distance.numpy(), self._moved_sq)
        self._asked = pulls
        return pulls

    def _hand_to(self, pulls: Mask, step: int) -> None:
        """Send the model to those who pull. LAG-PS's workers must be told; others know."""
        last = step + 1 == self.terms.steps
        save = int(self.terms.saves(step + 1))
        now = time.monotonic()
        for worker in range(self.terms.num_workers):
            asked = bool(pulls[worker])
            silent = now - self._spoke[worker] > self._wire.patience / 2
            if self._method.asked_by_server and (asked or last or save or silent):
                self._spoke[worker] = now
                kinds = (Kind.LAST if asked else Kind.OVER) if last else (
                    Kind.GO if asked else Kind.WAIT
                )  # fmt: skip
                self._outbox.answer(worker, Note(kinds, step + 1, save=save))
            if asked:
                self._outbox.model(worker, self.shard.values)
                if self._seen:
                    self._seen[worker] = self._copy()
                if not last:
                    self._inbox.expect(worker)

    def _copy(self) -> Vector:
        return [flat.detach().clone() for flat in self.shard.split(self.shard.values)[0]]

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "gradients": self._gradients,
            "seen": self._seen,
            "history": self._history,
            "smoothness": self._smoothness.tolist(),
            "moved_sq": self._moved_sq.tolist(),
            "asked": self._asked.tolist(),
            "lr": self._lr,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._gradients, self._seen = state["gradients"], state["seen"]
        self._history = state["history"]
        self._smoothness = np.array(state["smoothness"])
        self._moved_sq = np.array(state["moved_sq"])
        self._asked = np.array(state["asked"])
        self._lr = state["lr"]


class AskedMember(Member):
    """LAG-PS: computes when the server asks."""

    _has_turn = True

    def begin(self) -> bool:
        return self._has_turn or self._await_turn(self.next_step)

    def _step(self, step: int, loss: float | None) -> bool:
        update = self._room(step)
        self._push(update, step, self._compute(update, step, loss))
        return self._await_turn(step)

    def _await_turn(self, step: int) -> bool:
        """Until the server asks for the next gradient; False when the run is over."""
        while True:
            with self.recorder.waiting(step, "turn"):
                answers = [self._question(owner) for owner in self._owners]
            kind, self.next_step = answers[0].kind, answers[0].step
            self.lr_step, self._has_turn = self.next_step, kind is Kind.GO
            if kind in (Kind.GO, Kind.LAST):
                self._pull(step, "the model after step")
            if answers[0].save:
                self.send_state()
            if kind is not Kind.WAIT:
                return kind is Kind.GO

    def _question(self, owner: int) -> Note:
        """What the server wants; a note that only says that it is still there is passed over."""
        while True:
            note = self._answer(owner, "its question", self._long)
            if note.kind is not Kind.WAIT or note.save:
                return note

    def state(self) -> dict[str, Any]:
        return super().state() | {"has_turn": self._has_turn}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._has_turn = state["has_turn"]


class DecidingMember(Member):
    """LAG-WK: pushes when its gradient has changed enough, and always pulls."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._method = cast(Lazy, self.terms.method)
        self._gradient: Vector | None = None  # last pushed
        self._history: list[float] = []

    def _step(self, step: int, loss: float | None) -> bool:
        update = self._room(step)
        kind = self._compute(update, step, loss)
        gradient = [flat / self.own.lr for flat in self._parameters(update)]
        if kind is Kind.UPDATE and self._is_worthwhile(gradient):
            self._gradient = gradient
        elif kind is Kind.UPDATE:
            kind = Kind.NOTHING
        self._push(update, step, kind)
        before = [flat.clone() for flat in self._parameters(self.own.values)]
        self._pull(step, "the model of step")
        moved_sq = distance_sq(self._parameters(self.own.values), before) / self.own.lr**2
        self._history = [*self._history, moved_sq][-self._method.window :]
        return self._stepped()

    def _is_worthwhile(self, gradient: Vector) -> bool:
        """The trigger (15a)."""
        if self._gradient is None:
            return True
        change, smoothness, history = (
            torch.tensor(value, dtype=torch.float64)
            for value in (
                distance_sq(gradient, self._gradient),
                self._method.initial_smoothness(),
                self._history,
            )
        )
        return bool(self._method.worthwhile(change, smoothness, history))

    def _parameters(self, vector: Vector) -> Vector:
        """A vector without its buffers."""
        return [flat[:n] for flat, n in zip(vector, self._packing.num_parameters, strict=True)]

    def state(self) -> dict[str, Any]:
        return super().state() | {"gradient": self._gradient, "history": self._history}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._gradient, self._history = state["gradient"], state["history"]
