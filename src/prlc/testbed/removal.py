"""Removing testbeds: this process's own, or those whose owner is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from prlc.errors import TestbedError
from prlc.testbed import check, shell
from prlc.testbed.records import Record, one_at_a_time, records
from prlc.testbed.topology import owner_of

_PATIENCE = 10.0  # seconds until a killed process must be gone


@dataclass(frozen=True)
class Cleaned:
    """What was removed, and what was left alone: testbeds in use, namespaces without a record."""

    removed: tuple[str, ...]
    in_use: tuple[Record, ...]
    unknown: tuple[str, ...]


def clean() -> Cleaned:
    """Remove every testbed whose owner is gone."""
    check.require(None)
    with one_at_a_time():
        known = [(record, record.owner_lives) for record in records()]
        for record, lives in known:
            if not lives:
                remove(record)
        names = {record.name for record, _ in known}
        unknown = [
            namespace
            for namespace in shell.namespaces()
            if (owner := owner_of(namespace)) is not None and owner not in names
        ]
    return Cleaned(
        tuple(record.name for record, lives in known if not lives),
        tuple(record for record, lives in known if lives),
        tuple(sorted(unknown)),
    )


def remove(record: Record) -> None:
    """Kill what runs on a testbed, delete its namespaces (and with them all links), forget it."""
    mine = [name for name in shell.namespaces() if owner_of(name) == record.name]
    kill(mine)
    shell.work_off(shell.Batch("ip", None, tuple(f"netns delete {name}" for name in mine)))
    record.remove()


def kill(namespaces: Iterable[str]) -> None:
    """Kill every process in the namespaces and wait until they are gone."""
    deadline = time.monotonic() + _PATIENCE
    left = list(namespaces)
    while left := [name for name in left if _kill_in(name)]:
        if time.monotonic() > deadline:
            raise TestbedError(
                f"Processes in the namespace {left[0]} do not end, even when killed. Run "
                "`prlc testbed --clean` once whatever they wait for is over."
            )
        time.sleep(0.05)


def _kill_in(namespace: str) -> bool:
    pids = shell.processes_in(namespace)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)
