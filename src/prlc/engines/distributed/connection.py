"""Joining the processes that torchrun started."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from prlc.engines.distributed.pulse import Pulse
from prlc.engines.distributed.terms import Layout
from prlc.engines.distributed.wire import Tag, Way, Wire, from_bytes, to_bytes
from prlc.errors import ConfigError, PeerError

_runs = itertools.count()  # of this process
_LOOK_AT_PARENT = 0.5  # seconds
_PATIENT = 300.0  # seconds at least that others may take to come
_VERY_PATIENT = 3600.0  # and to end, while rank 0 evaluates; who dies is noticed at once


@dataclass(frozen=True)
class Connection:
    """This process among the others."""

    layout: Layout
    wire: Wire
    sums: dist.ProcessGroup | None
    """The process group in which keepers of shards add up; None where there is one keeper."""
    device: torch.device
    """Where payload must be when it leaves."""
    leaves: bool
    """Whether to leave torch.distributed at the end, having joined it."""

    @property
    def rank(self) -> int:
        return self.wire.rank

    def tell_all(self, content: Any) -> Any:
        """What rank 0 says, on every rank."""
        data = to_bytes(content)
        size = torch.tensor([len(data)])
        with self._together():
            dist.broadcast(size, 0, self.wire.control)
            if self.rank != 0:
                data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, 0, self.wire.control)
        return from_bytes(data)

    def gather(self, content: Any, what: str) -> list[Any]:
        """What every rank says, on rank 0."""
        limit = max(self.wire.patience, _PATIENT)
        if self.rank != 0:
            for pending in self.wire.send_object(content, 0, Tag.GATHER):
                pending.wait(f"that it takes {what}", 2 * limit)
            return []
        others = range(1, self.layout.num_ranks)
        told = [self.wire.receive_object(rank, what, Tag.GATHER, limit) for rank in others]
        return [content, *told]

    def check_same(self, what: str, value: str) -> None:
        """Refuse to begin if a rank differs from rank 0 in something all must agree on."""
        values: list[str] = self.tell_all(self.gather(value, f"its {what}"))
        for rank, other in enumerate(values):
            if other != values[0]:
                raise ConfigError(
                    f"All processes must have the same {what}, but {self.wire.names[rank]} has "
                    f"{other}, and rank 0 has {values[0]}. Start all with the same settings."
                )

    def same_start(self, tensors: Sequence[Tensor]) -> None:
        """Let tensors be what they are on rank 0."""
        with self._together():
            for tensor in tensors:
                on_cpu = tensor.detach().cpu().clone()
                dist.broadcast(on_cpu, 0, self.wire.control)
                tensor.detach().copy_(on_cpu)

    def add_over_shards(self, sums: Tensor) -> None:
        """Let sums over this process's shard become sums over the whole model."""
        if self.sums is not None:
            limit = timedelta(seconds=2 * self.wire.patience)  # rank 0 may be evaluating
            with self._together():
                dist.all_reduce(sums, group=self.sums, async_op=True).wait(limit)

    def close(self) -> None:
        """Part when everybody has come this far."""
        with self._together():
            dist.barrier(self.wire.control)
        if self.wire.pulse is not None:
            self.wire.pulse.stop()
        if self.leaves:
            dist.destroy_process_group()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Something that all do at the same time."""
        try:
            yield
        except RuntimeError as error:  # torch does not say who was missing
            raise PeerError(
                -1,
                "Another process of the run hangs or has died: all were to come together, and not "
                "all did. Its own output says why; started again, the run goes on from its "
                f"checkpoint. (torch: {str(error).partition(chr(10))[0]})",
            ) from None


def world() -> tuple[int, int]:
    """This process's rank and the number of all, as torchrun says."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise ConfigError(
            "The distributed engine needs processes that torchrun started. Begin the command with: "
            "torchrun --nproc-per-node 5 ..."
        ) from None


def own_device(name: str) -> torch.device:
    """Where this process computes: "cuda" is the GPU that its number on its machine says."""
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device(name)


def connect(layout: str, patience: float, device: torch.device) -> Connection:
    """Join the other processes."""
    rank, num_ranks = world()
    arranged = Layout(layout, num_ranks)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _end_with_parent()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    patient = timedelta(seconds=max(patience, _PATIENT))
    number = next(_runs)
    joined = dist.is_initialized()  # by the user's own script
    if not joined:
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = _own_keys(f"run-{number}", patient) if agent else None  # else torch's own choice
        dist.init_process_group(
            backend, timeout=patient, store=store, rank=rank, world_size=num_ranks
        )
    payload = payload_groups(arranged, lambda: dist.new_group(timeout=patient), on_gpu)
    at_the_end = timedelta(seconds=max(patience, _VERY_PATIENT))
    control = dist.new_group(backend="gloo", timeout=at_the_end)
    several = len(arranged.owners) > 1
    sums = dist.new_group(backend="gloo", timeout=patient) if several else None
    pulse = Pulse(rank, num_ranks, patience, _own_keys(f"pulse-{number}", patient))
    wire = Wire(rank, patience, arranged.names(), payload, control, pulse)
    payload_on = device if on_gpu else torch.device("cpu")
    return Connection(arranged, wire, sums, payload_on, leaves=not joined)


def ways(layout: Layout) -> list[Way]:
    """The ways that payload takes, each of which needs a process group."""
    pairs = itertools.product(layout.workers, layout.owners)
    pushes = {(Tag.PUSH, worker < owner) for worker, owner in pairs if worker != owner}
    return sorted(pushes | {(Tag.PULL, not up) for _, up in pushes})


def payload_groups(layout: Layout, make: Callable[[], Any], in_order: bool) -> dict[Way, Any]:
    """The process group for every way that payload takes.

    Where a backend carries out what two ranks exchange in the order in which each of them named it
    (NCCL), a message that is awaited early would hold up all others, so each way has its own.
    """
    one = None if in_order else make()
    return {way: make() if in_order else one for way in ways(layout)}


def _own_keys(name: str, patient: timedelta) -> PrefixStore:
    """The store where processes find each other, with keys of this start and purpose alone.

    torchrun keeps one store over all its restarts. What is left in it from the start before leads
    to processes that are gone (pytorch/pytorch#135712), so every start has keys of its own; and so
    has every run of one start, since torch counts its groups from zero again.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=patient)
    return PrefixStore(f"prlc-start-{os.environ.get('TORCHELASTIC_RESTART_COUNT')}-{name}", store)


def _end_with_parent() -> None:
    """End when torchrun is gone: nobody else would, and the run is to be started anew."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_AT_PARENT)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent watch").start()
