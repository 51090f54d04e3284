"""Joining the processes that torchrun started."""

from __future__ import annotations

import functools
import itertools
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from prlc import launcher
from prlc.engines.processes.cluster import Layout
from prlc.engines.processes.liveness import Answering, Liveness, Peer, own_addresses
from prlc.engines.processes.threads import within
from prlc.engines.processes.wire import Route, Tag, Wire, all_gather, broadcast
from prlc.errors import ConfigError, PeerError

_runs = itertools.count()  # numbers the runs of this process
_LEAST_JOIN_TIMEOUT = 300.0  # seconds: others may take that long to arrive
_LEAST_END_TIMEOUT = 3600.0  # seconds: rank 0 may be evaluating; who is silent is noticed earlier
_POLL_INTERVAL = 0.05  # seconds
_REFUSAL_SECONDS = 5.0  # to tell the others that this process does not take part


@dataclass
class Connection:
    """This process among the others."""

    layout: Layout
    wire: Wire
    device: torch.device
    """Where payload must be to be sent."""
    leaves: bool
    """Whether to leave torch.distributed at the end, because this package joined it."""
    shards: dist.ProcessGroup | None = None
    """The process group in which several servers add up sums; None if there is only one."""

    @property
    def rank(self) -> int:
        return self.wire.rank

    def broadcast(self, content: Any) -> Any:
        """Send rank 0's content to every rank; returns it there."""
        with self.together():
            return broadcast(content, 0, self.wire.control)

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
        with self.together():
            return all_gather(content, self.wire.control)

    def check_same(self, what: str, value: str) -> None:
        """Refuse to begin if a rank differs from rank 0."""
        values: list[str] = self.broadcast(self.gather(value, f"its {what}"))
        for rank, other in enumerate(values):
            if other != values[0]:
                raise ConfigError(
                    f"All processes must have the same {what}, but {self.wire.names[rank]} has "
                    f"{other}, and rank 0 has {values[0]}. Start all with the same settings."
                )

    def broadcast_tensors(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Overwrite tensors, in place, with those of a rank."""
        with self.together():
            for tensor in tensors:
                on_cpu = tensor.detach().cpu().clone()
                dist.broadcast(on_cpu, source, self.wire.control)
                tensor.detach().copy_(on_cpu)

    def sum_over_shards(self, sums: Tensor) -> None:
        """Turn sums over this rank's shard, in place, into sums over the whole model."""
        if self.shards is not None:
            limit = timedelta(seconds=2 * self.wire.timeout)  # rank 0 may be evaluating
            with self.together():
                dist.all_reduce(sums, group=self.shards, async_op=True).wait(limit)

    def close(self) -> None:
        """Disconnect once every rank has come this far."""
        with self.together():
            dist.barrier(self.wire.control)
        if self.wire.liveness is not None:
            self.wire.liveness.stop()
        if self.leaves:
            with suppress(RuntimeError):  # others may have left before
                dist.destroy_process_group()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Explain the failure of an operation in which all ranks take part."""
        liveness = self.wire.liveness
        with liveness.waiting(self._missing) if liveness else nullcontext():
            try:
                yield
            except RuntimeError as error:  # torch does not say which rank was missing
                raise self._missing(liveness.silent() if liveness else [], error) from None

    def _missing(self, silent: list[int], error: Exception | None = None) -> PeerError:
        who = self.wire.names[silent[0]] if silent else "Another process of the run"
        said = f" (torch: {str(error).partition(chr(10))[0]})" if error else ""
        return PeerError(
            silent[0] if silent else -1,
            f"{who} hangs or has died: not all ranks took part in an operation that needs them "
            "all. Its own output says why; started again, a run that keeps checkpoints goes on "
            f"from the newest.{said}",
        )


def world() -> tuple[int, int]:
    """This process's rank and the number of ranks, as torchrun or the user's script set them."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
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


def connect(
    layout: str,
    timeout: float,
    device: torch.device,
    settings: Mapping[str, Any] | None = None,
    ranks_per_worker: int = 1,
) -> Connection:
    """Join the other processes, which must all have the same layout and the same `settings`."""
    rank, num_ranks = world()
    arranged = Layout(layout, num_ranks, ranks_per_worker)
    if launcher.started_by_torchrun() and not launcher.has_launcher(os.getppid()):
        raise PeerError(rank, "The torchrun that started this process is gone, so it ends too.")
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    answering = Answering(secrets.token_hex(8))
    told = {
        "layout": layout,
        "number of processes": num_ranks,
        "ranks_per_worker": ranks_per_worker,
        **(settings or {}),
    }
    joined = dist.is_initialized()  # by the user's script
    to_join = max(timeout, _LEAST_JOIN_TIMEOUT)
    store, others = _find_others(rank, num_ranks, told, answering, joined, to_join)
    names = arranged.names()
    _check_same([each["settings"] for each in others], names)
    peers = [Peer([(host, port) for host, port in o["addresses"]], o["word"]) for o in others]
    liveness = Liveness(rank, peers, timeout, answering)
    wire = Wire(rank, timeout, names, {}, None, liveness)
    connection = Connection(arranged, wire, device if on_gpu else torch.device("cpu"), not joined)
    with connection.together():
        if not joined:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                timeout=timedelta(seconds=to_join),
                store=PrefixStore("torch", store),
                rank=rank,
                world_size=num_ranks,
            )
        make = functools.partial(dist.new_group, timeout=timedelta(seconds=to_join))
        wire.payload.update(payload_groups(arranged, make, on_gpu))
        to_end = timedelta(seconds=max(timeout, _LEAST_END_TIMEOUT))
        wire.control = dist.new_group(backend="gloo", timeout=to_end)
        if len(arranged.servers) > 1:
            connection.shards = make(arranged.servers, backend="gloo")
    return connection


