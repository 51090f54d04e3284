"""The three clocks against plain simulations and hand-worked cases."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prlc.draws import Purpose, uniform
from prlc.errors import ConfigError
from prlc.network import Network
from prlc.network.clock import Arrival, ArrivalClock, BarrierClock, Mask, RunAheadClock

Communication = Callable[[int], tuple[bool, Mask]]
"""Whether a step pushes, and who pulls."""

P = 20
MODEL = 44.7e6  # ResNet-18
ROUND = P * MODEL / 100e6  # all pushes, or all pulls, through the paper's 100 MB/s
COMPUTE = 0.5


def coins(workers: int, pull_ratio: float, every: int = 1) -> Communication:
    def schedule(step: int) -> tuple[bool, Mask]:
        pulls = uniform(3, Purpose.PULL, np.arange(workers), step) < pull_ratio
        return (step + 1) % every == 0, pulls

    return schedule


def run_ahead(
    network: Network, schedule: Communication, workers: int = P, **more: Any
) -> RunAheadClock:
    sizes = {"bytes_up": MODEL, "bytes_down": MODEL, "step_seconds": COMPUTE, "seed": 1}
    network = Network.of(network, window=more.pop("window", None))
    return RunAheadClock(network, workers, schedule=schedule, **(sizes | more))


def barrier(network: Network, workers: int = P, **more: Any) -> BarrierClock:
    sizes = {"bytes_up": MODEL, "bytes_down": MODEL, "step_seconds": COMPUTE, "seed": 1}
    return BarrierClock(network, workers, **(sizes | more))


def arrivals(network: Network, workers: int = P, **more: Any) -> ArrivalClock:
    sizes = {"bytes_up": MODEL, "bytes_down": MODEL, "step_seconds": COMPUTE, "seed": 1}
    return ArrivalClock(network, workers, **(sizes | more))


def play(clock: BarrierClock, schedule: Communication, steps: int) -> list[float]:
    times = []
    for step in range(steps):
        pushes, pulls = schedule(step)
        everybody = np.ones_like(pulls)
        times.append(clock.step(step, everybody, everybody & pushes, pulls))
    return times


# A plain twin of RunAheadClock that follows every worker, message and byte individually.


class PlainRunAhead:
    def __init__(
        self, network: Network, workers: int, schedule: Communication, window: int
    ) -> None:
        self.network, self.workers = network, workers
        self.schedule, self.window = schedule, window
        self.now = 0.0
        self.finished: list[float] = []
        self.timers: list[tuple[float, str, int, int]] = []  # (when, kind, worker, step)
        self.flows: dict[tuple[str, int, int], float] = {}  # (kind, worker, step) -> bytes left
        self.queues: list[deque[int]] = [deque() for _ in range(workers)]  # pushes to come
        self.computed: Counter[int] = Counter()
        self.arrived: Counter[int] = Counter()
        self.to_start = dict.fromkeys(range(workers), 0)
        self.to_pull: dict[int, int] = {}

    def run(self, steps: int) -> list[float]:
        while len(self.finished) < steps:
            self.finish_steps()
            self.start_what_may_start()
            self.move_on()
        return self.finished[:steps]

    def finish_steps(self) -> None:
        while self.computed[step := len(self.finished)] == self.workers:
            if self.schedule(step)[0] and self.arrived[step] < self.workers:
                return
            self.finished.append(self.now)

    def start_what_may_start(self) -> None:
        for worker, step in list(self.to_start.items()):
            if step < len(self.finished) + self.window:
                times = self.network.compute_times(1, worker, step, 0.7, num_workers=self.workers)
                self.timers.append((self.now + float(times), "compute", worker, step))
                del self.to_start[worker]
        for worker, queue in enumerate(self.queues):
            if queue and not any(kind == "push" and w == worker for kind, w, _ in self.flows):
                self.flows["push", worker, queue.popleft()] = 2.0
        for worker, step in list(self.to_pull.items()):
            needed = [s for s in range(step + 1) if self.schedule(s)[0]]
            if all(self.arrived[s] == self.workers for s in needed):
                self.flows["pull", worker, step] = 2.0
                del self.to_pull[worker]

    def rate(self, flow: tuple[str, int, int]) -> float:
        ups, downs = self.network.worker_links(self.workers)
        push = flow[0] == "push"
        rivals = [f for f in self.flows if self.network.half_duplex or f[0] == flow[0]]
        caps = {f: (ups if f[0] == "push" else downs)[f[1]] for f in rivals}
        left = self.network.server_up if push else self.network.server_down
        while True:  # remove capped flows until the rest share equally
            share = left / len(caps)
            small = [f for f, cap in caps.items() if cap <= share]
            if flow in small or not small:
                return min(caps[flow], share)
            left -= sum(caps.pop(f) for f in small)

    def move_on(self) -> None:
        rates = {flow: self.rate(flow) for flow in self.flows}
        waits = [timer[0] - self.now for timer in self.timers]
        wait = min(waits + [left / rates[flow] for flow, left in self.flows.items()])
        self.now += wait
        for flow in list(self.flows):
            self.flows[flow] -= rates[flow] * wait
            if self.flows[flow] <= 1e-9:
                del self.flows[flow]
                self.timers.append((self.now + self.network.latency, *flow))
        due = [timer for timer in self.timers if timer[0] <= self.now + 1e-12]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, kind, worker, step in due:
            if kind == "push":
                self.arrived[step] += 1
            elif kind == "pull":
                self.to_start[worker] = step + 1
            else:
                self.compute(worker, step)

    def compute(self, worker: int, step: int) -> None:
        self.computed[step] += 1
        pushes, pulls = self.schedule(step)
        if pushes:
            self.queues[worker].append(step)
        waits = self.to_pull if pulls[worker] else self.to_start
        waits[worker] = step if pulls[worker] else step + 1


@st.composite
def small_networks(draw: st.DrawFn, workers: int, *, contended: bool = True) -> Network:
    rate = st.sampled_from([1.0, 2.5, 7.0])
    caps = tuple(draw(st.lists(rate, min_size=workers, max_size=workers)))
    server = draw(st.sampled_from([1.0, 3.0, 10.0])) if contended else 7.0 * workers
    return Network(
        server_up=server,
        server_down=server,
        half_duplex=draw(st.booleans()),
        worker_up=caps,
        worker_down=draw(rate),
        latency=draw(st.sampled_from([0.0, 0.3])),
        spread=draw(st.sampled_from([0.0, 0.8])),
        stragglers=draw(st.sampled_from([0.0, 0.3])),
        straggler_factor=3.0,
    )


@st.composite
def cases(
    draw: st.DrawFn, *, contended: bool = True
) -> tuple[Network, Communication, int, int | None]:
    workers = draw(st.integers(1, 4))
    ratio, every = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0])), draw(st.sampled_from([1, 1, 2, 3]))
    network = draw(small_networks(workers, contended=contended))
    return network, coins(workers, ratio, every), workers, draw(st.sampled_from([None, 1, 2, 4]))


SMALL = {"bytes_up": 2.0, "bytes_down": 2.0, "step_seconds": 0.7}


@given(cases())
def test_run_ahead_is_its_readable_twin(
    case: tuple[Network, Communication, int, int | None],
) -> None:
    network, schedule, workers, window = case

    clock = run_ahead(network, schedule, workers, window=window, **SMALL)
    ours = [clock.finish(step) for step in range(9)]
    plain = PlainRunAhead(network, workers, schedule, window or 999).run(9)
    assert ours == pytest.approx(plain, rel=1e-6)


@given(cases(contended=False))
def test_without_contention_run_ahead_is_never_slower_than_the_barrier(
    case: tuple[Network, Communication, int, int | None],
) -> None:
    network, schedule, workers, window = case
    ahead = run_ahead(network, schedule, workers, window=window, **SMALL)
    together = play(barrier(network, workers, **SMALL), schedule, 30)
    assert all(ahead.finish(t) <= time + 1e-9 for t, time in enumerate(together))


@given(cases())
def test_run_ahead_is_the_barrier_when_everybody_pulls(
    case: tuple[Network, Communication, int, int | None],
) -> None:
    network, _, workers, window = case
    schedule = coins(workers, 1.0)
    ahead = run_ahead(network, schedule, workers, window=window, **SMALL)
    together = play(barrier(network, workers, **SMALL), schedule, 20)
    assert [ahead.finish(t) for t in range(20)] == pytest.approx(together, rel=1e-12)


@given(cases())
def test_the_server_never_carries_more_than_it_can(
    case: tuple[Network, Communication, int, int | None],
) -> None:
    network, schedule, workers, window = case
    clock = run_ahead(network, schedule, workers, window=window, **SMALL)
    pushed = pulled = 0
    before = 0.0
    for step in range(20):
        pushes, pulls = schedule(step)
        time = clock.finish(step)
        assert time >= before
        before = time
        if pushes:  # a worker that pushes here has finished its earlier pulls
            pushed += workers
            through = pushed + pulled if network.half_duplex else max(pushed, pulled)
            assert 2.0 * through <= network.server_up * time + 1e-9
        pulled += int(pulls.sum())


def test_a_slow_worker_may_suffer_from_the_pushes_of_those_ahead() -> None:
    """Fair sharing has no priorities: this is why the never-slower test is without contention."""
    network = Network(server_up=1.0, server_down=math.inf, stragglers=0.5, straggler_factor=10.0)
    slow = network.straggling(1, 2)
    sizes = {"bytes_up": 1.0, "bytes_down": 1.0, "step_seconds": 1.0}

    def schedule(step: int) -> tuple[bool, Mask]:  # only the slow worker pulls
        del step
        return True, slow

    ahead = run_ahead(network, schedule, 2, **sizes)
    together = play(barrier(network, 2, **sizes), schedule, 10)
    assert together[-1] == pytest.approx(10 * 11.0)
    assert ahead.finish(9) == pytest.approx(10 * 12.0)
    assert run_ahead(network, schedule, 2, window=1, **sizes).finish(9) == pytest.approx(110.0)


# The paper's cluster: cases worked out by hand.


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_synchronous_sgd_on_the_paper_cluster(steps: int) -> None:
    network = Network.of("paper")
    step = 2 * ROUND + 2 * network.latency + COMPUTE
    expected = steps * step - ROUND - network.latency  # the last model is not pulled yet
    everybody = coins(P, 1.0)
    clock = barrier(network)
    assert play(clock, everybody, steps)[-1] == pytest.approx(expected)
    assert clock.now == pytest.approx(steps * step)
    assert run_ahead(network, everybody).finish(steps - 1) == pytest.approx(expected)


def test_without_pulls_only_pushes_count() -> None:
    clock = run_ahead(Network.of("paper"), coins(P, 0.0))
    assert clock.finish(99) == pytest.approx(100 * ROUND + COMPUTE + 1e-4)


def seconds_per_round(network: Network, pull_ratio: float, rounds: int = 300) -> float:
    return run_ahead(network, coins(P, pull_ratio)).finish(rounds - 1) / rounds


def asynchronous_seconds_per_round(network: Network, rounds: int = 300) -> float:
    return next(islice(arrivals(network), rounds * P - 1, None)).seconds / rounds


def test_figure_4_of_the_paper_needs_the_shared_budget() -> None:
    shared = Network.of("paper")
    assert seconds_per_round(shared, 0.4) == pytest.approx(1.4 * ROUND, rel=0.02)
    assert asynchronous_seconds_per_round(shared) == pytest.approx(2 * ROUND, rel=0.04)
    ratio = seconds_per_round(shared, 0.4) / asynchronous_seconds_per_round(shared)
    assert ratio == pytest.approx(0.70, abs=0.03)


def test_on_a_full_duplex_link_both_take_as_long_as_the_pushes() -> None:
    network = Network.of("paper", half_duplex=False, spread=0.5)
    assert seconds_per_round(network, 0.4) == pytest.approx(ROUND, rel=0.03)
    assert asynchronous_seconds_per_round(network) == pytest.approx(ROUND, rel=0.08)


def test_asynchronous_workers_that_are_exactly_alike_stay_in_step() -> None:
    """They all push, then all pull: never both directions at once, so duplex does not help."""
    network = Network.of("paper", half_duplex=False)
    seconds = asynchronous_seconds_per_round(network)
    assert seconds == pytest.approx(2 * ROUND + COMPUTE, rel=0.01)


def test_a_low_pull_ratio_costs_little_more_than_the_pushes() -> None:
    assert seconds_per_round(Network.of("paper"), 0.05) == pytest.approx(1.05 * ROUND, rel=0.03)


def test_on_mobile_the_workers_own_link_governs() -> None:
    network = Network.of("mobile", spread=0.0, stragglers=0.0)
    expected = MODEL / 625e3 + MODEL / 2.5e6 + 2 * 0.05 + COMPUTE
    clock = barrier(network)
    play(clock, coins(P, 1.0), 10)
    assert clock.now == pytest.approx(10 * expected)
    pushes_only = run_ahead(network, coins(P, 0.0)).finish(9)
    assert pushes_only == pytest.approx(10 * MODEL / 625e3 + 0.05 + COMPUTE)


def test_computation_hides_behind_a_longer_push_and_the_other_way_round() -> None:
    network = Network(server_up=1.0, latency=0.25)
    sizes = {"bytes_up": 1.0, "bytes_down": 1.0}
    slow_link = run_ahead(network, coins(2, 0.0), 2, step_seconds=0.5, **sizes)
    assert slow_link.finish(9) == pytest.approx(0.5 + 10 * 2.0 + 0.25)
    slow_compute = run_ahead(network, coins(2, 0.0), 2, step_seconds=3.0, **sizes)
    assert slow_compute.finish(9) == pytest.approx(10 * 3.0 + 2.0 + 0.25)


def test_pushes_every_few_steps() -> None:
    network = Network(server_up=1.0)
    clock = run_ahead(network, coins(2, 0.0, every=4), 2, **(SMALL | {"step_seconds": 3.0}))
    # Step 3 pushes: 4 bytes at 1 byte/s after 12 s. Step 4 is computed at 15 s, complete after it.
    assert [clock.finish(step) for step in range(7)] == pytest.approx([3, 6, 9, 16, 16, 18, 21])


def test_one_straggler_sets_the_pace_but_leaves_the_others_free() -> None:
    network = Network(server_up=math.inf, worker_up=4.0, stragglers=0.25, straggler_factor=3.0)
    slow = int(np.flatnonzero(network.straggling(1, 4))[0])
    clock = run_ahead(network, coins(4, 0.0), 4, **SMALL)
    assert clock.finish(19) == pytest.approx(20 * 2.1 + 0.5)

    def only(worker: int) -> Communication:  # that one pulls every other step
        return lambda step: (True, np.arange(4) == (worker if step % 2 else -1))

    # A fast worker that pulls waits for a model that needs the straggler; that changes nothing.
    waits = run_ahead(network, only((slow + 1) % 4), 4, **SMALL)
    assert waits.finish(19) == pytest.approx(20 * 2.1 + 0.5)
    # When the straggler pulls, its own pushes (0.5 s each) hold it up ten times less one.
    held_up = run_ahead(network, only(slow), 4, **SMALL)
    assert held_up.finish(19) == pytest.approx(20 * 2.1 + 10 * 0.5)


def test_run_ahead_gains_from_uneven_steps() -> None:
    network = Network(spread=1.0)
    rare = coins(8, 0.1)
    together = play(barrier(network, 8, **SMALL), rare, 400)[-1]
    assert together / run_ahead(network, rare, 8, **SMALL).finish(399) > 1.3


def test_a_window_bounds_the_lead() -> None:
    network = Network(spread=1.0)
    rare = coins(8, 0.02)
    times = [
        run_ahead(network, rare, 8, window=window, **SMALL).finish(299)
        for window in (1, 2, 8, 10_000, None)
    ]
    # Without pulls or traffic, a window of one is the barrier.
    assert times[0] == pytest.approx(play(barrier(network, 8, **SMALL), rare, 300)[-1])
    assert times[0] > 1.05 * times[1] > 1.05 * 1.05 * times[2]
    assert times[2] > times[3] == times[4]
    with pytest.raises(ConfigError, match="window should be a whole number, 1 or more, but is 0"):
        run_ahead(network, rare, 8, window=0)


def test_nothing_takes_any_time() -> None:
    for window in (None, 1):
        clock = run_ahead(Network(), coins(3, 0.3), 3, step_seconds=0.0, window=window)
        assert clock.finish(50) == 0.0
    free = list(islice(arrivals(Network(), 3, step_seconds=0.0), 9))
    assert [arrival.worker for arrival in free] == [0, 1, 2] * 3
    assert {arrival.seconds for arrival in free} == {0.0}


def test_messages_of_no_bytes_cost_their_latency() -> None:
    network = Network.of("paper", latency=1.0)
    sizes: dict[str, Any] = {"bytes_up": 0.0, "bytes_down": 0.0}
    clock = run_ahead(network, coins(P, 1.0), **sizes)
    assert clock.finish(9) == pytest.approx(10 * (COMPUTE + 2.0) - 1.0)
    assert next(islice(arrivals(network, **sizes), 2 * P - 1, None)).seconds == COMPUTE * 2 + 3.0


def test_finish_does_not_depend_on_which_steps_were_asked() -> None:
    network = Network.of("mobile")
    one_by_one = run_ahead(network, coins(P, 0.2))
    times = [one_by_one.finish(step) for step in range(60)]
    jumping = run_ahead(network, coins(P, 0.2))
    assert [jumping.finish(step) for step in (3, 3, 59)] == [times[3], times[3], times[59]]
    with pytest.raises(ValueError, match="asked for 58 after 59"):
        jumping.finish(58)


@pytest.mark.parametrize("window", [None, 5])
def test_memory_is_bounded_by_the_lead(window: int | None) -> None:
    clock = run_ahead(Network.of("paper"), coins(P, 0.3), window=window, step_seconds=1e-3)
    clock.finish(2000)
    held = len(clock._steps) + len(clock._finished) + len(clock._events) + len(clock._blocked)
    assert held < 100


def test_clocks_are_deterministic_and_seeded() -> None:
    network = Network.of("wan")

    def everything(seed: int) -> list[object]:
        return [
            run_ahead(network, coins(P, 0.4), seed=seed).finish(20),
            play(barrier(network, seed=seed), coins(P, 0.4), 20),
            list(islice(arrivals(network, seed=seed), 100)),
        ]

    assert everything(1) == everything(1)
    assert all(a != b for a, b in zip(everything(1), everything(2), strict=True))


# The barrier, with masks as in LAG.


def test_barrier_masks() -> None:
    network = Network(server_up=1.0, server_down=2.0, latency=0.5)
    clock = barrier(network, 3, bytes_up=2.0, bytes_down=6.0, step_seconds=1.0)
    nobody, first, all_three = np.zeros(3, bool), np.array([True, False, False]), np.ones(3, bool)
    assert clock.step(0, all_three, nobody, nobody) == clock.now == 1.0
    assert clock.step(1, nobody, nobody, nobody) == clock.now == 1.0
    # One computes and pushes, one pulls: 1 + 1 + 2 + .5, then 3 + .5.
    assert clock.step(2, first, first, first) == 4.5
    assert clock.now == 8.0
    # Those who do not compute push at once: 4 bytes by 12, while the first computes and pushes
    # from 9 on, sharing with two that have .5 byte less to go: 1.5 each at a third, then .5 alone.
    assert clock.step(3, first, all_three, nobody) == pytest.approx(8 + 1 + 4.5 + 0.5 + 0.5)
    # Who computes without pushing does not hold up the model, only the next step.
    clock.now = 100.0
    assert clock.step(4, first, ~first, ~first & nobody) == 100 + 4 + 0.5
    assert clock.step(5, first, nobody, all_three) == clock.now - 9.5 == 105.5


def test_barrier_waits_for_a_computation_that_nobody_asks_for() -> None:
    clock = barrier(Network(server_up=1.0), 2, bytes_up=3.0, step_seconds=10.0)
    first = np.array([True, False])
    assert clock.step(0, first, ~first, first) == 3.0
    assert clock.now == 10.0


def test_barrier_can_resume() -> None:
    network = Network.of("wan")
    schedule = coins(P, 0.4)
    whole = barrier(network)
    times = play(whole, schedule, 30)
    first, second = barrier(network), barrier(network)
    play(first, schedule, 20)
    second.now = first.now
    for step in range(20, 30):
        _, pulls = schedule(step)
        everybody = np.ones(P, bool)
        assert second.step(step, everybody, everybody, pulls) == pytest.approx(times[step])


# Asynchronous SGD.


def test_staleness_of_equal_workers() -> None:
    first, *later = (list(islice(arrivals(Network.of("paper")), 30 * P))[k::P] for k in range(P))
    assert [a.staleness for a in first] == [0] + [P - 1] * 29
    for position, column in enumerate(later, start=1):
        assert {a.worker for a in column} == {position}
        assert [a.staleness for a in column] == [position] + [P - 1] * 29


def test_a_lone_worker_is_never_stale() -> None:
    network = Network(server_up=2.0, server_down=4.0, latency=0.25)
    alone = islice(arrivals(network, 1, bytes_up=1.0, bytes_down=1.0), 4)
    step = COMPUTE + 0.5 + 0.25 + 0.25 + 0.25
    assert [a.seconds for a in alone] == pytest.approx([k * step - 0.5 for k in range(1, 5)])
    assert all(a.staleness == 0 for a in islice(arrivals(network, 1), 50))


def test_a_slow_worker_is_stale() -> None:
    network = Network(stragglers=0.25, straggler_factor=10.0)
    slow = int(np.flatnonzero(network.straggling(1, 4))[0])
    seen = list(islice(arrivals(network, 4), 310))
    assert sum(a.worker == slow for a in seen) == 10
    assert {a.staleness for a in seen if a.worker == slow} <= set(range(27, 31))
    fast = [a.staleness for a in seen[10:] if a.worker != slow]
    assert set(fast) == {2, 3}  # three with the straggler in between


@given(st.data())
def test_staleness_counts_the_updates_in_between(data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 4))
    network = data.draw(small_networks(workers))
    seen = list(islice(arrivals(network, workers, **SMALL), 60))
    assert all(a.seconds <= b.seconds for a, b in pairwise(seen))
    last: dict[int, int] = {}
    for index, arrival in enumerate(seen):
        assert arrival.staleness == index - last.get(arrival.worker, -1) - 1
        last[arrival.worker] = index
    # All that arrived went through the server's link.
    assert 2.0 * len(seen) <= network.server_up * seen[-1].seconds + 1e-9


# Within a window (SSP).


def leads(seen: list[Arrival], workers: int) -> list[int]:
    """How many steps each worker was ahead of the slowest while it computed what arrived."""
    counts, found = [0] * workers, []
    for arrival in seen:
        found.append(counts[arrival.worker] - min(counts))
        counts[arrival.worker] += 1
    return found


@given(st.data(), st.integers(0, 4))
def test_nobody_is_further_ahead_than_the_window(data: st.DataObject, window: int) -> None:
    workers = data.draw(st.integers(1, 4))
    network = data.draw(small_networks(workers))
    seen = list(islice(arrivals(network, workers, **SMALL, window=window), 60))
    assert max(leads(seen, workers)) <= window
    assert all(a.seconds <= b.seconds for a, b in pairwise(seen))


def test_a_window_holds_the_fast_back_to_its_edge() -> None:
    network = Network(stragglers=0.25, straggler_factor=10.0)
    free = list(islice(arrivals(network, 4), 310))
    assert max(leads(free, 4)) > 50
    for window in (0, 1, 5):
        assert max(leads(list(islice(arrivals(network, 4, window=window), 310)), 4)) == window
    assert list(islice(arrivals(network, 4, window=math.inf), 310)) == free


def test_who_waited_gets_the_model_of_the_moment_when_it_goes_on() -> None:
    """Nothing takes time but computing: 10 s of the straggler, 1 s of the other."""
    network = Network(stragglers=0.5, straggler_factor=10.0)
    slow = int(np.flatnonzero(network.straggling(1, 2))[0])
    seen = list(islice(arrivals(network, 2, step_seconds=1.0, window=1), 6))
    assert [a.worker == slow for a in seen] == [False, False, True, False, True, False]
    assert [a.seconds for a in seen] == [1.0, 2.0, 10.0, 11.0, 20.0, 21.0]
    assert [a.staleness for a in seen] == [0, 0, 2, 0, 1, 0]
