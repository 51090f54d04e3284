"""The bytes of every message, worked out by hand (rule_13)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prlc.methods import Scheduled, Timetable, Turn, parse_method
from prlc.network.traffic import MessageSizes, Traffic

P = 3
BLOCKS = [(1000, 10)]  # parameters and buffers
PLAIN = 1010 * 4


def sizes_of(text: str, blocks: list[tuple[int, int]] | None = None) -> MessageSizes:
    return MessageSizes(parse_method(text), P, blocks or BLOCKS, torch.float32, PLAIN)


def turn(*pulling: int, block: int = 0, pushed: range | None = None) -> Turn:
    pulls, everybody, who = np.isin(np.arange(P), pulling), np.ones(P, bool), list(pulling)
    return Turn(everybody, everybody, pulls, who, who, block, block, pushed or range(1))


@pytest.mark.parametrize(
    ("text", "up", "down"),
    [
        ("prlc", PLAIN, PLAIN),
        ("asgd", PLAIN, PLAIN),
        ("lag-wk", PLAIN, PLAIN),
        ("cmfl", PLAIN, PLAIN),
        ("ssp", PLAIN, PLAIN),
        ("laq:up=grid,3,chunk=500", 2 * (188 + 4) + 40, PLAIN),
        ("laq:up=plain", PLAIN, PLAIN),
        ("nsgd:up=bfloat16", 2000 + 40, PLAIN),
        ("nsgd:up=int8,chunk=500", 1000 + 2 * 4 + 40, PLAIN),
        ("nsgd:down=int4,chunk=500", PLAIN, 500 + 2 * 4 + 40),
        ("qsgd:up=int8,chunk=500", 1048, P * 1008 + 40),  # all messages of the round
        ("nsgd:up=int4:down=int4,what=mean", 504 + 40, 504 + 40),
        ("scaffold:5", PLAIN + 4000, PLAIN + 4000),  # a control variate each way
        ("eager-diloco:5", PLAIN, PLAIN),
        ("stc:0.01", 8 + 4 + 2 + 4 + 40, 8 + 4 + 2 + 4 + 40),  # places, signs, their magnitude
        ("nsgd:up=signs", 200 + 4 + 40, PLAIN),  # five to a byte
    ],
)
def test_sizes_by_hand_rules_7_13_15(text: str, up: int, down: int) -> None:
    """Buffers always travel plain (rule_7); sizes are known beforehand (rule_15)."""
    sizes = sizes_of(text)
    assert (sizes.push, sizes.pull) == (up, down)
    if isinstance(parse_method(text), Scheduled):
        assert sizes.pulls(turn(0, 2)).tolist() == [down, 0, down]


def test_blocks_are_pushed_alone_in_their_turn() -> None:
    sizes = sizes_of("streaming-diloco:6:up=int4", [(600, 10), (400, 0)])
    assert sizes.pushed(turn(pushed=range(1))) == 300 + 4 + 40
    assert sizes.pushed(turn(pushed=range(1, 2))) == 200 + 4
    assert sizes.pushed(turn(pushed=range(2))) == sizes.push == 500 + 8 + 40


def test_blocks_travel_alone_rule_5() -> None:
    sizes = sizes_of("prlc:0.5:blocks=2", [(600, 10), (400, 0)])
    assert sizes.push == PLAIN
    assert sizes.pulls(turn(1)).tolist() == [0, 610 * 4, 0]
    assert sizes.pulls(turn(1, block=1)).tolist() == [0, 400 * 4, 0]


def test_who_missed_messages_gets_them_or_the_plain_model_rule_13() -> None:
    sizes = sizes_of("prlc:0.5:down=int8,chunk=1000,state=shared")
    message, model, buffers = 1004, 4000, 40
    assert sizes.pulls(turn(0)).tolist() == [message + buffers, 0, 0]
    assert sizes.pulls(turn(0, 1)).tolist() == [message + buffers, 2 * message + buffers, 0]
    assert sizes.pulls(turn()).tolist() == [0, 0, 0], "nobody pulls, so nothing is made"
    assert sizes.pulls(turn(1)).tolist() == [0, message + buffers, 0]
    # The third worker missed four, which is longer than the model itself.
    assert sizes.pulls(turn(0, 2)).tolist() == [2 * message + buffers, 0, model + buffers]
    assert sizes.pulls(turn(2)).tolist() == [0, 0, message + buffers]


def test_who_has_a_state_of_its_own_misses_nothing_rule_13() -> None:
    sizes = sizes_of("prlc:0.5:down=int8,chunk=1000,state=own")
    for pulling in ((0,), (0,), (1, 2)):
        sizes.pulls(turn(*pulling))
    assert sizes.pulls(turn(0, 2)).tolist() == [1044, 0, 1044]


def test_sizes_go_on_after_a_checkpoint_rule_9() -> None:
    method = parse_method("prlc:0.3:down=topk,0.3,chunk=100,state=shared:blocks=2")
    assert isinstance(method, Scheduled)

    def made() -> MessageSizes:
        return MessageSizes(method, P, [(600, 0), (400, 0)], torch.float32, 4000)

    timetable, whole, later = Timetable(method, P, 0), made(), made()
    all_of_it = [whole.pulls(timetable[step]).tolist() for step in range(40)]
    later.replay(timetable, 25)
    assert [later.pulls(timetable[step]).tolist() for step in range(25, 40)] == all_of_it[25:]
    assert any(len({size for size in sizes if size}) > 1 for sizes in all_of_it)


def test_traffic_adds_up_and_comes_back() -> None:
    traffic = Traffic(2)
    traffic.count(np.array([1, 0]), np.array([1, 1]), np.array([10, 0]), np.array([3, 5]))
    traffic.count(
        np.array([True, True]), np.array([False, True]), np.array([7, 7]), np.array([0, 2])
    )
    assert (traffic.bytes_up, traffic.bytes_down) == (24, 10)
    again = Traffic(2)
    again.load_state(traffic.state())
    assert again.pushes.tolist() == [2, 1]
    assert again.pulls.tolist() == [1, 2]
    assert again.down.tolist() == [3, 7]
