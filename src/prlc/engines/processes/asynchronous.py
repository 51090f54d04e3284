"""Asynchronous methods (ASGD, SSP) over torch.distributed: updates are applied on arrival."""

from __future__ import annotations

import math
import queue
import time
from collections import deque
from typing import Any

import numpy as np

from prlc.engines.base import StepReport, mean_loss
from prlc.engines.processes.server import Server
from prlc.engines.processes.threads import BackgroundThread
from prlc.engines.processes.wire import Tag
from prlc.engines.processes.worker import Worker
from prlc.engines.roles.asynchronous import AsynchronousServerRole
from prlc.engines.roles.lengths import length_of
from prlc.engines.roles.notes import Kind, Note
from prlc.engines.roles.packing import Vector
from prlc.engines.roles.rule import Shard, check_model
from prlc.errors import PeerError, PrlcError
from prlc.methods import Asynchronous, Mask

_A_DAY = 86_400.0


class AsynchronousServer(Server):
    """Applies updates in their true order of arrival; a step is one update per worker.

    A checkpoint is a consistent cut: rank 0 requests it in its answers, a worker sends its state
    and marks its later pushes, and marked pushes are held until everybody's next push is marked.
    Until then every server stays at its step, since a collected model needs all of them. A worker
    that is ahead of the method's window is answered later; after a restart all are, so that those
    who were ahead still are not let on.
    """

    role: AsynchronousServerRole

    def __init__(self, *given: Any, asks_for_saves: bool) -> None:
        super().__init__(*given)
        P, method = self.settings.num_workers, self.settings.method
        assert isinstance(method, Asynchronous)
        self._limited = method.window < math.inf
        self._asks_for_saves = asks_for_saves
        self._sent: list[Vector] = [self._push_like() for _ in range(P)]
        self._gone = np.zeros(P, bool)
        self._wanted = self._saved = 0
        self._held: list[tuple[int, Note]] = []
        self._released: deque[tuple[int, Note]] = deque()
        self._restarted = False
        self._arrived: queue.Queue[tuple[int, Note | PrlcError]] = queue.Queue()
        self._since = np.full(P, math.inf)  # when the wait for a worker's next note began
        self._losses: list[float] = []
        self._staleness: list[int] = []
        self._pushes = np.zeros(P, np.int64)
        self._pulls = np.zeros(P, np.int64)

    def _make_role(self, values: Vector) -> AsynchronousServerRole:
        settings = self.settings
        assert isinstance(settings.method, Asynchronous)
        shard = Shard(values, self._packing.parameters(self._number))
        return AsynchronousServerRole(shard, settings.method, settings.num_workers, settings.rule)

    def begin(self, step: int) -> None:
        del step
        if self._restarted and self._limited:
            self._go_on(self.role.gate.resumed())
            return
        for worker in range(self.settings.num_workers):
            self._listen(worker)

    def step(self, step: int) -> StepReport | None:
        P, steps = self.settings.num_workers, self.settings.steps
        while self.role.applied < (step + 1) * P and not self._gone.all():
            self._take(*self._next())
        if self._gone.all() and steps is None:
            return None
        report = self._report()  # arrivals until the checkpoint count for the next step
        if step + 1 != steps and self.settings.saves(step + 1) and not self._gone.any():
            self._wanted += 1
            while self._saved < self._wanted and not self._gone.any():
                self._take(*self._next())
        return report

    def _next(self) -> tuple[int, Note]:
        """The next push, in the order of arrival."""
        if self._released:
            return self._released.popleft()
        try:
            worker, note = self._arrived.get(timeout=self._wire.timeout)
        except queue.Empty:
            raise self._silence() from None
        if isinstance(note, PrlcError):
            raise note
        if time.monotonic() - self._since.min() > self._wire.timeout:
            raise self._silence()
        return worker, note

    def _silence(self) -> PeerError:
        rank, timeout = self._ranks[int(self._since.argmin())], self._wire.timeout
        return self._wire.explain(rank, "its next update", timeout, TimeoutError())

    def _take(self, worker: int, note: Note) -> None:
        if note.kind is Kind.BYE:
            self._gone[worker] = True
            self._release()
            self._go_on(self.role.gate.left(worker))
        elif note.save > self._saved and not self._gone.any():
            self._held.append((worker, note))
            self._go_on(self.role.gate.announced(worker))
            if len(self._held) == self.settings.num_workers:
                self._saved = note.save
                self._on_save()
                self._release()
        else:
            self._apply_arrival(worker, note)

    def _release(self) -> None:
        """Process the held pushes next."""
        self._released.extend(self._held)
        self._held = []

    def _apply_arrival(self, worker: int, note: Note) -> None:
        update = self._checked(note, worker, "its update")
        if update is not None:
            for found in self._lengths.check({worker: length_of(update)}):
                update = None if self._leaves_out(found, note.step) else update
        staleness, free = self.role.take(worker, update, note.lr)
        self._inbox.done()
        if staleness is not None:
            self._staleness.append(staleness)
            self._pushes[worker] += 1
        check_model(self.values, self.role.applied // self.settings.num_workers)
        self._losses.append(note.loss)
        self._go_on(free)

    def _go_on(self, workers: list[int]) -> None:
        """Send the workers the current model, and listen to them again."""
        wanted = self._wanted if self._asks_for_saves else 0
        step = self.role.applied // self.settings.num_workers
        for worker in workers:
            self._pulls[worker] += 1
            self._outbox.flush(worker)
            for copy, flat in zip(self._sent[worker], self.values, strict=True):
                copy.copy_(flat.detach())  # the next arrival changes the model while this is sent
            self._outbox.answer(worker, Note(Kind.GO, step, save=wanted))
            self._outbox.model(worker, self._sent[worker])
            self.role.sent(worker)
            self._listen(worker)

    def drain(self) -> Mask:
        late = np.zeros(self.settings.num_workers, bool)
        for worker in self.role.gate.waiting:
            self._gone[worker] = True
            self._outbox.answer(worker, Note(Kind.OVER, self.settings.steps or 0))
        while not self._gone.all():
            worker, note = self._next()
            self._gone[worker] = True
            if note.kind is Kind.UPDATE:
                self._inbox.update(worker, "its update")
                self._inbox.done()
                late[worker] = True
            if note.kind is not Kind.BYE:
                self._outbox.answer(worker, Note(Kind.OVER, self.settings.steps or 0))
        return late

    def _listen(self, worker: int) -> None:
        """Wait for the worker's next push in the background, until all of it has arrived."""
        self._inbox.expect(worker)
        self._since[worker] = time.monotonic()

        def wait() -> None:
            note: Note | PrlcError
            try:
                note = self._inbox.note(worker, "its next update", _A_DAY)
                if note.kind is Kind.UPDATE:  # it may take longer than the note
                    self._inbox.await_update(worker, "its next update", _A_DAY)
            except PrlcError as error:
                note = error
            self._since[worker] = math.inf
            self._arrived.put((worker, note))

        BackgroundThread(wait, f"listener {worker}").start()

    def _report(self) -> StepReport:
        pushes, pulls, loss = self._pushes, self._pulls, mean_loss(self._losses)
        staleness = float(np.mean(self._staleness)) if self._staleness else None
        report = StepReport(loss, pushes > 0, pushes, pulls, staleness=staleness)
        self._pushes, self._pulls = np.zeros_like(pushes), np.zeros_like(pulls)
        self._losses, self._staleness = [], []
        return report

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "losses": self._losses,
            "staleness": self._staleness,
            "pushes": self._pushes.tolist(),
            "pulls": self._pulls.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._losses, self._staleness = state["losses"], state["staleness"]
        self._pushes[:], self._pulls[:] = state["pushes"], state["pulls"]
        self._restarted = True


class AsynchronousWorker(Worker):
    """Pushes an update, waits for a model that contains it, and repeats."""

    _asks = False  # whether it may go on

    def begin(self) -> bool:
        if not self._asks:
            return True
        self._asks = False
        return self._await_models(self.next_step)

    def _step(self, step: int, loss: float | None) -> bool:
        buffer, _, kind = self._computed(step, loss)
        self._push(buffer, step, kind)
        self.next_step += 1
        return self._await_models(step)

    def _await_models(self, step: int) -> bool:
        """Wait for the answers of all servers; False when the run is over."""
        answers = self._pull_answered(step)
        self.lr_step = max(answer.step for answer in answers)
        wanted = max(answer.save for answer in answers)
        if wanted > self._saves:
            self._saves = wanted
            self.send_state()
        if all(answer.kind is Kind.GO for answer in answers):
            return True
        for server, answer in zip(self._servers, answers, strict=True):
            if answer.kind is Kind.GO:
                self._say(server, Kind.BYE)
        return False

    def _pull_answered(self, step: int) -> list[Note]:
        """Every server's answer, and its part of the model unless the run is over."""
        with self.recorder.waiting(step, "pull"):
            answers = [self._answer(server, "the model") for server in self._servers]
            for shard, (server, answer) in enumerate(zip(self._servers, answers, strict=True)):
                if answer.kind is Kind.GO:
                    part = self._packing.shard(self.local.values, shard)
                    self._wire.receive(part, server, Tag.PULL).wait("the model", self._timeout)
        self.local.show()
        return answers

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        method = self.settings.method
        assert isinstance(method, Asynchronous)
        self._asks = method.window < math.inf
