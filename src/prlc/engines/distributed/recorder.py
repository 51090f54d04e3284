"""What a worker did when, for whoever wants to see that it did not wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

Event = tuple[int, str, float, float]  # step, what, from, until (seconds of the epoch)


class Recorder:
    """Notes computing and waiting; nothing unless switched on."""

    def __init__(self, on: bool = False) -> None:
        self._on = on
        self.events: list[Event] = []
        self._since = time.time()

    def computed(self, step: int) -> None:
        """The worker has computed since its last step was over."""
        if self._on:
            self.events.append((step, "compute", self._since, time.time()))

    def stepped(self) -> None:
        """The worker's step is over."""
        self._since = time.time()

    @contextmanager
    def waiting(self, step: int, what: str) -> Iterator[None]:
        """The worker waits: for room to push, or for a model."""
        start = time.time()
        yield
        if self._on:
            self.events.append((step, what, start, time.time()))
