"""Scheduled methods over torch.distributed: receives are posted early and awaited late."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.engines.base import StepReport, mean_loss
from prlc.engines.processes.server import Server, log
from prlc.engines.processes.wire import Pending, Tag
from prlc.engines.processes.worker import Worker
from prlc.engines.roles.notes import NO_MORE, Kind, Note
from prlc.engines.roles.packing import Vector
from prlc.engines.roles.scheduled import PushBuffer
from prlc.engines.roles.scheduled_server import ScheduledServerRole
from prlc.engines.roles.scheduled_worker import ScheduledWorkerRole
from prlc.errors import ConfigError
from prlc.methods import Scheduled

_NUM_HINTS = 2


class ScheduledServer(Server):
    """Adds pushes in the order of the workers, so the order of arrival does not change a bit.

    Meanwhile the next pushes keep arriving, up to `depth` per worker; further ones wait in their
    worker. Without a delay the model is sent in place, so the server waits until it has been sent
    before it changes it; with a delay snapshots are sent.
    """

    depth = 2
    role: ScheduledServerRole
    changed = False
    """Whether the workers go on with other tensors."""
    _warned = False

    def _depth(self) -> int:
        method = self.settings.method
        assert isinstance(method, Scheduled)
        return 1 if method.all_pull and method.delay == 0 else self.depth  # a pull ends each push

    def _make_role(self, values: Vector) -> ScheduledServerRole:
        settings = self.settings.role()
        return ScheduledServerRole(values, self._packing, self._number, settings)

    def _push_like(self) -> Vector:
        return self.role.form.zeros()

    def begin(self, step: int) -> None:
        self._expected = np.full(self.settings.num_workers, step - 1)  # up to this step, by worker
        self._left: set[int] = set()  # take no more steps
        self._rates: dict[int, float] = {}  # the learning rate of each worker
        for worker in range(self.settings.num_workers):
            self._expect(worker)

    def step(self, step: int) -> StepReport | None:
        role, turn = self.role, self.role.timetable[step]
        pushes, loss = np.zeros(self.settings.num_workers, bool), math.nan
        if turn.is_push:
            losses = self._gather(step)
            if losses is None:
                return None
            loss = mean_loss(losses)
            pushes[list(self._taken)] = True
            self._send(step)
            for worker in role.expects(step):
                if worker not in self._left:
                    self._expect(worker)
        if self.settings.saves(step + 1) and len(self.absent) < self.settings.num_workers:
            self._on_save()
        return StepReport(loss, turn.computes, pushes, turn.pulls)

    def _expect(self, worker: int) -> None:
        """Expect the worker's next pushes, as far as there is room."""
        while self._inbox.has_room(worker):
            next_push = self.role.next_push(worker, int(self._expected[worker]))
            if next_push is None:
                return
            self._expected[worker] = next_push
            blocks = self.role.timetable[next_push].push_blocks
            self._inbox.expect(worker, partial(self.role.form.part, blocks=blocks))

    def _gather(self, step: int) -> list[float] | None:
        """Receive the step's pushes and apply their mean; None if nobody goes on."""
        role, what = self.role, f"its update of step {step}"
        self._taken: list[int] = []
        losses, changes = [], {}
        expected = [worker for worker in role.expects(step) if worker not in self._left]
        for worker, note in self._notes(expected, what):
            changes[worker] = self.changed = note.kind is Kind.CHANGE
            if note.kind in (Kind.BYE, Kind.CHANGE):
                self._left.add(worker)
                self._rates.pop(worker, None)
                self.absent.add(worker)
                continue
            if note.save == NO_MORE:
                self.absent.add(worker)
            losses.append(note.loss)
            self._lr = self._rates[worker] = note.lr
            if self._accepts(note, worker):
                role.take(step, worker, self._inbox.update(worker, what))
                self._taken.append(worker)
        if any(changes.values()):
            self._check_changes(changes, step)
        if self._left.issuperset(expected):
            return None
        self._check_left(step)
        self._compare_rates()
        bad = role.bad_messages(step)
        for worker in bad:
            self._refuse(Kind.INFINITE, worker, step)
        if bad:
            role.leave_out(bad, step)
        long = role.long_messages(self._lengths)
        too_long = [each.worker for each in long if self._leaves_out(each, step)]
        if too_long:
            role.leave_out(too_long, step)
        if role.lends:
            self._outbox.flush_all()  # nobody is still being sent the model that changes now
        role.finish(step, self.settings.lr(step) if self.settings.lr else self._lr)
        return losses

    def _notes(self, workers: list[int], what: str) -> Iterator[tuple[int, Note]]:
        """The next note about a push of each worker, in their order; sends the model to who asks.

        Who asks for it, or waits for the others, is listened to again after them: they may wait
        for the model as well.
        """
        found: dict[int, Note] = {}
        listening = deque(workers)
        for worker in workers:
            while worker not in found:
                other = listening.popleft()
                note = self._inbox.note(other, what)
                if note.kind is Kind.FETCH:
                    self._outbox.model(other, self.values)
                    self._outbox.flush(other)
                if note.kind in (Kind.FETCH, Kind.PAUSE):
                    self._inbox.expect(other)
                    listening.append(other)
                else:
                    found[other] = note
            yield worker, found[worker]

    def _check_changes(self, changes: dict[int, bool], step: int) -> None:
        """All workers must change what trains at the same step."""
        changed = min(worker for worker, value in changes.items() if value)
        for other in range(self.settings.num_workers):
            if not changes.get(other):
                raise ConfigError(
                    f"Worker {changed} trains other tensors from step {step} on, but worker "
                    f"{other} does not. Freeze, unfreeze and add parameters at the same step on "
                    "all workers."
                )

    def _check_left(self, step: int) -> None:
        """Workers may leave early unless everybody's messages are needed."""
        method = self.role.settings.method
        if self._left and method.down.what == "gather":
            raise ConfigError(
                f"Worker {min(self._left)} has no more batches at step {step} while others go on. "
                f"{method.label} needs everybody's messages: give each worker as many batches."
            )

    def _compare_rates(self) -> None:
        """Warn once if workers step at different learning rates."""
        rates = self._rates
        if self.settings.lr is None and len({*rates.values()}) > 1 and not self._warned:
            self._warned = True
            slow, fast = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
            log.warning(
                "The learning rate of worker %d is %g, that of worker %d is %g.",
                slow,
                rates[slow],
                fast,
                rates[fast],
            )

    def _send(self, step: int) -> None:
        hints, pulls = self.role.hints(step), self.role.pulls(step)
        self._inbox.done()  # a model may be received in place of a push
        for worker, message in pulls.items():
            if worker in self._left:
                continue
            if not self.role.lends:
                self._outbox.flush(worker)
            self._outbox.model(worker, message)
            if hints is not None:
                self._outbox.hints(worker, hints)


