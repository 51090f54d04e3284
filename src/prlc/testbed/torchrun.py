"""Running a program on all nodes by torchrun: an agent on each node, one process per agent.

Rank 0 is the server and rank i is worker i-1, also after a restart: the rendezvous numbers nodes in
the order of their addresses.

Loading torch takes seconds of a core. With an agent and a process on each of 21 nodes, that is most
of the time until a run begins, so one process loads torch and forks all agents: half as long.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from prlc.errors import TestbedError
from prlc.testbed import machine
from prlc.testbed.testbed import NodeProcess, Processes, Testbed
from prlc.testbed.topology import INTERFACE, Node, Topology

_PORT = 29400
_TIMEOUT = 600  # seconds that agents wait for each other: many load torch on few cores


def start(
    bed: Testbed, argv: Sequence[str], *, logs: Path | str, max_restarts: int = 0
) -> Processes:
    """Start a program with its arguments on every node; each node's output goes to NODE.log."""
    bed.require_open()
    folder = Path(logs).absolute()
    files = {node: folder / f"{node.name}.log" for node in bed.nodes}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files.values():
            file.write_bytes(b"")
    except OSError as error:
        raise TestbedError(f"Cannot keep logs in {folder}: {error.strerror}.") from None
    specs = [
        AgentSpec(
            node.name,
            node.namespace,
            arguments(bed.topology, node, argv, notes=folder / "torchrun", restarts=max_restarts),
            str(file),
        )
        for node, file in files.items()
    ]
    forker = Forker(specs, machine.marked(bed.topology.name) | environment())
    agents = [NodeProcess(node, Agent(node.name, forker), file) for node, file in files.items()]
    return bed.adopt(Processes(agents))


def arguments(
    topology: Topology, node: Node, argv: Sequence[str], *, notes: Path, restarts: int = 0
) -> list[str]:
    """torchrun's arguments on a node; the errors of its processes go to the folder `notes`."""
    server = topology.nodes[0]
    settings = {
        "is_host": int(node == server),
        "read_timeout": _TIMEOUT,
        "join_timeout": _TIMEOUT,
        "keep_alive_interval": 10,
        "keep_alive_max_attempt": 6,  # a node counts as dead after so many without a sign
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
    """Environment variables for agents and their processes, on any node.

    By default all attempts share one store, in which processes look under the number of the
    attempt. But an agent whose own process did not fail does not count the restart, so afterwards
    processes would look in different places and never meet. A store for each attempt avoids that.
    """
    return {
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # Otherwise it warns that the nodes' addresses have no names.
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


# -- agents, as seen from here --------------------------------------------------------------------


@dataclass(frozen=True)
class AgentSpec:
    """An agent to start: its node, torchrun's arguments and its log."""

    node: str
    namespace: str
    arguments: Sequence[str]
    log: str


class Forker:
    """The process that forks the agents (see `fork_agents`), and what it reports of them."""

    def __init__(self, specs: Sequence[AgentSpec], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import fork_agents; fork_agents()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._reports = self._process.stdout
        self._unfinished = b""  # the beginning of a line
        self._exit_codes: dict[str, int] = {}
        try:
            with self._process.stdin as given:
                given.write(json.dumps([asdict(spec) for spec in specs]).encode())
            lines = [self._reports.readline().decode().split() for _ in specs]
            self.pids = {node: int(pid) for node, pid in lines}
        except (OSError, ValueError):
            self.end()
            raise TestbedError(
                "torchrun's agents could not be started. The error is printed above."
            ) from None
        except BaseException:
            self.end()
            raise
        os.set_blocking(self._reports.fileno(), False)

    def exit_code(self, node: str) -> int | None:
        """None while the agent runs; -9 if it was lost because the forking process died."""
        if self._process.returncode is None:
            self._read_reports()
        lost = self._process.returncode is not None
        return self._exit_codes.get(node, -9 if lost else None)

    def end(self) -> None:
        self._process.kill()
        self._reports.close()
        self._process.wait()

    def _read_reports(self) -> None:
        read = self._reports.read()
        *lines, self._unfinished = (self._unfinished + (read or b"")).split(b"\n")
        for line in lines:
            node, code = line.decode().split()
            self._exit_codes[node] = int(code)
        if read == b"" or len(self._exit_codes) == len(self.pids):
            self.end()


@dataclass(frozen=True)
class Agent:
    """An agent, with the part of `subprocess.Popen` that `Processes` needs."""

    node: str
    forker: Forker

    @property
    def pid(self) -> int:
        return self.forker.pids[self.node]

    def poll(self) -> int | None:
        return self.forker.exit_code(self.node)

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.node, timeout)
            time.sleep(0.02)
        return code


# -- in the forking process -----------------------------------------------------------------------

_NAMESPACES = Path("/var/run/netns")  # where `ip netns` keeps them
_CLONE_NEWNET = 0x40000000


def fork_agents() -> None:
    """Read agents as JSON; print "NODE PID" for each, then "NODE EXIT_CODE" as each one ends."""
    from torch.distributed.run import main  # the slow part, once for all

    agents = {}
    with suppress(BrokenPipeError):  # the reader is gone
        for spec in (AgentSpec(**given) for given in json.load(sys.stdin)):
            pid = os.fork()
            if pid == 0:
                _become(spec, main)
            agents[pid] = spec.node
            print(spec.node, pid, flush=True)
        while agents:
            pid, status = os.wait()
            print(agents.pop(pid), os.waitstatus_to_exitcode(status), flush=True)


def _become(spec: AgentSpec, torchrun: Callable[[Sequence[str]], object]) -> NoReturn:
    """Turn this process into an agent on its node."""
    code: object = 1
    try:
        os.setsid()
        with Path(spec.log).open("wb") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        with (_NAMESPACES / spec.namespace).open("rb") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "the namespace cannot be entered")
        torchrun(list(spec.arguments))
        code = 0
    except SystemExit as ending:
        code = ending.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
