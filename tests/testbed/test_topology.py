"""Names, addresses and settings of a testbed: pure data."""

from __future__ import annotations

import re

import pytest

from prlc.errors import ConfigError
from prlc.testbed import Topology
from prlc.testbed.topology import address, owner_of


def test_rank_0_is_the_server_and_workers_follow() -> None:
    nodes = Topology("abc", workers=3).nodes
    assert [node.name for node in nodes] == ["server", "w00", "w01", "w02"]
    assert [node.rank for node in nodes] == [0, 1, 2, 3]
    assert nodes[0].namespace == "prlc-abc-server"
    assert nodes[3].address == "10.85.100.103"


def test_addresses_sort_as_text_in_the_order_of_ranks() -> None:
    addresses = [address(rank) for rank in range(501)]
    assert addresses == sorted(addresses)
    assert len(set(addresses)) == 501


def test_every_namespace_tells_whose_it_is() -> None:
    topology = Topology("ab12cd34", workers=120)
    assert len(topology.namespaces) == 122
    assert {owner_of(namespace) for namespace in topology.namespaces} == {"ab12cd34"}


@pytest.mark.parametrize(
    "name",
    ["prlc", "prlc-", "prlc-x", "prlc-x-shell", "myprlc-x-server", "prlc-a-b-server", "blue"],
)
def test_namespaces_of_others_are_not_ours(name: str) -> None:
    assert owner_of(name) is None


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("workers", 0),
        ("workers", 2.0),
        ("workers", 501),
        ("bandwidth", 0.0),
        ("bandwidth", float("inf")),
        ("bandwidth", float("nan")),
        ("half_duplex", 1),
        ("latency", -0.1),
        ("latency", float("nan")),
        ("loss", 1.0),
        ("loss", -0.1),
        ("name", "Has Space"),
        ("name", "a-b"),
        ("name", ""),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(setting: str, value: object) -> None:
    settings: dict[str, object] = {"name": "abc", setting: value}
    with pytest.raises(ConfigError, match=rf"{setting} should be .*{re.escape(repr(value))}"):
        Topology(**settings)  # type: ignore[arg-type]
