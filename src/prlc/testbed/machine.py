"""This machine: running `ip` and `tc` on it, and checking that it has what a testbed needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from prlc.errors import TestbedError
from prlc.testbed.topology import Topology

# -- running commands -----------------------------------------------------------------------------

# Writes "file value file value ..." below /proc/sys/net, skipping files that do not exist.
_WRITE = (
    'while [ $# -gt 0 ]; do f="/proc/sys/net/$1"; [ ! -e "$f" ] || echo "$2" > "$f"; shift 2; done'
)


_MARK = "PRLC_TESTBED"  # in the environment of all that belongs to a testbed
_LOOKS_AGAIN, _BETWEEN_LOOKS = 10, 0.001  # seconds


def marked(name: str) -> dict[str, str]:
    """The environment of a process that belongs to a testbed, wherever it runs."""
    return {**os.environ, _MARK: name}


@contextmanager
def marking(name: str) -> Iterator[None]:
    """Mark everything that this process starts meanwhile."""
    os.environ[_MARK] = name
    try:
        yield
    finally:
        del os.environ[_MARK]


def processes_marked(name: str) -> list[int]:
    """The processes that belong to a testbed, in a namespace of its own or not yet."""
    found, mark = [], f"{_MARK}={name}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):  # gone meanwhile, or somebody else's
                if mark in _environment(folder).split(b"\0"):
                    found.append(int(folder.name))
    return found


def _environment(process: Path) -> bytes:
    """A process's environment; while it starts a program it seems to have none for a moment."""
    content = (process / "environ").read_bytes()
    for _ in range(_LOOKS_AGAIN):
        if content:
            break
        (process / "exe").readlink()  # fails for the kernel's own, and for who has ended
        time.sleep(_BETWEEN_LOOKS)
        content = (process / "environ").read_bytes()
    return content


def run(command: Sequence[str], given: str = "") -> str:
    """Run a command that must succeed, with `given` as its input, and return its output.

    It runs in its own session, so that Ctrl-C does not interrupt it halfway.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            text=True,
            capture_output=True,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise TestbedError(
            f"`{command[0]}` cannot be run: {error.strerror}. The testbed needs iproute2 (ip, tc) "
            "and util-linux (unshare); install them."
        ) from None
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise TestbedError(
            f"`{_shortened(' '.join(command))}` failed: {said.splitlines()[0].rstrip('.')}. "
            "`prlc testbed --check` says what this machine lacks."
        )
    return done.stdout


@dataclass(frozen=True)
class Script:
    """Lines for one `ip` or `tc` process, inside a namespace (None: inside none)."""

    tool: str
    namespace: str | None
    lines: tuple[str, ...]

    def run(self) -> None:
        """Run the lines, up to the first that fails."""
        if self.lines:
            where = [] if self.namespace is None else ["-n", self.namespace]
            run([self.tool, *where, "-batch", "-"], _joined(self.lines))


@dataclass(frozen=True)
class Sysctls:
    """Kernel settings of a namespace: files below /proc/sys/net and their values."""

    namespace: str
    values: Mapping[str, str]

    def run(self) -> None:
        """Write the values."""
        words = [word for pair in self.values.items() for word in pair]
        run(inside(self.namespace, ["sh", "-ec", _WRITE, "sh", *words]))


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command that runs `command` inside a namespace, in the same process."""
    return ["ip", "netns", "exec", namespace, *command]


def namespaces() -> list[str]:
    """All named network namespaces of the machine, including those of other programs."""
    return [line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line.strip()]


def processes_in(namespace: str) -> list[int]:
    """The ids of the processes in a namespace."""
    return [int(pid) for pid in run(["ip", "netns", "pids", namespace]).split()]


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."


# -- requirements ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requirement:
    """Something a testbed needs: what for, whether the machine has it, what to do if not."""

    name: str
    purpose: str
    remedy: str
    is_met: Callable[[], bool]
    only_if: Callable[[Topology], bool] | None = None  # which testbeds need it; None: all

    @property
    def always(self) -> bool:
        return self.only_if is None


