"""Draws are pure functions and look random."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from prlc.draws import Purpose, bits, lognormal, torch_seed, uniform, uniforms

N = 40_000
GOLDEN = (0.13870941014555427, 0.22283173670180456, 7036458801432265024)
seeds = st.integers(-(2**70), 2**70)
purposes = st.sampled_from(list(Purpose))


def correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


@given(seeds, purposes, st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.randoms())
def test_the_order_of_asking_does_not_matter(
    seed: int, purpose: Purpose, indices: list[int], random: object
) -> None:
    together = dict(zip(indices, bits(seed, purpose, indices).tolist(), strict=True))
    random.shuffle(indices)  # type: ignore[attr-defined]
    for index in indices:
        assert int(bits(seed, purpose, index)) == together[index]


@given(seeds, purposes, st.integers(1, 6), st.integers(1, 6))
def test_a_part_of_a_table_is_the_table_s_part(
    seed: int, purpose: Purpose, workers: int, steps: int
) -> None:
    table = bits(seed, purpose, np.arange(workers)[:, None], np.arange(steps))
    assert table.shape == (workers, steps)
    for worker in range(workers):
        assert np.array_equal(bits(seed, purpose, worker, np.arange(steps)), table[worker])
    for step in range(steps):
        assert np.array_equal(bits(seed, purpose, np.arange(workers), step), table[:, step])


def test_indices_of_any_integer_type_are_the_same_draw() -> None:
    expected = bits(3, Purpose.PULL, 5, 7)
    for kind in (np.int32, np.int64, np.uint8, np.uint64):
        assert bits(3, Purpose.PULL, kind(5), np.asarray(7, kind)) == expected


def test_the_draws_stay_what_they_are() -> None:
    """Checkpoints and published runs depend on them."""
    assert uniform(0, Purpose.PULL, 0, 0) == pytest.approx(GOLDEN[0], abs=0)
    assert uniform(1, Purpose.SHUFFLE, 2, 3) == pytest.approx(GOLDEN[1], abs=0)
    assert torch_seed(1, Purpose.MODEL) == GOLDEN[2]


@pytest.mark.parametrize("seed", [0, 1, 2**63, -5])
@pytest.mark.parametrize("purpose", list(Purpose))
def test_uniform_draws_are_uniform(seed: int, purpose: Purpose) -> None:
    draws = uniform(seed, purpose, np.arange(20)[:, None], np.arange(N // 20)).ravel()
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    assert abs(draws.mean() - 0.5) < 5 * np.sqrt(1 / 12 / N)
    assert abs(draws.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / N)
    counts, _ = np.histogram(draws, bins=100, range=(0, 1))
    chi_square = float(((counts - N / 100) ** 2 / (N / 100)).sum())
    assert 40 < chi_square < 180  # 99 degrees of freedom: 99 ± 14


def test_every_bit_is_fair() -> None:
    draws = bits(0, Purpose.PULL, np.arange(N))
    shares = [(draws >> np.uint64(k) & np.uint64(1)).mean() for k in range(64)]
    assert np.abs(np.array(shares) - 0.5).max() < 5 * 0.5 / np.sqrt(N)


def test_draws_are_independent() -> None:
    workers, steps = np.arange(20)[:, None], np.arange(N // 20)
    base = uniform(0, Purpose.PULL, workers, steps)
    others = {
        "seed": uniform(1, Purpose.PULL, workers, steps),
        "purpose": uniform(0, Purpose.SHUFFLE, workers, steps),
        "next worker": uniform(0, Purpose.PULL, workers + 1, steps),
        "next step": uniform(0, Purpose.PULL, workers, steps + 1),
        "a further index": uniform(0, Purpose.PULL, workers, steps, 0),
    }
    for what, other in others.items():
        assert abs(correlation(base, other)) < 5 / np.sqrt(N), what
    assert abs(correlation(base[:, 1:], base[:, :-1])) < 5 / np.sqrt(N)


def test_swapping_worker_and_step_gives_another_number() -> None:
    a, b = np.triu_indices(60, 1)
    assert not np.any(bits(0, Purpose.PULL, a, b) == bits(0, Purpose.PULL, b, a))


def test_no_number_comes_twice() -> None:
    tables = [bits(s, p, np.arange(30)[:, None], np.arange(30)) for s in (0, 1, 2) for p in Purpose]
    everything = np.concatenate([table.ravel() for table in tables])
    assert len(np.unique(everything)) == len(everything)


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_lognormal_draws_have_mean_one_and_the_given_spread(spread: float) -> None:
    draws = lognormal(0, Purpose.COMPUTE, np.arange(400)[:, None], np.arange(500), spread=spread)
    assert draws.min() > 0.0
    assert abs(draws.mean() - 1.0) < 5 * spread / np.sqrt(draws.size)
    assert draws.std() == pytest.approx(spread, rel=0.05)
    logs = np.log(draws).ravel()
    assert abs(((logs - logs.mean()) ** 3).mean() / logs.std() ** 3) < 0.03  # not skewed


def test_no_spread_is_no_randomness() -> None:
    assert np.array_equal(lognormal(0, Purpose.COMPUTE, np.arange(9), spread=0.0), np.ones(9))


def test_lognormal_draws_are_pure_too() -> None:
    whole = lognormal(4, Purpose.COMPUTE, np.arange(6)[:, None], np.arange(5), spread=0.4)
    assert float(lognormal(4, Purpose.COMPUTE, 2, 3, spread=0.4)) == whole[2, 3]


@given(seeds, purposes, st.integers(0, 2**40))
def test_seeds_for_torch_fit_its_generator(seed: int, purpose: Purpose, index: int) -> None:
    assert 0 <= torch_seed(seed, purpose, index) < 2**63
    assert torch_seed(seed, purpose, index) == torch_seed(seed, purpose, index)


def numbers_of(bases: int, count: int) -> NDArray[np.float32]:
    chosen = bits(0, Purpose.ENCODE_UP, np.arange(bases))
    return uniforms(chosen, count, torch.device("cpu")).numpy()


def test_numbers_for_encodings_depend_on_base_and_position_alone() -> None:
    bases = bits(0, Purpose.ENCODE_UP, np.arange(3)[:, None], np.arange(4))
    whole = uniforms(bases, 100, torch.device("cpu"))
    assert whole.shape == (3, 4, 100)
    assert whole.dtype == torch.float32
    assert torch.equal(uniforms(bases[1:2, 2:], 30, torch.device("cpu")), whole[1:2, 2:, :30])


def test_numbers_for_encodings_are_even() -> None:
    drawn = numbers_of(100, 4096)
    assert 0.0 <= drawn.min() < 1e-4
    assert 1.0 - 1e-4 < drawn.max() < 1.0
    few, _ = np.histogram(drawn[:, :200], bins=100, range=(0, 1))
    chi_square = float(((few - 200) ** 2 / 200).sum())
    assert 40 < chi_square < 180  # 99 degrees of freedom
    assert abs(correlation(drawn[:, 1:], drawn[:, :-1])) < 5 / np.sqrt(drawn.size)
    assert abs(correlation(drawn[1:], drawn[:-1])) < 5 / np.sqrt(drawn.size)


@pytest.mark.parametrize(("i", "j"), [(0, 1), (3, 70), (17, 255)])
def test_numbers_for_encodings_are_independent_in_pairs(i: int, j: int) -> None:
    """The joint distribution at two positions, over many bases."""
    eighths = (8 * numbers_of(16_000, 256)).astype(int)
    counts = np.bincount(8 * eighths[:, i] + eighths[:, j], minlength=64)
    chi_square = float(((counts - 250) ** 2 / 250).sum())
    assert 25 < chi_square < 120  # 63 degrees of freedom: 63 ± 11
