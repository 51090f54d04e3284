"""Messages between ranks, on torch.distributed.

A message is a vector of payload (an update, a model) or a small note. gloo receives in the
background, into buffers given in advance. So receives are posted early and awaited late, and a
sender that need not wait does not.

NCCL executes sends and receives between two ranks in the order in which each rank issued them, so a
receive posted early would block everything after it. There, updates and models, in either
direction, have process groups of their own, in each of which both ends issue in the same order.

A rank that is both worker and server also writes to itself, through a queue. It may read such a
message where it is: the sender's wait then ends when it is given back.
"""

from __future__ import annotations

import io
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from prlc.engines.processes.liveness import Liveness
from prlc.engines.roles.packing import Vector
from prlc.errors import PeerError, PrlcError


class Tag(IntEnum):
    """What a message is about. Messages with the same tag between two ranks keep their order."""

    PUSH = 1
    PUSH_NOTE = 2
    PULL = 3
    ANSWER = 4
    STATE = 5
    SHARD = 6
    COLLECT = 7
    GATHER = 8
    HINTS = 9


PAYLOAD = (Tag.PUSH, Tag.PULL)
Route = tuple[Tag, bool]
"""Which payload, and whether it goes from a lower rank to a higher one."""


@dataclass
class Pending:
    """A message in flight, to or from another rank."""

    wire: Wire
    rank: int
    works: list[Any]
    buffers: Vector  # must live as long as the message is in flight
    letter: _Letter | None = None  # that lends the buffers

    def wait(self, what: str, timeout: float | None = None) -> None:
        """Wait until it has been sent or received. An error names `what` was awaited."""
        limit = self.wire.timeout if timeout is None else timeout
        with self.wire.waiting(self.rank, what):
            for work in self.works:
                try:
                    work.wait(timedelta(seconds=limit))
                except (RuntimeError, TimeoutError) as error:
                    why = self.wire.cause or self.wire.explain(self.rank, what, limit, error)
                    raise why from None
        self.works = []

    def give_back(self) -> None:
        """Its buffers are no longer read: who lent them may change them."""
        if self.letter is not None:
            self.letter.read.set()


@dataclass
class Wire:
    """One rank's connections to all others."""

    rank: int
    timeout: float
    """Seconds of silence after which a peer counts as hung."""
    names: list[str]
    """What errors call each rank: "rank 3 (worker 2)"."""
    payload: dict[Route, Any]  # the process group of each route
    control: dist.ProcessGroup | None  # the group for notes, always on CPU
    liveness: Liveness | None = None
    remedy: str = "--peer-timeout"
    """What allows more time."""
    cause: PrlcError | None = None
    """Why this process is ending, if it is: later connection failures are its consequence."""
    payload_sent: dict[tuple[Tag, int], int] = field(
        default_factory=lambda: defaultdict(int), repr=False
    )
    """Bytes of payload sent, by tag and receiving rank: a measurement, independent of the counts
    in `prlc.network.traffic`, which tests compare with it."""
    _own: dict[Tag, queue.Queue[_Letter]] = field(
        default_factory=lambda: {tag: queue.Queue() for tag in Tag}, repr=False
    )

    def send(self, tensors: Vector, rank: int, tag: Tag) -> Pending:
        """Start sending tensors, which must not change until the result has been waited for."""
        if tag in PAYLOAD:
            self.payload_sent[tag, rank] += sum(tensor.nbytes for tensor in tensors)
        if rank == self.rank:
            letter = _Letter(tensors)
            self._own[tag].put(letter)
            return Pending(self, rank, [letter], tensors)
        group = self._group(tag, self.rank, rank)
        works = [_started(dist.isend, t, rank, group, tag) for t in tensors if t.numel()]
        return Pending(self, rank, works, tensors)

    def receive(self, tensors: Vector, rank: int, tag: Tag) -> Pending:
        """Start receiving the next message with that tag from `rank` into tensors."""
        if rank == self.rank:
            return Pending(self, rank, [_Awaited(self._own[tag], tensors)], tensors)
        group = self._group(tag, rank, self.rank)
        works = [_started(dist.irecv, t, rank, group, tag) for t in tensors if t.numel()]
        return Pending(self, rank, works, tensors)

    def borrow(self, tag: Tag) -> Pending:
        """Start waiting for the next message from this rank itself, to be read where it is.

        Its buffers are the sender's tensors, which do not change until `give_back`.
        """
        pending = Pending(self, self.rank, [], [])
        pending.works.append(_Borrowed(self._own[tag], pending))
        return pending

    def send_object(self, content: Any, rank: int, tag: Tag = Tag.STATE) -> list[Pending]:
        """Start sending plain containers of tensors and numbers."""
        data = to_bytes(content)
        size = torch.tensor([len(data)])
        return [self.send([size], rank, tag), self.send([data], rank, tag)]

    def receive_object(
        self, rank: int, what: str, tag: Tag = Tag.STATE, timeout: float | None = None
    ) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        self.receive([size], rank, tag).wait(what, timeout)
        data = torch.zeros(int(size), dtype=torch.uint8)
        self.receive([data], rank, tag).wait(what, timeout)
        return from_bytes(data)

    def waiting(self, rank: int, what: str) -> AbstractContextManager[None]:
        """While a message is awaited: somebody who hangs is named soon after the timeout."""
        if self.liveness is None or rank == self.rank:
            return nullcontext()
        return self.liveness.waiting(lambda silent: self.silence(rank, what, silent))

    def silence(
        self, rank: int, what: str, silent: list[int], limit: float | None = None
    ) -> PeerError:
        """The error for a wait that was too long, if some ranks do not answer."""
        patience = self.liveness.timeout if self.liveness else self.timeout
        seconds = patience if limit is None else limit
        waited = f"Nothing came from {self.names[rank]} for {seconds:g} s while {what} was awaited"
        if silent and rank not in silent:
            return PeerError(
                silent[0],
                f"{waited}: it waits in turn for {self.names[silent[0]]}, which gives no sign "
                f"of life. Look there, or allow more time with {self.remedy}.",
            )
        return PeerError(
            rank,
            f"{waited}: it hangs, or its machine or network does. Look there, or allow more "
            f"time with {self.remedy}.",
        )

    def explain(self, rank: int, what: str, limit: float, error: Exception) -> PeerError:
        """Turn torch's error into one that names the rank at fault."""
        name = self.names[rank]
        if isinstance(error, TimeoutError) or "timed out" in str(error).lower():
            silent = self.liveness.silent() if self.liveness else []
            return self.silence(rank, what, silent, limit)
        return PeerError(
            rank,
            f"The connection to {name} broke while {what} was awaited: it has died or cannot be "
            "reached. Its own output says why; started again, a run that keeps checkpoints goes on "
            "from the newest.",
        )

    def _group(self, tag: Tag, sender: int, receiver: int) -> dist.ProcessGroup | None:
        return self.payload[tag, sender < receiver] if tag in PAYLOAD else self.control


