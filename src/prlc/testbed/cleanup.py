"""Nothing is left behind: records of who owns which testbed, removal, and ending signals.

A record is a small file, written before a testbed's first namespace is created and removed after
the last one is gone. So whatever is left behind has a record, and the record tells whether the
process that owns it is still alive.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from prlc.errors import TestbedError
from prlc.testbed import machine
from prlc.testbed.topology import owner_of

RECORDS = Path("/run/prlc")
_KILL_SECONDS = 10.0  # until a killed process must be gone

# -- records --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """A testbed and the process that owns it, identified by its id and its start time."""

    name: str
    pid: int
    started: int

    @property
    def file(self) -> Path:
        return RECORDS / f"testbed-{self.name}.json"

    @property
    def owner_lives(self) -> bool:
        return _start_time(self.pid) == self.started

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)


def claim(name: str) -> Record:
    """Record that this process owns the testbed `name`; a name in use is refused."""
    record = Record(name, os.getpid(), _start_time(os.getpid()) or 0)
    draft = record.file.with_suffix(f".{record.pid}")
    try:
        RECORDS.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(asdict(record)))
        try:
            os.link(draft, record.file)  # atomic, and never replaces another record
        finally:
            draft.unlink()
    except FileExistsError:
        raise TestbedError(
            f"There is already a testbed called {name!r}. Choose another name, or remove what was "
            "left behind with `prlc testbed --clean`."
        ) from None
    except OSError as error:
        raise TestbedError(
            f"The testbed's record cannot be written to {RECORDS}: {error.strerror}."
        ) from None
    return record


def read_records() -> list[Record]:
    """The records of all testbeds that were created and not removed."""
    found = []
    for file in sorted(RECORDS.glob("testbed-*.json")):
        with suppress(OSError, ValueError, TypeError):  # just removed, or not a record
            record = Record(**json.loads(file.read_text()))
            if record.file == file:
                found.append(record)
    return found


def _start_time(pid: int) -> int | None:
    """When a process began, in kernel ticks; None if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before may contain anything
    return None if state == "Z" else int(fields[18])


# -- removal --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cleaned:
    """What was removed, and what was left alone: testbeds in use, namespaces without a record."""

    removed: tuple[str, ...]
    in_use: tuple[Record, ...]
    unknown: tuple[str, ...]


def clean() -> Cleaned:
    """Remove every testbed whose owner is gone."""
    machine.require(None)
    with _lock():
        known = [(record, record.owner_lives) for record in read_records()]
        for record, lives in known:
            if not lives:
                remove(record)
        names = {record.name for record, _ in known}
        unknown = [
            namespace
            for namespace in machine.namespaces()
            if (owner := owner_of(namespace)) is not None and owner not in names
        ]
    return Cleaned(
        tuple(record.name for record, lives in known if not lives),
        tuple(record for record, lives in known if lives),
        tuple(sorted(unknown)),
    )


def remove(record: Record) -> None:
    """Kill a testbed's processes, delete its namespaces (and so all links) and its record."""
    _kill_all(lambda: machine.processes_marked(record.name))  # they may be about to make more
    own = [name for name in machine.namespaces() if owner_of(name) == record.name]
    for namespace in own:
        _kill_all(functools.partial(machine.processes_in, namespace))
    machine.Script("ip", None, tuple(f"netns delete {name}" for name in own)).run()
    record.remove()


def _kill_all(find: Callable[[], Sequence[int]]) -> None:
    """Kill all processes that `find` finds, and wait until it finds none."""
    deadline = time.monotonic() + _KILL_SECONDS
    while pids := find():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TestbedError(
                f"The process {pids[0]} of a testbed does not end, even when killed. Run "
                "`prlc testbed --clean` once it is no longer blocked."
            )
        time.sleep(0.05)


@contextmanager
def _lock() -> Iterator[None]:
    """Let only one process clean at a time."""
    import fcntl  # not on every system that imports this module

    RECORDS.mkdir(parents=True, exist_ok=True)
    handle = os.open(RECORDS, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# -- signals --------------------------------------------------------------------------------------

# Ctrl-C already is an exception. Not every system that imports this module has all of these.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class EndingSignals:
    """Signals that end a process, turned into exceptions so that a `with` block can clean up.

    Outside the main thread, or where the program has its own handlers, nothing changes.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def become_exceptions(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, _exit)

    def restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """No signal ends the block: a second Ctrl-C must not leave half a testbed behind."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, *_ENDING)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise SystemExit(128 + number)
