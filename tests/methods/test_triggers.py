"""The triggers of LAG (rule_20), equation by equation, and the shares of ASGD."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prlc.methods import ASGD, LAGPS, LAGWK


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_worker_pushes_when_its_gradient_changed_enough() -> None:
    history, unused = doubles(1.0, 2.0, 3.0), doubles(math.nan)
    fires = LAGWK(xi=0.5).worthwhile(doubles(2.9, 3.0, 3.1), unused, history)  # (15a): 0.5 * 6
    assert fires.tolist() == [False, False, True]


def test_the_server_asks_when_the_model_moved_enough() -> None:
    history = doubles(4.0)
    fires = LAGPS(xi=1.0).worthwhile(doubles(0.9, 1.0, 1.1), doubles(2.0, 2.0, 2.0), history)
    assert fires.tolist() == [False, False, True]  # (15b): 2^2 * moved > 4


def test_the_server_asks_until_it_knows_the_smoothness() -> None:
    method = LAGPS(xi=100.0)
    unknown = doubles(method.initial_smoothness())
    assert method.worthwhile(doubles(1e-9), unknown, doubles(1.0)).all()
    assert not method.worthwhile(doubles(0.0), unknown, doubles(1.0)).any(), "nothing moved"


def test_smoothness_is_the_largest_ratio_seen() -> None:
    method = LAGPS()
    known = doubles(method.initial_smoothness())
    known = method.refine(known, doubles(0.0), doubles(0.0))
    assert known.isinf().all(), "nothing moved, so nothing is known"
    known = method.refine(known, doubles(16.0), doubles(4.0))
    assert known.tolist() == [2.0]
    assert method.refine(known, doubles(4.0), doubles(4.0)).tolist() == [2.0]
    assert method.refine(known, doubles(36.0), doubles(4.0)).tolist() == [3.0]
    assert method.refine(known, doubles(36.0), doubles(0.0)).tolist() == [2.0]


def test_given_smoothness_stays() -> None:
    method = LAGPS(smoothness=1.5)
    assert method.initial_smoothness() == 1.5
    assert method.refine(doubles(1.5), doubles(100.0), doubles(1.0)).tolist() == [1.5]


def test_workers_that_decide_need_no_smoothness() -> None:
    method = LAGWK()
    assert method.initial_smoothness() == 0.0
    assert method.refine(doubles(0.0), doubles(9.0), doubles(1.0)).tolist() == [0.0]


def test_who_decides() -> None:
    assert LAGPS.asked_by_server
    assert not LAGWK.asked_by_server


@pytest.mark.parametrize("num_workers", [1, 4, 20])
def test_shares_of_asynchronous_updates(num_workers: int) -> None:
    for staleness in (0, 1, 7):
        assert ASGD().share(staleness, num_workers) == 1 / num_workers
        assert ASGD(staleness_aware=True).share(staleness, num_workers) == 1 / (1 + staleness)


def test_equal_workers_weigh_the_same_either_way() -> None:
    assert ASGD(True).share(3, 4) == ASGD(False).share(3, 4)
