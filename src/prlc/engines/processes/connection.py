"""Joining the processes that torchrun started."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from prlc.engines.processes.cluster import Layout
from prlc.engines.processes.threads import Heartbeat, exit_with_parent
from prlc.engines.processes.wire import Route, Tag, Wire, from_bytes, to_bytes
from prlc.errors import ConfigError, PeerError

_runs = itertools.count()  # numbers the runs of this process
_LEAST_JOIN_TIMEOUT = 300.0  # seconds: others may take that long to arrive
_LEAST_END_TIMEOUT = 3600.0  # seconds: rank 0 may still be evaluating; a death is noticed at once


@dataclass(frozen=True)
class Connection:
    """This process among the others."""

    layout: Layout
    wire: Wire
    shards: dist.ProcessGroup | None
    """The process group in which several servers add up sums; None if there is only one."""
    device: torch.device
    """Where payload must be to be sent."""
    leaves: bool
    """Whether to leave torch.distributed at the end, because this package joined it."""

    @property
    def rank(self) -> int:
        return self.wire.rank

    def broadcast(self, content: Any) -> Any:
        """Send rank 0's content to every rank; returns it there."""
        data = to_bytes(content)
        size = torch.tensor([len(data)])
        with self._collective():
            dist.broadcast(size, 0, self.wire.control)
            if self.rank != 0:
                data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, 0, self.wire.control)
        return from_bytes(data)

    def gather(self, content: Any, what: str) -> list[Any]:
        """Collect every rank's content on rank 0; the others get an empty list."""
        limit = max(self.wire.timeout, _LEAST_JOIN_TIMEOUT)
        if self.rank != 0:
            for pending in self.wire.send_object(content, 0, Tag.GATHER):
                pending.wait(f"that it takes {what}", 2 * limit)
            return []
        others = range(1, self.layout.num_ranks)
        received = [self.wire.receive_object(rank, what, Tag.GATHER, limit) for rank in others]
        return [content, *received]

    def gather_everywhere(self, content: Any) -> list[Any]:
        """Collect every rank's content on every rank, however long one takes to come here."""
        group, data = self.wire.control, to_bytes(content)
        ranks = range(self.layout.num_ranks)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in ranks]
        with self._collective():
            dist.all_gather(sizes, torch.tensor([len(data)]), group)
            longest = int(max(sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(data)] = data
            everything = [torch.zeros(longest, dtype=torch.uint8) for _ in ranks]
            dist.all_gather(everything, padded, group)
        return [from_bytes(each[: int(n)]) for each, n in zip(everything, sizes, strict=True)]

    def check_same(self, what: str, value: str) -> None:
        """Refuse to begin if a rank differs from rank 0."""
        values: list[str] = self.broadcast(self.gather(value, f"its {what}"))
        for rank, other in enumerate(values):
            if other != values[0]:
                raise ConfigError(
                    f"All processes must have the same {what}, but {self.wire.names[rank]} has "
                    f"{other}, and rank 0 has {values[0]}. Start all with the same settings."
                )

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors, in place, with those of rank 0."""
        with self._collective():
            for tensor in tensors:
                on_cpu = tensor.detach().cpu().clone()
                dist.broadcast(on_cpu, 0, self.wire.control)
                tensor.detach().copy_(on_cpu)

    def sum_over_shards(self, sums: Tensor) -> None:
        """Turn sums over this rank's shard, in place, into sums over the whole model."""
        if self.shards is not None:
            limit = timedelta(seconds=2 * self.wire.timeout)  # rank 0 may be evaluating
            with self._collective():
                dist.all_reduce(sums, group=self.shards, async_op=True).wait(limit)

    def close(self) -> None:
        """Disconnect once every rank has come this far."""
        with self._collective():
            dist.barrier(self.wire.control)
        if self.wire.heartbeat is not None:
            self.wire.heartbeat.stop()
        if self.leaves:
            dist.destroy_process_group()

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Explain the failure of an operation in which all ranks take part."""
        try:
            yield
        except RuntimeError as error:  # torch does not say which rank was missing
            raise PeerError(
                -1,
                "Another process of the run hangs or has died: not all ranks took part in an "
                "operation that needs them all. Its own output says why; started again, the run "
                f"goes on from its checkpoint. (torch: {str(error).partition(chr(10))[0]})",
            ) from None


def world() -> tuple[int, int]:
    """This process's rank and the number of ranks, as torchrun set them."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise ConfigError(
            "The distributed engine needs processes that torchrun started. Begin the command with: "
            "torchrun --nproc-per-node 5 ..."
        ) from None


def local_device(name: str) -> torch.device:
    """Where this process computes: "cuda" is the GPU of its local rank."""
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device(name)


def connect(layout: str, timeout: float, device: torch.device) -> Connection:
    """Join the other processes."""
    rank, num_ranks = world()
    arranged = Layout(layout, num_ranks)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        exit_with_parent()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    to_join = timedelta(seconds=max(timeout, _LEAST_JOIN_TIMEOUT))
    to_end = timedelta(seconds=max(timeout, _LEAST_END_TIMEOUT))
    number = next(_runs)
    joined = dist.is_initialized()  # by the user's script
    if not joined:
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = _store(f"run-{number}", to_join) if agent else None  # None: torch makes one
        dist.init_process_group(
            backend, timeout=to_join, store=store, rank=rank, world_size=num_ranks
        )
    payload = payload_groups(arranged, lambda: dist.new_group(timeout=to_join), on_gpu)
    control = dist.new_group(backend="gloo", timeout=to_end)
    several = len(arranged.servers) > 1
    shards = dist.new_group(backend="gloo", timeout=to_join) if several else None
    heartbeat = Heartbeat(rank, num_ranks, timeout, _store(f"heartbeat-{number}", to_join))
    wire = Wire(rank, timeout, arranged.names(), payload, control, heartbeat)
    payload_on = device if on_gpu else torch.device("cpu")
    return Connection(arranged, wire, shards, payload_on, leaves=not joined)


def routes(layout: Layout) -> list[Route]:
    """The routes that payload takes."""
    pairs = itertools.product(layout.workers, layout.servers)
    pushes = {(Tag.PUSH, worker < server) for worker, server in pairs if worker != server}
    return sorted(pushes | {(Tag.PULL, not up) for _, up in pushes})


def payload_groups(layout: Layout, make: Callable[[], Any], in_order: bool) -> dict[Route, Any]:
    """The process group of each route: one for all, or one each if the backend works `in_order`.

    NCCL does: it executes sends and receives in the order in which they were issued, so a receive
    posted early would block all others in its group.
    """
    one = None if in_order else make()
    return {route: make() if in_order else one for route in routes(layout)}


def _store(name: str, timeout: timedelta) -> PrefixStore:
    """The store where processes find each other, with keys for this start and purpose alone.

    torchrun keeps one store across restarts, where old keys lead to processes that are gone
    (pytorch/pytorch#135712). So every start has its own keys, and so has every run within one
    start, since torch numbers its groups from zero again.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=timeout)
    return PrefixStore(f"prlc-start-{os.environ.get('TORCHELASTIC_RESTART_COUNT')}-{name}", store)
