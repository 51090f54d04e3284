"""All roles in one process, message by message: a transport without a network.

Checks that every message has the announced shape. For tests, and as the shortest example of a
transport.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD

from prlc.engines.base import Engine, StepReport, asynchronous_report, mean_loss
from prlc.engines.job import Job, fixed_seed, staying, travelling
from prlc.engines.roles.asynchronous import AsynchronousServerRole
from prlc.engines.roles.lazy import LazyServerRole, LazySettings, LazyWorkerRole
from prlc.engines.roles.local_model import LocalModel
from prlc.engines.roles.notes import Kind
from prlc.engines.roles.packing import Packing, Vector
from prlc.engines.roles.rule import Shard
from prlc.engines.roles.scheduled import PushBuffer, RoleSettings
from prlc.engines.roles.scheduled_server import ScheduledServerRole
from prlc.engines.roles.scheduled_worker import ScheduledWorkerRole
from prlc.errors import DivergedError
from prlc.methods import Asynchronous, Lazy, Scheduled
from prlc.network.clock import Arrival
from prlc.optim.optimizers import make, set_lr


class InMemory(Engine):
    """P worker roles and a server role for each of `num_shards` shards."""

    def __init__(
        self, job: Job, arrivals: Iterator[Arrival] | None = None, num_shards: int = 1
    ) -> None:
        super().__init__(job, arrivals)
        P, method = job.num_workers, job.method
        self._data, self._batches = job.data.to(job.device), job.batches()
        self._packing = Packing(job.model, num_shards, job.device, method)
        rule = job.rule()
        self._locals = [self._local_model() for _ in range(P)]
        self._sent = {"up": np.zeros(P, np.int64), "down": np.zeros(P, np.int64)}
        self._own_steps = [0] * P
        start = self._locals[0].values
        shards = [
            Shard(
                [flat.clone() for flat in self._packing.shard(start, number)],
                self._packing.parameters(number),
            )
            for number in range(num_shards)
        ]
        self._servers: list[Any]
        self._workers: list[Any] = []
        if isinstance(method, Scheduled):
            settings = RoleSettings(method, P, job.seed, job.steps, job.weights(), rule)
            self._servers = [
                ScheduledServerRole(shard.values, self._packing, number, settings)
                for number, shard in enumerate(shards)
            ]
            self._workers = [
                ScheduledWorkerRole(local, self._packing, i, settings)
                for i, local in enumerate(self._locals)
            ]
            self._pulls: dict[int, tuple[list[Vector], Tensor | None]] = {}
        elif isinstance(method, Lazy):
            lazy = LazySettings(method, P, job.seed, rule)
            self._servers = [
                LazyServerRole(shard, self._packing, number, lazy)
                for number, shard in enumerate(shards)
            ]
            self._workers = [LazyWorkerRole(self._packing, i, lazy) for i in range(P)]
        elif isinstance(method, Asynchronous):
            self._servers = [AsynchronousServerRole(shard, method, P, rule) for shard in shards]

    def _local_model(self) -> LocalModel:
        job, model = self.job, copy.deepcopy(self.job.model).train()
        at_server = job.optimizer_at == "server"
        plain = job.optimizer is None or at_server
        optimizer = (
            SGD(model.parameters(), lr=1.0) if plain else make(job.optimizer, model.parameters())  # type: ignore[arg-type]
        )
        return LocalModel(model, optimizer, self._packing, gives_gradients=at_server)

    # -- the three families -----------------------------------------------------------------------

    def _scheduled(self, method: Scheduled, step: int) -> StepReport:
        turn, lr = self.timetable[step], self.job.lr(step)
        losses: list[float] = []
        buffers: dict[int, PushBuffer] = {}
        for i in np.flatnonzero(turn.computes).tolist():
            worker = self._workers[i]
            losses.append(self._gradient(i, step, lr))
            worker.prepare()
            if worker.pushes(step):
                buffers[i] = worker.new_buffer()
            update = worker.target(buffers.get(i))
            self._check(self._locals[i].update(update), i, step)
            worker.take(update, lr)
            if worker.pushes(step):
                worker.write_push(step, buffers[i])
                self._sent["up"][i] += _bytes(buffers[i].messages)
            worker.move(update, lr)
        for number, server in enumerate(self._servers):
            for i in server.expects(step):
                server.take(step, i, buffers[i].messages[number])
            if bad := server.bad_messages(step):
                raise DivergedError(bad[0], step, "update")
        for server in self._servers:
            server.finish(step, lr)
        for i in turn.uses if method.delay else ():
            self._workers[i].use(*self._pulls.pop(i), lr)
        pulls = [server.pulls(step) for server in self._servers]
        hints = [server.hints(step) for server in self._servers]
        for i in turn.pulling:
            messages = self._workers[i].begin_pull(step)
            for into, shards in zip(messages, pulls, strict=True):
                for tensor, sent in zip(into, shards[i], strict=True):
                    assert tensor.shape == sent.shape, "both sides know the shapes"
                    tensor.copy_(sent.detach())
            self._sent["down"][i] += _bytes(messages)
            known = [each for each in hints if each is not None]
            self._pulls[i] = messages, torch.stack(known).sum(0) if known else None
            if method.delay == 0:
                self._workers[i].use(*self._pulls.pop(i), lr)
        return StepReport(mean_loss(losses), turn.computes, turn.pushes, turn.pulls)

    def _lazy(self, method: Lazy, step: int) -> StepReport:
        P, lr = self.job.num_workers, self.job.lr(step)
        computes = self._servers[0].asked.copy()
        pushes, losses = np.zeros(P, bool), []
        for i in np.flatnonzero(computes).tolist():
            losses.append(self._gradient(i, step, lr))
            buffer = self._workers[i].new_buffer()
            self._check(self._locals[i].update(buffer.whole), i, step)
            self._locals[i].show()
            if method.asked_by_server or self._workers[i].wants_push(buffer, lr, step):
                pushes[i] = True
                self._sent["up"][i] += _bytes(buffer.messages)
                for server, message in zip(self._servers, buffer.messages, strict=True):
                    server.take(i, server.decode(message), lr)
        sums = torch.stack([server.finish(step, lr) for server in self._servers]).sum(0)
        for server in self._servers:
            pulls = server.decide(sums)
        for i in np.flatnonzero(pulls).tolist():
            role, local = self._workers[i], self._locals[i]
            before = [flat.clone() for flat in role.parameters(local.values)]
            self._fetch(i)
            role.pulled(before, local.values, lr)
        return StepReport(mean_loss(losses), computes, pushes, pulls)

    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport:
        del method  # the server's role asks it
        P, lr = self.job.num_workers, self.job.lr(step)
        arrivals = [self.next_arrival() for _ in range(P)]
        losses, pulling = [], []
        for arrival in arrivals:
            i = arrival.worker
            losses.append(self._gradient(i, self._own_steps[i], lr))
            self._own_steps[i] += 1
            update = self._packing.zeros()
            self._check(self._locals[i].update(update), i, step)
            for number, server in enumerate(self._servers):
                missed, free = server.take(i, self._packing.shard(update, number), lr)
                assert missed == arrival.staleness
            for worker in free:
                self._fetch(worker)
            pulling += free
        return asynchronous_report(losses, arrivals, pulling, P)

    # -- pieces -----------------------------------------------------------------------------------

    def _gradient(self, i: int, own_step: int, lr: float) -> float:
        local, job = self._locals[i], self.job
        set_lr(local.optimizer, lr)
        chosen = torch.from_numpy(self._batches.take(np.array([i]), np.array([own_step]))[0])
        inputs = self._data.train_inputs[chosen.to(job.device)]
        targets = self._data.train_targets[chosen.to(job.device)]
        with fixed_seed(job, own_step, i):
            local.model.zero_grad()
            loss = job.loss(local.model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        if not bool(loss.isfinite()):
            raise DivergedError(i, self.steps_done)
        return float(loss.detach())

    def _fetch(self, i: int) -> None:
        """Copy the global model to worker i."""
        for number, server in enumerate(self._servers):
            into = self._packing.shard(self._locals[i].values, number)
            for flat, value in zip(into, server.shard.values, strict=True):
                flat.copy_(value.detach())
            self._sent["down"][i] += _bytes([into])
            server.sent(i)
        self._locals[i].show()

    @staticmethod
    def _check(kind: Kind, worker: int, step: int) -> None:
        if kind is not Kind.UPDATE:
            raise DivergedError(worker, step, "update")

    @property
    def sent(self) -> dict[str, Any]:
        """Bytes of payload sent from and to each worker (but for asynchronous pushes)."""
        return self._sent

    def copy_global_model(self, target: nn.Module) -> None:
        whole = self._packing.zeros()
        for number, server in enumerate(self._servers):
            into = self._packing.shard(whole, number)
            for flat, value in zip(into, server.shard.values, strict=True):
                flat.copy_(value.detach())
        with torch.no_grad():
            self._packing.unpack(whole, travelling(target))
            pairs = zip(staying(target), staying(self._locals[0].model), strict=True)
            for tensor, counter in pairs:
                tensor.copy_(counter)

    def _own_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "servers": [server.state() for server in self._servers],
            "workers": [worker.state() for worker in self._workers],
            "locals": [local.state() for local in self._locals],
            "own_steps": self._own_steps,
        }
        if isinstance(self.job.method, Scheduled):
            state["pulls"] = {i: list(pull) for i, pull in self._pulls.items()}
        return copy.deepcopy(state)

    def _load_own_state(self, state: dict[str, Any]) -> None:
        for name in ("servers", "workers", "locals"):
            for role, saved in zip(getattr(self, f"_{name}"), state[name], strict=True):
                role.load_state(saved)
        self._own_steps = list(state["own_steps"])
        if isinstance(self.job.method, Scheduled):
            self._pulls = {}
            for i, (saved, hints) in state["pulls"].items():
                messages = self._workers[i].pull_like()
                for into, values in zip(messages, saved, strict=True):
                    for tensor, value in zip(into, values, strict=True):
                        tensor.copy_(value)
                self._pulls[i] = messages, hints


def _bytes(messages: list[Vector]) -> int:
    return sum(tensor.nbytes for message in messages for tensor in message)
