from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prlc.data.partition import (
    IID,
    Contiguous,
    Dirichlet,
    Partition,
    Shards,
    parse_partition,
)
from prlc.errors import ConfigError, DataError

DRAWN: list[Partition] = [IID(), Dirichlet(0.1), Dirichlet(12.3456789), Shards(1), Shards(3)]
PARTITIONS: list[Partition] = [*DRAWN, Contiguous()]

partitions = st.one_of(
    st.just(IID()),
    st.just(Contiguous()),
    st.builds(Dirichlet, st.floats(1e-6, 1e6)),
    st.builds(Shards, st.integers(1, 3)),
)


def labels_for(num_samples: int, num_classes: int) -> NDArray[np.int64]:
    return np.random.default_rng(num_samples).integers(0, num_classes, num_samples)


@given(
    partition=partitions,
    num_workers=st.integers(1, 20),
    extra=st.integers(0, 200),
    num_classes=st.integers(1, 12),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=150)
def test_every_sample_has_one_owner(
    partition: Partition, num_workers: int, extra: int, num_classes: int, seed: int
) -> None:
    num_samples = num_workers * 3 + extra
    targets = labels_for(num_samples, num_classes)
    parts = partition.split(targets, num_samples, num_workers, seed)
    assert len(parts) == num_workers
    assert all(part.dtype == np.int64 for part in parts)
    assert all(len(part) > 0 and np.all(np.diff(part) > 0) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_samples))
    again = partition.split(targets, num_samples, num_workers, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(st.integers(1, 50), st.integers(0, 300), st.integers(0, 1000))
def test_equal_sizes_differ_by_at_most_one(num_workers: int, extra: int, seed: int) -> None:
    partition: Partition
    for partition in (IID(), Contiguous()):
        parts = partition.split(None, num_workers + extra, num_workers, seed)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_contiguous_parts_are_stretches_in_the_order_of_the_data() -> None:
    parts = Contiguous().split(None, 10, 3, seed=5)
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize("partition", DRAWN, ids=str)
def test_seeds_matter(partition: Partition) -> None:
    targets = labels_for(500, 10)
    first, second = (partition.split(targets, 500, 10, seed) for seed in (0, 1))
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_one_sample_a_worker_at_least(partition: Partition) -> None:
    targets = labels_for(60, 2)
    assert min(len(part) for part in partition.split(targets, 60, 20, seed=0)) >= 1


def _skew(partition: Partition, seed: int) -> float:
    """Mean distance of a worker's label shares from those of all data: 0 alike, 1 disjoint."""
    targets = np.arange(5_000) % 10
    shares = [
        np.bincount(targets[part], minlength=10) / len(part)
        for part in partition.split(targets, 5_000, 10, seed)
    ]
    return float(np.abs(np.stack(shares) - 0.1).sum(axis=1).mean() / 2)


def test_skew_grows_as_alpha_falls() -> None:
    alphas = (1e-3, 0.1, 0.5, 2.0, 10.0, 1e3)
    skews = [np.mean([_skew(Dirichlet(alpha), seed) for seed in range(10)]) for alpha in alphas]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.7
    assert skews[-1] < 0.03


def test_shares_have_the_moments_of_a_dirichlet() -> None:
    alpha, num_workers = 0.5, 4
    draws = np.stack([Dirichlet(alpha)._shares(num_workers, seed, 0) for seed in range(4_000)])
    mean = 1 / num_workers
    variance = mean * (1 - mean) / (num_workers * alpha + 1)
    assert draws.sum(axis=1) == pytest.approx(1.0)
    assert draws.mean(axis=0) == pytest.approx(mean, abs=0.02)
    assert draws.var(axis=0) == pytest.approx(variance, abs=0.01)


def test_the_poor_are_fed_by_the_rich() -> None:
    targets = np.zeros(8, np.int64)  # one class and a tiny alpha: one worker gets all of it
    parts = Dirichlet(1e-6).split(targets, 8, 4, seed=0)
    assert sorted(len(part) for part in parts) == [1, 1, 1, 5]
    rich = max(parts, key=len)
    assert rich.tolist() == [0, 1, 2, 3, 4]
    assert [part.tolist() for part in parts if part is not rich] == [[7], [6], [5]]


def test_shards_hold_few_labels() -> None:
    targets = labels_for(1_000, 10)
    parts = Shards(2).split(targets, 1_000, 10, seed=0)
    assert {len(part) for part in parts} == {100}
    # A shard of 50 spans at most two of the classes of about 100.
    assert max(len(np.unique(targets[part])) for part in parts) <= 4


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_more_workers_than_samples(partition: Partition) -> None:
    with pytest.raises(DataError, match=r"5 workers need at least 5 training samples.*got 4"):
        partition.split(labels_for(4, 2), 4, 5, seed=0)
    with pytest.raises(ConfigError, match="at least 1 worker; got 0"):
        partition.split(labels_for(4, 2), 4, 0, seed=0)


def test_more_shards_than_samples() -> None:
    with pytest.raises(DataError, match="need at least 6 training samples, got 5"):
        Shards(2).split(labels_for(5, 2), 5, 3, seed=0)


@pytest.mark.parametrize("partition", [Dirichlet(1.0), Shards()], ids=str)
@pytest.mark.parametrize("targets", [None, np.zeros(9), np.zeros((9, 2), np.int64)])
def test_labels_are_needed(partition: Partition, targets: NDArray[np.int64] | None) -> None:
    with pytest.raises(DataError, match=r"deals by label.*use the partition iid or contiguous"):
        partition.split(targets, 9, 3, seed=0)
    assert len(IID().split(targets, 9, 3, seed=0)) == 3


def test_a_target_for_each_sample_is_needed() -> None:
    with pytest.raises(DataError, match="each of 9 samples, got 8 targets"):
        Shards().split(labels_for(8, 2), 9, 3, seed=0)


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_text_and_pickle_round_trip(partition: Partition) -> None:
    assert parse_partition(str(partition)) == partition
    assert pickle.loads(pickle.dumps(partition)) == partition


def test_parse() -> None:
    assert parse_partition("iid") == IID()
    assert parse_partition("contiguous") == Contiguous()
    assert parse_partition(" Dirichlet:0.3 ") == Dirichlet(0.3)
    assert parse_partition("shards") == Shards(2)
    assert parse_partition("shards:5") == Shards(5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "even",
        "iid:1",
        "contiguous:2",
        "dirichlet",
        "dirichlet:",
        "dirichlet:x",
        "shards:1.5",
        "shards:",
    ],
)
def test_parse_refuses_and_lists(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"must be iid, contiguous, dirichlet:ALPHA .* or shards:PER_WORKER"
    ):
        parse_partition(text)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), 1e-7])
def test_alpha_outside_its_range(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        parse_partition(f"dirichlet:{alpha}")


def test_shards_outside_their_range() -> None:
    with pytest.raises(ConfigError, match="at least 1 shard of the data; got 0"):
        Shards(0)
