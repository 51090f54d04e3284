"""The server, or one shard of it: takes pushes, sends models.

There is a subclass for each family of methods. `Server.step` does the server's part of a step, and
returns None once all workers have said goodbye.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from prlc.engines.base import StepReport
from prlc.engines.processes.cluster import RunSettings
from prlc.engines.processes.wire import Pending, Tag, Wire
from prlc.engines.roles.lengths import Lengths, TooLong
from prlc.engines.roles.notes import Kind, Note, bad_update
from prlc.engines.roles.packing import Packing, Vector, is_finite
from prlc.methods import Mask

log = logging.getLogger("prlc")


class Inbox:
    """Receive buffers for each worker's next pushes; those of this rank's own are read in place."""

    def __init__(
        self, wire: Wire, ranks: Sequence[int], zeros: Callable[[], Vector], depth: int = 1
    ) -> None:
        """`depth` is how many pushes of a worker may arrive at once."""
        self._wire, self._ranks, self._depth = wire, ranks, depth
        rooms = [0 if rank == wire.rank else depth for rank in ranks]
        self._free = [deque(zeros() for _ in range(number)) for number in rooms]
        # What is on its way, and the room that it is received into.
        self._updates: list[deque[tuple[Pending, Vector | None]]] = [deque() for _ in ranks]
        self._in_use: list[tuple[int, Pending, Vector | None]] = []  # with the worker
        self._notes: list[deque[Pending]] = [deque() for _ in ranks]

    def has_room(self, worker: int) -> bool:
        """Whether one more push of the worker can be expected."""
        return len(self._notes[worker]) < self._depth

    def expect(self, worker: int, part: Callable[[Vector], Vector] | None = None) -> None:
        """Post receives for the worker's next push and the note that comes with it.

        `part`: what the push needs of the room for one; None: all.
        """
        rank, notes, updates = self._ranks[worker], self._notes[worker], self._updates[worker]
        notes.append(self._wire.receive([Note.blank()], rank, Tag.PUSH_NOTE))
        if len(updates) >= len(notes):  # an update that was not sent is still expected
            return
        if rank == self._wire.rank:
            updates.append((self._wire.borrow(Tag.PUSH), None))
            return
        room = self._free[worker].popleft()
        needed = part(room) if part else room
        updates.append((self._wire.receive(needed, rank, Tag.PUSH), room))

    def note(self, worker: int, what: str, timeout: float | None = None) -> Note:
        """Wait for the worker's next note."""
        pending = self._notes[worker].popleft()
        pending.wait(what, timeout)
        return Note.of(pending.buffers[0])

    def await_update(self, worker: int, what: str, timeout: float) -> None:
        """Wait until the update that its note announced has arrived."""
        self._updates[worker][0][0].wait(what, timeout)

    def update(self, worker: int, what: str) -> Vector:
        """The update that its note announced; valid until `done`."""
        pending, room = self._updates[worker].popleft()
        pending.wait(what)
        self._in_use.append((worker, pending, room))
        return pending.buffers

    def done(self) -> None:
        """No update is read any more: the rooms are free, and a worker may change what it lent."""
        for worker, pending, room in self._in_use:
            pending.give_back()
            if room is not None:
                self._free[worker].append(room)
        self._in_use.clear()


class Outbox:
    """Models and notes on their way to workers."""

    def __init__(self, wire: Wire, ranks: Sequence[int]) -> None:
        self._wire, self._ranks = wire, ranks
        self._sending: list[list[Pending]] = [[] for _ in ranks]

    def model(self, worker: int, values: Vector) -> None:
        """Send a model, which must not change before `flush`."""
        sending = self._wire.send(values, self._ranks[worker], Tag.PULL)
        self._sending[worker].append(sending)

    def answer(self, worker: int, note: Note) -> None:
        sending = self._wire.send([note.tensor()], self._ranks[worker], Tag.ANSWER)
        self._sending[worker].append(sending)

    def hints(self, worker: int, numbers: Tensor) -> None:
        """Send the few numbers that accompany a model."""
        sending = self._wire.send([numbers.clone()], self._ranks[worker], Tag.HINTS)
        self._sending[worker].append(sending)

    def flush(self, worker: int) -> None:
        """Wait until everything for the worker has been sent."""
        for pending in self._sending[worker]:
            pending.wait("that it takes a model")
        self._sending[worker].clear()

    def flush_all(self) -> None:
        for worker in range(len(self._ranks)):
            self.flush(worker)


