"""Server and worker of ASGD: every update is applied when it arrives."""

from __future__ import annotations

import math
import queue
import time
from collections import deque
from typing import Any, cast

import numpy as np

from prlc.engines.base import StepReport
from prlc.engines.distributed.background import Beside
from prlc.engines.distributed.keeper import Keeper, mean_loss
from prlc.engines.distributed.member import Member
from prlc.engines.distributed.packing import Vector
from prlc.engines.distributed.wire import Kind, Note, Tag
from prlc.errors import PeerError, PrlcError
from prlc.methods import Asynchronous, Mask

_A_DAY = 86_400.0


class AsynchronousKeeper(Keeper):
    """Applies updates in their true order of arrival; a step is as many as there are workers.

    A checkpoint is a consistent cut: rank 0 asks for it in its answers, a worker gives its state
    and marks what it pushes from then on, and marked pushes wait until everybody's next is marked.
    Until then every keeper stays at its step: one that went on to show its shard would wait for it.
    """

    def __init__(self, *given: Any, asks_for_saves: bool) -> None:
        super().__init__(*given)
        P = self.terms.num_workers
        self._asks_for_saves = asks_for_saves
        self._applied = 0
        self._missed = np.zeros(P, np.int64)  # updates applied before a worker's last model
        self._sent: list[Vector] = [self._zeros() for _ in range(P)]
        self._gone = np.zeros(P, bool)
        self._wanted = self._saved = 0
        self._held: list[tuple[int, Note]] = []
        self._released: deque[tuple[int, Note]] = deque()
        self._arrived: queue.Queue[tuple[int, Note | PrlcError]] = queue.Queue()
        self._since = np.full(P, math.inf)  # when a worker's next note began to be awaited
        self._losses: list[float] = []
        self._staleness: list[int] = []
        self._pushes = np.zeros(P, np.int64)
        self._pulls = np.zeros(P, np.int64)

    def begin(self, step: int) -> None:
        del step
        for worker in range(self.terms.num_workers):
            self._listen(worker)

    def step(self, step: int) -> StepReport | None:
        P, steps = self.terms.num_workers, self.terms.steps
        while self._applied < (step + 1) * P and not self._gone.all():
            self._take(*self._next())
        if self._gone.all() and steps is None:
            return None
        report = self._report()  # what comes until a checkpoint counts for the next step
        if step + 1 != steps and self.terms.saves(step + 1) and not self._gone.any():
            self._wanted += 1
            while self._saved < self._wanted and not self._gone.any():
                self._take(*self._next())
        return report

    def _next(self) -> tuple[int, Note]:
        """The next push, in the order of arrival."""
        if self._released:
            return self._released.popleft()
        try:
            worker, note = self._arrived.get(timeout=self._wire.patience)
        except queue.Empty:
            raise self._silence() from None
        if isinstance(note, PrlcError):
            raise note
        if time.monotonic() - self._since.min() > self._wire.patience:
            raise self._silence()
        return worker, note

    def _silence(self) -> PeerError:
        rank, patience = self._ranks[int(self._since.argmin())], self._wire.patience
        return self._wire.explain(rank, "its next update", patience, TimeoutError())

    def _take(self, worker: int, note: Note) -> None:
        if note.kind is Kind.BYE:
            self._gone[worker] = True
            self._release()
        elif note.save > self._saved and not self._gone.any():
            self._held.append((worker, note))
            if len(self._held) == self.terms.num_workers:
                self._saved = note.save
                self._on_save()
                self._release()
        else:
            self._apply_arrival(worker, note)

    def _release(self) -> None:
        """Those that were held back come next."""
        self._released.extend(self._held)
        self._held = []

    def _apply_arrival(self, worker: int, note: Note) -> None:
        P = self.terms.num_workers
        method = cast(Asynchronous, self.terms.method)
        update = self._checked(note, worker, "its update")
        if update is not None:
            staleness = self._applied - int(self._missed[worker])
            share = method.share(staleness, P)
            self._apply([flat.mul_(share) for flat in update])
            self._staleness.append(staleness)
            self._pushes[worker] += 1
        self._applied += 1
        self._missed[worker] = self._applied
        self._losses.append(note.loss)
        self._pulls[worker] += 1
        self._outbox.settle(worker)
        for copy, flat in zip(self._sent[worker], self.shard.values, strict=True):
            copy.copy_(flat.detach())  # the next arrival changes the model while this one travels
        wanted = self._wanted if self._asks_for_saves else 0
        self._outbox.answer(worker, Note(Kind.GO, self._applied // P, save=wanted))
        self._outbox.model(worker, self._sent[worker])
        self._listen(worker)

    def dismiss(self) -> Mask:
        late = np.zeros(self.terms.num_workers, bool)
        while not self._gone.all():
            worker, note = self._next()
            self._gone[worker] = True
            if note.kind is Kind.UPDATE:
                self._inbox.update(worker, "its update")
                late[worker] = True
            if note.kind is not Kind.BYE:
                self._outbox.answer(worker, Note(Kind.OVER, self.terms.steps or 0))
        return late

    def _listen(self, worker: int) -> None:
        """Wait for the worker's next push beside everything else, until all of it is there."""
        self._inbox.expect(worker)
        self._since[worker] = time.monotonic()

        def wait() -> None:
            note: Note | PrlcError
            try:
                note = self._inbox.note(worker, "its next update", _A_DAY)
                if note.kind is Kind.UPDATE:  # which may take longer than the note
                    self._inbox.await_update(worker, "its next update", _A_DAY)
            except PrlcError as error:
                note = error
            self._since[worker] = math.inf
            self._arrived.put((worker, note))

        Beside(wait, f"listener {worker}").start()

    def _report(self) -> StepReport:
        staleness = float(np.mean(self._staleness)) if self._staleness else None
        loss = mean_loss(self._losses)
        report = StepReport(
            loss, self._pushes > 0, self._pushes, self._pulls, staleness=staleness
        )  # fmt: skip
        self._pushes, self._pulls = np.zeros_like(self._pushes), np.zeros_like(self._pulls)
        self._losses, self._staleness = [], []
        return report

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "applied": self._applied,
            "missed": self._missed.tolist(),
            "losses": self._losses,
            "staleness": self._staleness,
            "pushes": self._pushes.tolist(),
            "pulls": self._pulls.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._applied = state["applied"]
        self._missed[:] = state["missed"]
        self._losses, self._staleness = state["losses"], state["staleness"]
        self._pushes[:], self._pulls[:] = state["pushes"], state["pulls"]


class AsynchronousMember(Member):
    """Pushes an update, waits for the model that it went into, and begins anew."""

    def _step(self, step: int, loss: float | None) -> bool:
        update = self._room(step)
        self._push(update, step, self._compute(update, step, loss))
        self.next_step += 1
        answers = self._pull_answered(step)
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

    def _pull_answered(self, step: int) -> list[Note]:
        """What every owner answers, and its part of the model unless the run is over."""
        with self.recorder.waiting(step, "pull"):
            answers = [self._answer(owner, "the model", self._long) for owner in self._owners]
            for shard, (owner, answer) in enumerate(zip(self._owners, answers, strict=True)):
                if answer.kind is Kind.GO:
                    part = self._packing.shard(self.own.values, shard)
                    self._wire.receive(part, owner, Tag.PULL).wait("the model", self._long)
        self.own.show()
        return answers
