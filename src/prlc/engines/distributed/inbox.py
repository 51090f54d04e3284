"""What a keeper of the global model has asked for from the workers, and what it sends them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from prlc.engines.distributed.packing import Vector
from prlc.engines.distributed.wire import Note, Pending, Tag, Wire


class Inbox:
    """Buffers for each worker, into which its next pushes go as they arrive."""

    def __init__(
        self, wire: Wire, ranks: Sequence[int], zeros: Callable[[], Vector], depth: int = 1
    ) -> None:
        """`depth` is how many pushes of a worker may be on their way at once."""
        self._wire, self._ranks, self._depth = wire, ranks, depth
        self._free = [deque(zeros() for _ in range(depth)) for _ in ranks]
        self._updates: list[deque[Pending]] = [deque() for _ in ranks]
        self._notes: list[deque[Pending]] = [deque() for _ in ranks]

    def has_room(self, worker: int) -> bool:
        """Whether one more push of the worker can be asked for."""
        return len(self._notes[worker]) < self._depth

    def expect(self, worker: int) -> None:
        """Ask for one more push of the worker, and for the note that goes with it."""
        rank, notes, updates = self._ranks[worker], self._notes[worker], self._updates[worker]
        notes.append(self._wire.receive([Note.blank()], rank, Tag.PUSH_NOTE))
        if len(updates) < len(notes):  # a push that was not made is still expected
            updates.append(self._wire.receive(self._free[worker].popleft(), rank, Tag.PUSH))

    def note(self, worker: int, what: str, patience: float | None = None) -> Note:
        """What the worker says next; waits for it."""
        pending = self._notes[worker].popleft()
        pending.wait(what, patience)
        return Note.of(pending.kept[0])

    def await_update(self, worker: int, what: str, patience: float) -> None:
        """Until the update that its note announced is there."""
        self._updates[worker][0].wait(what, patience)

    def update(self, worker: int, what: str) -> Vector:
        """The update that its note announced; there until one more of the worker is expected."""
        pending = self._updates[worker].popleft()
        pending.wait(what)
        self._free[worker].append(pending.kept)
        return pending.kept


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
