"""The engine that runs a job in real processes: rank 0 steps and reports, the others take part."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from prlc.engines.base import Engine, Job, StepReport, fixed_seed, staying, travelling
from prlc.engines.distributed.connection import Connection
from prlc.engines.distributed.node import Node, in_background
from prlc.engines.distributed.recorder import Event
from prlc.engines.distributed.terms import Terms
from prlc.engines.distributed.wire import Tag
from prlc.errors import CheckpointError
from prlc.methods import Asynchronous, Lazy, Scheduled
from prlc.optimizers import make, set_lr

Pace = Callable[[int, int], float]
"""At least how many seconds a worker's step takes."""


class Distributed(Engine):
    """Rank 0's view of a run; `assist` is what every other rank does."""

    def __init__(
        self,
        job: Job,
        connection: Connection,
        terms: Terms,
        pace: Pace | None = None,
        record: bool = False,
    ) -> None:
        super().__init__(job)
        self.terms = terms
        self.node = Node(
            connection, terms, job.model.train(), self._make_optimizer, job.server_optimizer, record
        )
        self._pace = pace
        self._parts: dict[str, Any] | None = None
        self._staying = staying(job.model)  # of worker 0; others than at the start only at the end
        self.recorded: list[list[Event]] = []
        """What every rank's worker did when; like what follows, known on rank 0 at the end."""
        self.bad_updates: list[int] = []
        """How many updates of each worker were left out."""
        self.sent: dict[str, list[int]] = {}
        """Bytes of payload that left from and for each worker, since the processes were started."""
        self._working: threading.Thread | None = None

    def _make_optimizer(self, model: nn.Module) -> Optimizer:
        if self.job.optimizer is None:
            return SGD(model.parameters(), lr=self.job.lr(0))
        return make(self.job.optimizer, model.parameters())

    # -- on rank 0 --------------------------------------------------------------------------------

    def begin(self) -> None:
        self.node.connection.tell_all(self.steps_done)
        self.node.begin(self.steps_done, self._parts)
        if self.node.member is not None:
            self._working = in_background(self._work, "worker")

    def _step(self, step: int) -> StepReport:
        report = self.node.keep(step)
        assert report is not None, "the number of steps is known"
        return report

    def _scheduled(self, method: Scheduled, step: int) -> StepReport:
        del method
        return self._step(step)

    def _lazy(self, method: Lazy, step: int) -> StepReport:
        del method
        return self._step(step)

    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport:
        del method
        return self._step(step)

    def copy_global_model(self, target: nn.Module) -> None:
        with torch.no_grad():
            self.node.packing.unpack(self.node.whole, travelling(target))
            for tensor, value in zip(staying(target), self._staying, strict=True):
                tensor.copy_(value)

    @property
    def can_save(self) -> bool:
        """Only after a step for which all agreed to."""
        return self.node.saved is not None

    def _own_state(self) -> dict[str, Any]:
        return {"layout": self.node.connection.layout.name, **(self.node.saved or {})}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        layout = self.node.connection.layout.name
        if state["layout"] != layout:
            raise CheckpointError(
                f"The checkpoint was written in the {state['layout']} layout, but this run is in "
                f"the {layout} layout. Resume it in the former."
            )
        self._parts = state

    # -- on the others ----------------------------------------------------------------------------

    def assist(self) -> None:
        """Do this rank's part from the first step to the last."""
        self.steps_done = self.node.connection.tell_all(None)
        self.node.begin(self.steps_done)
        if self.node.keeper is None:
            self._work()
        else:
            if self.node.member is not None:
                self._working = in_background(self._work, "worker")
            assert self.terms.steps is not None
            for step in range(self.steps_done, self.terms.steps):
                self.node.keep(step)
        self.finish()

    def finish(self) -> None:
        """Wait for what is under way; rank 0 learns what every worker has left to say."""
        if self.node.keeper is not None:
            late = self.node.keeper.dismiss()
            self.traffic.count(late, np.zeros_like(late))
        if self._working is not None:
            self._working.join()
        member, layout = self.node.member, self.node.connection.layout
        wire, keeper = self.node.connection.wire, self.node.keeper
        told = self.node.connection.gather(
            {
                "recorded": member.recorder.events if member else [],
                "staying": [tensor.cpu() for tensor in staying(member.own.model)] if member else [],
                "bad_updates": keeper.bad_updates.tolist() if keeper else [],
                "pushed": sum(wire.sent[Tag.PUSH, rank] for rank in layout.owners),
                "handed_out": [wire.sent[Tag.PULL, rank] for rank in layout.workers],
            },
            "its last word",
        )
        if self.node.connection.rank == 0:
            self.recorded = [each["recorded"] for each in told]
            self._staying = told[layout.workers[0]]["staying"]
            # A worker tells all keepers of an update it left out; what a keeper finds is its own.
            counts = [told[rank]["bad_updates"] for rank in layout.owners]
            self.bad_updates = np.max(counts, axis=0).tolist()
            self.sent = {
                "up": [told[rank]["pushed"] for rank in layout.workers],
                "down": np.sum([each["handed_out"] for each in told], axis=0).tolist(),
            }

    # -- a worker ---------------------------------------------------------------------------------

    def _work(self) -> None:
        """Compute batch after batch, and let each update go its way."""
        member, job = self.node.member, self.job
        assert member is not None
        data, batches, model = job.data.to(job.device), job.batches(), member.own.model
        worker, optimizer = member.worker, member.own.optimizer
        goes_on = member.begin()
        while goes_on:
            started, step = time.perf_counter(), member.next_step
            set_lr(optimizer, job.lr(member.lr_step))
            chosen = torch.from_numpy(batches.take(np.array([worker]), np.array([step]))[0])
            chosen = chosen.to(job.device)
            with fixed_seed(job, step, worker):
                model.zero_grad()
                loss = job.loss(model(data.train_inputs[chosen]), data.train_targets[chosen])
                loss.backward()  # type: ignore[no-untyped-call]
            if self._pace is not None:
                rest = self._pace(worker, step) - (time.perf_counter() - started)
                time.sleep(max(0.0, rest))
            goes_on = member.step(float(loss.detach()))
        member.flush()
