"""What the testbed needs from the machine, and whether it is there.

Each part of the kernel is tried in a nameless namespace that vanishes with the command, so trying
leaves nothing behind (and loads the module where there is one).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from prlc.errors import TestbedError
from prlc.testbed import shell
from prlc.testbed.topology import Topology

_REDIRECT = "u32 match u32 0 0 action mirred egress redirect dev lo"
_PASS_ALL = "bpf direct-action bytecode '1,6 0 0 4294967295'"


@dataclass(frozen=True)
class Need:
    """Something the testbed needs: what for, how to see that it is there, what to do if not."""

    what: str
    purpose: str
    remedy: str
    there: Callable[[], bool]
    only_if: Callable[[Topology], bool] | None = None  # which testbeds need it; None: all

    @property
    def always(self) -> bool:
        return self.only_if is None


def _tries(tool: str, *lines: str) -> Callable[[], bool]:
    def there() -> bool:
        try:
            shell.run(["unshare", "--net", tool, "-batch", "-"], "".join(f"{x}\n" for x in lines))
        except TestbedError:
            return False
        return True

    return there


def _on_path(tool: str) -> Callable[[], bool]:
    return lambda: shutil.which(tool) is not None


_TO_REMOVE, _TO_TRY = 3, 6
_MODULE = "load the kernel module {} or take another kernel"
_IPROUTE = "install iproute2"

NEEDS: tuple[Need, ...] = (
    # In this order: what removing takes, then what trying the rest takes.
    Need("Linux", "network namespaces", "run it on Linux", lambda: sys.platform == "linux"),
    Need("root", "making namespaces", "run it as root", lambda: os.geteuid() == 0),
    Need("ip", "making links", _IPROUTE, _on_path("ip")),
    Need("tc", "limiting them", _IPROUTE, _on_path("tc")),
    Need("unshare", "trying the kernel", "install util-linux", _on_path("unshare")),
    Need(
        "namespaces",
        "a network for each node",
        "allow it (a container needs the capabilities SYS_ADMIN and NET_ADMIN)",
        _tries("ip", "link set lo up"),
    ),
    Need(
        "veth",
        "links between namespaces",
        _MODULE.format("veth"),
        _tries("ip", "link add try0 type veth peer name try1"),
    ),
    Need(
        "bridge",
        "joining the links",
        _MODULE.format("bridge"),
        _tries("ip", "link add try0 type bridge"),
    ),
    Need(
        "htb",
        "equal shares of the bandwidth",
        _MODULE.format("sch_htb"),
        _tries("tc", "qdisc add dev lo root htb"),
    ),
    Need(
        "ifb",
        "one budget for many links",
        _MODULE.format("ifb"),
        _tries("ip", "link add try0 type ifb"),
    ),
    Need(
        "mirred",
        "turning traffic aside into it",
        _MODULE.format("act_mirred (with cls_u32 and sch_ingress)"),
        _tries("tc", "qdisc add dev lo ingress", f"filter add dev lo ingress {_REDIRECT}"),
    ),
    Need(
        "netem",
        "latency",
        "leave the latency at 0, or " + _MODULE.format("sch_netem"),
        _tries("tc", "qdisc add dev lo root netem delay 1ms"),
        lambda topology: topology.latency > 0,
    ),
    Need(
        "bpf",
        "loss",
        "leave the loss at 0, or " + _MODULE.format("cls_bpf"),
        _tries("tc", "qdisc add dev lo ingress", f"filter add dev lo ingress {_PASS_ALL}"),
        lambda topology: topology.loss > 0,
    ),
)


def survey() -> list[tuple[Need, bool | None]]:
    """Each need and whether it is met; None where that cannot be tried for want of another."""
    found: list[tuple[Need, bool | None]] = []
    for need in NEEDS:
        blocked = not all(there for _, there in found[:_TO_TRY])
        found.append((need, None if blocked else need.there()))
    return found


def needs_of(topology: Topology | None) -> list[Need]:
    """What a testbed needs; None: what it takes to remove one."""
    if topology is None:
        return list(NEEDS[:_TO_REMOVE])
    return [need for need in NEEDS if need.only_if is None or need.only_if(topology)]


def require(topology: Topology | None) -> None:
    """Refuse, in one sentence, if this machine lacks something."""
    for need in needs_of(topology):
        if not need.there():
            raise TestbedError(
                f"The testbed needs {need.what} for {need.purpose}, which is missing here: "
                f"{need.remedy}."
            )
