"""Messages between ranks, on torch.distributed.

A message is a vector of payload (an update, a model) or a small note. gloo hands over what arrives
into buffers that were named beforehand, in the background; so receiving is asked for early and
waited for late, and a sender that need not wait does not.

NCCL carries out what two ranks exchange in the order in which each of them named it, so a message
that is awaited early would hold up all others. There, updates and models, and either direction,
have process groups of their own, in each of which both ends name messages in the same order.

A rank that is both worker and owner of a shard also writes to itself: that goes through a queue.
"""

from __future__ import annotations

import io
import queue
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from prlc.engines.distributed.packing import Vector
from prlc.engines.distributed.pulse import Pulse
from prlc.errors import PeerError, PrlcError


class Tag(IntEnum):
    """What a message is about; messages of one tag between two ranks keep their order."""

    PUSH = 1
    PUSH_NOTE = 2
    PULL = 3
    ANSWER = 4
    STATE = 5
    SHARD = 6
    SHOW = 7
    GATHER = 8


PAYLOAD = (Tag.PUSH, Tag.PULL)
Way = tuple[Tag, bool]
"""What payload it is, and whether it goes from a lower rank to a higher."""


class Kind(IntEnum):
    """What a note says."""

    UPDATE = 1  # worker: an update goes with this
    NOTHING = 2  # worker: no update this time (LAG-WK)
    INFINITE = 3  # worker: no update, since it was not finite
    MISSHAPEN = 4  # worker: no update, since its shapes were not those agreed on
    BYE = 5  # worker: I have taken my last step
    GO = 6  # server: a model goes with this; compute the step named
    WAIT = 7  # server: not your turn, but I am there, and may want your state
    LAST = 8  # server: a model goes with this, and the run is over
    OVER = 9  # server: the run is over


class Note(NamedTuple):
    """The few numbers that accompany a message."""

    kind: Kind
    step: int = 0
    loss: float = 0.0
    lr: float = 0.0
    save: int = 0
    """Server: your state is wanted for checkpoint number so. Worker: I gave it for that one."""
    bad: int = 0
    """Worker: so many of the updates in this push were not usable and left out."""

    def tensor(self) -> Tensor:
        return torch.tensor(self, dtype=torch.float64)

    @classmethod
    def of(cls, tensor: Tensor) -> Note:
        kind, step, loss, lr, save, bad = tensor.tolist()
        return cls(Kind(int(kind)), int(step), loss, lr, int(save), int(bad))

    @staticmethod
    def blank() -> Tensor:
        return torch.zeros(len(Note._fields), dtype=torch.float64)


@dataclass
class Pending:
    """A message that is under way."""

    wire: Wire
    peer: int
    works: list[Any]
    kept: Vector  # what is sent or filled must live as long

    def wait(self, what: str, patience: float | None = None) -> None:
        """Until it has left or arrived. `what` says in an error what was being waited for."""
        limit = self.wire.patience if patience is None else patience
        for work in self.works:
            try:
                work.wait(timedelta(seconds=limit))
            except (RuntimeError, TimeoutError) as error:
                why = self.wire.cause or self.wire.explain(self.peer, what, limit, error)
                raise why from None
        self.works = []


