"""Who made which testbed: a small file for each, written before the first namespace is made and
removed after the last is gone. So whatever happens, what is left behind has a record, and the
record tells whether the process that made it still lives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from prlc.errors import TestbedError

FOLDER = Path("/run/prlc")


@dataclass(frozen=True)
class Record:
    """A testbed and the process that owns it; a process is known by its number and its start."""

    name: str
    pid: int
    started: int

    @property
    def file(self) -> Path:
        return FOLDER / f"testbed-{self.name}.json"

    @property
    def owner_lives(self) -> bool:
        return _start_of(self.pid) == self.started

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)


def claim(name: str) -> Record:
    """Record that this process makes the testbed `name`; refuses a name that is taken."""
    record = Record(name, os.getpid(), _start_of(os.getpid()) or 0)
    fresh = record.file.with_suffix(f".{record.pid}")
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(asdict(record)))
        try:
            os.link(fresh, record.file)  # whole or not at all, and never over another one
        finally:
            fresh.unlink()
    except FileExistsError:
        raise TestbedError(
            f"There is a testbed called {name!r} already. Choose another name, or remove what was "
            "left behind with `prlc testbed --clean`."
        ) from None
    except OSError as error:
        raise TestbedError(
            f"The testbed's record cannot be written to {FOLDER}: {error.strerror}."
        ) from None
    return record


def records() -> list[Record]:
    """All testbeds that were made and not removed."""
    found = []
    for file in sorted(FOLDER.glob("testbed-*.json")):
        with suppress(OSError, ValueError, TypeError):  # just removed, or not ours
            record = Record(**json.loads(file.read_text()))
            if record.file == file:
                found.append(record)
    return found


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Keep two cleaning processes from getting in each other's way."""
    import fcntl  # not on every system; the rest of the package is

    FOLDER.mkdir(parents=True, exist_ok=True)
    handle = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _start_of(pid: int) -> int | None:
    """When a process began, in the kernel's ticks; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before may hold anything
    return None if state == "Z" else int(fields[18])
