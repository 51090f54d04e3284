"""The nodes of a testbed, their names and addresses, and the limits of their links: pure data.

    server ─┐
    w00 ────┤
    w01 ────┼─ bridge (in its own namespace, with all limits)
    ...     │
    wNN ────┘

The changing parts of an address always have three digits. So addresses sort as text in the order of
ranks, which is how torchrun numbers its nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prlc.errors import ConfigError
from prlc.network.units import format_bandwidth, format_seconds

PREFIX = "prlc"
INTERFACE = "net0"  # of every node, to the bridge
NETWORK = "10.85.0.0/16"  # of all nodes; no address is visible outside the namespaces
HEADERS = 14 + 20 + 32  # bytes of a frame: Ethernet, IPv4, TCP with timestamps

_SLOW_SHARE = 500e3  # bytes/s
_MOST_WORKERS = 500  # a bridge has at most 1,023 ports
_NAME = re.compile(r"[a-z0-9]{1,16}")


@dataclass(frozen=True)
class Node:
    """The server (rank 0) or a worker (rank 1 and up)."""

    name: str
    rank: int
    namespace: str
    address: str

    @property
    def port(self) -> str:
        """The bridge's end of the node's link."""
        return self.name


@dataclass(frozen=True)
class Topology:
    """A server and its workers, and the limits of the server's link.

    `bandwidth` is payload bytes/s in each direction or, with `half_duplex`, in both together;
    `latency` is one way, in seconds; `loss` is the fraction of packets lost in either direction.
    """

    name: str
    workers: int = 20
    bandwidth: float = 100e6
    half_duplex: bool = False
    latency: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        for setting, (expected, holds) in _RULES.items():
            value = getattr(self, setting)
            if not holds(value):
                raise ConfigError(
                    f"The testbed's {setting} should be {expected}, but is {value!r}."
                )

    def describe(self) -> str:
        """A short description, for titles."""
        shared = "for both directions" if self.half_duplex else "each way"
        latency = f", {format_seconds(self.latency)} latency" if self.latency else ""
        loss = f", {self.loss:.2%} loss" if self.loss else ""
        speed = format_bandwidth(self.bandwidth)
        return f"{self.workers} workers, server {speed} {shared}{latency}{loss}"

    @property
    def mtu(self) -> int:
        """Bytes of a packet's content.

        Long packets have small headers (0.7%) and take little time to handle. But where a worker's
        share is slow, TCP would take them for lost while others have their turn.
        """
        return 9000 if self.bandwidth / self.workers >= _SLOW_SHARE else 1500

    @property
    def frame(self) -> int:
        """Bytes of a full packet on the wire, headers included."""
        return 14 + self.mtu

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The server, then the workers."""
        names = ["server", *(f"w{i:02d}" for i in range(self.workers))]
        return tuple(
            Node(name, rank, self.namespace(name), address(rank)) for rank, name in enumerate(names)
        )

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.namespace("bridge"), *(node.namespace for node in self.nodes))

    def namespace(self, part: str) -> str:
        return f"{PREFIX}-{self.name}-{part}"


def address(rank: int) -> str:
    return f"10.85.{100 + rank // 100}.{100 + rank % 100}"


def owner_of(namespace: str) -> str | None:
    """The name of the testbed that a namespace belongs to, judging by its name; None if to none."""
    match = re.fullmatch(rf"{PREFIX}-({_NAME.pattern})-(?:bridge|server|w\d{{2,3}})", namespace)
    return match[1] if match else None


def _number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": (
        "1 to 16 lower-case letters and digits",
        lambda v: isinstance(v, str) and _NAME.fullmatch(v) is not None,
    ),
    "workers": (
        f"a whole number from 1 to {_MOST_WORKERS}",
        lambda v: type(v) is int and 1 <= v <= _MOST_WORKERS,
    ),
    "bandwidth": (
        "a finite number of bytes/s, 100,000 or more",
        lambda v: _number(v) and v >= 100e3,
    ),
    "half_duplex": ("true or false", lambda v: isinstance(v, bool)),
    "latency": ("a number of seconds from 0 to 10", lambda v: _number(v) and 0 <= v <= 10),
    "loss": ("a fraction of at least 0 and less than 1", lambda v: _number(v) and 0 <= v < 1),
}
