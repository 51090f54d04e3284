"""Joining the nodes by torchrun's rendezvous: an agent on each, one process each.

Rank 0 is the server and rank i worker i-1, also after a restart: the rendezvous numbers nodes in
the order of their addresses.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from prlc.errors import TestbedError
from prlc.testbed.agents import Agent, Job, Nursery
from prlc.testbed.launch import Processes, Started
from prlc.testbed.network import Testbed
from prlc.testbed.topology import INTERFACE, Node, Topology

_PORT = 29400
_PATIENCE = 600  # seconds that agents wait for each other: many load torch on few cores


def start(
    bed: Testbed, argv: Sequence[str], *, logs: Path | str, max_restarts: int = 0
) -> Processes:
    """Start a program with its arguments on every node; each node's output goes to NODE.log."""
    bed.must_be_there()
    folder = Path(logs).absolute()
    files = {node: folder / f"{node.name}.log" for node in bed.nodes}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files.values():
            file.write_bytes(b"")
    except OSError as error:
        raise TestbedError(f"Cannot keep logs in {folder}: {error.strerror}.") from None
    notes = folder / "torchrun"
    jobs = [
        Job(
            node.name,
            node.namespace,
            arguments(bed.topology, node, argv, notes=notes, restarts=max_restarts),
            str(file),
        )
        for node, file in files.items()
    ]
    nursery = Nursery(jobs, environment())
    started = [Started(node, Agent(node.name, nursery), file) for node, file in files.items()]
    return bed.adopt(Processes(started))


def arguments(
    topology: Topology, node: Node, argv: Sequence[str], *, notes: Path, restarts: int = 0
) -> list[str]:
    """Of torchrun on one node; agents leave the errors of their processes in the folder `notes`."""
    server = topology.nodes[0]
    settings = {
        "is_host": int(node == server),
        "read_timeout": _PATIENCE,
        "join_timeout": _PATIENCE,
        "keep_alive_interval": 10,  # a node counts as dead after six of them
        "keep_alive_max_attempt": 6,
    }
    return [
        f"--nnodes={len(topology.nodes)}",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={server.address}:{_PORT}",
        f"--rdzv-id={topology.name}",
        "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in settings.items()),
        f"--local-addr={node.address}",
        f"--max-restarts={restarts}",
        f"--log-dir={notes}",
        "--no-python",
        *argv,
    ]


def environment() -> dict[str, str]:
    """What agents and processes need to know on any node.

    torchrun would have all attempts share one store, where processes look under the number of the
    attempt; but an agent whose own process did not fail does not count a restart, so after one they
    would look in different places and never meet. With a store for each attempt they do.
    """
    return {
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # It would warn that the nodes' addresses have no names.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }
