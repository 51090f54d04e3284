"""What `tc` is told so that the server's link is shared as `prlc.links` says: max-min fairly.

Everything that the server sends, and everything that is sent to it, is turned aside into a device
of the bridge's namespace (an ifb) where an htb hands out the bandwidth: a device for each
direction, or, for a half-duplex link, one for both. What is not obvious:

- Each worker has a class of its own in each direction. Its guaranteed rate is next to nothing and
  its ceiling the whole bandwidth, so all that it gets is borrowed from the one budget, in turns. A
  guaranteed share would come with a burst of its own; after a pause twenty such bursts pass at
  once, and a small model would travel for free.
- Traffic is turned aside where it enters the bridge, not where it leaves it. Only there the kernel
  still knows which socket a packet came from, and stops that socket from queueing megabytes. With
  short queues, acknowledgements are not held up by data going the same way.
- Bandwidth counts payload; the rate of the htb includes the headers of full frames.
"""

from __future__ import annotations

from prlc.testbed.topology import HEADERS, INTERFACE, Node, Topology

_BURST = 0.5e-3  # seconds of full rate that may be made up for after the kernel was late
_BATCH = 0.4e-3  # seconds of full rate that may pass as one packet
_MOST_FRAMES = 7  # that fit the kernel's 64 KiB packets
_QUEUE = 10_000  # packets a class holds: more than sockets can have under way, so none is dropped
_UP, _DOWN = 0x1000, 0x2000  # numbers of the classes, plus the worker's rank


def devices(topology: Topology) -> tuple[str, str]:
    """Where the limits are, for what goes up to the server and for what goes down."""
    return ("limit", "limit") if topology.half_duplex else ("limit-up", "limit-down")


def frames_at_once(topology: Topology) -> int:
    """How many frames the kernel may pass on as one packet.

    More cost less time to handle, fewer share the link more finely. Loss must hit single frames.
    """
    if topology.loss > 0:
        return 1
    return min(max(round(topology.bandwidth * _BATCH / topology.frame), 1), _MOST_FRAMES)


def rate(topology: Topology) -> int:
    """Bits per second on the wire, headers included."""
    return round(8 * topology.bandwidth * topology.frame / (topology.frame - HEADERS))


def bandwidth(topology: Topology) -> list[str]:
    """Lines for `tc -batch` in the bridge's namespace."""
    server, *workers = topology.nodes
    up, down = devices(topology)
    lines = []
    for device in dict.fromkeys((up, down)):
        lines += _budget(topology, device)
    for worker in workers:
        lines += _share(topology, up, _UP + worker.rank, f"src {worker.address}")
        lines += _share(topology, down, _DOWN + worker.rank, f"dst {worker.address}")
        lines += _turn_aside(worker, f"ip dst {server.address}", up)
    return [*lines, *_turn_aside(server, "u32 0 0", down)]


def loss(topology: Topology) -> list[str]:
    """Lines for `tc -batch` in a node's namespace: what arrives is dropped by chance.

    Four instructions of the kernel's packet filter: draw 32 random bits, drop if they are below
    the share, else go on.
    """
    if topology.loss == 0:
        return []
    below = round(topology.loss * 2**32)
    program = f"4,32 0 0 4294963256,53 0 1 {below},6 0 0 4294967295,6 0 0 2"
    return [
        f"qdisc add dev {INTERFACE} ingress",
        f"filter add dev {INTERFACE} ingress prio 1 bpf direct-action bytecode '{program}'",
    ]


def latency(topology: Topology) -> list[str]:
    """Lines for `tc -batch` in the bridge's namespace: each port delays what it hands to its node.

    That is behind the limits, so a delayed packet has left its queue.
    """
    if topology.latency == 0:
        return []
    under_way = topology.bandwidth * topology.latency / topology.mtu
    room = 1000 + 4 * round(under_way)
    delay = f"netem delay {round(topology.latency * 1e6)}us limit {room}"
    return [f"qdisc add dev {node.port} root {delay}" for node in topology.nodes]


def leaves(topology: Topology, node: Node) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The (device, class) pairs that count what a node receives, and what it sends."""
    up, down = devices(topology)
    workers = [node] if node.rank else topology.nodes[1:]
    ups = [(up, f"1:{_UP + worker.rank:x}") for worker in workers]
    downs = [(down, f"1:{_DOWN + worker.rank:x}") for worker in workers]
    return (downs, ups) if node.rank else (ups, downs)


def _budget(topology: Topology, device: str) -> list[str]:
    bits, burst = rate(topology), _burst(topology)
    return [
        f"qdisc add dev {device} root handle 1: htb",
        f"class add dev {device} parent 1: classid 1:1 htb rate {bits}bit burst {burst} "
        f"{_full(topology)}",
    ]


def _share(topology: Topology, device: str, number: int, match: str) -> list[str]:
    full = _full(topology)
    return [
        f"class add dev {device} parent 1:1 classid 1:{number:x} htb rate 1kbit burst 1000 {full}",
        f"qdisc add dev {device} parent 1:{number:x} pfifo limit {_QUEUE}",
        f"filter add dev {device} parent 1: protocol ip prio 1 u32 match ip {match}/32 "
        f"flowid 1:{number:x}",
    ]


def _full(topology: Topology) -> str:
    """The ceiling, and the turn of a class: as many bytes as the largest packet has."""
    quantum = topology.frame * frames_at_once(topology)
    return f"ceil {rate(topology)}bit cburst {_burst(topology)} quantum {quantum}"


def _burst(topology: Topology) -> int:
    return max(topology.frame, round(rate(topology) / 8 * _BURST))


def _turn_aside(node: Node, match: str, device: str) -> list[str]:
    return [
        f"qdisc add dev {node.port} ingress",
        f"filter add dev {node.port} ingress protocol ip prio 1 u32 match {match} "
        f"action mirred egress redirect dev {device}",
    ]
