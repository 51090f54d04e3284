"""A worker: computes updates at its local model, pushes them, and pulls when the method says so.

There is a subclass for each family of methods, beside the server that it talks to.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from prlc.engines.base import Event
from prlc.engines.processes.cluster import Layout, RunSettings
from prlc.engines.processes.wire import Pending, Tag, Wire
from prlc.engines.roles.local_model import LocalModel
from prlc.engines.roles.notes import Kind, Note, bad_update
from prlc.engines.roles.packing import Packing, Vector
from prlc.engines.roles.scheduled import PushBuffer
from prlc.errors import PrlcError

# A worker waits longer for the server than the server for a worker, so that the server is the first
# to notice a worker that hangs, and names the right one.
_TIMEOUT_FACTOR = 2.0
A_DAY = 86_400.0  # seconds: the others may go on for long after this worker has left


class Recorder:
    """Records when a worker computes and waits, if switched on."""

    def __init__(self, on: bool = False) -> None:
        self._on = on
        self.events: list[Event] = []
        self._since = time.time()

    def computed(self, step: int) -> None:
        """The worker has computed since its last step ended."""
        if self._on:
            self.events.append((step, "compute", self._since, time.time()))

    def stepped(self) -> None:
        """The worker's step has ended."""
        self._since = time.time()

    @contextmanager
    def waiting(self, step: int, what: str) -> Iterator[None]:
        """The worker waits: for room to push, for its turn, or for a model."""
        start = time.time()
        yield
        if self._on:
            self.events.append((step, what, start, time.time()))


