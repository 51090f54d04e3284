"""Lazy methods over torch.distributed: who communicates is decided step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from prlc.engines.base import StepReport, mean_loss
from prlc.engines.processes.server import Server
from prlc.engines.processes.worker import Worker
from prlc.engines.roles.lazy import LazyServerRole, LazyWorkerRole
from prlc.engines.roles.lengths import length_of
from prlc.engines.roles.notes import Kind, Note
from prlc.engines.roles.packing import Vector
from prlc.engines.roles.rule import Shard
from prlc.engines.roles.scheduled import PushBuffer
from prlc.errors import ConfigError
from prlc.methods import Lazy, Mask


class LazyServer(Server):
    """Asks workers for gradients, step by step."""

    role: LazyServerRole

    def __init__(self, *given: Any, sum_over_shards: Callable[[Tensor], None]) -> None:
        """`sum_over_shards` turns the sums over this shard into sums over the whole model."""
        super().__init__(*given)
        self._sum_over_shards = sum_over_shards
        # When a worker was last sent a note.
        self._last_note = np.full(self.settings.num_workers, time.monotonic())

    def _make_role(self, values: Vector) -> LazyServerRole:
        shard = Shard(values, self._packing.parameters(self._number))
        return LazyServerRole(shard, self._packing, self._number, self.settings.lazy())

    def _push_like(self) -> Vector:
        return self.settings.lazy().push_like(self._packing, self._number)

    def _decoded(self, message: Vector) -> Vector:
        return self.role.decode(message)

    def begin(self, step: int) -> None:
        del step
        for worker in np.flatnonzero(self.role.asked).tolist():
            self._inbox.expect(worker)

    def step(self, step: int) -> StepReport | None:
        settings, role = self.settings, self.role
        computes = role.asked.copy()
        pushes, losses = np.zeros(settings.num_workers, bool), []
        updates: dict[int, tuple[Vector, float]] = {}
        for worker in np.flatnonzero(computes).tolist():
            what = f"its gradient of step {step}"
            note = self._inbox.note(worker, what)
            if note.kind is Kind.BYE:
                raise ConfigError(
                    f"Worker {worker} stopped at step {note.step} of {settings.steps}. With "
                    f"{settings.method.label}, go on until run.over is true."
                )
            losses.append(note.loss)
            self._lr = note.lr
            if note.kind is Kind.NOTHING:
                continue
            update = self._checked(note, worker, what)
            if update is not None:
                updates[worker] = (update, note.lr)
        lengths = {worker: length_of(update) for worker, (update, _) in updates.items()}
        for found in self._lengths.check(lengths):
            if self._leaves_out(found, step):
                del updates[found.worker]
        for worker, (update, lr) in updates.items():
            pushes[worker] = True
            role.take(worker, update, lr)
        self._inbox.done()
        self._outbox.flush_all()
        sums = role.finish(step, settings.lr(step) if settings.lr else self._lr)
        self._sum_over_shards(sums)
        pulls = role.decide(sums)
        self._send_models(pulls, step)
        if settings.saves(step + 1):
            self._on_save()
        return StepReport(mean_loss(losses), computes, pushes, pulls)

    def _send_models(self, pulls: Mask, step: int) -> None:
        """Send the model to those who pull. LAG-PS must tell its workers; LAG-WK's know."""
        method = self.settings.method
        assert isinstance(method, Lazy)
        last = step + 1 == self.settings.steps
        save = int(self.settings.saves(step + 1))
        now = time.monotonic()
        for worker in range(self.settings.num_workers):
            asked = bool(pulls[worker])
            silent = now - self._last_note[worker] > self._wire.timeout / 2
            if method.asked_by_server and (asked or last or save or silent):
                self._last_note[worker] = now
                with_model, without = (Kind.LAST, Kind.OVER) if last else (Kind.GO, Kind.WAIT)
                kind = with_model if asked else without
                self._outbox.answer(worker, Note(kind, step + 1, save=save))
            if asked:
                self._outbox.model(worker, self.values)
                self.role.sent(worker)
                if not last:
                    self._inbox.expect(worker)


class AskedWorker(Worker):
    """LAG-PS: computes when the server asks."""

    _has_turn = True

    def begin(self) -> bool:
        return self._has_turn or self._await_turn(self.next_step)

    def _step(self, step: int, loss: float | None) -> bool:
        buffer, _, kind = self._computed(step, loss)
        self._push(buffer, step, kind)
        return self._await_turn(step)

    def _await_turn(self, step: int) -> bool:
        """Wait until the server asks for the next gradient; False when the run is over."""
        while True:
            with self.recorder.waiting(step, "turn"):
                answers = [self._question(server) for server in self._servers]
            kind, self.next_step = answers[0].kind, answers[0].step
            self.lr_step, self._has_turn = self.next_step, kind is Kind.GO
            if kind in (Kind.GO, Kind.LAST):
                self._pull(step, "the model after step")
            if answers[0].save:
                self.send_state()
            if kind is not Kind.WAIT:
                return kind is Kind.GO

    def _question(self, server: int) -> Note:
        """Wait for the server's question, skipping notes that only say that it is alive."""
        while True:
            note = self._answer(server, "its question")
            if note.kind is not Kind.WAIT or note.save:
                return note

    def state(self) -> dict[str, Any]:
        return super().state() | {"has_turn": self._has_turn}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._has_turn = state["has_turn"]


class DecidingWorker(Worker):
    """Pushes when its trigger says so, and always pulls."""

    role: LazyWorkerRole

    def _make_role(self) -> LazyWorkerRole:
        return LazyWorkerRole(self._packing, self.number, self.settings.lazy())

    def _new_buffer(self) -> PushBuffer:
        return self.role.new_buffer()

    def _step(self, step: int, loss: float | None) -> bool:
        role, lr = self.role, self.local.lr
        buffer, _, kind = self._computed(step, loss)
        if kind is Kind.UPDATE and not role.wants_push(buffer, lr, step):
            kind = Kind.NOTHING
        self._push(buffer, step, kind)
        before = [flat.clone() for flat in role.parameters(self.local.values)]
        self._pull(step, "the model of step")
        role.pulled(before, self.local.values, lr)
        return self._stepped()

    def state(self) -> dict[str, Any]:
        return super().state() | {"role": self.role.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.role.load_state(state["role"])
