"""One process of a run: keeper of the global model or of a shard of it, worker, or both."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from prlc.engines.base import StepReport, all_tensors, travelling
from prlc.engines.distributed.arrivals import AsynchronousKeeper, AsynchronousMember
from prlc.engines.distributed.background import Beside
from prlc.engines.distributed.connection import Connection
from prlc.engines.distributed.keeper import Keeper, Shard
from prlc.engines.distributed.lazy import AskedMember, DecidingMember, LazyKeeper
from prlc.engines.distributed.member import Member
from prlc.engines.distributed.packing import Packing, Vector
from prlc.engines.distributed.recorder import Recorder
from prlc.engines.distributed.scheduled import ScheduledKeeper, ScheduledMember
from prlc.engines.distributed.terms import Terms
from prlc.engines.distributed.updates import OwnModel
from prlc.engines.distributed.wire import Tag
from prlc.errors import PrlcError
from prlc.methods import Asynchronous, Lazy
from prlc.optimizers import OptimizerFactory

Parts = dict[str, Any]
"""A checkpoint's parts: the state of each shard, and of each worker."""


class Node:
    """Builds what its rank is, and moves states between rank 0, who writes them, and all."""

    def __init__(
        self,
        connection: Connection,
        terms: Terms,
        model: nn.Module,
        make_optimizer: Callable[[nn.Module], Optimizer],
        server_optimizer: OptimizerFactory | None = None,
        record: bool = False,
    ) -> None:
        layout, rank = connection.layout, connection.rank
        self.connection, self.terms, self._wire = connection, terms, connection.wire
        self.packing = Packing(model, len(layout.owners), connection.device)
        connection.check_same("model", self.packing.describe())
        connection.check_same("settings", terms.agreed())
        connection.same_start(all_tensors(model))
        start = self.packing.zeros()
        self.packing.pack([t.detach() for t in travelling(model)], start)
        self.keeper: Keeper | None = None
        if rank in layout.owners:
            self.keeper = self._make_keeper(start, server_optimizer)
        self.whole = _on_cpu(start) if rank == 0 else []  # the global model, as last shown
        self.member: Member | None = None
        if rank in layout.workers:
            own = OwnModel(model, make_optimizer(model), self.packing)
            self.member = self._make_member(own, Recorder(record))
        self.saved: Parts | None = None

    def _make_keeper(self, start: Vector, optimizer: OptimizerFactory | None) -> Keeper:
        layout, rank = self.connection.layout, self.connection.rank
        number = layout.owners.index(rank)
        values = [flat.clone() for flat in self.packing.shard(start, number)]
        shard = Shard(values, self.packing.parameters(number))
        given = (self.terms, self._wire, layout.workers, shard, optimizer, self._save)
        if isinstance(self.terms.method, Lazy):
            return LazyKeeper(*given, add_over_shards=self.connection.add_over_shards)
        if isinstance(self.terms.method, Asynchronous):
            return AsynchronousKeeper(*given, asks_for_saves=rank == 0)
        return ScheduledKeeper(*given)

    def _make_member(self, own: OwnModel, recorder: Recorder) -> Member:
        method = self.terms.method
        given = (own, self.terms, self.connection.layout, self._wire, self.packing, recorder)
        if isinstance(method, Lazy):
            return AskedMember(*given) if method.asked_by_server else DecidingMember(*given)
        if isinstance(method, Asynchronous):
            return AsynchronousMember(*given)
        return ScheduledMember(*given)

    # -- beginning --------------------------------------------------------------------------------

    def begin(self, step: int, parts: Parts | None = None) -> None:
        """Start from a checkpoint's parts (rank 0 has them; the others get theirs), or anew."""
        layout, rank = self.connection.layout, self.connection.rank
        if self.connection.tell_all(parts is not None):
            if rank == 0:
                assert parts is not None
                sending = [
                    self._wire.send_object(
                        _of_rank(parts, layout.owners, layout.workers, peer), peer
                    )
                    for peer in range(1, layout.num_ranks)
                ]
                self._load(_of_rank(parts, layout.owners, layout.workers, 0))
                for each in [pending for several in sending for pending in several]:
                    each.wait("that it takes its checkpoint")
            else:
                self._load(self._wire.receive_object(0, "the checkpoint"))
        if self.keeper is not None:
            self.keeper.begin(step)

    def _load(self, own: Parts) -> None:
        if self.keeper is not None:
            self.keeper.load_state(own["shard"])
        if self.member is not None:
            self.member.load_state(own["worker"])

    # -- stepping ---------------------------------------------------------------------------------

    def keep(self, step: int) -> StepReport | None:
        """The server's part of a step; on rank 0 the whole global model is shown when due."""
        assert self.keeper is not None
        self.saved = None
        report = self.keeper.step(step)
        if report is not None and self.terms.shows(step + 1):
            self.show()
        return report

    def show(self) -> None:
        """Bring all shards together on rank 0."""
        assert self.keeper is not None
        owners, values = self.connection.layout.owners, self.keeper.shard.values
        if self.connection.rank != 0:
            self._wire.send(_on_cpu(values), 0, Tag.SHOW).wait("that it takes a shard")
            return
        for number, owner in enumerate(owners):
            part = self.packing.shard(self.whole, number)
            if owner == 0:
                for into, flat in zip(part, values, strict=True):
                    into.copy_(flat.detach())
            else:
                self._wire.receive(part, owner, Tag.SHOW).wait("its shard of the model")

    def _save(self) -> None:
        """A keeper has come to a checkpoint: rank 0 collects, the others hand in."""
        assert self.keeper is not None
        layout = self.connection.layout
        if self.connection.rank != 0:
            for pending in self._wire.send_object(self.keeper.state(), 0, Tag.SHARD):
                pending.wait("that it takes a checkpoint")
            return
        own = self.keeper.state()
        workers = [
            self._wire.receive_object(rank, "its state for a checkpoint") for rank in layout.workers
        ]
        shards = [own] + [
            self._wire.receive_object(rank, "its shard for a checkpoint", Tag.SHARD)
            for rank in layout.owners[1:]
        ]
        self.saved = {"shards": shards, "workers": workers}

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave when everything has left."""
        if self.keeper is not None:
            self.keeper.close()
        self.connection.close()


def in_background(work: Callable[[], None], name: str) -> threading.Thread:
    """Run one half of a rank that is worker and keeper; if it fails, the process does.

    The other half would wait in vain, and torchrun acts on processes.
    """

    def guarded() -> None:
        try:
            work()
        except PrlcError as error:
            rank = dist.get_rank()
            print(f"error (rank {rank}): {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_code)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    thread = Beside(guarded, name)
    thread.start()
    return thread


def _of_rank(parts: Parts, owners: list[int], workers: list[int], rank: int) -> Parts:
    return {
        "shard": parts["shards"][owners.index(rank)] if rank in owners else None,
        "worker": parts["workers"][workers.index(rank)] if rank in workers else None,
    }


def _on_cpu(values: Vector) -> Vector:
    return [flat.detach().to("cpu", copy=True) for flat in values]
