"""A testbed as a context manager, and the processes that run on its nodes."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from prlc.errors import TestbedError
from prlc.testbed import cleanup, machine, wiring
from prlc.testbed.topology import Node, Topology

_POLL_SECONDS = 0.05


class Testbed:
    """A server and workers, each in its own network namespace, on links with limits.

    It exists inside its `with` block and is gone afterwards, whatever happens. `bandwidth` is
    payload bytes/s at the server, in each direction or, with `half_duplex`, in both together;
    `latency` is one way, in seconds; `loss` is a fraction of packets.
    """

    def __init__(
        self,
        workers: int = 20,
        bandwidth: float = 100e6,
        half_duplex: bool = False,
        latency: float = 0.0,
        loss: float = 0.0,
        name: str | None = None,
    ) -> None:
        self.topology = Topology(
            name or secrets.token_hex(4), workers, bandwidth, half_duplex, latency, loss
        )
        self.nodes = self.topology.nodes
        self.server, *others = self.nodes
        self.workers: tuple[Node, ...] = tuple(others)
        self._record: cleanup.Record | None = None
        self._signals = cleanup.EndingSignals()
        self._started: list[Processes] = []

    def __enter__(self) -> Testbed:
        machine.require(self.topology)
        self._signals.become_exceptions()
        try:
            self._record = cleanup.claim(self.topology.name)
            with machine.marking(self.topology.name):
                for step in wiring.setup(self.topology):
                    step.run()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes and remove everything. May be called twice."""
        try:
            with self._signals.ignored():
                for processes in self._started:
                    processes.stop()
                self._started.clear()
                if self._record is not None:
                    cleanup.remove(self._record)
                    self._record = None
        finally:
            self._signals.restore()

    def start(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, Mapping[str, str]] | None = None,
        *,
        logs: Path | str,
    ) -> Processes:
        """Start a command on each named node; its output goes to NODE.log in the folder `logs`.

        `environment` adds variables, by node, to those of this process.
        """
        self.require_open()
        nodes = {name: self._node(name) for name in commands}
        added = environment or {}
        folder = Path(logs)
        started: list[NodeProcess] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, command in commands.items():
                own = machine.marked(self.topology.name) | dict(added.get(name, {}))
                started.append(_start(nodes[name], command, own, folder))
        except BaseException as error:
            Processes(started).stop()
            if isinstance(error, OSError):
                raise TestbedError(
                    f"Cannot start commands with logs in {folder}: {error.strerror}."
                ) from None
            raise
        return self.adopt(Processes(started))

    def require_open(self) -> None:
        """Raise TestbedError outside the `with` block."""
        if self._record is None:
            raise TestbedError("The testbed is not open: start commands inside its `with` block.")

    def adopt(self, processes: Processes) -> Processes:
        """Stop these processes, too, when the testbed closes."""
        self._started.append(processes)
        return processes

    def interface_bytes(self, node: Node) -> tuple[int, int]:
        """Bytes a node has received and sent over the server's link, headers included.

        Counted where the limits are: the interfaces' own counters see several frames that the
        kernel passes on together as one, with one header.
        """
        counted: dict[tuple[str, str], int] = {}
        for device in dict.fromkeys(wiring.limiting_devices(self.topology)):
            namespace = self.topology.namespace("bridge")
            text = machine.run(["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device])
            for queue in json.loads(text):
                counted[device, queue.get("parent", "")] = queue["bytes"]
        received, sent = wiring.counters(self.topology, node)
        return sum(counted[each] for each in received), sum(counted[each] for each in sent)

    def _node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise TestbedError(
            f"The testbed has no node {name!r}; its nodes are server and w00 to "
            f"{self.nodes[-1].name}."
        )


# -- processes ------------------------------------------------------------------------------------


class Process(Protocol):
    """The part of `subprocess.Popen` that is needed here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...


@dataclass(frozen=True)
class NodeProcess:
    """The process on a node, the leader of its own process group, and its log."""

    node: Node
    process: Process
    log: Path

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Processes:
    """Processes that were started together, by node."""

    def __init__(self, started: Sequence[NodeProcess]) -> None:
        self._by_name = {each.node.name: each for each in started}

    def __getitem__(self, name: str) -> NodeProcess:
        return self._by_name[name]

    def exit_codes(self) -> dict[str, int | None]:
        """By node; None while it runs, minus the signal's number if a signal ended it."""
        return {name: each.process.poll() for name, each in self._by_name.items()}

    def wait(
        self,
        timeout: float | None = None,
        grace: float = 30.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until all have ended; raise TestbedError, naming the nodes, if any failed.

        Once one has failed, the others have `grace` seconds to end by themselves before they are
        stopped. `meanwhile` is called repeatedly.
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
                    f"After {timeout:g} s {_listed(running)} still ran and had to be stopped. "
                    f"The output is in {self[running[0]].log}."
                )
            meanwhile()
            time.sleep(_POLL_SECONDS)
        self.stop()
        meanwhile()
        if failed := {name: code for name, code in codes.items() if code}:
            first = min(failed, key=lambda name: self[name].log.stat().st_mtime)
            raise TestbedError(
                f"The command failed on {_listed(list(failed))} (exit status {failed[first]} on "
                f"{first}). Its output is in {self[first].log}."
            )

    def stop(self, grace: float = 5.0) -> None:
        """Ask all that still run to end; kill them after `grace` seconds."""
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            running = [each for each in self._by_name.values() if each.process.poll() is None]
            for each in running:
                each.send(number)
            deadline = time.monotonic() + seconds
            for each in running:
                with suppress(subprocess.TimeoutExpired):
                    each.process.wait(max(deadline - time.monotonic(), 0.0))


def _start(
    node: Node, command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> NodeProcess:
    log = folder / f"{node.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            machine.inside(node.namespace, command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return NodeProcess(node, process, log)


def _listed(names: Sequence[str]) -> str:
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more nodes"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
