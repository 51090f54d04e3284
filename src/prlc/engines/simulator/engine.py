"""All workers of a job in one process, as stacked tensors.

A step computes the gradients of a chunk of workers at once (`workers.py`, `gradients.py`), turns
them into updates (`optimizers.py`), adds their mean to the server's model and moves the workers'.
Methods whose parts are all plain, LAG and ASGD are here; `parts.py` runs any other choice of parts.
In memory are the models, the gradients of a chunk and, for LAG and ASGD, the last gradients: at
most three stacks of P models, plus the optimizers' state.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prlc.engines.base import (
    Assignment,
    Engine,
    Runtime,
    StepReport,
    asynchronous_report,
    mean_loss,
)
from prlc.engines.job import Job, staying, travelling
from prlc.engines.simulator.execution import Execution, choose_execution, use_threads
from prlc.engines.simulator.lazy_memory import InnovationMemory, LazyMemory
from prlc.engines.simulator.optimizers import WorkerOptimizers
from prlc.engines.simulator.parts import PartsStep
from prlc.engines.simulator.workers import StackedWorkers
from prlc.errors import DivergedError
from prlc.methods import Asynchronous, Lazy, Mask, Scheduled
from prlc.methods.asgd import Gate
from prlc.network.clock import Arrival
from prlc.optim.optimizers import make, prepare_server_step


class SimulatorRuntime(Runtime):
    """Runs in this process."""

    def engine(self, assignment: Assignment) -> Simulator:
        saved = assignment.saved
        execution = Execution(**saved["execution"]) if saved else self._execution
        return Simulator(assignment.job, assignment.arrivals(), execution)


class Simulator(Engine):
    """Runs any method on stacked workers."""

    execution: Execution

    def __init__(
        self,
        job: Job,
        arrivals: Iterator[Arrival] | None = None,
        execution: Execution | None = None,
        like: Simulator | None = None,
    ) -> None:
        """`like`: another with the same model, loss, data and execution, whose traces serve."""
        super().__init__(job, arrivals)
        self.execution = execution or choose_execution(job)
        general = isinstance(job.method, Scheduled) and not self._takes_short_way(job)
        flat = job.flat() if general else None
        alike = None if like is None else like._workers
        self._workers: StackedWorkers = StackedWorkers(job, self.execution, flat, alike)
        self._n = n = self._workers.num_parameters
        self._optimizers = WorkerOptimizers(
            job.optimizer,
            self._workers.models[:n],
            self._workers.layouts[:n],
            [chunk.rows for chunk in self._workers.chunks],
            used=self._workers.used,
            one_by_one=not isinstance(job.method, Scheduled) or job.method.sample < 1.0,
        )
        self._parts = PartsStep(job, self._workers, self._optimizers, flat) if flat else None
        self._server = [rows[0].clone() for rows in self._workers.models]
        if isinstance(job.method, Lazy) and not job.method.trivial:
            kind = job.flat().dtype
            self._server = [tensor.to(kind) for tensor in self._server]
        self._unsent = [torch.zeros_like(tensor) for tensor in self._server]
        self._server_optimizer = None
        if job.server_optimizer is not None:
            own = zip(self._server[:n], self._workers.layouts, strict=False)
            self._leaves = [layout.view(t[None])[0].requires_grad_() for t, layout in own]
            self._server_optimizer = make(job.server_optimizer, self._leaves)
        if isinstance(job.method, Lazy):
            parameters, layouts = self._workers.models[:n], self._workers.layouts[:n]
            self._memory = (
                InnovationMemory(job.method, parameters, job.seed, layouts)
                if job.method.innovates
                else LazyMemory(job.method, parameters, job.seed)
            )
        if isinstance(job.method, Asynchronous):
            self._coming = [torch.zeros_like(rows) for rows in self._workers.models]
            self._losses = np.zeros(job.num_workers)
            self._computed: Mask = np.zeros(job.num_workers, bool)
            self._own_steps = np.zeros(job.num_workers, np.int64)
            self._gate = Gate(job.method.window, job.num_workers)
            self._counters = [torch.zeros_like(counter) for counter in self._workers.counters]

    def step(self) -> StepReport:
        with torch.inference_mode(), use_threads(self.execution.threads):
            return super().step()

    # -- the three families -----------------------------------------------------------------------

    @staticmethod
    def _takes_short_way(job: Job) -> bool:
        """Whether all parts are plain, so that no update is collected row by row."""
        assert isinstance(job.method, Scheduled)
        return job.method.trivial and job.optimizer_at == "workers"

    def _scheduled(self, method: Scheduled, step: int) -> StepReport:
        if self._parts is not None:
            return self._parts.step(step, self.timetable)
        P, lr = self.job.num_workers, self.job.lr(step)
        turn = self.timetable[step]
        gain = method.gain or 0.0
        share = 0.0 if len(turn.pulling) == P else gain
        # If all updates come at once and are simply added, none need be collected first.
        plainly_added = method.every == 1 and self._server_optimizer is None
        at_once = plainly_added and len(self._workers.chunks) == 1
        arriving = self._server if at_once else self._unsent
        loss = 0.0
        for chunk in self._workers.chunks:
            losses, gradients, changes = self._workers.compute(chunk, step)
            directions, scale = self._optimizers.chunk(chunk.number, gradients, lr)
            scales = [scale] * self._n + [1.0] * len(changes)
            directions = [*directions, *changes]
            sums = [rows.sum(0) for rows in directions]
            self._check(sums, scales, directions, chunk.rows.start, step)
            for k, total in enumerate(sums):
                arriving[k].add_(total, alpha=scales[k] / P)
                if share:
                    chunk.models[k].add_(directions[k], alpha=scales[k] * share)
            loss += float(losses.sum()) / P
        if turn.pushes[0] and arriving is self._unsent:
            self._apply(self._unsent, lr)
            torch._foreach_zero_(self._unsent)
        self._workers.pull(turn.pulling, self._server)
        return StepReport(loss, turn.computes, turn.pushes, turn.pulls)

    def _lazy(self, method: Lazy, step: int) -> StepReport:
        P, n, lr = self.job.num_workers, self._n, self.job.lr(step)
        memory, parameters = self._memory, self._workers.models[: self._n]
        computes = memory.asked.copy()
        pushes = np.zeros(P, bool)
        losses: list[float] = []
        arrived = [torch.zeros_like(tensor) for tensor in self._server[n:]]
        for chunk in self._workers.chunks:
            part = computes[chunk.rows]
            if not part.any():
                continue
            loss, gradients, changes = self._workers.compute(chunk, step, part)
            losses += loss.cpu()[torch.from_numpy(part)].tolist()
            fresh = self._per_lr(gradients, chunk.rows.start, part, lr)
            counted = fresh
            if not part.all():  # the other rows mean nothing
                taking_part = torch.from_numpy(part).to(self.job.device)
                counted = [rows[taking_part] for rows in fresh]
            self._check([r.sum(0) for r in counted], [lr] * n, fresh, chunk.rows.start, step)
            pushes[chunk.rows] = memory.receive(chunk.rows, fresh, part, step)
            senders = torch.from_numpy(pushes[chunk.rows]).to(self.job.device)
            for total, change in zip(arrived, changes, strict=True):
                total.add_(change[senders].sum(0))
        # Old gradients serve again unless the method forgets them; of buffers, only fresh changes.
        sums, count = memory.sums(), int(pushes.sum())
        self._check(sums, [lr] * n, memory.gradients or parameters, 0, step)
        mean = [total.mul_(lr / (P if method.reuses else count)) for total in sums]
        mean += [total.div_(max(1, count)) for total in arrived]
        before = [tensor.detach().clone() for tensor in self._server[:n]]
        self._apply(mean, lr)
        memory.stepped(
            [now.detach() - old for now, old in zip(self._server[:n], before, strict=True)], lr
        )
        rows = [chunk.rows for chunk in self._workers.chunks]
        pulls = memory.ask(self._server[:n], parameters, rows).copy()
        self._workers.pull(np.flatnonzero(pulls).tolist(), self._server)
        return StepReport(mean_loss(losses), computes, pushes, pulls)

    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport:
        P, n, lr = self.job.num_workers, self._n, self.job.lr(step)
        arrivals = [self.next_arrival() for _ in range(P)]
        losses, pulling = [], []
        for arrival in arrivals:
            i, share = arrival.worker, method.share(arrival.staleness, P)
            if not self._computed[i]:
                self._compute_coming()
            if not np.isfinite(self._losses[i]):
                raise DivergedError(i, step)
            row = [rows[i : i + 1] for rows in self._coming]
            directions, scale = self._optimizers.worker(i, row[:n], lr)
            directions = [*directions, *row[n:]]
            scales = [scale * share] * n + [share] * (len(directions) - n)
            alone = [direction[0] for direction in directions]
            self._check(alone, scales, directions, i, step)
            self._apply([d * factor for d, factor in zip(alone, scales, strict=True)], lr)
            for counter, ahead in zip(self._workers.counters, self._counters, strict=True):
                counter[i] = ahead[i]
            self._own_steps[i] += 1
            losses.append(float(self._losses[i]))
            free = self._gate.applied(i)
            self._workers.pull(free, self._server)
            self._computed[free] = False
            pulling += free
        return asynchronous_report(losses, arrivals, pulling, P)

    def _compute_coming(self) -> None:
        """Compute the next gradients of all workers that have pulled since their last.

        A worker's model does not change between its pull and its next arrival, so its gradient
        may be computed at any time in between: together with everybody else's.
        """
        missing = ~self._computed
        counters = [counter.clone() for counter in self._workers.counters]
        for piece, part, losses, gradients, changes in self._workers.compute_at_own_steps(
            missing, self._own_steps
        ):
            mask = torch.from_numpy(part).to(self.job.device)
            for rows, fresh in zip(self._coming, [*gradients, *changes], strict=True):
                if part.all():
                    rows[piece].copy_(fresh)
                else:
                    rows[piece][mask] = fresh[mask]
            for ahead, counter in zip(self._counters, self._workers.counters, strict=True):
                ahead[piece][mask] = counter[piece][mask]
            self._losses[piece][part] = losses.double().cpu().numpy()[part]
        for counter, before in zip(self._workers.counters, counters, strict=True):
            counter.copy_(before)  # until they arrive
        self._computed[:] = True

    def _per_lr(
        self, gradients: list[Tensor], first: int, computes: Mask, lr: float
    ) -> list[Tensor]:
        """Updates divided by the learning rate: for plain SGD, minus the gradients."""
        if self.job.optimizer is None:
            return [-gradient for gradient in gradients]
        fresh = [torch.zeros_like(gradient) for gradient in gradients]
        for k in np.flatnonzero(computes):
            row = [gradient[k : k + 1] for gradient in gradients]
            directions, scale = self._optimizers.worker(first + int(k), row, lr)
            for rows, direction in zip(fresh, directions, strict=True):
                rows[k] = direction[0] * (scale / lr)
        return fresh

    def _check(
        self,
        sums: list[Tensor],
        scales: list[float],
        rows: list[Tensor],
        first: int,
        step: int,
    ) -> None:
        """Raise DivergedError if a scaled sum is not finite, before it reaches the server.

        Names the worker to blame: its row is not finite, or else the largest.
        """
        # The length bounds the largest element and is cheap; where it is too much, look closer.
        lengths = torch.stack([total.dot(total) for total in sums]).sqrt().tolist()
        if _fit(lengths, scales, sums):
            return
        if _fit([float(torch.linalg.vector_norm(t, math.inf)) for t in sums], scales, sums):
            return
        sizes = torch.stack([each.flatten(1).abs().amax(1).double() for each in rows]).amax(0)
        raise DivergedError(first + int(sizes.nan_to_num(math.inf).argmax()), step, "update")

    # -- the server -------------------------------------------------------------------------------

    def _apply(self, update: list[Tensor], lr: float) -> None:
        """Add a mean update, or pass it to the server's optimizer as a negative gradient."""
        if self._server_optimizer is None:
            torch._foreach_add_(self._server, update)
            return
        n = self._n
        shaped = zip(self._leaves, update[:n], self._workers.layouts, strict=False)
        for leaf, change, layout in shaped:
            leaf.grad = -layout.view(change[None])[0]
        prepare_server_step(self._server_optimizer, lr, takes_gradients=False)
        self._server_optimizer.step()
        for buffer, change in zip(self._server[n:], update[n:], strict=True):
            buffer.add_(change)

    def copy_global_model(self, target: nn.Module) -> None:
        with torch.no_grad():
            if self._parts is not None:
                self.job.flat().unpack(self._parts.server, travelling(target))
            else:
                server = zip(travelling(target), self._server, self._workers.layouts, strict=True)
                for tensor, value, layout in server:
                    tensor.copy_(layout.view(value.detach()[None])[0])
            for tensor, counter in zip(staying(target), self._workers.counters, strict=True):
                tensor.copy_(counter[0].view(tensor.shape))

    def _own_state(self) -> dict[str, Any]:
        server_optimizer = self._server_optimizer
        state: dict[str, Any] = {
            "workers": self._workers.state(),
            "optimizers": self._optimizers.state(),
            "server": [tensor.detach().clone() for tensor in self._server],
            "server_optimizer": server_optimizer and copy.deepcopy(server_optimizer.state_dict()),
            "unsent": [tensor.clone() for tensor in self._unsent],
            "parts": self._parts.state() if self._parts else None,
        }
        if isinstance(self.job.method, Lazy):
            state["memory"] = self._memory.state()
        if isinstance(self.job.method, Asynchronous):
            state["coming"] = [rows.clone() for rows in [*self._coming, *self._counters]]
            state["losses"] = self._losses.tolist()
            state["computed"] = self._computed.tolist()
            state["own_steps"] = self._own_steps.tolist()
            state["gate"] = self._gate.state()
        return state

    def _load_own_state(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self._workers.load_state(state["workers"])
            own = [*self._server, *self._unsent]
            for tensor, saved in zip(own, [*state["server"], *state["unsent"]], strict=True):
                tensor.copy_(saved)
            self._optimizers.load_state(state["optimizers"])
            if self._server_optimizer is not None:
                self._server_optimizer.load_state_dict(copy.deepcopy(state["server_optimizer"]))
            if self._parts is not None:
                self._parts.load_state(state["parts"])
            if isinstance(self.job.method, Lazy):
                self._memory.load_state(state["memory"])
            if isinstance(self.job.method, Asynchronous):
                coming = [*self._coming, *self._counters]
                for rows, saved in zip(coming, state["coming"], strict=True):
                    rows.copy_(saved)
                self._losses = np.array(state["losses"])
                self._computed = np.array(state["computed"])
                self._own_steps = np.array(state["own_steps"])
                self._gate.load_state(state["gate"])


def _fit(sizes: list[float], scales: list[float], sums: list[Tensor]) -> bool:
    """Whether the tensors' dtypes can hold the scaled sizes. NaN does not fit."""
    limits = [torch.finfo(total.dtype).max for total in sums]
    scaled = zip(sizes, scales, limits, strict=True)
    return all(size * abs(scale) <= limit for size, scale, limit in scaled)
