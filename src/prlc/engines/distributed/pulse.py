"""Signs of life, so that who waits in vain can say for whom.

In the sharded layout everybody waits for everybody: when one process hangs, the one that is waited
for may only be waiting itself. So every process counts upwards in the store where they all met,
and a count that stands still is that of a process that hangs.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any

_BEATS_IN_PATIENCE = 8
_LONGEST = 30.0  # seconds between two beats


class Pulse:
    """This process's sign of life, and a look at those of the others."""

    def __init__(self, rank: int, num_ranks: int, patience: float, store: Any) -> None:
        self._rank, self._num_ranks, self._store = rank, num_ranks, store
        self._every = min(patience / _BEATS_IN_PATIENCE, _LONGEST)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="pulse")
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """From now on this process looks dead."""
        self._over.set()
        self._thread.join(timeout=1.0)
        atexit.unregister(self.stop)

    def silent(self) -> list[int]:
        """The ranks that give no sign of life; takes as long as two beats to tell."""
        try:
            before = self._counts()
            time.sleep(2 * self._every)
            pairs = zip(before, self._counts(), strict=True)
        except RuntimeError:  # the store is gone
            return []
        return [rank for rank, (then, now) in enumerate(pairs) if now == then]

    def _counts(self) -> list[int]:
        return [self._store.add(str(rank), 0) for rank in range(self._num_ranks)]

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._store.add(str(self._rank), 1)
            except RuntimeError:
                return
