"""A worker: computes updates at its own model, pushes them, and pulls when it is to.

There is one for each family of methods, beside the keeper that it talks to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import Any

from prlc.engines.distributed.packing import Packing, Vector
from prlc.engines.distributed.recorder import Recorder
from prlc.engines.distributed.terms import Layout, Terms
from prlc.engines.distributed.updates import OwnModel
from prlc.engines.distributed.wire import Kind, Note, Pending, Tag, Wire
from prlc.errors import ConfigError, DivergedError, PrlcError

# A worker's own wait for the server is longer than the server's for a worker, so that it is the
# server who notices a worker that hangs, and names the right one.
_LONGER = 2.0


class Member(ABC):
    """What workers of all families share."""

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
        self._losses: list[float] = []  # since the last push
        self._bad = 0  # updates since the last push that were not usable
        self._num_updates = 0
        self._saves = 0  # the last checkpoint that a state was given for, where they are numbered
        self.lr_step = 0  # the step whose learning rate is to be used

    def begin(self) -> bool:
        """Wait until there is something to compute; False when the run is over."""
        return True

    def step(self, loss: float | None = None) -> bool:
        """Take the step that the gradients ask for; False when the run is over.

        `loss` is for reports; given, it must be finite for the update to count.
        """
        self.recorder.computed(self.next_step)
        goes_on = self._step(self.next_step, loss)
        self.recorder.stepped()
        return goes_on

    @abstractmethod
    def _step(self, step: int, loss: float | None) -> bool:
        """Compute the update, push it, and pull or move on, as the method says."""

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

    def _answer(self, owner: int, what: str, patience: float) -> Note:
        blank = Note.blank()
        self._wire.receive([blank], owner, Tag.ANSWER).wait(what, patience)
        return Note.of(blank)

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
        return {
            "own": self.own.state(),
            "losses": self._losses,
            "bad": self._bad,
            "num_updates": self._num_updates,
            "next_step": self.next_step,
            "lr_step": self.lr_step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.own.load_state(state["own"])
        self._losses = state["losses"]
        self._bad, self._num_updates = state["bad"], state["num_updates"]
        self.next_step, self.lr_step = state["next_step"], state["lr_step"]


def bad_update(kind: Kind, worker: int, step: int) -> PrlcError:
    """What is wrong with an update."""
    if kind is Kind.MISSHAPEN:
        return ConfigError(
            f"The model of worker {worker} has other shapes at step {step} than those that all "
            "agreed on at the start. Change a model before it trains, not meanwhile."
        )
    return DivergedError(worker, step, "update")
