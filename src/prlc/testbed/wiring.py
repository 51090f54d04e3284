"""The wiring of a testbed: what `ip` and `tc` are told, as pure data in the order in which it runs.

No interface ever appears in the machine's own namespace: both ends of a link are created where they
stay. The server's link is shared max-min fairly, as in `prlc.network.links`: all traffic to and
from the server is redirected into an ifb device in the bridge's namespace, where an htb qdisc hands
out the bandwidth. There is one such device for each direction or, on a half-duplex link, one for
both. Three choices are not obvious:

- Each worker has its own class in each direction. Its guaranteed rate is next to nothing and its
  ceiling the whole bandwidth, so all it gets is borrowed from the one budget, in turns. Guaranteed
  shares would each come with a burst: after a pause, twenty bursts would pass at once, and a small
  model would travel for free.
- Traffic is redirected where it enters the bridge, not where it leaves. Only there does the kernel
  still know which socket sent a packet, and keeps that socket from queueing megabytes. With short
  queues, acknowledgements do not wait behind data going the same way.
- Bandwidth counts payload; the rate of the htb includes the headers of full frames.
"""

from __future__ import annotations

from prlc.testbed.machine import Script, Sysctls
from prlc.testbed.topology import HEADERS, INTERFACE, NETWORK, Node, Topology

_BRIDGE = "br0"
_SOCKET_BUFFER = 6 << 20  # bytes; the kernel's usual limit for a socket
_BURST = 0.5e-3  # seconds at full rate that may be caught up on when the kernel was late
_PACKET = 0.4e-3  # seconds at full rate that may pass as one packet
_MOST_FRAMES = 7  # that fit into the kernel's 64 KiB packets
_QUEUE = 10_000  # packets in a class: more than sockets can have in flight, so none is dropped
_UP, _DOWN = 0x1000, 0x2000  # class numbers; the worker's rank is added


def setup(topology: Topology) -> list[Script | Sysctls]:
    """Everything that creates the testbed."""
    bridge = topology.namespace("bridge")
    steps: list[Script | Sysctls] = [
        Script("ip", None, tuple(f"netns add {name}" for name in topology.namespaces)),
        # A bridge that consults the firewall makes the kernel forget a packet's socket.
        Sysctls(bridge, {"bridge/bridge-nf-call-iptables": "0"}),
        Script("ip", bridge, tuple(_links(topology))),
        Script("tc", bridge, (*limit_bandwidth(topology), *delay_packets(topology))),
    ]
    for node in topology.nodes:
        steps += [
            Script("ip", node.namespace, tuple(_interface(topology, node))),
            Script("tc", node.namespace, tuple(drop_packets(topology))),
            Sysctls(node.namespace, _tcp(topology)),
        ]
    return steps


# -- links and interfaces -------------------------------------------------------------------------


def _links(topology: Topology) -> list[str]:
    lines = [
        f"link add dev {_BRIDGE} mtu {topology.mtu} type bridge stp_state 0 mcast_snooping 0",
        f"link set dev {_BRIDGE} addrgenmode none up",
    ]
    for node in topology.nodes:
        peer = f"peer name {INTERFACE} mtu {topology.mtu} netns {node.namespace}"
        lines += [
            f"link add dev {node.port} mtu {topology.mtu} type veth {peer}",
            f"link set dev {node.port} addrgenmode none master {_BRIDGE} up",
        ]
    for device in dict.fromkeys(limiting_devices(topology)):
        lines += [
            f"link add dev {device} mtu {topology.mtu} type ifb",
            f"link set dev {device} addrgenmode none up",
        ]
    return lines


