"""The triggers of lazy methods (rule_20), equation by equation, and the shares of ASGD."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prlc.methods import ASGD, CMFL, LAGPS, LAGWK, LAQ
from prlc.methods.triggers import Candidate, Change


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def candidate(
    change_sq: Tensor,
    error_sq: Tensor | None = None,
    agreement: Tensor | None = None,
    step: int = 1,
) -> Candidate:
    nothing = torch.zeros_like(change_sq)
    return Candidate(
        change_sq,
        nothing if error_sq is None else error_sq,
        nothing if agreement is None else agreement,
        step,
    )


def test_a_worker_pushes_when_its_gradient_changed_enough() -> None:
    for trigger in (LAGWK(xi=0.5).trigger, LAGPS(xi=0.5).trigger, Change(0.5)):
        known = candidate(doubles(2.9, 3.0, 3.1))
        fires = trigger.fires(trigger.init(3), known, doubles(1.0, 2.0, 3.0))  # (15a): 0.5 * 6
        assert fires.tolist() == [False, False, True]


def test_laq_asks_for_more_than_its_bits_leave_out() -> None:
    trigger = LAQ(xi=0.5).trigger
    state = trigger.init(3)
    before = candidate(doubles(9.0, 9.0, 9.0), error_sq=doubles(1.0, 0.0, 1.0))
    state = trigger.decided(state, before, torch.tensor([True, True, False]))
    assert state["error_sq"].tolist() == [1.0, 0.0, 0.0], "of the last message"
    now = candidate(doubles(9.0, 9.0, 9.0), error_sq=doubles(0.5, 0.5, 2.5))
    fires = trigger.fires(state, now, doubles(6.0))  # 3 + 3 (now + last)
    assert fires.tolist() == [True, True, False]
    fires = trigger.fires(state, now, doubles(9.0))  # 4.5 + 3 (now + last)
    assert fires.tolist() == [False, True, False]


@pytest.mark.parametrize("longest", [1, 3])
def test_laq_pushes_after_a_while_in_any_case(longest: int) -> None:
    trigger, pushes = LAQ(longest=longest).trigger, []
    state, nothing = trigger.init(1), candidate(doubles(0.0))
    for _ in range(7):
        fires = trigger.fires(state, nothing, doubles(1.0))
        state = trigger.decided(state, nothing, fires)
        pushes.append(bool(fires))
    assert pushes == [(step + 1) % longest == 0 for step in range(7)]


def test_cmfl_counts_signs() -> None:
    shares = doubles(0.0, 0.39, 0.4, 1.0)
    fires = CMFL(0.4).trigger.fires({}, candidate(shares, agreement=shares), doubles(1.0))
    assert fires.tolist() == [False, False, True, True]
    fading = CMFL(0.8, decay=True).trigger  # 0.8 / sqrt(4)
    fires = fading.fires({}, candidate(shares, agreement=shares, step=4), doubles(1.0))
    assert fires.tolist() == [False, False, True, True]
    first = fading.fires({}, candidate(shares, agreement=shares, step=1), doubles(1.0))
    assert first.tolist() == [False, False, False, True]


def test_one_worker_of_cmfl_always_pushes_drawn_from_the_seed() -> None:
    drawn = [CMFL().always_pushes(1, step, 4) for step in range(400)]
    assert drawn == [CMFL().always_pushes(1, step, 4) for step in range(400)]
    assert drawn != [CMFL().always_pushes(2, step, 4) for step in range(400)]
    assert all(70 < drawn.count(worker) < 130 for worker in range(4))
    assert LAQ().always_pushes(1, 0, 4) is None


def test_the_server_asks_until_it_knows_the_smoothness() -> None:
    assert math.isinf(LAGPS(xi=100.0).initial_smoothness())
    assert (
        LAGPS()
        .trigger.fires(LAGPS().trigger.init(1), candidate(doubles(math.inf)), doubles(1.0))
        .all()
    )


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
    assert not any(kind.asked_by_server for kind in (LAGWK, LAQ, CMFL))


@pytest.mark.parametrize("num_workers", [1, 4, 20])
def test_shares_of_asynchronous_updates(num_workers: int) -> None:
    for staleness in (0, 1, 7):
        assert ASGD().share(staleness, num_workers) == 1 / num_workers
        assert ASGD(staleness_aware=True).share(staleness, num_workers) == 1 / (1 + staleness)


def test_equal_workers_weigh_the_same_either_way() -> None:
    assert ASGD(True).share(3, 4) == ASGD(False).share(3, 4)
