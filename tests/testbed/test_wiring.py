"""What `ip` and `tc` are told, without telling them."""

from __future__ import annotations

import re

import pytest

from prlc.testbed import Topology, wiring
from prlc.testbed.machine import Script, Sysctls


def lines_of(topology: Topology, tool: str, namespace: str | None) -> list[str]:
    return [
        line
        for step in wiring.setup(topology)
        if isinstance(step, Script) and (step.tool, step.namespace) == (tool, namespace)
        for line in step.lines
    ]


def test_outside_of_namespaces_only_namespaces_are_created() -> None:
    topology = Topology("abc", workers=2)
    assert lines_of(topology, "ip", None) == [
        "netns add prlc-abc-bridge",
        "netns add prlc-abc-server",
        "netns add prlc-abc-w00",
        "netns add prlc-abc-w01",
    ]
    assert lines_of(topology, "tc", None) == []


def test_there_is_no_route_but_to_the_other_nodes() -> None:
    steps = wiring.setup(Topology("abc", workers=3))
    lines = [line for step in steps if isinstance(step, Script) for line in step.lines]
    routes = [line for line in lines if line.startswith("route ")]
    assert len(routes) == 4
    assert all(line.startswith("route add 10.85.0.0/16 dev net0 ") for line in routes)


@pytest.mark.parametrize("half_duplex", [False, True])
def test_each_worker_has_a_class_in_each_direction(half_duplex: bool) -> None:
    topology = Topology("abc", workers=20, half_duplex=half_duplex)
    lines = wiring.limit_bandwidth(topology)
    classes = re.findall(r"class add dev (\S+) parent 1:1 classid (\S+) ", "\n".join(lines))
    assert len(classes) == len(set(classes)) == 40
    for worker in topology.nodes[1:]:
        matches = [line for line in lines if f"{worker.address}/32" in line]
        assert len(matches) == 2


def test_half_duplex_is_one_budget_and_full_duplex_two() -> None:
    def budgets(half_duplex: bool) -> list[str]:
        lines = wiring.limit_bandwidth(Topology("abc", half_duplex=half_duplex))
        return [line for line in lines if "classid 1:1 " in line]

    assert len(budgets(half_duplex=True)) == 1
    assert len(budgets(half_duplex=False)) == 2


def test_what_a_class_gets_is_borrowed() -> None:
    topology = Topology("abc", workers=20)
    shares = [line for line in wiring.limit_bandwidth(topology) if "parent 1:1 classid" in line]
    assert all("rate 1kbit " in line for line in shares)
    assert all(f"ceil {wiring.wire_rate(topology)}bit" in line for line in shares)


def test_the_rate_includes_headers_also_of_the_short_packets_on_slow_links() -> None:
    assert wiring.wire_rate(Topology("abc", bandwidth=100e6)) == round(8e8 * 9014 / 8948)
    assert wiring.wire_rate(Topology("abc", bandwidth=1e6)) == round(8e6 * 1514 / 1448)


@pytest.mark.parametrize(
    ("bandwidth", "loss", "frames"), [(1e6, 0.0, 1), (1e8, 0.0, 4), (1e10, 0.0, 7), (1e10, 0.1, 1)]
)
def test_packets_are_small_on_slow_links_and_single_where_they_get_lost(
    bandwidth: float, loss: float, frames: int
) -> None:
    assert wiring.frames_per_packet(Topology("abc", bandwidth=bandwidth, loss=loss)) == frames


def test_without_latency_and_loss_nothing_delays_or_drops() -> None:
    topology = Topology("abc")
    assert wiring.delay_packets(topology) == []
    assert wiring.drop_packets(topology) == []


def test_every_port_delays_and_has_room_for_packets_in_flight() -> None:
    topology = Topology("abc", workers=2, bandwidth=1e8, latency=0.035)
    assert wiring.delay_packets(topology) == [
        f"qdisc add dev {port} root netem delay 35000us limit 2556"
        for port in ("server", "w00", "w01")
    ]
    buffers = [s.values for s in wiring.setup(topology) if isinstance(s, Sysctls)][-1]
    assert int(buffers["ipv4/tcp_wmem"].split()[-1]) == 14_000_000


def test_a_node_counts_what_its_classes_count() -> None:
    topology = Topology("abc", workers=2)
    server, first, second = topology.nodes
    up = [("limit-up", "1:1001"), ("limit-up", "1:1002")]
    down = [("limit-down", "1:2001"), ("limit-down", "1:2002")]
    assert wiring.counters(topology, server) == (up, down)
    assert wiring.counters(topology, first) == (down[:1], up[:1])
    assert wiring.counters(topology, second) == (down[1:], up[1:])
