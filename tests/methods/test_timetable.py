"""Who takes part, pushes and pulls what, when: properties of timetables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prlc.draws import Purpose, uniform
from prlc.errors import ConfigError
from prlc.methods import NSGD, PRLC, LocalSGD, Mask, Scheduled, Timetable, Turn
from prlc.methods.check import SCHEDULES

seeds = st.integers(0, 2**40)


def turns_of(
    method: Scheduled, P: int, seed: int, steps: int, end: int | None = None
) -> list[Turn]:
    timetable = Timetable(method, P, seed, end)
    return [timetable[step] for step in range(steps)]


def pulls_of(turns: list[Turn]) -> Mask:
    return np.array([turn.pulls for turn in turns])


@st.composite
def methods(draw: st.DrawFn) -> Scheduled:
    try:
        return Scheduled(
            pull_ratio=draw(st.sampled_from([1.0, 0.5, 0.3, 0.1])),
            every=draw(st.integers(1, 4)),
            schedule=draw(st.sampled_from(SCHEDULES)),
            delay=draw(st.integers(0, 9)),
            blocks=draw(st.integers(1, 3)),
            sample=draw(st.sampled_from([1.0, 0.4])),
            push_blocks=draw(st.sampled_from(["all", "turn"])),
        )
    except ConfigError:
        assume(False)
        raise


@given(method=methods(), P=st.integers(1, 7), seed=seeds, data=st.data())
@settings(max_examples=60)
def test_any_order_of_asking_gives_the_same_rule_1(
    method: Scheduled, P: int, seed: int, data: st.DataObject
) -> None:
    """Also far apart, as a run that is resumed asks."""
    end = data.draw(st.none() | st.integers(250, 300))
    turns = turns_of(method, P, seed, 250, end)
    asked = data.draw(st.lists(st.integers(0, 249), min_size=1, max_size=6))
    other = Timetable(method, P, seed, end)
    for step in asked:
        ours, theirs = other[step], turns[step]
        for name in Turn._fields:
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), (step, name)


@given(method=methods(), P=st.integers(1, 7), seed=seeds, end=st.integers(1, 60))
@settings(max_examples=80)
def test_what_holds_for_every_timetable_rules_2_3_8(
    method: Scheduled, P: int, seed: int, end: int
) -> None:
    """Pushes and pulls (rule_2), at most one pull under way (rule_3), and the end (rule_8)."""
    turns = turns_of(method, P, seed, end, end)
    under_way: dict[int, tuple[int, int]] = {}  # worker -> (step of its use, block)
    for step, turn in enumerate(turns):
        ends = {(k + 1) * method.every // method.blocks: k for k in range(method.blocks)}
        ends = ends if method.in_turn else {method.every: 0}
        place = step % method.every + 1
        due = place in ends or step == end - 1
        assert turn.is_push == due
        if method.in_turn and due and step < end - 1:
            assert list(turn.push_blocks) == [ends[place]] == [turn.block]
        else:
            assert list(turn.push_blocks) == list(range(method.blocks)) or not due
        assert np.array_equal(turn.pushes, turn.computes & due)
        assert np.flatnonzero(turn.pulls).tolist() == turn.pulling
        assert due or not turn.pulling, "pulls begin at push steps only"
        if method.delay:
            used = [i for i, (at, _) in under_way.items() if at == step]
            assert sorted(used) == turn.uses
            assert all(under_way.pop(i)[1] == turn.used_block for i in used)
        else:
            assert turn.uses == turn.pulling
        for i in turn.pulling if method.delay else ():
            assert i not in under_way, "at most one pull is under way"
            under_way[i] = (step + method.delay, turn.block)
    assert not under_way, "every pull that begins is used"


def test_a_coin_that_falls_while_a_pull_is_under_way_is_dropped_rule_3() -> None:
    turns = turns_of(PRLC(0.4, delay=5), 4, 1, 300)
    coins = uniform(1, Purpose.PULL, np.arange(4), np.arange(300)[:, None]) < 0.4
    for i in range(4):
        free_at, expected = 0, []
        for step in np.flatnonzero(coins[:, i]).tolist():
            if step >= free_at:
                expected.append(step)
                free_at = step + 5
        assert np.flatnonzero(pulls_of(turns)[:, i]).tolist() == expected
    assert pulls_of(turns).sum() < coins.sum()


def test_without_a_delay_no_coin_is_dropped() -> None:
    coins = uniform(1, Purpose.PULL, np.arange(4), np.arange(100)[:, None]) < 0.4
    assert np.array_equal(pulls_of(turns_of(PRLC(0.4), 4, 1, 100)), coins)


def test_a_pull_that_would_be_used_after_the_end_does_not_begin_rule_8() -> None:
    turns = turns_of(LocalSGD(5, delay=4), 2, 0, 22, end=22)
    assert [t for t, turn in enumerate(turns) if turn.pulling] == [4, 9, 14]  # 19 + 4 > 21
    assert [t for t, turn in enumerate(turns) if turn.uses] == [8, 13, 18]
    assert [t for t, turn in enumerate(turns) if turn.is_push] == [4, 9, 14, 19, 21]


@given(f=st.floats(0.01, 0.99), P=st.integers(1, 12), every=st.integers(1, 3), seed=seeds)
@settings(max_examples=50)
def test_samples_have_exactly_their_size_rule_6(f: float, P: int, every: int, seed: int) -> None:
    turns = turns_of(LocalSGD(every, sample=f), P, seed, 8 * every)
    size = max(1, round(f * P))
    for step, turn in enumerate(turns):
        assert turn.computes.sum() == size
        assert np.array_equal(turn.computes, turns[step - step % every].computes), "for a round"
        if turn.is_push and step + 1 < len(turns):
            assert np.array_equal(turn.pulls, turns[step + 1].computes), "the next sample pulls"


def test_everybody_is_in_a_sample_now_and_then() -> None:
    taken = np.array([turn.computes for turn in turns_of(NSGD(sample=0.2), 10, 3, 200)])
    assert (abs(taken.mean(0) - 0.2) < 6 * np.sqrt(0.2 * 0.8 / 200)).all()


@pytest.mark.parametrize("r", [0.1, 0.25, 0.5])
def test_exact_counts_of_the_schedules_rule_2(r: float) -> None:
    P, n = 8, round(1 / r)
    exact = pulls_of(turns_of(PRLC(r, schedule="exact"), P, 3, 40))
    assert (exact.sum(1) == max(1, round(r * P))).all()
    assert (exact.sum(0) > 0).all()
    aligned = pulls_of(turns_of(PRLC(r, schedule="aligned"), P, 3, 4 * n))
    assert np.flatnonzero(aligned.any(1)).tolist() == [n - 1, 2 * n - 1, 3 * n - 1, 4 * n - 1]
    assert aligned[n - 1].all()
    staggered = pulls_of(turns_of(PRLC(r, schedule="staggered"), P, 3, 4 * n))
    assert (staggered.sum(0) == 4).all()
    loads = staggered.sum(1)
    assert loads.max() - loads.min() <= 1, "the load is even"
    for column in staggered.T:
        assert set(np.diff(np.flatnonzero(column))) == {n}


def test_rare_pushes_make_pulls_rarer_rule_2() -> None:
    """The ratio counts push steps: every 20 steps and 0.1 make 200."""
    method = PRLC(0.1, every=20)
    pulls = pulls_of(turns_of(method, 20, 0, 4000))
    assert method.interval == 200
    assert pulls.sum() / 20 == pytest.approx(4000 / 200, rel=0.2)


def test_blocks_take_turns_rule_5() -> None:
    turns = turns_of(LocalSGD(2, blocks=3, delay=1), 2, 0, 12)
    assert [turn.block for turn in turns[1::2]] == [0, 1, 2, 0, 1, 2]
    assert [turn.used_block for turn in turns[2::2]] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"delay": 11, "every": 10}, "the delay is 11 steps and a worker pulls every 10"),
        ({"delay": 5, "pull_ratio": 0.25, "schedule": "aligned"}, "pulls every 4"),
        ({"delay": -1}, "`delay` must be a whole number of steps, at least 0, but is -1"),
        ({"delay": 1.5}, "but is 1.5"),
        ({"schedule": "random"}, "must be one of coins, staggered, aligned, exact but is 'random'"),
        ({"weights": "size"}, "must be one of equal, samples but is 'size'"),
        ({"blocks": 0}, "`blocks` must be a whole number, at least 1, but is 0"),
        ({"sample": 0}, "share of the workers in (0, 1] but is 0"),
        ({"sample": 0.5, "delay": 1}, "delay=1 does not go with it"),
        ({"sample": 0.5, "blocks": 2}, "blocks=2 does not go with it"),
        ({"sample": 0.5, "pull_ratio": 0.5}, "a pull ratio of 0.5 does not go with sample=0.5"),
        ({"sample": 0.5, "meanwhile": "gc"}, "`gc` learns from a worker's consecutive pulls"),
        ({"sample": 0.5, "meanwhile": "snr"}, "`snr` learns from a worker's consecutive pulls"),
        ({"meanwhile": "ahead"}, "need an encoding with error feedback, such as up=topk,0.01"),
        ({"sample": 0.5, "meanwhile": "ahead", "up": "topk"}, "the mean of all workers"),
        (
            {"meanwhile": "ahead", "up": "topk", "sends": "displacement"},
            "a displacement would send it twice",
        ),
        ({"down": "topk,0.1,decay=0.5"}, "so it takes no decay"),
        ({"down": "plain,state=own"}, "state=own does not go with down=plain"),
        ({"down": "int8,what=mean,state=own"}, "state=own does not go with down=mean"),
        ({"down": "gather", "pull_ratio": 0.5}, "everybody pulls the whole model in every round"),
        ({"down": "gather", "delay": 1}, "everybody pulls the whole model in every round"),
        ({"down": "int8,what=mean", "blocks": 2}, "Take a difference instead"),
        ({"down": "gather", "sample": 0.5}, "everybody pulls the whole model in every round"),
        ({"meanwhile": "guess"}, "no compensation 'guess'. Choose one of: hold, own"),
        ({"meanwhile": "share,-1"}, "finite number of at least 0 but is -1"),
        ({"meanwhile": "snr,1"}, "smoothing must lie in [0, 1) but is 1"),
        ({"meanwhile": "gc,rho=0"}, "rho of `gc` must lie in (0, 1] but is 0"),
        ({"meanwhile": 3}, "A compensation is written as text"),
        ({"up": "topk,0"}, "in (0, 1]"),
        ({"push_blocks": "some"}, "must be one of all, turn but is 'some'"),
        ({"sends": "all"}, "must be one of updates, displacement but is 'all'"),
        ({"sends": "displacement"}, "and do not hold still"),
        ({"sends": "displacement", "meanwhile": "own", "pull_ratio": 0.5}, "pull at every push"),
        ({"push_blocks": "turn", "blocks": 3, "every": 2}, "need a round of at least as many"),
        ({"push_blocks": "turn", "blocks": 2, "every": 4, "delay": 3}, "pulls every 2"),
        ({"push_blocks": "turn", "blocks": 2, "every": 4, "pull_ratio": 0.5}, "ratio of 0.5"),
        ({"down": "update"}, "brings no model, which `hold` needs"),
        ({"down": "int8,what=update"}, "leave out int8"),
        ({"meanwhile": "eager"}, "so it needs down=update"),
        ({"meanwhile": "eager", "down": "update", "every": 4}, "(every=4:delay=4)"),
        ({"meanwhile": "eager,momentum=1"}, "must lie in [0, 1) but is 1"),
        ({"meanwhile": "scaffold", "delay": 1}, "no delay and one block"),
        ({"meanwhile": "scaffold,3"}, "option must be 1 or 2 but is 3"),
        ({"meanwhile": "mix,1"}, "alpha of `mix` must lie in [0, 1) but is 1"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together_rule_22(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        Scheduled(**settings)
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")
