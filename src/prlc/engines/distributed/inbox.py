"""What a keeper of the global model has asked for from the workers, and what it sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prlc.engines.distributed.packing import Vector
from prlc.engines.distributed.wire import Note, Pending, Tag, Wire


class Inbox:
    """One buffer a worker, into which its next push goes as it arrives."""

    def __init__(self, wire: Wire, ranks: Sequence[int], zeros: Callable[[], Vector]) -> None:
        self._wire, self._ranks = wire, ranks
        self._buffers = [zeros() for _ in ranks]
        self._blanks = [Note.blank() for _ in ranks]
        self._updates: list[Pending | None] = [None] * len(ranks)
        self._notes: list[Pending | None] = [None] * len(ranks)

    def expect(self, worker: int) -> None:
        """Ask for the worker's next push, and the note that goes with it."""
        rank = self._ranks[worker]
        if self._updates[worker] is None:  # a push that was not made is still expected
            self._updates[worker] = self._wire.receive(self._buffers[worker], rank, Tag.PUSH)
        self._notes[worker] = self._wire.receive([self._blanks[worker]], rank, Tag.PUSH_NOTE)

    def note(self, worker: int, what: str, patience: float | None = None) -> Note:
        """What the worker says next; waits for it."""
        pending = self._notes[worker]
        assert pending is not None
        pending.wait(what, patience)
        return Note.of(self._blanks[worker])

    def update(self, worker: int, what: str) -> Vector:
        """The update that its note announced."""
        pending = self._updates[worker]
        assert pending is not None
        pending.wait(what)
        self._updates[worker] = None
        return self._buffers[worker]


class Outbox:
    """Models and answers on their way to workers."""

    def __init__(self, wire: Wire, ranks: Sequence[int]) -> None:
        self._wire, self._ranks = wire, ranks
        self._sending: list[list[Pending]] = [[] for _ in ranks]

    def model(self, worker: int, values: Vector) -> None:
        """Send a model; it must not change before `settle`."""
        sending = self._wire.send(values, self._ranks[worker], Tag.PULL)
        self._sending[worker].append(sending)

    def answer(self, worker: int, note: Note) -> None:
        sending = self._wire.send([note.tensor()], self._ranks[worker], Tag.ANSWER)
        self._sending[worker].append(sending)

    def settle(self, worker: int) -> None:
        """Until what was sent to the worker has left."""
        for pending in self._sending[worker]:
            pending.wait("that it takes a model")
        self._sending[worker].clear()

    def settle_all(self) -> None:
        for worker in range(len(self._ranks)):
            self.settle(worker)
