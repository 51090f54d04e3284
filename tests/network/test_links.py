"""Fair sharing against a plain fluid simulation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prlc.errors import ConfigError
from prlc.network import Network
from prlc.network.links import FairLink, ServerLinks


def fair_rates(capacity: float, caps: dict[int, float]) -> dict[int, float]:
    """Max-min fairness by its definition: raise all rates together, freeze a flow at its cap."""
    rates: dict[int, float] = {}
    free = dict(caps)
    while free:
        share = (capacity - sum(rates.values())) / len(free)
        capped = {flow: cap for flow, cap in free.items() if cap <= share}
        if not capped:
            return rates | dict.fromkeys(free, share)
        rates |= capped
        free = {flow: cap for flow, cap in free.items() if flow not in capped}
    return rates


def plain_finishes(
    capacity: float, caps: dict[int, float], starts: list[tuple[float, float]]
) -> dict[int, float]:
    """Finish time of every flow, each tracked individually. Flow i starts at (time, size)."""
    now = 0.0
    left: dict[int, float] = {}
    done: dict[int, float] = {}
    coming = sorted((time, flow) for flow, (time, _) in enumerate(starts))
    while coming or left:
        while coming and coming[0][0] <= now:
            flow = coming.pop(0)[1]
            left[flow] = starts[flow][1]
        rates = fair_rates(capacity, {flow: caps[flow] for flow in left})
        wait = min((left[flow] / rates[flow] for flow in left), default=math.inf)
        if coming:
            wait = min(wait, coming[0][0] - now)
        now += wait
        for flow in list(left):
            left[flow] -= rates[flow] * wait
            if left[flow] <= 1e-9:
                done[flow] = now
                del left[flow]
    return done


def finishes(
    capacity: float, caps: dict[int, float], starts: list[tuple[float, float]]
) -> dict[int, float]:
    link = FairLink(capacity, caps)
    done: dict[int, float] = {}

    def finish_until(time: float) -> None:
        while link.next_time() < time:
            now = link.next_time()
            done.update(dict.fromkeys(link.finish(), now))

    for flow in sorted(range(len(starts)), key=lambda flow: starts[flow][0]):
        time, size = starts[flow]
        finish_until(time)
        link.start(time, flow, size)
    finish_until(math.inf)
    return done


flows = st.lists(
    st.tuples(
        st.integers(0, 40).map(lambda time: time / 4),
        st.sampled_from([0.0, 1.0, 2.0, 7.5]),
        st.sampled_from([0.5, 1.0, 3.0, 100.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(flows, st.sampled_from([0.7, 2.0, 5.0, 1e4]))
def test_shares_are_those_of_a_plain_fluid_simulation(
    flows: list[tuple[float, float, float]], capacity: float
) -> None:
    starts = [(time, size) for time, size, _ in flows]
    caps = {flow: cap for flow, (_, _, cap) in enumerate(flows)}
    ours = finishes(capacity, caps, starts)
    assert ours == pytest.approx(plain_finishes(capacity, caps, starts), abs=1e-7)
    makespan = max(ours.values()) - min(time for time, _ in starts)
    assert sum(size for _, size in starts) <= capacity * makespan + 1e-7
    for flow, (time, size) in enumerate(starts):
        assert ours[flow] >= time + size / caps[flow] - 1e-7


def test_water_filling_by_hand() -> None:
    # 10 bytes/s: the capped flow has 1, the two others 4.5 each.
    done = finishes(10.0, {0: 1.0, 1: math.inf, 2: math.inf}, [(0, 4), (0, 9), (0, 18)])
    # At 2 s flow 1 is done and flow 2 gets 9; it has 9 left.
    assert done == pytest.approx({0: 4.0, 1: 2.0, 2: 3.0})


def test_equals_finish_together() -> None:
    link = FairLink(3.0, dict.fromkeys(range(7), math.inf))
    for flow in range(6, -1, -1):
        link.start(0.1, flow, 0.3)
    assert link.next_time() == pytest.approx(0.1 + 0.7)
    assert link.finish() == list(range(7))
    assert link.next_time() == math.inf


def test_no_limit_and_no_bytes() -> None:
    link = FairLink(math.inf, {0: math.inf, 1: 2.0, 2: math.inf})
    link.start(1.0, 0, 1e9)
    link.start(1.0, 1, 4.0)
    assert (link.next_time(), link.finish()) == (1.0, [0])
    assert link.next_time() == 3.0
    link.start(2.0, 2, 5.0)
    assert (link.next_time(), link.finish()) == (2.0, [2])
    assert (link.next_time(), link.finish()) == (3.0, [1])
    narrow = FairLink(1.0, {0: 1.0})
    narrow.start(5.0, 0, 0.0)
    assert (narrow.next_time(), narrow.finish()) == (5.0, [0])


@pytest.mark.parametrize(("half_duplex", "expected"), [(True, 4.0), (False, 2.0)])
def test_directions_share_only_when_half_duplex(half_duplex: bool, expected: float) -> None:
    network = Network(server_up=5.0, server_down=5.0, half_duplex=half_duplex)
    links = ServerLinks(network, 2, 10.0, 10.0)
    links.push(0.0, 1)
    links.pull(0.0, 0)
    assert links.next_time() == expected
    finished = links.finish()
    while links.next_time() < math.inf:
        assert links.next_time() == expected
        finished += links.finish()
    assert sorted(finished) == [1, 2]  # the push of worker 1, the pull of worker 0


@pytest.mark.parametrize("size", [-1.0, math.inf, math.nan])
def test_message_sizes_are_checked(size: float) -> None:
    with pytest.raises(ConfigError, match="bytes_down should be a finite number"):
        ServerLinks(Network(), 2, 1.0, size)
