"""Batches are pure functions of (seed, worker, step), and every pass is over all samples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prlc.data.batches import Batches, Indices

sizes = st.lists(st.integers(1, 12), min_size=1, max_size=6)
batch_sizes = st.integers(1, 15)
seeds = st.integers(0, 2**63)


def ragged_shards(sizes: list[int]) -> list[Indices]:
    """Shards of these sizes, of samples that are neither sorted nor neighbours."""
    order = np.random.default_rng(0).permutation(sum(sizes)).astype(np.int64) * 3
    return np.split(order, np.cumsum(sizes)[:-1])


def at(*numbers: int) -> Indices:
    return np.array(numbers, np.int64)


@given(sizes, batch_sizes, seeds)
def test_each_pass_covers_the_samples_of_a_worker_once(
    sizes: list[int], batch_size: int, seed: int
) -> None:
    shards = ragged_shards(sizes)
    batches = Batches(shards, batch_size, seed)
    for worker, shard in enumerate(shards):
        steps = -(-3 * len(shard) // batch_size)
        taken = [batches.take(at(worker), at(step))[0] for step in range(steps)]
        assert all(len(batch) == batch_size for batch in taken)
        sequence = np.concatenate(taken)
        for start in range(0, 3 * len(shard), len(shard)):
            one_pass = sequence[start : start + len(shard)]
            assert np.array_equal(np.sort(one_pass), np.sort(shard))


@given(sizes, batch_sizes, seeds, st.integers(1, 5), st.data())
def test_batches_are_pure_in_worker_and_step(
    sizes: list[int], batch_size: int, seed: int, count: int, data: st.DataObject
) -> None:
    """Asked one by one in order, or in any mixture, with or without a history."""
    shards = ragged_shards(sizes)
    used = Batches(shards, batch_size, seed)
    for _ in range(4):
        workers = data.draw(
            st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=len(sizes), unique=True)
        )
        steps = data.draw(
            st.lists(st.integers(0, 40), min_size=len(workers), max_size=len(workers))
        )
        taken = used.take(at(*workers), at(*steps), count)
        assert taken.shape == (len(workers), count * batch_size)
        for row, worker, step in zip(taken, workers, steps, strict=True):
            fresh = Batches(shards, batch_size, seed)
            alone = [fresh.take(at(worker), at(step + k))[0] for k in range(count)]
            assert np.array_equal(row, np.concatenate(alone))


def test_asking_does_not_change_what_was_asked_with() -> None:
    batches = Batches(ragged_shards([5, 7]), 3, 0)
    workers, steps = at(1, 0), at(4, 2)
    batches.take(workers, steps, 3)
    assert workers.tolist() == [1, 0]
    assert steps.tolist() == [4, 2]


def test_what_was_given_is_not_overwritten_later() -> None:
    batches = Batches(ragged_shards([5, 7]), 3, 0)
    first = batches.take(at(0, 1), at(0, 0))
    copy = first.copy()
    batches.take(at(0, 1), at(9, 9))
    assert np.array_equal(first, copy)


def test_a_shard_smaller_than_the_batch_repeats_within_it() -> None:
    batch = Batches([at(7, 8, 9)], batch_size=8, seed=0).take(at(0), at(0))[0]
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [7, 8, 9]
    assert len(set(batch[6:])) == 2


def test_passes_workers_and_seeds_have_orders_of_their_own() -> None:
    samples = np.arange(40, dtype=np.int64)
    batches = Batches([samples, samples], batch_size=40, seed=0)
    orders = [batches.take(at(worker), at(step))[0] for worker in (0, 1) for step in (0, 1)]
    orders.append(Batches([samples], batch_size=40, seed=1).take(at(0), at(0))[0])
    assert len({tuple(order) for order in orders}) == len(orders)
    assert not any(np.array_equal(order, samples) for order in orders)


def test_the_shards_of_others_do_not_matter() -> None:
    one = Batches([at(1, 2, 3, 4), at(5, 6)], 2, 0)
    other = Batches([at(1, 2, 3, 4), at(7, 8, 9, 10, 11)], 2, 0)
    for step in range(9):
        assert np.array_equal(one.take(at(0), at(step)), other.take(at(0), at(step)))


def test_orders_are_fair() -> None:
    """Over many passes every sample comes at every place equally often."""
    batches = Batches([np.arange(5, dtype=np.int64)], 5, 0)
    passes = batches.take(at(0), at(0), 4000).reshape(4000, 5)
    counts = np.array([np.bincount(passes[:, place], minlength=5) for place in range(5)])
    assert np.abs(counts - 800).max() < 5 * np.sqrt(4000 * 0.2 * 0.8)


def test_steps_far_ahead_cost_nothing() -> None:
    batches = Batches(ragged_shards([5, 7]), 3, 0)
    assert batches.take(at(0, 1), at(10**15, 2)).shape == (2, 3)