class Worker(ABC):
    """What the workers of all families share."""

    def __init__(
        self,
        local: LocalModel,
        settings: RunSettings,
        layout: Layout,
        wire: Wire,
        packing: Packing,
        recorder: Recorder | None = None,
    ) -> None:
        self.local, self.settings = local, settings
        self.number = layout.workers.index(wire.rank)
        self.next_step = 0
        self.lr_step = 0  # the step whose learning rate to use
        self.recorder = recorder or Recorder()
        self._wire, self._packing, self._servers = wire, packing, layout.servers
        self._timeout = wire.timeout * _TIMEOUT_FACTOR
        self.role = self._make_role()
        self._free: deque[PushBuffer] = deque()
        self._pushing: deque[tuple[PushBuffer, list[Pending]]] = deque()
        self._notes: list[Pending] = []  # in flight without an update
        self._sent_state: list[Pending] = []  # for a checkpoint
        self._losses: list[float] = []  # since the last push
        self._bad = 0  # unusable updates since the last push
        self._num_updates = 0
        self._saves = 0  # the last numbered checkpoint that the state was sent for
        self.on_save: Callable[[dict[str, Any]], None] | None = None
        """Completes this worker's part of a checkpoint, and sends it."""
        self.script: dict[str, Any] | None = None
        """What a checkpoint had of the script."""

    def _make_role(self) -> Any:
        """The worker's role: what it does, without input or output."""
        return None

    def _new_buffer(self) -> PushBuffer:
        """Room for one push."""
        whole, shards = self._packing.zeros(), range(self._packing.num_shards)
        return PushBuffer([self._packing.shard(whole, shard) for shard in shards], whole)

    @property
    def _window(self) -> int:
        """How many pushes may be in flight."""
        return self.settings.window

    def begin(self) -> bool:
        """Wait until there is something to compute; False when the run is over."""
        return True

    def prepare(self) -> None:  # noqa: B027
        """Correct the gradients before an optimizer uses them, if the method does."""

    def step(self, loss: float | None = None) -> bool:
        """Take a step along the current gradients; False when the run is over.

        `loss` is for reports; an update whose loss is given but not finite is not used.
        """
        self.prepare()
        return self.stepped(loss)

    def stepped(self, loss: float | None = None) -> bool:
        """The rest of a step, after `prepare` and, in a script, the optimizer's own step."""
        self.recorder.computed(self.next_step)
        goes_on = self._step(self.next_step, loss)
        self.recorder.stepped()
        return goes_on

    @abstractmethod
    def _step(self, step: int, loss: float | None) -> bool:
        """Compute the update, push it, and pull or move on, as the method says."""

    # -- pieces of a step -------------------------------------------------------------------------

    def _compute(self, update: Vector, step: int, loss: float | None) -> Kind:
        """Write this step's update, or say why it is unusable."""
        if loss is not None and not math.isfinite(loss):
            kind = Kind.INFINITE
            self.local.refuse(update)
        else:
            kind = self.local.update(update)
            if loss is not None:
                self._losses.append(loss)
        self._num_updates += 1
        if kind is not Kind.UPDATE:
            self._bad += 1
            if self.settings.on_bad_update == "stop":
                self._wire.cause = error = bad_update(kind, self.number, step)
                self._notes += self._notify(kind, step)
                with suppress(PrlcError):  # a server that has read the note exits at once
                    self._flush_state()
                    self.flush()
                raise error
        return kind

    def _stepped(self) -> bool:
        """Count the step, save if due; False when the run is over."""
        self.next_step += 1
        self.lr_step = self.next_step
        if self.settings.saves(self.next_step):
            self.send_state()
        return self.settings.steps is None or self.next_step < self.settings.steps

    def _room(self, step: int) -> PushBuffer:
        """A buffer to push from; waits for the oldest push in flight if there is no other."""
        if not self._free and len(self._pushing) < self._window:
            return self._new_buffer()
        if not self._free:
            with self.recorder.waiting(step, "push"):
                buffer, sending = self._pushing.popleft()
                for each in sending:
                    each.wait(f"room for the update of step {step}", self._timeout)
                self._free.append(buffer)
        return self._free.popleft()

    def _push(self, buffer: PushBuffer, step: int, kind: Kind) -> None:
        """Start sending an update to all servers, with a note; or the note alone."""
        if kind is not Kind.UPDATE:
            self._free.append(buffer)
            self._notes += self._notify(kind, step)
            return
        sending = [
            self._wire.send(message, server, Tag.PUSH)
            for message, server in zip(buffer.messages, self._servers, strict=True)
        ]
        self._pushing.append((buffer, sending + self._notify(kind, step)))

    def _computed(self, step: int, loss: float | None) -> tuple[PushBuffer, Vector, Kind]:
        """A buffer with this step's update in it, for methods that push every update whole."""
        buffer = self._room(step)
        assert buffer.whole is not None
        return buffer, buffer.whole, self._compute(buffer.whole, step, loss)

    def _notify(self, kind: Kind, step: int) -> list[Pending]:
        """Send all servers a note about the updates since the last push."""
        loss = sum(self._losses) / len(self._losses) if self._losses else math.nan
        note = Note(kind, step, loss, self.local.lr, self._saves, self._bad)
        self._losses, self._bad, self._num_updates = [], 0, 0
        return [self._wire.send([note.tensor()], rank, Tag.PUSH_NOTE) for rank in self._servers]

    def _say(self, server: int, kind: Kind) -> None:
        """Send a server a note that comes with nothing."""
        note = Note(kind, self.next_step)
        self._notes.append(self._wire.send([note.tensor()], server, Tag.PUSH_NOTE))

    def _pull(self, step: int, what: str, timeout: float | None = None) -> None:
        """Replace the local model by the global one."""
        with self.recorder.waiting(step, "pull"):
            self._receive_model(self.local.values, f"{what} {step}", timeout or self._timeout)
            self._flush_notes()  # a server that sent a model has read all earlier notes
        self.local.show()

    def _receive_model(self, into: Vector, what: str, timeout: float) -> None:
        coming = [
            self._wire.receive(self._packing.shard(into, shard), server, Tag.PULL)
            for shard, server in enumerate(self._servers)
        ]
        for each in coming:
            each.wait(what, timeout)

    def _reclaim(self) -> None:
        """Take back the buffers of all pushes; a server that sent a model has received them."""
        while self._pushing:
            buffer, sending = self._pushing.popleft()
            for each in sending:
                each.wait("a former update", self._timeout)
            self._free.append(buffer)

    def _answer(self, server: int, what: str) -> Note:
        """Wait for a server's next note."""
        blank = Note.blank()
        self._wire.receive([blank], server, Tag.ANSWER).wait(what, self._timeout)
        return Note.of(blank)

    # -- ending, saving and loading ---------------------------------------------------------------

    @property
    def pushes_changes_at_end(self) -> bool:
        """Whether a last push says all that has become of the model since the one before."""
        return False

    def leave(self, kind: Kind = Kind.BYE) -> None:
        """Say that this worker takes no more steps."""
        for server in self._servers:
            self._say(server, kind)

    def finish(self) -> None:
        """Fetch the final model, once nobody takes steps any more."""
        self._pull(self.next_step, "the final model, after step", A_DAY)
        self.flush()

    def pause(self) -> None:  # noqa: B027
        """Say that this worker waits for the others, if servers would wait for it."""

    def fetch(self) -> Vector | None:
        """The global model, if it may differ from this worker's own."""
        return None

    def flush(self) -> None:
        """Wait until all pushes and notes have been sent."""
        for _, sending in self._pushing:
            for each in sending:
                each.wait("the last message", self._timeout)
        self._pushing.clear()
        self._flush_notes()

    def _flush_notes(self) -> None:
        for each in self._notes:
            each.wait("a former message", self._timeout)
        self._notes.clear()

    def send_state(self) -> None:
        """Send rank 0 this worker's part of a checkpoint, or let the script complete it first."""
        if self.on_save is not None:
            self.on_save(self.state())
        else:
            self.send(self.state())

    def send(self, state: dict[str, Any]) -> None:
        """Send rank 0 a state."""
        self._flush_state()
        self._sent_state = self._wire.send_object(state, 0)

    def _flush_state(self) -> None:
        for each in self._sent_state:
            each.wait("that it takes a former state", self._timeout)
        self._sent_state.clear()

    def state(self) -> dict[str, Any]:
        return {
            "own": self.local.state(),
            "losses": self._losses,
            "bad": self._bad,
            "num_updates": self._num_updates,
            "next_step": self.next_step,
            "lr_step": self.lr_step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.local.load_state(state["own"])
        self._losses = state["losses"]
        self._bad, self._num_updates = state["bad"], state["num_updates"]
        self.next_step, self.lr_step = state["next_step"], state["lr_step"]
        self.script = state.get("script")
