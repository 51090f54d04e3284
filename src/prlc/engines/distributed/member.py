"""A worker: computes updates at its own model, pushes them, and pulls when it is to."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from prlc.engines.distributed.packing import Packing, Vector, distance_sq
from prlc.engines.distributed.recorder import Recorder
from prlc.engines.distributed.terms import Layout, Terms
from prlc.engines.distributed.updates import OwnModel
from prlc.engines.distributed.wire import Kind, Note, Pending, Tag, Wire
from prlc.errors import ConfigError, DivergedError, PrlcError
from prlc.methods import Lazy, Scheduled

# A worker's own wait for the server is longer than the server's for a worker, so that it is the
# server who notices a worker that hangs, and names the right one.
_LONGER = 2.0


class Member:
    """One worker's side of the run."""

    def __init__(
        self,
        own: OwnModel,
        terms: Terms,
        layout: Layout,
        wire: Wire,
        packing: Packing,
        recorder: Recorder | None = None,
    ) -> None:
        self.own, self.terms = own, terms
        self.worker = layout.workers.index(wire.rank)
        self.next_step = 0
        self.recorder = recorder or Recorder()
        self._wire, self._packing, self._owners = wire, packing, layout.owners
        self._free: deque[Vector] = deque(packing.zeros() for _ in range(terms.window))
        self._leaving: deque[tuple[Vector, list[Pending]]] = deque()
        self._loose: list[Pending] = []  # notes under way
        self._given: list[Pending] = []  # a state for a checkpoint, if rank 0 is to take one
        merges = isinstance(terms.method, Scheduled) and terms.method.period > 1
        self._update = packing.zeros() if merges else []  # of one step, and ...
        self._unsent = packing.zeros() if merges else []  # ... the sum of those not yet pushed
        self._losses: list[float] = []  # since the last push
        self._bad = 0  # updates since the last push that were not usable
        self._num_updates = 0
        self._saves = 0
        self._has_turn = True  # LAG-PS: the server has asked
        self.lr_step = 0  # the step whose learning rate is to be used
        if isinstance(terms.method, Lazy):
            self._gradient: Vector | None = None  # last pushed
            self._history: list[float] = []

    def begin(self) -> bool:
        """Wait until there is something to compute; False when the run is over."""
        return self._has_turn or self._await_turn(self.next_step)

    def step(self, loss: float | None = None) -> bool:
        """Take the step that the gradients ask for; False when the run is over.

        `loss` is for reports; given, it must be finite for the update to count.
        """
        step, method = self.next_step, self.terms.method
        self.recorder.computed(step)
        if isinstance(method, Scheduled):
            goes_on = self._scheduled(method, step, loss)
        elif isinstance(method, Lazy):
            goes_on = self._lazy(method, step, loss)
        else:
            goes_on = self._asynchronous(step, loss)
        self.recorder.stepped()
        return goes_on

    # -- the three families -----------------------------------------------------------------------

    def _scheduled(self, method: Scheduled, step: int, loss: float | None) -> bool:
        push = bool(method.due(step))
        once = method.period == 1
        update = self._room(step) if once else self._update
        kind = self._compute(update, step, loss)
        if once:
            self._push(update, step, kind)
        else:
            for total, change in zip(self._unsent, update, strict=True):
                total.add_(change)
            if push:
                self._push_unsent(step, kind)
        if method.pulls(self.terms.seed, np.array([self.worker]), step)[0]:
            self._pull(step, "the model of step")
        else:
            self.own.move(update, method.compensation)
        return self._stepped()

    def _lazy(self, method: Lazy, step: int, loss: float | None) -> bool:
        update = self._room(step)
        kind = self._compute(update, step, loss)
        if method.asked_by_server:
            self._push(update, step, kind)
            return self._await_turn(step)
        gradient = [flat[:n] / self.own.lr for flat, n in self._parameters(update)]
        if kind is Kind.UPDATE and self._is_worthwhile(method, gradient):
            self._gradient = gradient
        elif kind is Kind.UPDATE:
            kind = Kind.NOTHING
        self._push(update, step, kind)
        before = [flat[:n].clone() for flat, n in self._parameters(self.own.values)]
        self._pull(step, "the model of step")
        now = [flat[:n] for flat, n in self._parameters(self.own.values)]
        moved_sq = distance_sq(now, before) / self.own.lr**2
        self._history = [*self._history, moved_sq][-method.window :]
        return self._stepped()

    def _asynchronous(self, step: int, loss: float | None) -> bool:
        update = self._room(step)
        self._push(update, step, self._compute(update, step, loss))
        self.next_step += 1
        with self.recorder.waiting(step, "pull"):
            answers = [self._answer(owner, "the model", self._long) for owner in self._owners]
            for shard, (owner, answer) in enumerate(zip(self._owners, answers, strict=True)):
                if answer.kind is Kind.GO:
                    part = self._packing.shard(self.own.values, shard)
                    self._wire.receive(part, owner, Tag.PULL).wait("the model", self._long)
        self.own.show()
        self.lr_step = max(answer.step for answer in answers)
        wanted = max(answer.save for answer in answers)
        if wanted > self._saves:
            self._saves = wanted
            self.send_state()
        if all(answer.kind is Kind.GO for answer in answers):
            return True
        for owner, answer in zip(self._owners, answers, strict=True):
            if answer.kind is Kind.GO:
                self._note(Note(Kind.BYE, self.next_step), owner)
        return False

    # -- pieces -----------------------------------------------------------------------------------

    def _compute(self, update: Vector, step: int, loss: float | None) -> Kind:
        """Write this step's update, unless it is not usable."""
        if loss is not None and not math.isfinite(loss):
            kind = Kind.INFINITE
            self.own.refuse(update)
        else:
            kind = self.own.update(update)
            if loss is not None:
                self._losses.append(loss)
        self._num_updates += 1
        if kind is not Kind.UPDATE:
            self._bad += 1
            if self.terms.on_bad_update == "stop":
                self._wire.cause = error = bad_update(kind, self.worker, step)
                self._loose += self._tell(kind, step)
                with suppress(PrlcError):  # who has read it ends at once
                    self._settle_state()
                    self.flush()
                raise error
        return kind

    def _stepped(self) -> bool:
        self.next_step += 1
        self.lr_step = self.next_step
        if self.terms.saves(self.next_step):
            self.send_state()
        return self.terms.steps is None or self.next_step < self.terms.steps

    def _room(self, step: int) -> Vector:
        """A buffer to push from; waits for the oldest push under way if there is none."""
        if not self._free:
            with self.recorder.waiting(step, "push"):
                update, sending = self._leaving.popleft()
                for each in sending:
                    each.wait(f"room for the update of step {step}", self._long)
                self._free.append(update)
        return self._free.popleft()

    def _push(self, update: Vector, step: int, kind: Kind) -> None:
        """Let an update leave for all owners, and a note of it."""
        if kind is not Kind.UPDATE:
            self._free.append(update)
            self._loose += self._tell(kind, step)
            return
        sending = [
            self._wire.send(self._packing.shard(update, shard), owner, Tag.PUSH)
            for shard, owner in enumerate(self._owners)
        ]
        self._leaving.append((update, sending + self._tell(kind, step)))

    def _push_unsent(self, step: int, kind: Kind) -> None:
        """Push the sum of the last updates; it counts if any of them was usable."""
        total = self._room(step)
        for into, flat in zip(total, self._unsent, strict=True):
            into.copy_(flat)
            flat.zero_()
        self._push(total, step, Kind.UPDATE if self._bad < self._num_updates else kind)

    def _tell(self, kind: Kind, step: int) -> list[Pending]:
        loss = sum(self._losses) / len(self._losses) if self._losses else math.nan
        note = Note(kind, step, loss, self.own.lr, self._saves, self._bad)
        self._losses, self._bad, self._num_updates = [], 0, 0
        return [self._wire.send([note.tensor()], owner, Tag.PUSH_NOTE) for owner in self._owners]

    def _note(self, note: Note, owner: int) -> None:
        self._loose.append(self._wire.send([note.tensor()], owner, Tag.PUSH_NOTE))

    def _pull(self, step: int, what: str) -> None:
        """Replace the own model by the global one."""
        with self.recorder.waiting(step, "pull"):
            coming = [
                self._wire.receive(self._packing.shard(self.own.values, shard), owner, Tag.PULL)
                for shard, owner in enumerate(self._owners)
            ]
            for each in coming:
                each.wait(f"{what} {step}", self._long)
            self._settle()  # who sent a model has read all notes before
        self.own.show()

    def _await_turn(self, step: int) -> bool:
        """Until the server asks for the next gradient (LAG-PS); False when the run is over."""
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

    def _answer(self, owner: int, what: str, patience: float) -> Note:
        blank = Note.blank()
        self._wire.receive([blank], owner, Tag.ANSWER).wait(what, patience)
        return Note.of(blank)

    def _is_worthwhile(self, method: Lazy, gradient: Vector) -> bool:
        """LAG-WK's trigger (15a)."""
        if self._gradient is None:
            return True
        change, smoothness, history = (
            torch.tensor(value, dtype=torch.float64)
            for value in (
                distance_sq(gradient, self._gradient),
                method.initial_smoothness(),
                self._history,
            )
        )
        return bool(method.worthwhile(change, smoothness, history))

    def _parameters(self, vector: Vector) -> list[tuple[torch.Tensor, int]]:
        return list(zip(vector, self._packing.num_parameters, strict=True))

    @property
    def _long(self) -> float:
        return self._wire.patience * _LONGER

    # -- the end, and a new beginning -------------------------------------------------------------

    def finish(self, says_goodbye: bool) -> None:
        """Take the final model, having said goodbye unless the run was over before."""
        if says_goodbye:
            for owner in self._owners:
                self._note(Note(Kind.BYE, self.next_step), owner)
        self._pull(self.next_step, "the final model, after step")
        self.flush()

    def flush(self) -> None:
        """Until everything has left."""
        for _, sending in self._leaving:
            for each in sending:
                each.wait("the last message", self._long)
        self._leaving.clear()
        self._settle()

    def _settle(self) -> None:
        for each in self._loose:
            each.wait("a former message", self._long)
        self._loose.clear()

    def send_state(self) -> None:
        """Give rank 0 what a checkpoint must hold of this worker."""
        self._settle_state()
        self._given = self._wire.send_object(self.state(), 0)

    def _settle_state(self) -> None:
        for each in self._given:
            each.wait("that it takes a former state", self._long)
        self._given.clear()

    def state(self) -> dict[str, Any]:
        state = {
            "own": self.own.state(),
            "unsent": self._unsent,
            "losses": self._losses,
            "bad": self._bad,
            "num_updates": self._num_updates,
            "next_step": self.next_step,
            "lr_step": self.lr_step,
            "has_turn": self._has_turn,
        }
        if isinstance(self.terms.method, Lazy):
            state |= {"gradient": self._gradient, "history": self._history}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        self.own.load_state(state["own"])
        self._unsent, self._losses = state["unsent"], state["losses"]
        self._bad, self._num_updates = state["bad"], state["num_updates"]
        self.next_step, self.lr_step = state["next_step"], state["lr_step"]
        self._has_turn = state["has_turn"]
        if isinstance(self.terms.method, Lazy):
            self._gradient, self._history = state["gradient"], state["history"]


def bad_update(kind: Kind, worker: int, step: int) -> PrlcError:
    """What is wrong with an update."""
    if kind is Kind.MISSHAPEN:
        return ConfigError(
            f"The model of worker {worker} has other shapes at step {step} than those that all "
            "agreed on at the start. Change a model before it trains, not meanwhile."
        )
    return DivergedError(worker, step, "update")
