"""Processes on the nodes: a group of its own for each, output to a file, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prlc.errors import TestbedError
from prlc.testbed import shell
from prlc.testbed.topology import Node

_LOOK = 0.05  # seconds between looks at the processes


class Process(Protocol):
    """What is needed of a process that was started, by whatever means."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...


@dataclass(frozen=True)
class Started:
    """The process on a node and where its output goes."""

    node: Node
    process: Process
    log: Path

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Processes:
    """What was started together, by node."""

    def __init__(self, started: Sequence[Started]) -> None:
        self._by_name = {each.node.name: each for each in started}

    def __getitem__(self, name: str) -> Started:
        return self._by_name[name]

    def exit_codes(self) -> dict[str, int | None]:
        """By node; None while it runs, minus the signal's number if one ended it."""
        return {name: each.process.poll() for name, each in self._by_name.items()}

    def wait(
        self,
        timeout: float | None = None,
        grace: float = 30.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Until all have ended well; otherwise says who did not.

        Once one has failed, the others have `grace` seconds to end by themselves; then they are
        stopped. `meanwhile` is called again and again.
        """
        deadline = time.monotonic() + timeout if timeout is not None else None
        failed_at = None
        while None in (codes := self.exit_codes()).values():
            now = time.monotonic()
            if any(codes.values()) and failed_at is None:
                failed_at = now
            if failed_at is not None and now > failed_at + grace:
                break
            if deadline is not None and now > deadline:
                running = [name for name, code in codes.items() if code is None]
                self.stop()
                raise TestbedError(
                    f"After {timeout:g} s {_names(running)} still ran and had to be stopped. "
                    f"The output is in {self[running[0]].log}."
                )
            meanwhile()
            time.sleep(_LOOK)
        self.stop()
        meanwhile()
        if failed := {name: code for name, code in codes.items() if code}:
            first = min(failed, key=lambda name: self[name].log.stat().st_mtime)
            raise TestbedError(
                f"The command failed on {_names(list(failed))} (exit status {failed[first]} on "
                f"{first}). Its output is in {self[first].log}."
            )

    def stop(self, grace: float = 5.0) -> None:
        """Ask those that still run to end; kill them after `grace` seconds."""
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            running = [each for each in self._by_name.values() if each.process.poll() is None]
            for each in running:
                each.send(number)
            deadline = time.monotonic() + patience
            for each in running:
                with suppress(subprocess.TimeoutExpired):
                    each.process.wait(max(deadline - time.monotonic(), 0.0))


def start(
    commands: Mapping[Node, Sequence[str]],
    environment: Mapping[str, Mapping[str, str]],
    logs: Path,
) -> Processes:
    """Start a command on each node."""
    started: list[Started] = []
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for node, command in commands.items():
            started.append(_start(node, command, environment.get(node.name, {}), logs))
    except BaseException as error:
        Processes(started).stop()
        if isinstance(error, OSError):
            raise TestbedError(
                f"Cannot start commands with logs in {logs}: {error.strerror}."
            ) from None
        raise
    return Processes(started)


def _start(node: Node, command: Sequence[str], added: Mapping[str, str], logs: Path) -> Started:
    log = logs / f"{node.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            shell.inside(node.namespace, command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **added},
            start_new_session=True,
        )
    return Started(node, process, log)


def _names(names: Sequence[str]) -> str:
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more nodes"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
