"""The engine in real processes: rank 0 leads and writes, the other ranks assist."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from prlc.engines.base import Assignment, Engine, Event, Outcome, Runtime, StepReport
from prlc.engines.job import Job, fixed_seed, staying, travelling
from prlc.engines.processes.cluster import RunSettings
from prlc.engines.processes.connection import Connection, connect, local_device
from prlc.engines.processes.peer import Peer
from prlc.engines.processes.threads import run_in_background
from prlc.engines.processes.wire import Tag
from prlc.engines.roles.local_model import LocalModel
from prlc.engines.roles.packing import Packing
from prlc.engines.schema import TEXT, WHOLE, Form, Like, Table
from prlc.errors import CheckpointError, ConfigError
from prlc.methods import Asynchronous, Lazy, Scheduled
from prlc.network.traffic import Counts
from prlc.optim.optimizers import make, set_lr

Pace = Callable[[int, int], float]
"""The seconds that a worker's step takes at least."""


class ProcessRuntime(Runtime):
    """Runs in the processes that torchrun started.

    In step with each other they 1. connect, 2. hear from rank 0 whether there is anything left to
    do (`announce`), 3. build their engines, which compare models and settings, 4. take the steps,
    5. send rank 0 what it cannot know (`Engine.finish`), 6. receive the outcome and disconnect
    (`share`).
    """

    multi_process = True

    _connection: Connection
    _saves = False

    def describe(self) -> dict[str, Any]:
        return {"cluster": self._cluster.as_json()}

    def device(self, name: str) -> str:
        return str(local_device(name))

    def connect(self, job: Job, settings: Mapping[str, Any]) -> None:
        cluster = self._cluster
        self._connection = connect(cluster.layout, cluster.peer_timeout, job.device, settings)
        workers = len(self._connection.layout.workers)
        if workers != job.num_workers:
            raise ConfigError(
                f"There are {self._connection.layout.num_ranks} processes, so {workers} workers in "
                f"the {cluster.layout} layout, but {job.num_workers} were asked for. Start as many "
                f"processes as that takes, or ask for {workers} (--workers {workers})."
            )

    @property
    def leads(self) -> bool:
        return self._connection.rank == 0

    def announce(self, *, finished: bool, saves: bool = False) -> None:
        self._saves = saves
        self._connection.broadcast((finished, saves))

    def engine(self, assignment: Assignment) -> Distributed:
        job, cadence, cluster = assignment.job, assignment.cadence, self._cluster
        settings = RunSettings(
            method=job.method,
            num_workers=job.num_workers,
            seed=job.seed,
            steps=cadence.steps,
            window=cluster.window,
            on_bad_update=cluster.on_bad_update,
            on_long_update=cluster.on_long_update,
            length_bound=cluster.length_bound,
            lr=job.lr,
            weights=job.weights(),
            rule=job.rule(),
            save_every=cadence.checkpoint_every if self._saves else 0,
            collect_every=cadence.eval_every,
        )
        pace = assignment.timeline.step_seconds if cluster.emulate_compute else None
        return Distributed(job, self._connection, settings, pace, cluster.record_timeline)

    def share(self, outcome: Outcome) -> None:
        self._connection.broadcast(tuple(outcome))
        self._connection.close()

    def assist(self, assignment: Assignment) -> Outcome:
        finished, self._saves = self._connection.broadcast(None)
        if not finished:
            self.engine(assignment).assist()
        outcome = Outcome(*self._connection.broadcast(None))
        self._connection.close()
        return outcome


