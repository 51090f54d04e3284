"""Models that are used late, samples of workers and messages of any size: cases worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prlc.methods import Scheduled, Timetable, parse_method
from prlc.network import Network
from prlc.network.clock import BarrierClock, Exchange, RunAheadClock
from prlc.network.timeline import Timeline
from prlc.network.traffic import MessageSizes


def every(H: int, workers: int) -> Callable[[int], Exchange]:
    """All push and pull at every H-th step."""

    def schedule(step: int) -> Exchange:
        due = (step + 1) % H == 0
        return Exchange(due, np.full(workers, due))

    return schedule


def clock_of(
    network: Network,
    schedule: Callable[[int], Exchange],
    workers: int = 1,
    *,
    up: float = 0.0,
    down: float = 1.0,
    delay: int = 0,
) -> RunAheadClock:
    return RunAheadClock(
        network, workers, schedule=schedule, delay=delay,
        bytes_up=up, bytes_down=down, step_seconds=1.0, seed=0,
    )  # fmt: skip


def finished(clock: RunAheadClock, steps: Sequence[int]) -> list[float]:
    return [clock.finish(step) for step in steps]


DOWN = Network(server_down=1.0)


def test_nobody_waits_for_a_network_that_is_fast_enough_rule_27() -> None:
    """A pull of two seconds hides behind three steps of one, latency and all."""
    late = clock_of(DOWN, every(3, 1), down=2.0, delay=3)
    assert finished(late, range(12)) == pytest.approx(range(1, 13))
    far = Network(server_down=1.0, latency=0.25)  # there at 3 + 0.25 + 2 + 0.25
    late = clock_of(far, every(3, 1), down=2.0, delay=3)
    assert finished(late, (2, 3, 11)) == pytest.approx([3.25, 4.0, 12.25])
    at_once = clock_of(DOWN, every(3, 1), down=2.0)
    assert finished(at_once, (2, 5, 8)) == pytest.approx([3.0, 8.0, 13.0])


def test_a_worker_waits_exactly_as_long_as_it_must_rule_27() -> None:
    """The model of step 2 is asked for at 3 and there at 8; step 5 is computed at 6.

    Step 6 begins at 8, and so does the next pull; that is there at 13, after step 8 at 11.
    """
    clock = clock_of(DOWN, every(3, 1), down=5.0, delay=3)
    assert finished(clock, (2, 5, 6, 8, 9, 11)) == pytest.approx([3, 6, 9, 11, 14, 16])


def test_a_delay_of_one_step_rule_27() -> None:
    fast = clock_of(DOWN, every(1, 1), down=0.5, delay=1)
    assert finished(fast, range(6)) == pytest.approx(range(1, 7))
    # There at 2.5, 4, 5.5, ...: a pull takes longer than a step, so pulls set the pace.
    slow = clock_of(DOWN, every(1, 1), down=1.5, delay=1)
    assert finished(slow, range(5)) == pytest.approx([1.0, 2.0, 3.5, 5.0, 6.5])


def test_a_delay_shorter_than_a_round_rule_27() -> None:
    """Asked for at 4, used after step 4 (computed at 5): a pull of 2.5 keeps it until 6.5."""
    clock = clock_of(DOWN, every(4, 1), down=2.5, delay=1)
    assert finished(clock, (3, 4, 5, 7, 8, 9)) == pytest.approx([4, 5, 7.5, 9.5, 10.5, 13.0])


def test_late_pulls_share_the_link_rule_27() -> None:
    enough = clock_of(DOWN, every(3, 2), 2, down=1.0, delay=3)  # both there at 5
    assert finished(enough, (2, 8, 11)) == pytest.approx([3, 9, 12])
    # Both there at 7 and 11; steps 6 and 9 begin there.
    short = clock_of(DOWN, every(3, 2), 2, down=2.0, delay=3)
    assert finished(short, (2, 5, 8, 11)) == pytest.approx([3, 6, 10, 14])


def test_a_late_pull_waits_for_the_pushes_of_others_rule_27() -> None:
    """Pushes of 2 and 4 seconds: the model exists at 7, is there at 8, and step 6 begins then."""
    network = Network(worker_up=(2.0, 1.0), worker_down=4.0)
    clock = clock_of(network, every(3, 2), 2, up=4.0, down=4.0, delay=3)
    assert clock.finish(2) == pytest.approx(7.0)
    # The slower one: step 5 is computed at 6, pushed from 7 to 11; step 6 begins at 8.
    assert clock.finish(5) == pytest.approx(11.0)
    assert clock.finish(6) == pytest.approx(11.0)


def test_a_window_holds_late_pulls_back_too() -> None:
    narrow = Network(server_down=1.0, window=1, spread=0.5)
    wide = Network(server_down=1.0, spread=0.5)
    times = [
        clock_of(network, every(2, 4), 4, down=0.1, delay=2).finish(99)
        for network in (narrow, wide)
    ]
    assert times[0] > times[1]


def test_who_sits_out_takes_no_time_rules_6_27() -> None:
    """rule_6: two workers take turns: compute 1, push 1, and the other pulls 1."""

    def turns(step: int) -> Exchange:
        own = np.arange(2) == step % 2
        return Exchange(own, ~own, own)

    clock = clock_of(Network(server_up=1.0, server_down=1.0), turns, 2, up=1.0)
    assert finished(clock, range(5)) == pytest.approx([2.0, 5.0, 8.0, 11.0, 14.0])


def test_each_worker_has_a_message_of_its_own_size_rule_27() -> None:
    network = Network(worker_down=1.0)
    everybody = np.ones(2, bool)

    def uneven(step: int) -> Exchange:
        return Exchange(True, everybody, None, [1.0, 4.0] if step % 2 == 0 else [0.0, 0.0])

    clock = clock_of(network, uneven, 2)
    assert finished(clock, range(4)) == pytest.approx([1.0, 6.0, 7.0, 12.0])
    together = BarrierClock(network, 2, bytes_up=0.0, bytes_down=99.0, step_seconds=1.0, seed=0)
    times = [
        together.step(step, everybody, everybody, everybody, uneven(step).down) for step in range(4)
    ]
    assert times == pytest.approx([1.0, 6.0, 7.0, 12.0])


@given(
    H=st.integers(1, 4),
    delay=st.integers(1, 4),
    down=st.sampled_from([0.0, 0.5, 3.0]),
    latency=st.sampled_from([0.0, 0.4]),
    spread=st.sampled_from([0.0, 0.7]),
    window=st.sampled_from([None, 2, 5]),
)
@settings(max_examples=40)
def test_without_contention_a_delay_never_costs_time_rule_27(
    H: int, delay: int, down: float, latency: float, spread: float, window: int | None
) -> None:
    network = Network(worker_up=2.0, worker_down=1.0, latency=latency, spread=spread, window=window)
    sizes: dict[str, Any] = {"workers": 3, "up": 1.0, "down": down}
    at_once = clock_of(network, every(H, 3), **sizes)
    late = clock_of(network, every(H, 3), **sizes, delay=min(delay, H))
    for step in range(25):
        assert late.finish(step) <= at_once.finish(step) + 1e-9


# -- the same by way of a method ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("local-sgd:10", 10 + 3 * (4 + 4 + 10) + 4),  # push and pull take 4 each
        ("local-sgd:10:delay=10", 40 + 4),
        ("cocod-sgd:10", 40 + 4),
        ("cocod-sgd:10:up=int8,chunk=1000", 40 + 1.004),
        ("local-sgd:10:down=int8,chunk=1000", 10 + 3 * (4 + 1.004 + 10) + 4),
        ("local-sgd:10:delay=1", 10 + 3 * (4 + 4 + 9) + 4),  # one of ten steps hides
    ],
)
def test_methods_on_slow_links_rule_27(text: str, seconds: float) -> None:
    """A model of 4,000 bytes on four workers with 1,000 a second each way; a step a second."""
    method = parse_method(text)
    assert isinstance(method, Scheduled)
    timeline = Timeline(
        Network(worker_up=1000.0, worker_down=1000.0), method, 4, step_seconds=1.0, seed=0,
        sizes=MessageSizes(method, 4, [(1000, 0)], torch.float32, 4000),
        timetable=Timetable(method, 4, 0),
    )  # fmt: skip
    assert timeline.replay([40]) == pytest.approx([seconds])
