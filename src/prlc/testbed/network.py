"""A testbed as a context: there inside the `with`, gone after it, whatever happens."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from prlc.errors import TestbedError
from prlc.testbed import check, limits, plan, records, removal, shell
from prlc.testbed.launch import Processes, start
from prlc.testbed.signals import Signals
from prlc.testbed.topology import Node, Topology

# Writes "file value file value ..." below /proc/sys/net; a file that is not there needs no writing.
_WRITE = (
    'while [ $# -gt 0 ]; do f="/proc/sys/net/$1"; [ ! -e "$f" ] || echo "$2" > "$f"; shift 2; done'
)


class Testbed:
    """A server and workers, each in a network namespace, on links with limits.

    `bandwidth` is payload bytes/s at the server, in each direction or, with `half_duplex`, in both
    together; `latency` is one way, in seconds; `loss` is a fraction of packets.
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
        self._record: records.Record | None = None
        self._signals = Signals()
        self._started: list[Processes] = []

    def __enter__(self) -> Testbed:
        check.require(self.topology)
        self._signals.become_exceptions()
        try:
            self._record = records.claim(self.topology.name)
            for step in plan.commands(self.topology):
                _do(step)
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
        """Stop what runs, remove everything. May be called twice."""
        try:
            with self._signals.held_back():
                for processes in self._started:
                    processes.stop()
                self._started.clear()
                if self._record is not None:
                    removal.remove(self._record)
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
        self.must_be_there()
        return self.adopt(start(self._named(commands), environment or {}, Path(logs)))

    def must_be_there(self) -> None:
        if self._record is None:
            raise TestbedError("The testbed is not there: start commands inside its `with`.")

    def adopt(self, processes: Processes) -> Processes:
        """Stop these, too, before the testbed goes."""
        self._started.append(processes)
        return processes

    def interface_bytes(self, node: Node) -> tuple[int, int]:
        """Bytes that a node has received and sent over the server's link, frames with headers.

        Counted where the limits are: the interfaces' own counters take several frames that the
        kernel passes on together for one, with one header.
        """
        counted: dict[tuple[str, str], int] = {}
        for device in dict.fromkeys(limits.devices(self.topology)):
            namespace = self.topology.namespace("bridge")
            text = shell.run(["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device])
            for queue in json.loads(text):
                counted[device, queue.get("parent", "")] = queue["bytes"]
        received, sent = (
            sum(counted[leaf] for leaf in leaves) for leaves in limits.leaves(self.topology, node)
        )
        return received, sent

    def _named(self, commands: Mapping[str, Sequence[str]]) -> dict[Node, Sequence[str]]:
        nodes = {node.name: node for node in self.nodes}
        for name in commands:
            if name not in nodes:
                raise TestbedError(
                    f"The testbed has no node {name!r}; its nodes are server and w00 to "
                    f"{self.nodes[-1].name}."
                )
        return {nodes[name]: command for name, command in commands.items()}


def _do(step: shell.Batch | plan.Kernel) -> None:
    if isinstance(step, shell.Batch):
        shell.work_off(step)
        return
    words = [word for pair in step.values.items() for word in pair]
    shell.run(shell.inside(step.namespace, ["sh", "-ec", _WRITE, "sh", *words]))