def _interface(topology: Topology, node: Node) -> list[str]:
    """A node's own interface; its only route is to the other nodes.

    Connections start with some 15 kB in flight, as usual, not with ten long packets.
    """
    first = max(15_000 // topology.mtu, 2)
    return [
        "link set dev lo up",
        f"link set dev {INTERFACE} addrgenmode none gso_max_segs {frames_per_packet(topology)}",
        f"address add {node.address}/16 dev {INTERFACE} noprefixroute",
        f"link set dev {INTERFACE} up",
        f"route add {NETWORK} dev {INTERFACE} src {node.address} initcwnd {first}",
    ]


def _tcp(topology: Topology) -> dict[str, str]:
    """The same TCP on every machine.

    Every kernel has Reno, and it takes what the link gives; some others (BBR) pace themselves below
    their share. Buffers hold twice what is in flight during a round trip.
    """
    size = max(_SOCKET_BUFFER, round(4 * topology.bandwidth * topology.latency))
    return {
        "ipv4/tcp_congestion_control": "reno",
        "ipv4/tcp_rmem": f"4096 131072 {size}",
        "ipv4/tcp_wmem": f"4096 16384 {size}",
    }


# -- bandwidth ------------------------------------------------------------------------------------


def limiting_devices(topology: Topology) -> tuple[str, str]:
    """The devices that limit traffic up to the server, and down from it."""
    return ("limit", "limit") if topology.half_duplex else ("limit-up", "limit-down")


def frames_per_packet(topology: Topology) -> int:
    """How many frames the kernel may pass on as one packet.

    More take less time to handle; fewer share the link more finely. Loss must hit single frames.
    """
    if topology.loss > 0:
        return 1
    return min(max(round(topology.bandwidth * _PACKET / topology.frame), 1), _MOST_FRAMES)


def wire_rate(topology: Topology) -> int:
    """Bits/s on the wire, headers included."""
    return round(8 * topology.bandwidth * topology.frame / (topology.frame - HEADERS))


def limit_bandwidth(topology: Topology) -> list[str]:
    """Lines for `tc` in the bridge's namespace."""
    server, *workers = topology.nodes
    up, down = limiting_devices(topology)
    lines = []
    for device in dict.fromkeys((up, down)):
        lines += _budget(topology, device)
    for worker in workers:
        lines += _share(topology, up, _UP + worker.rank, f"src {worker.address}")
        lines += _share(topology, down, _DOWN + worker.rank, f"dst {worker.address}")
        lines += _redirect(worker, f"ip dst {server.address}", up)
    return [*lines, *_redirect(server, "u32 0 0", down)]


def counters(topology: Topology, node: Node) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The (device, class) pairs that count what a node receives, and what it sends."""
    up, down = limiting_devices(topology)
    workers = [node] if node.rank else topology.nodes[1:]
    ups = [(up, f"1:{_UP + worker.rank:x}") for worker in workers]
    downs = [(down, f"1:{_DOWN + worker.rank:x}") for worker in workers]
    return (downs, ups) if node.rank else (ups, downs)


def _budget(topology: Topology, device: str) -> list[str]:
    return [
        f"qdisc add dev {device} root handle 1: htb",
        f"class add dev {device} parent 1: classid 1:1 htb rate {wire_rate(topology)}bit "
        f"burst {_burst(topology)} {_ceiling(topology)}",
    ]


def _share(topology: Topology, device: str, number: int, match: str) -> list[str]:
    return [
        f"class add dev {device} parent 1:1 classid 1:{number:x} htb rate 1kbit burst 1000 "
        f"{_ceiling(topology)}",
        f"qdisc add dev {device} parent 1:{number:x} pfifo limit {_QUEUE}",
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 match ip {match}/32 "
        f"flowid 1:{number:x}",
    ]


def _ceiling(topology: Topology) -> str:
    """The most a class gets, and its turn: as many bytes as the largest packet has."""
    quantum = topology.frame * frames_per_packet(topology)
    return f"ceil {wire_rate(topology)}bit cburst {_burst(topology)} quantum {quantum}"


def _burst(topology: Topology) -> int:
    return max(topology.frame, round(wire_rate(topology) / 8 * _BURST))


def _redirect(node: Node, match: str, device: str) -> list[str]:
    return [
        f"qdisc add dev {node.port} ingress",
        f"filter add dev {node.port} ingress protocol ip prio 1 u32 match {match} "
        f"action mirred egress redirect dev {device}",
    ]


# -- latency and loss -----------------------------------------------------------------------------


def delay_packets(topology: Topology) -> list[str]:
    """Lines for `tc` in the bridge's namespace: each port delays what it hands to its node.

    This comes after the limits, so a delayed packet no longer occupies a queue there.
    """
    if topology.latency == 0:
        return []
    in_flight = topology.bandwidth * topology.latency / topology.mtu
    delay = f"netem delay {round(topology.latency * 1e6)}us limit {1000 + 4 * round(in_flight)}"
    return [f"qdisc add dev {node.port} root {delay}" for node in topology.nodes]


def drop_packets(topology: Topology) -> list[str]:
    """Lines for `tc` in a node's namespace: arriving packets are dropped at random.

    Four instructions of the kernel's packet filter: draw 32 random bits; if they are below the
    fraction to lose, drop the packet; else go on.
    """
    if topology.loss == 0:
        return []
    below = round(topology.loss * 2**32)
    program = f"4,32 0 0 4294963256,53 0 1 {below},6 0 0 4294967295,6 0 0 2"
    return [
        f"qdisc add dev {INTERFACE} ingress",
        f"filter add dev {INTERFACE} ingress prio 1 bpf direct-action bytecode '{program}'",
    ]