@dataclass
class Wire:
    """One rank's connections to all others."""

    rank: int
    patience: float
    """Seconds of silence after which a peer counts as hung."""
    names: list[str]
    """What each rank is called in errors: "rank 3 (worker 2)"."""
    payload: dict[Way, Any]  # the process group for every way that payload takes
    control: dist.ProcessGroup | None  # that of notes: always on CPU
    pulse: Pulse | None = None
    """Who gives a sign of life."""
    cause: PrlcError | None = None
    """Why this process ends, once it does: connections that break from then on break for that."""
    sent: dict[tuple[Tag, int], int] = field(default_factory=lambda: defaultdict(int), repr=False)
    """Bytes of payload that left: what they were, and for which rank."""
    _own: dict[Tag, queue.Queue[_Letter]] = field(
        default_factory=lambda: {tag: queue.Queue() for tag in Tag}, repr=False
    )

    def send(self, tensors: Vector, peer: int, tag: Tag) -> Pending:
        """Let tensors leave for a peer; they must not change until this was waited for."""
        if tag in PAYLOAD:
            self.sent[tag, peer] += sum(tensor.nbytes for tensor in tensors)
        if peer == self.rank:
            letter = _Letter(tensors)
            self._own[tag].put(letter)
            return Pending(self, peer, [letter], tensors)
        group = self._group(tag, self.rank, peer)
        works = [dist.isend(t, peer, group, tag) for t in tensors if t.numel()]
        return Pending(self, peer, works, tensors)

    def receive(self, tensors: Vector, peer: int, tag: Tag) -> Pending:
        """Let tensors be filled with a peer's next message of that tag."""
        if peer == self.rank:
            return Pending(self, peer, [_Awaited(self._own[tag], tensors)], tensors)
        group = self._group(tag, peer, self.rank)
        works = [dist.irecv(t, peer, group, tag) for t in tensors if t.numel()]
        return Pending(self, peer, works, tensors)

    def send_object(self, content: Any, peer: int, tag: Tag = Tag.STATE) -> list[Pending]:
        """Send plain containers of tensors and numbers."""
        data = to_bytes(content)
        size = torch.tensor([len(data)])
        return [self.send([size], peer, tag), self.send([data], peer, tag)]

    def receive_object(
        self, peer: int, what: str, tag: Tag = Tag.STATE, patience: float | None = None
    ) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        self.receive([size], peer, tag).wait(what, patience)
        data = torch.zeros(int(size), dtype=torch.uint8)
        self.receive([data], peer, tag).wait(what, patience)
        return from_bytes(data)

    def explain(self, peer: int, what: str, limit: float, error: Exception) -> PeerError:
        """Name the rank in what torch says of a connection."""
        name = self.names[peer]
        if isinstance(error, TimeoutError) or "timed out" in str(error).lower():
            silent = self.pulse.silent() if self.pulse else []
            waited = f"Nothing came from {name} for {limit:g} s while {what} was awaited"
            if silent and peer not in silent:
                return PeerError(
                    silent[0],
                    f"{waited}: it waits in turn for {self.names[silent[0]]}, which gives no sign "
                    "of life. Look there, or allow more with --peer-timeout.",
                )
            return PeerError(
                peer,
                f"{waited}: it hangs, or its machine or network does. Look there, or allow more "
                "with --peer-timeout.",
            )
        return PeerError(
            peer,
            f"The connection to {name} broke while {what} was awaited: it has died or cannot be "
            "reached. Its own output says why; started again, the run goes on from its checkpoint.",
        )

    def _group(self, tag: Tag, sender: int, receiver: int) -> dist.ProcessGroup | None:
        return self.payload[tag, sender < receiver] if tag in PAYLOAD else self.control


def to_bytes(content: Any) -> Tensor:
    """Plain containers of tensors and numbers, as they travel."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def from_bytes(data: Tensor) -> Any:
    """What `to_bytes` was given. Nothing is executed, whatever has arrived."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)


@dataclass
class _Letter:
    """A message to oneself, until it is read."""

    tensors: Vector
    read: threading.Event = field(default_factory=threading.Event)

    def wait(self, limit: timedelta) -> None:
        if not self.read.wait(limit.total_seconds()):
            raise TimeoutError


@dataclass
class _Awaited:
    """A message from oneself that is waited for."""

    letters: queue.Queue[_Letter]
    target: Vector

    def wait(self, limit: timedelta) -> None:
        try:
            letter = self.letters.get(timeout=limit.total_seconds())
        except queue.Empty:
            raise TimeoutError from None
        for into, tensor in zip(self.target, letter.tensors, strict=True):
            into.copy_(tensor)
        letter.read.set()
