"""Threads beside the main one: heartbeats, waiting for peers, half of a rank that has two roles."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from prlc.errors import PeerError, PrlcError

_BEATS_PER_TIMEOUT = 8
_LONGEST_INTERVAL = 30.0  # seconds between two heartbeats
_PARENT_CHECK_INTERVAL = 0.5  # seconds


class Heartbeat:
    """This process's heartbeat, and a look at the others'.

    In the sharded layout everybody waits for everybody: if one process hangs, the one awaited here
    may itself only be waiting. So every process increments a counter in the shared store; the one
    whose counter stands still hangs.
    """

    def __init__(self, rank: int, num_ranks: int, timeout: float, store: Any) -> None:
        self._rank, self._num_ranks, self._store = rank, num_ranks, store
        self.interval = min(timeout / _BEATS_PER_TIMEOUT, _LONGEST_INTERVAL)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop beating: from now on this process looks dead."""
        self._stopped.set()
        self._thread.join(timeout=1.0)
        atexit.unregister(self.stop)

    def silent(self) -> list[int]:
        """The ranks without a heartbeat. Takes two intervals."""
        try:
            before = self.counts()
            time.sleep(2 * self.interval)
            pairs = zip(before, self.counts(), strict=True)
        except RuntimeError:  # the store is gone
            return []
        return [rank for rank, (then, now) in enumerate(pairs) if now == then]

    def counts(self) -> list[int]:
        """How often each rank's heart has beaten."""
        return [self._store.add(str(rank), 0) for rank in range(self._num_ranks)]

    def _beat(self) -> None:
        while not self._stopped.wait(self.interval):
            try:
                self._store.add(str(self._rank), 1)
            except RuntimeError:
                return


class Watch:
    """Ends this process once another's heart has stood still for too long.

    For scripts, which may do anything between two steps: who lives is waited for.
    """

    def __init__(self, heartbeat: Heartbeat, names: Sequence[str], timeout: float) -> None:
        self._heartbeat, self._names, self._timeout = heartbeat, names, timeout
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        last = [-1] * len(self._names)
        since = [time.monotonic()] * len(self._names)
        while not self._stopped.wait(self._heartbeat.interval):
            try:
                counts = self._heartbeat.counts()
            except RuntimeError:  # the store is gone, and who kept it
                return
            now = time.monotonic()
            for rank, count in enumerate(counts):
                if count != last[rank]:
                    last[rank], since[rank] = count, now
                elif now - since[rank] > self._timeout and not self._stopped.is_set():
                    self._end(rank)

    def _end(self, rank: int) -> None:
        error = PeerError(
            rank,
            f"{self._names[rank]} has given no sign of life for {self._timeout:g} s: it hangs, or "
            "its machine or network does. Look there, or allow more time with "
            "prlc.join(peer_timeout=...).",
        )
        print(f"error (rank {dist.get_rank()}): {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)


class BackgroundThread(threading.Thread):
    """A thread that does not keep a failed process alive."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, daemon=True, name=name)


@atexit.register
def _exit_at_once() -> None:
    """Exit without tearing down the interpreter under a waiting thread.

    Only after a failure is a thread still waiting here. If its peer ended at the same time, the
    thread would wake up in a half-destroyed interpreter, which then aborts.
    """
    if any(isinstance(thread, BackgroundThread) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def run_in_background(work: Callable[[], None], name: str) -> threading.Thread:
    """Run one role of a rank that is both worker and server. If it fails, the process exits.

    Otherwise the other role would wait forever, and torchrun only notices processes.
    """

    def guarded() -> None:
        try:
            work()
        except PrlcError as error:
            rank = dist.get_rank()
            print(f"error (rank {rank}): {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_code)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    thread = BackgroundThread(guarded, name)
    thread.start()
    return thread


def exit_with_parent() -> None:
    """Exit once torchrun is gone: nothing else would end this process before a restart."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent watch").start()