class Server(ABC):
    """What the servers of all families share."""

    #: How many pushes of a worker may arrive at once.
    depth = 1

    def _depth(self) -> int:
        return self.depth

    def __init__(
        self,
        settings: RunSettings,
        wire: Wire,
        ranks: list[int],
        values: Vector,
        packing: Packing,
        number: int,
        on_save: Callable[[], None],
    ) -> None:
        """`ranks` are the workers'; `values` shard `number`; `on_save` makes a checkpoint."""
        self.settings, self._packing, self._number = settings, packing, number
        self.role = self._make_role(values)
        self.bad_updates = np.zeros(settings.num_workers, np.int64)
        self._lengths = Lengths(settings.num_workers, settings.length_bound)
        self._wire, self._ranks, self._on_save = wire, ranks, on_save
        self._inbox = Inbox(wire, ranks, self._push_like, self._depth())
        self._outbox = Outbox(wire, ranks)
        self._lr = math.nan  # the last that a worker sent
        self.absent: set[int] = set()
        """The workers that send no more states."""

    @abstractmethod
    def _make_role(self, values: Vector) -> Any:
        """The server's role: what it does, without input or output."""

    def _push_like(self) -> Vector:
        """The tensors of a push."""
        return self._packing.zeros(self._number)

    @property
    def values(self) -> Vector:
        """This server's shard of the global model."""
        values: Vector = self.role.shard.values
        return values

    @abstractmethod
    def begin(self, step: int) -> None:
        """Expect the first messages, once the state is loaded; `step` is the first step."""

    @abstractmethod
    def step(self, step: int) -> StepReport | None:
        """Do the server's part of a step."""

    def drain(self) -> Mask:
        """Dismiss workers that are still busy after the last step; says whose pushes came late.

        Late pushes count as traffic. Only asynchronous methods have any.
        """
        return np.zeros(self.settings.num_workers, bool)

    def send_final_model(self) -> None:
        """Send the final model to all workers."""
        for worker in range(self.settings.num_workers):
            self._outbox.model(worker, self.values)
        self._outbox.flush_all()

    def close(self) -> None:
        """Wait until everything has been sent."""
        self._outbox.flush_all()

    def _accepts(self, note: Note, worker: int) -> bool:
        """Whether the note announces an update; the worker may have left out bad ones itself."""
        has_one = note.kind is Kind.UPDATE
        bad = max(note.bad, int(not has_one))
        if bad:
            self._refuse(note.kind, worker, note.step, bad)
        return has_one

    def _checked(self, note: Note, worker: int, what: str) -> Vector | None:
        """The update that a note announces, or None if it must not reach the model."""
        if not self._accepts(note, worker):
            return None
        update = self._decoded(self._inbox.update(worker, what))
        if is_finite(update):
            return update
        self._refuse(Kind.INFINITE, worker, note.step)
        return None

    def _decoded(self, message: Vector) -> Vector:
        """A push as the numbers of a shard."""
        return message

    def _refuse(self, kind: Kind, worker: int, step: int, count: int = 1) -> None:
        """Leave out a bad update, or stop the run."""
        self.bad_updates[worker] += count
        error = bad_update(kind, worker, step)
        if self.settings.on_bad_update == "stop":
            self._wire.cause = error
            raise error
        log.warning("Left out: %s", error)

    def _leaves_out(self, found: TooLong, step: int) -> bool:
        """Whether to leave out an update that is too long; warns, or stops the run."""
        error = found.error(step)
        if self.settings.on_long_update == "stop":
            self._wire.cause = error
            raise error
        skips = self.settings.on_long_update == "skip"
        self.bad_updates[found.worker] += skips
        log.warning("%s: %s", "Left out" if skips else "Taken all the same", error)
        return skips

    def state(self) -> dict[str, Any]:
        """This shard's part of a checkpoint, as copies."""
        return {
            "role": self.role.state(),
            "bad_updates": self.bad_updates.tolist(),
            "lengths": self._lengths.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.role.load_state(state["role"])
        self.bad_updates[:] = state["bad_updates"]
        self._lengths.load_state(state["lengths"])
