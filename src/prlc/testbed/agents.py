"""torchrun's agents, forked by one process (see forking.py) that tells how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from prlc.errors import TestbedError


@dataclass(frozen=True)
class Job:
    """An agent to start: on which node, with which arguments of torchrun, and its log."""

    node: str
    namespace: str
    arguments: Sequence[str]
    log: str


class Nursery:
    """The process that forks the agents, and what it has told of them."""

    def __init__(self, jobs: Sequence[Job], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prlc.testbed.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._told = self._process.stdout
        self._rest = b""
        self._ended: dict[str, int] = {}
        try:
            with self._process.stdin as given:
                given.write(json.dumps([asdict(job) for job in jobs]).encode())
            lines = [self._told.readline().decode().split() for _ in jobs]
            self.pids = {node: int(pid) for node, pid in lines}
        except (OSError, ValueError):
            self.end()
            raise TestbedError(
                "The agents could not be started. What the forking process said is above."
            ) from None
        except BaseException:
            self.end()
            raise
        os.set_blocking(self._told.fileno(), False)

    def status(self, node: str) -> int | None:
        """How an agent ended; None while it runs."""
        if self._process.returncode is None:
            self._listen()
        lost = self._process.returncode is not None
        return self._ended.get(node, -9 if lost else None)

    def end(self) -> None:
        self._process.kill()
        self._told.close()
        self._process.wait()

    def _listen(self) -> None:
        said = self._told.read()
        *lines, self._rest = (self._rest + (said or b"")).split(b"\n")
        for line in lines:
            node, status = line.decode().split()
            self._ended[node] = int(status)
        if said == b"" or len(self._ended) == len(self.pids):
            self.end()


@dataclass(frozen=True)
class Agent:
    """An agent, as far as `subprocess.Popen` would show it."""

    node: str
    nursery: Nursery

    @property
    def pid(self) -> int:
        return self.nursery.pids[self.node]

    def poll(self) -> int | None:
        return self.nursery.status(self.node)

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.node, timeout)
            time.sleep(0.02)
        return status