@dataclass
class _Broken:
    """A message that could not be started: whoever waits for it is told."""

    error: RuntimeError

    def wait(self, limit: timedelta) -> None:
        del limit
        raise self.error


def _started(start: Callable[..., Any], *given: Any) -> Any:
    """Start a message. A peer that is gone may have said why, in a message to be read first."""
    try:
        return start(*given)
    except RuntimeError as error:
        return _Broken(error)


def to_bytes(content: Any) -> Tensor:
    """Serialise plain containers of tensors and numbers."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def from_bytes(data: Tensor) -> Any:
    """The inverse of `to_bytes`. Never executes what it reads."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)


def broadcast(content: Any, source: int, group: Any) -> Any:
    """The content of the source, a rank, on every rank of a group."""
    data = to_bytes(content)
    size = torch.tensor([len(data)])
    dist.broadcast(size, source, group)
    if dist.get_rank() != source:
        data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, source, group)
    return from_bytes(data)


def all_gather(content: Any, group: Any) -> list[Any]:
    """The content of every rank of a group, on every rank of it."""
    data, number = to_bytes(content), dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(number)]
    dist.all_gather(sizes, torch.tensor([len(data)]), group)
    padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
    padded[: len(data)] = data
    everything = [torch.zeros_like(padded) for _ in range(number)]
    dist.all_gather(everything, padded, group)
    return [from_bytes(each[: int(n)]) for each, n in zip(everything, sizes, strict=True)]


@dataclass
class _Letter:
    """A message to oneself, until it is read."""

    tensors: Vector
    read: threading.Event = field(default_factory=threading.Event)

    def wait(self, limit: timedelta) -> None:
        if not self.read.wait(limit.total_seconds()):
            raise TimeoutError


def _next(letters: queue.Queue[_Letter], limit: timedelta) -> _Letter:
    try:
        return letters.get(timeout=limit.total_seconds())
    except queue.Empty:
        raise TimeoutError from None


@dataclass
class _Awaited:
    """A message from oneself, until it arrives and is copied."""

    letters: queue.Queue[_Letter]
    target: Vector

    def wait(self, limit: timedelta) -> None:
        letter = _next(self.letters, limit)
        for into, tensor in zip(self.target, letter.tensors, strict=True):
            into.copy_(tensor)
        letter.read.set()


@dataclass
class _Borrowed:
    """A message from oneself, until it arrives and is read where it is."""

    letters: queue.Queue[_Letter]
    reader: Pending

    def wait(self, limit: timedelta) -> None:
        self.reader.letter = letter = _next(self.letters, limit)
        self.reader.buffers = letter.tensors