class ScheduledWorker(Worker):
    """Pushes when the role says so, and waits only for a model that it needs now."""

    role: ScheduledWorkerRole

    def _make_role(self) -> ScheduledWorkerRole:
        settings = self.settings.role()
        self._coming: list[Pending] = []
        self._arriving: list[Vector] = []
        self._hints: list[Tensor] = []
        return ScheduledWorkerRole(self.local, self._packing, self.number, settings)

    def _new_buffer(self) -> PushBuffer:
        return self.role.new_buffer()

    @property
    def _window(self) -> int:
        method = self.role.settings.method
        return max(self.settings.window, -(-method.delay // method.every))

    def begin(self) -> bool:
        return self._sit_out()

    def prepare(self) -> None:
        self.role.prepare()

    def _step(self, step: int, loss: float | None) -> bool:
        role, lr = self.role, self.local.lr
        pushes = role.pushes(step)
        if role.keeps_rounds and not pushes:
            role.take([], lr)
            self._stepped()
            return self._sit_out()
        buffer = self._room(step) if pushes else None
        update = role.target(buffer)
        kind = self._compute(update, step, loss)
        role.take(update, lr)
        if buffer is not None:
            self._push_unsent(step, kind, buffer)
        if not role.is_replaced(step):  # two passes over the model saved
            role.move(update, lr)
        self._exchange(step)
        self._stepped()
        return self._sit_out()

    def _push_unsent(self, step: int, kind: Kind, buffer: PushBuffer) -> None:
        """Push the unsent updates, if any of them is usable.

        A block that is pushed in its turn may have usable ones from before the last push.
        """
        if self._bad < self._num_updates or self.role.settings.method.in_turn:
            self.role.write_push(step, buffer)
            kind = Kind.UPDATE
        else:
            self.role.drop()
        self._push(buffer, step, kind)

    def _exchange(self, step: int) -> None:
        """Use the pull that is due, then begin the next one."""
        late = self.role.settings.method.delay > 0
        if late and self._arriving and self.role.uses_pull(step):
            self._use(step)
        if not self.role.begins_pull(step):
            return
        self._arriving = self.role.begin_pull(step)
        receive, servers = self._wire.receive, self._servers
        self._coming = [
            receive(message, server, Tag.PULL)
            for message, server in zip(self._arriving, servers, strict=True)
        ]
        self._hints = []
        if self.role.settings.method.meanwhile.needs_hints:
            self._hints = [torch.zeros(_NUM_HINTS, dtype=torch.float64) for _ in servers]
            self._coming += [
                receive([hint], server, Tag.HINTS)
                for hint, server in zip(self._hints, servers, strict=True)
            ]
        if not late:
            self._use(step)

    def _use(self, step: int) -> None:
        with self.recorder.waiting(step, "pull"):
            self._await_pull(step)
            self._flush_notes()  # a server that sent a model has read all earlier notes
            if not self.role.settings.method.delay:
                self._reclaim()
        hints = torch.stack(self._hints).sum(0) if self._hints else None
        self.role.use(self._arriving, hints, self.local.lr)
        self._arriving = []

    def _await_pull(self, step: int) -> None:
        for each in self._coming:
            each.wait(f"the model of step {step}", self._timeout)
        self._coming = []

    def _sit_out(self) -> bool:
        """Skip the rounds in which this worker is not sampled; False when the run is over."""
        steps = self.settings.steps
        while (steps is None or self.next_step < steps) and not self.role.computes(self.next_step):
            self._exchange(self.next_step)
            self._stepped()
        return steps is None or self.next_step < steps

    @property
    def pushes_changes_at_end(self) -> bool:
        return self.role.keeps_rounds and self.role.num_unsent > 0

    def leave(self, kind: Kind = Kind.BYE) -> None:
        """Push what is left of a round, then leave as all workers do."""
        if self.role.num_unsent:
            self._saves, step = NO_MORE, self.next_step - 1
            for _ in range(self.role.timetable.turns_a_round):
                step = self.role.next_push(step)
                buffer = self._room(step)
                if self.role.keeps_rounds:
                    self._compute(self.role.target(buffer), step, None)
                self._push_unsent(step, Kind.NOTHING, buffer)
                if self._arriving:
                    self._use(step)
                if self.role.begins_pull(step):
                    self._exchange(step)
                step += 1
        self._await_pull(self.next_step)
        super().leave(kind)

    def pause(self) -> None:
        for server in self._servers:
            self._say(server, Kind.PAUSE)

    def fetch(self) -> Vector | None:
        method = self.role.settings.method
        if method.trivial and method.every == 1 and method.pull_ratio == 1.0:
            return None
        for server in self._servers:
            self._say(server, Kind.FETCH)
        self._await_pull(self.next_step)
        model = self._packing.zeros()
        self._receive_model(model, "the global model", self._timeout)
        return model

    def state(self) -> dict[str, Any]:
        """Waits for a pull under way, since a restarted server could not send it again."""
        self._await_pull(self.next_step)
        return super().state() | {
            "role": self.role.state(),
            "arriving": self._arriving,
            "hints": self._hints,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.role.load_state(state["role"])
        self._hints = state["hints"]
        if state["arriving"]:
            self._arriving = self.role.pull_like()
            for into, saved in zip(self._arriving, state["arriving"], strict=True):
                for tensor, value in zip(into, saved, strict=True):
                    tensor.copy_(value)
