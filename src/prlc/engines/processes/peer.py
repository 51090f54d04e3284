"""One process of a run: a server (or a shard of it), a worker, or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from prlc.engines.base import StepReport
from prlc.engines.job import all_tensors, travelling
from prlc.engines.processes.asynchronous import AsynchronousServer, AsynchronousWorker
from prlc.engines.processes.cluster import RunSettings
from prlc.engines.processes.connection import Connection
from prlc.engines.processes.lazy import AskedWorker, DecidingWorker, LazyServer
from prlc.engines.processes.scheduled import ScheduledServer, ScheduledWorker
from prlc.engines.processes.server import Server
from prlc.engines.processes.wire import Tag
from prlc.engines.processes.worker import Recorder, Worker
from prlc.engines.roles.local_model import LocalModel
from prlc.engines.roles.packing import Packing, Vector
from prlc.errors import CheckpointError
from prlc.methods import Asynchronous, Lazy

Parts = dict[str, Any]
"""A checkpoint's parts: the state of each shard ("shards") and of each worker ("workers")."""


class Peer:
    """Builds its rank's server and worker, and moves states and models to and from rank 0."""

    def __init__(
        self,
        connection: Connection,
        settings: RunSettings,
        model: nn.Module,
        make_local: Callable[[Packing], LocalModel],
        record: bool = False,
    ) -> None:
        layout, rank = connection.layout, connection.rank
        self.connection, self.settings, self._wire = connection, settings, connection.wire
        self.packing = Packing(model, len(layout.servers), connection.device, settings.method)
        connection.check_same("model", self.packing.describe())
        connection.check_same("settings", settings.describe())
        connection.broadcast_tensors(all_tensors(model))
        start = self.packing.zeros()
        self.packing.pack([t.detach() for t in travelling(model)], start)
        self.server: Server | None = None
        if rank in layout.servers:
            self.server = self._make_server(start)
        collects = rank == 0 and settings.collect_every > 0
        self.global_model = _on_cpu(start) if collects else []  # as last collected
        self.worker: Worker | None = None
        if rank in layout.workers:
            self.worker = self._make_worker(make_local(self.packing), Recorder(record))
        self.saved: Parts | None = None
        """On rank 0, the checkpoint made in the last step, if one was."""

    def _make_server(self, start: Vector) -> Server:
        layout, rank = self.connection.layout, self.connection.rank
        number = layout.servers.index(rank)
        values = [flat.clone() for flat in self.packing.shard(start, number)]
        own = (values, self.packing, number)
        given = (self.settings, self._wire, layout.workers, *own, self._save)
        if isinstance(self.settings.method, Lazy):
            return LazyServer(*given, sum_over_shards=self.connection.sum_over_shards)
        if isinstance(self.settings.method, Asynchronous):
            return AsynchronousServer(*given, asks_for_saves=rank == 0)
        return ScheduledServer(*given)

    def _make_worker(self, local: LocalModel, recorder: Recorder) -> Worker:
        method = self.settings.method
        given = (local, self.settings, self.connection.layout, self._wire, self.packing, recorder)
        if isinstance(method, Lazy):
            return AskedWorker(*given) if method.asked_by_server else DecidingWorker(*given)
        if isinstance(method, Asynchronous):
            return AsynchronousWorker(*given)
        return ScheduledWorker(*given)

    def begin(self, step: int, parts: Parts | None = None) -> None:
        """Start afresh, or from a checkpoint: rank 0 has its parts and sends the others theirs."""
        layout, rank = self.connection.layout, self.connection.rank
        if self.connection.broadcast(parts is not None):
            if rank == 0:
                assert parts is not None
                others = range(1, layout.num_ranks)
                sending = [self._wire.send_object(self._part(parts, r), r) for r in others]
                self._load(self._part(parts, 0))
                for each in [pending for several in sending for pending in several]:
                    each.wait("that it takes its checkpoint")
            else:
                self._load(self._wire.receive_object(0, "the checkpoint"))
        if self.server is not None:
            self.server.begin(step)

    def _part(self, parts: Parts, rank: int) -> Parts:
        """A rank's part of a checkpoint."""
        servers, workers = self.connection.layout.servers, self.connection.layout.workers
        return {
            "shard": parts["shards"][servers.index(rank)] if rank in servers else None,
            "worker": parts["workers"][workers.index(rank)] if rank in workers else None,
        }

    def _load(self, part: Parts) -> None:
        try:
            if self.server is not None:
                self.server.load_state(part["shard"])
            if self.worker is not None:
                self.worker.load_state(part["worker"])
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            name = self._wire.names[self.connection.rank]
            raise CheckpointError(
                f"The checkpoint's part for {name} does not fit it ({str(error)[:120]}). Begin the "
                "run anew in another folder."
            ) from None

    def serve(self, step: int) -> StepReport | None:
        """Do the server's part of a step; rank 0 collects the global model when due."""
        assert self.server is not None
        self.saved = None
        report = self.server.step(step)
        if report is not None and self.settings.collects(step + 1):
            self._collect()
        return report

    def _collect(self) -> None:
        """Copy all shards into rank 0's `global_model`."""
        assert self.server is not None
        values = self.server.values
        if self.connection.rank != 0:
            self._wire.send(_on_cpu(values), 0, Tag.COLLECT).wait("that it takes a shard")
            return
        for number, server in enumerate(self.connection.layout.servers):
            part = self.packing.shard(self.global_model, number)
            if server == 0:
                for into, flat in zip(part, values, strict=True):
                    into.copy_(flat.detach())
            else:
                self._wire.receive(part, server, Tag.COLLECT).wait("its shard of the model")

    def _save(self) -> None:
        """Make a checkpoint: rank 0 collects all states, the other servers send theirs."""
        assert self.server is not None
        layout, own = self.connection.layout, self.server.state()
        if self.connection.rank != 0:
            for pending in self._wire.send_object(own, 0, Tag.SHARD):
                pending.wait("that it takes a checkpoint")
            return
        workers = [
            self._wire.receive_object(rank, "its state for a checkpoint")
            for number, rank in enumerate(layout.workers)
            if number not in self.server.absent
        ]
        shards = [own] + [
            self._wire.receive_object(rank, "its shard for a checkpoint", Tag.SHARD)
            for rank in layout.servers[1:]
        ]
        if not self.server.absent:  # else there is nothing to go on from for some
            self.saved = {"shards": shards, "workers": workers}

    def close(self) -> None:
        """Disconnect once everything has been sent."""
        if self.server is not None:
            self.server.close()
        self.connection.close()


def _on_cpu(values: Vector) -> Vector:
    return [flat.detach().to("cpu", copy=True) for flat in values]