def _probe(tool: str, *lines: str) -> Callable[[], bool]:
    """Try the lines in an unnamed namespace.

    It vanishes with the command, so nothing is left behind; a missing kernel module is loaded.
    """

    def is_met() -> bool:
        try:
            run(["unshare", "--net", tool, "-batch", "-"], _joined(lines))
        except TestbedError:
            return False
        return True

    return is_met


def _on_path(tool: str) -> Callable[[], bool]:
    return lambda: shutil.which(tool) is not None


_REDIRECT = "u32 match u32 0 0 action mirred egress redirect dev lo"
_PASS_ALL = "bpf direct-action bytecode '1,6 0 0 4294967295'"
_MODULE = "load the kernel module {} or use another kernel"
_IPROUTE = "install iproute2"

# In this order: what removing a testbed takes, then what probing the kernel takes, then the rest.
_TO_REMOVE, _TO_PROBE = 3, 6
REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement("Linux", "network namespaces", "run it on Linux", lambda: sys.platform == "linux"),
    Requirement("root", "creating namespaces", "run it as root", lambda: os.geteuid() == 0),
    Requirement("ip", "creating links", _IPROUTE, _on_path("ip")),
    Requirement("tc", "limiting links", _IPROUTE, _on_path("tc")),
    Requirement("unshare", "probing the kernel", "install util-linux", _on_path("unshare")),
    Requirement(
        "namespaces",
        "a network for each node",
        "allow it (a container needs the capabilities SYS_ADMIN and NET_ADMIN)",
        _probe("ip", "link set lo up"),
    ),
    Requirement(
        "veth",
        "links between namespaces",
        _MODULE.format("veth"),
        _probe("ip", "link add try0 type veth peer name try1"),
    ),
    Requirement(
        "bridge",
        "joining the links",
        _MODULE.format("bridge"),
        _probe("ip", "link add try0 type bridge"),
    ),
    Requirement(
        "htb",
        "equal shares of the bandwidth",
        _MODULE.format("sch_htb"),
        _probe("tc", "qdisc add dev lo root htb"),
    ),
    Requirement(
        "ifb",
        "one budget for many links",
        _MODULE.format("ifb"),
        _probe("ip", "link add try0 type ifb"),
    ),
    Requirement(
        "mirred",
        "redirecting traffic to it",
        _MODULE.format("act_mirred (with cls_u32 and sch_ingress)"),
        _probe("tc", "qdisc add dev lo ingress", f"filter add dev lo ingress {_REDIRECT}"),
    ),
    Requirement(
        "netem",
        "latency",
        "leave the latency at 0, or " + _MODULE.format("sch_netem"),
        _probe("tc", "qdisc add dev lo root netem delay 1ms"),
        lambda topology: topology.latency > 0,
    ),
    Requirement(
        "bpf",
        "loss",
        "leave the loss at 0, or " + _MODULE.format("cls_bpf"),
        _probe("tc", "qdisc add dev lo ingress", f"filter add dev lo ingress {_PASS_ALL}"),
        lambda topology: topology.loss > 0,
    ),
)


def check_machine() -> list[tuple[Requirement, bool | None]]:
    """Each requirement and whether it is met; None if that cannot be probed on this machine."""
    found: list[tuple[Requirement, bool | None]] = []
    for requirement in REQUIREMENTS:
        blocked = not all(met for _, met in found[:_TO_PROBE])
        found.append((requirement, None if blocked else requirement.is_met()))
    return found


def requirements_of(topology: Topology | None) -> list[Requirement]:
    """What a testbed needs; None: what removing one needs."""
    if topology is None:
        return list(REQUIREMENTS[:_TO_REMOVE])
    return [each for each in REQUIREMENTS if each.only_if is None or each.only_if(topology)]


def require(topology: Topology | None) -> None:
    """Raise TestbedError if this machine lacks something (None: to remove a testbed)."""
    for requirement in requirements_of(topology):
        if not requirement.is_met():
            raise TestbedError(
                f"The testbed needs {requirement.name} for {requirement.purpose}, which is missing "
                f"here: {requirement.remedy}."
            )