def refuse(error: Exception) -> None:
    """Tell those who wait to join that this process never will, if it has not joined already."""
    if "MASTER_ADDR" not in os.environ or next(_runs) > 0:
        return

    def tell() -> None:
        store = _keys(_store(joined=True, seconds=_REFUSAL_SECONDS), 0)
        store.set("refused", json.dumps([int(os.environ["RANK"]), str(error)]))

    with suppress(RuntimeError, TimeoutError, ValueError, KeyError):
        within(_REFUSAL_SECONDS, tell)


# -- finding the others ---------------------------------------------------------------------------


def _find_others(
    rank: int,
    num_ranks: int,
    settings: Mapping[str, Any],
    answering: Answering,
    joined: bool,
    seconds: float,
) -> tuple[PrefixStore, list[dict[str, Any]]]:
    """The store of this run, and what each rank told the others there."""
    if not {"MASTER_ADDR", "MASTER_PORT"} <= {*os.environ}:
        raise ConfigError(
            "The processes meet at MASTER_ADDR and MASTER_PORT, but these are not in the "
            "environment. Set them before init_process_group, or start the script with torchrun."
        )
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own = {
        "addresses": [(each, answering.port) for each in own_addresses(host, port)],
        "word": answering.word,
        "settings": settings,
    }
    number = next(_runs)

    def find() -> tuple[PrefixStore, list[dict[str, Any]]]:
        store = _keys(_store(joined, seconds), number)
        return store, _meet(store, rank, num_ranks, own, seconds)

    try:
        return within(seconds + _REFUSAL_SECONDS, find)
    except (RuntimeError, TimeoutError) as error:  # of the store
        raise PeerError(
            0,
            f"The store at {host}:{port}, where all processes of a run meet, does not answer "
            f"({str(error).partition(chr(10))[0] or 'it hangs'}). Look at the machine that it is "
            "on, and start again.",
        ) from None


def _meet(
    store: Any, rank: int, num_ranks: int, own: Mapping[str, Any], seconds: float
) -> list[dict[str, Any]]:
    """Tell all others what they must know of this rank; what they tell, by rank."""
    if store.compare_set(f"claim-{rank}", "", own["word"]).decode() != own["word"]:
        raise PeerError(
            rank,
            f"Another process already takes part as rank {rank}: one of an earlier start may still "
            "be alive. End it, or start with another port.",
        )
    store.set(f"told-{rank}", json.dumps(own))
    keys, deadline = [f"told-{each}" for each in range(num_ranks)], time.monotonic() + seconds
    while not store.check(keys):
        if store.check(["refused"]):
            who, why = json.loads(store.get("refused"))
            raise PeerError(who, f"Rank {who} does not take part, so nobody can: {why}")
        if time.monotonic() > deadline:
            late = [each for each, key in enumerate(keys) if not store.check([key])]
            raise PeerError(
                late[0],
                f"Rank {late[0]} has not come within {seconds:g} s. Look at its output, and start "
                "as many processes as the run takes.",
            )
        time.sleep(_POLL_INTERVAL)
    return [json.loads(store.get(key)) for key in keys]


def _check_same(settings: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Refuse to begin if a rank differs from rank 0."""
    first = settings[0]
    for rank, other in enumerate(settings):
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                who = f"rank {rank}" if name in ("layout", "workers") else names[rank]
                raise ConfigError(
                    f"All processes must have the same {name}, but {who} has {other.get(name)}, "
                    f"and rank 0 has {first.get(name)}. Start all with the same settings."
                )


@functools.cache
def _store(joined: bool, seconds: float) -> TCPStore:
    """The store where processes find each other: torchrun's, or one that rank 0 makes."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    there = joined or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        host,
        port,
        is_master=not there and os.environ["RANK"] == "0",
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _keys(store: TCPStore, number: int) -> PrefixStore:
    """The store's keys for this start and run alone.

    torchrun keeps one store across restarts, where old keys lead to processes that are gone
    (pytorch/pytorch#135712). So every start has its own keys, and so has every run within one
    start, since torch numbers its groups from zero again.
    """
    start = [os.environ.get(f"TORCHELASTIC_{name}") for name in ("RUN_ID", "RESTART_COUNT")]
    return PrefixStore(f"prlc-{start[0]}-{start[1]}-{number}", store)


# -- process groups -------------------------------------------------------------------------------


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
