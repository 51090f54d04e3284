"""The bound on an update's length: learnt from the others', and never in an honest worker's way."""

from __future__ import annotations

import math

import torch

from prlc.engines.roles.lengths import Lengths, length_of


def test_one_that_is_far_longer_than_the_others_is_found() -> None:
    lengths = Lengths(4, 100.0)
    assert lengths.check({0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}) == []
    (found,) = lengths.check({0: 1.0, 1: 1.0, 2: 1e30, 3: 1.0})
    assert (found.worker, found.length, found.bound) == (2, 1e30, 200.0)
    (again,) = lengths.check({0: 1.0, 1: 1.0, 2: 1e30, 3: 1.0})
    assert again.bound == 200.0, "one's own length does not raise one's own bound"


def test_even_in_the_first_step() -> None:
    (found,) = Lengths(3, 100.0).check({0: math.inf, 1: 1.0, 2: 1.0})
    assert found.worker == 0


def test_all_may_grow_together_and_from_nothing() -> None:
    lengths = Lengths(3, 100.0)
    for scale in (0.0, 1e-9, 1.0, 1e12):
        assert lengths.check({worker: scale * (1 + worker) for worker in range(3)}) == []


def test_one_by_one_a_jump_is_said_but_not_forever() -> None:
    lengths = Lengths(2, 100.0)
    said = 0
    for length in [1.0] * 4 + [1e6] * 20:
        for worker in (0, 1):
            said += len(lengths.check({worker: length}))
    assert 0 < said < 8


def test_a_lone_worker_is_measured_by_itself() -> None:
    lengths = Lengths(1, 100.0)
    assert lengths.check({0: 1.0}) == []
    assert lengths.check({0: 99.0}) == []
    assert len(lengths.check({0: 1e30})) == 1


def test_a_sum_that_is_not_long_is_not_looked_into() -> None:
    lengths = Lengths(2, 100.0)
    assert lengths.check({0: 1.0, 1: 1.0}) == []
    assert lengths.check_step(2.0, 2.0, lambda: {0: math.inf}) == []
    assert len(lengths.check_step(2.1, 2.0, lambda: {0: math.inf, 1: 1.0})) == 1
    fresh = Lengths(2, 100.0)
    fresh.load_state(lengths.state())
    assert fresh.state() == lengths.state()


def test_the_length_of_several_tensors() -> None:
    assert length_of([torch.tensor([3.0]), torch.tensor([0.0, 4.0]), torch.zeros(0)]) == 5.0
    assert length_of([torch.full((2,), 1e30)]) == math.inf