class Distributed(Engine):
    """One rank's part of a job: rank 0 calls `step`, every other rank `assist`."""

    measures_time = True

    def __init__(
        self,
        job: Job,
        connection: Connection,
        settings: RunSettings,
        pace: Pace | None = None,
        record: bool = False,
    ) -> None:
        super().__init__(job)
        self._peer = Peer(
            connection,
            settings,
            job.model.train(),
            self._make_local,
            record,
        )
        self._pace, self._record = pace, record
        self._parts: dict[str, Any] | None = None  # of the checkpoint to start from
        self._staying = staying(job.model)  # worker 0's, updated only at the end
        self._bad_updates: list[int] = []
        self._payload_sent: dict[str, list[int]] = {}
        self._worker_thread: threading.Thread | None = None

    def _make_local(self, packing: Packing) -> LocalModel:
        at_server = self.job.optimizer_at == "server"
        model = self.job.model
        return LocalModel(model, self._make_optimizer(model), packing, gives_gradients=at_server)

    def _make_optimizer(self, model: nn.Module) -> Optimizer:
        if self.job.optimizer is None or self.job.optimizer_at == "server":
            return SGD(model.parameters(), lr=self.job.lr(0))
        return make(self.job.optimizer, model.parameters())

    # -- on rank 0 --------------------------------------------------------------------------------

    def begin(self) -> None:
        self._peer.connection.broadcast(self.steps_done)
        self._peer.begin(self.steps_done, self._parts)
        if self._peer.worker is not None:
            self._worker_thread = run_in_background(self._work, "worker")

    def _serve(self, step: int) -> StepReport:
        report = self._peer.serve(step)
        assert report is not None, "the number of steps is known"
        return report

    def _scheduled(self, method: Scheduled, step: int) -> StepReport:
        del method
        return self._serve(step)

    def _lazy(self, method: Lazy, step: int) -> StepReport:
        del method
        return self._serve(step)

    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport:
        del method
        return self._serve(step)

    def copy_global_model(self, target: nn.Module) -> None:
        with torch.no_grad():
            self._peer.packing.unpack(self._peer.global_model, travelling(target))
            for tensor, value in zip(staying(target), self._staying, strict=True):
                tensor.copy_(value)

    def details(self) -> dict[str, Any]:
        """At the end: how many updates of each worker were left out, and the payload bytes sent
        from ("up") and to ("down") each worker since the processes started."""
        return {"bad_updates": self._bad_updates, "payload_sent": self._payload_sent}

    @property
    def can_save(self) -> bool:
        """Only after a step in which all agreed to save."""
        return self._peer.saved is not None

    def _own_state(self) -> dict[str, Any]:
        return {"layout": self._peer.connection.layout.name, **(self._peer.saved or {})}

    def state_form(self) -> Form:
        """Each rank checks its own part: here, that there is one for everybody."""
        layout = self._peer.connection.layout
        counts = {"shards": len(layout.servers), "workers": len(layout.workers)}
        parts = {name: Like([None] * count) for name, count in counts.items()}
        traffic = Like(self.traffic.state())
        own = Table({"layout": TEXT}, parts)
        return Table({"steps_done": WHOLE, "traffic": traffic, "engine": own})

    def _load_own_state(self, state: dict[str, Any]) -> None:
        layout = self._peer.connection.layout.name
        if state["layout"] != layout:
            raise CheckpointError(
                f"The checkpoint was written in the {state['layout']} layout, but this run is in "
                f"the {layout} layout. Resume it in the layout that it was begun in."
            )
        self._parts = state

    # -- on every other rank ----------------------------------------------------------------------

    def assist(self) -> None:
        """Do this rank's part from the first step to the last."""
        self.steps_done = self._peer.connection.broadcast(None)
        self._peer.begin(self.steps_done)
        if self._peer.server is None:
            self._work()
        else:
            if self._peer.worker is not None:
                self._worker_thread = run_in_background(self._work, "worker")
            steps = self._peer.settings.steps
            assert steps is not None
            for step in range(self.steps_done, steps):
                self._peer.serve(step)
        self.finish()

    # -- on all -----------------------------------------------------------------------------------

    def _drain(self) -> Counts:
        """Wait for what is in flight; then all send rank 0 what it cannot know."""
        late = super()._drain()
        if self._peer.server is not None:
            late = self._peer.server.drain().astype(np.int64)
        if self._worker_thread is not None:
            self._worker_thread.join()
        self._gather_details()
        return late

    def _gather_details(self) -> None:
        connection, worker, server = self._peer.connection, self._peer.worker, self._peer.server
        layout, sent = connection.layout, connection.wire.payload_sent
        own_events: list[Event] = worker.recorder.events if worker else []
        ranks = connection.gather(
            {
                "events": own_events,
                "staying": [t.cpu() for t in staying(worker.local.model)] if worker else [],
                "bad_updates": server.bad_updates.tolist() if server else [],
                "pushed": sum(sent[Tag.PUSH, rank] for rank in layout.servers),
                "handed_out": [sent[Tag.PULL, rank] for rank in layout.workers],
            },
            "its last word",
        )
        if connection.rank == 0:
            if self._record:
                self.events = [each["events"] for each in ranks]
            self._staying = ranks[layout.workers[0]]["staying"]
            # All servers hear of an update that a worker left out; each also finds its own.
            counts = [ranks[rank]["bad_updates"] for rank in layout.servers]
            self._bad_updates = np.max(counts, axis=0).tolist()
            self._payload_sent = {
                "up": [ranks[rank]["pushed"] for rank in layout.workers],
                "down": np.sum([each["handed_out"] for each in ranks], axis=0).tolist(),
            }

    # -- a worker ---------------------------------------------------------------------------------

    def _work(self) -> None:
        """Compute batch after batch, and take a step with each."""
        worker, job = self._peer.worker, self.job
        assert worker is not None
        data, batches, model = job.data.to(job.device), job.batches(), worker.local.model
        number = worker.number
        goes_on = worker.begin()
        while goes_on:
            started, step = time.perf_counter(), worker.next_step
            set_lr(worker.local.optimizer, job.lr(worker.lr_step))
            chosen = torch.from_numpy(batches.take(np.array([number]), np.array([step]))[0])
            chosen = chosen.to(job.device)
            with fixed_seed(job, step, number):
                model.zero_grad()
                loss = job.loss(model(data.train_inputs[chosen]), data.train_targets[chosen])
                loss.backward()  # type: ignore[no-untyped-call]
            if self._pace is not None:
                rest = self._pace(number, step) - (time.perf_counter() - started)
                time.sleep(max(0.0, rest))
            goes_on = worker.step(float(loss.detach()))
        worker.flush()
