"""The commands that make a testbed, as pure data in the order in which they run.

No interface is ever in the machine's own namespace: both ends of a link are made where they stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prlc.testbed import limits
from prlc.testbed.shell import Batch
from prlc.testbed.topology import INTERFACE, NETWORK, Node, Topology

BRIDGE = "br0"
_BUFFER = 6 << 20  # bytes; the kernel's usual limit for a socket


@dataclass(frozen=True)
class Kernel:
    """Settings of a namespace: files under /proc/sys/net and what to write there."""

    namespace: str
    values: Mapping[str, str]


def commands(topology: Topology) -> list[Batch | Kernel]:
    """All that makes the testbed."""
    bridge = topology.namespace("bridge")
    made = tuple(f"netns add {namespace}" for namespace in topology.namespaces)
    steps: list[Batch | Kernel] = [
        Batch("ip", None, made),
        # A bridge that asks the firewall makes the kernel forget which socket a packet is from.
        Kernel(bridge, {"bridge/bridge-nf-call-iptables": "0"}),
        Batch("ip", bridge, tuple(_links(topology))),
        Batch("tc", bridge, (*limits.bandwidth(topology), *limits.latency(topology))),
    ]
    for node in topology.nodes:
        steps += [
            Batch("ip", node.namespace, tuple(_interface(topology, node))),
            Batch("tc", node.namespace, tuple(limits.loss(topology))),
            Kernel(node.namespace, _tcp(topology)),
        ]
    return steps


def _links(topology: Topology) -> list[str]:
    lines = [
        f"link add dev {BRIDGE} mtu {topology.mtu} type bridge stp_state 0 mcast_snooping 0",
        f"link set dev {BRIDGE} addrgenmode none up",
    ]
    for node in topology.nodes:
        peer = f"peer name {INTERFACE} mtu {topology.mtu} netns {node.namespace}"
        lines += [
            f"link add dev {node.port} mtu {topology.mtu} type veth {peer}",
            f"link set dev {node.port} addrgenmode none master {BRIDGE} up",
        ]
    for device in dict.fromkeys(limits.devices(topology)):
        lines += [
            f"link add dev {device} mtu {topology.mtu} type ifb",
            f"link set dev {device} addrgenmode none up",
        ]
    return lines


def _interface(topology: Topology, node: Node) -> list[str]:
    """A node's own settings; there is no route but to the other nodes.

    Connections begin with some 15 kB under way, as they do elsewhere, not with ten long packets.
    """
    frames = limits.frames_at_once(topology)
    first = max(15_000 // topology.mtu, 2)
    return [
        "link set dev lo up",
        f"link set dev {INTERFACE} addrgenmode none gso_max_segs {frames}",
        f"address add {node.address}/16 dev {INTERFACE} noprefixroute",
        f"link set dev {INTERFACE} up",
        f"route add {NETWORK} dev {INTERFACE} src {node.address} initcwnd {first}",
    ]


def _tcp(topology: Topology) -> dict[str, str]:
    """The same TCP on every machine.

    Reno is in every kernel and takes what the link gives it; some others (BBR) pace themselves
    below their share. Buffers hold twice what is under way during a round trip.
    """
    room = max(_BUFFER, round(4 * topology.bandwidth * topology.latency))
    return {
        "ipv4/tcp_congestion_control": "reno",
        "ipv4/tcp_rmem": f"4096 131072 {room}",
        "ipv4/tcp_wmem": f"4096 16384 {room}",
    }
