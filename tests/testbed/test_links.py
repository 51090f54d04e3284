"""Real links: bandwidth, equal shares, one budget, loss, and no way out.

These are tests of limits, not of speed; bounds are loose since machines are busy.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable

import pytest

from prlc.testbed import Node, machine
from prlc.testbed import Testbed as Bed

from .helpers import (
    connect,
    downs,
    goodput,
    inside,
    on_a_real_machine,
    ups,
    where_packets_can_get_lost,
)

pytestmark = on_a_real_machine

SPEED = 5e6


def assert_shared(measure: Callable[[], list[float]], total: float = SPEED) -> None:
    """All of the bandwidth and no more, in equal shares, once the machine has the time: what piles
    up while this process does not run seems to come faster afterwards."""
    for _ in range(5):
        rates = measure()
        if 0.85 * total < sum(rates) < 1.1 * total and max(rates) < 1.5 * min(rates):
            return
    raise AssertionError(f"{sum(rates):.3g} of {total:.3g} bytes/s, shared as {rates}")


def test_each_direction_has_the_bandwidth_in_equal_shares() -> None:
    with Bed(workers=6, bandwidth=SPEED) as bed:
        assert_shared(lambda: goodput(ups(bed)))
        assert_shared(lambda: goodput(downs(bed)))


def test_directions_do_not_take_from_each_other() -> None:
    with Bed(workers=3, bandwidth=SPEED) as bed:
        assert_shared(lambda: goodput([*ups(bed), *downs(bed)]), total=2 * SPEED)


def test_half_duplex_shares_one_budget_between_the_directions() -> None:
    with Bed(workers=3, bandwidth=SPEED, half_duplex=True) as bed:
        assert_shared(lambda: goodput([*ups(bed), *downs(bed)]))


@pytest.mark.parametrize("half_duplex", [False, True])
def test_a_worker_alone_has_all_of_it(half_duplex: bool) -> None:
    with Bed(workers=4, bandwidth=SPEED, half_duplex=half_duplex) as bed:
        alone = bed.workers[2]
        assert_shared(lambda: goodput([connect(alone, bed.server)], seconds=0.6))
        assert_shared(lambda: goodput([connect(bed.server, alone)], seconds=0.6))


def test_after_a_pause_small_messages_do_not_travel_for_free() -> None:
    def measure() -> float:
        pairs = ups(bed)
        for sender, _ in pairs:
            sender.sendall(bytes(50_000))
        return sum(goodput(pairs, warm_up=0.0, seconds=0.6))

    with Bed(workers=4, bandwidth=1e6) as bed:
        assert any(measure() < 1.25e6 for _ in range(5))


def test_the_link_counts_payload_and_headers() -> None:
    with Bed(workers=2, bandwidth=SPEED) as bed:
        first, second = bed.workers
        sender, receiver = connect(first, bed.server)
        with sender, receiver:
            for _ in range(20):
                sender.sendall(bytes(50_000))
                receiver.recv(50_000, socket.MSG_WAITALL)
        received, sent = bed.interface_bytes(bed.server)
        assert 1_007_000 < received < 1_020_000
        assert 0 < sent < 20_000
        assert bed.interface_bytes(first) == (sent, received)
        assert bed.interface_bytes(second) == (0, 0)


def drain(sink: socket.socket) -> int:
    """How many bytes arrive until none does for as long as the socket's timeout."""
    arrived = 0
    with contextlib.suppress(TimeoutError):
        while True:
            arrived += len(sink.recv(1))
    return arrived


def arrived(source: Node, target: Node) -> int:
    """How many of 2,000 packets arrive, sent a few at a time: a full buffer loses some, too."""
    sink = inside(target, lambda: socket.socket(type=socket.SOCK_DGRAM))
    tap = inside(source, lambda: socket.socket(type=socket.SOCK_DGRAM))
    with sink, tap:
        sink.bind((target.address, 9))
        sink.settimeout(0.05)
        count = 0
        for _ in range(40):
            for _ in range(50):
                tap.sendto(b"?", (target.address, 9))
            count += drain(sink)
        sink.settimeout(1)
        return count + drain(sink)


@where_packets_can_get_lost
def test_packets_get_lost_by_chance() -> None:
    """1,600 with a standard deviation of 18. Now and then more are lost, perhaps with a question
    for the other's address, so there are five looks; a link that loses none, or half, fails all."""
    with Bed(workers=1, loss=0.2) as bed:
        for source, target in (bed.nodes, bed.nodes[::-1]):
            assert any(1450 < arrived(source, target) < 1750 for _ in range(5))


def talk_to_oneself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname()).close()


def test_there_is_no_way_out() -> None:
    before = machine.run(["ip", "link"])
    with Bed(workers=1) as bed:
        assert machine.run(["ip", "link"]) == before, "the machine's own links were touched"
        for node in bed.nodes:
            routes = machine.run(["ip", "-n", node.namespace, "route", "show"]).splitlines()
            assert [route.split()[0] for route in routes] == ["10.85.0.0/16"]
            out = inside(node, lambda: socket.socket(type=socket.SOCK_DGRAM))
            with out, pytest.raises(OSError, match="unreachable") as refused:
                out.connect(("192.0.2.1", 9))
            assert refused.value.errno == errno.ENETUNREACH
            inside(node, talk_to_oneself)
