"""A server reads pushes where they are: it makes their mean and leaves them as they were."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from prlc.engines.roles.packing import Packing
from prlc.engines.roles.scheduled import RoleSettings
from prlc.engines.roles.scheduled_server import ScheduledServerRole
from prlc.methods import Scheduled, parse_method

SIZE = 37


def weighted_sum(pushes: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = pushes[0].clone() if weights[0] == 1.0 else pushes[0] * weights[0]
    for push, weight in zip(pushes[1:], weights[1:], strict=True):
        total.add_(push, alpha=weight)
    return total


@pytest.mark.parametrize("left_out", [[], [0], [0, 2]])
@pytest.mark.parametrize("text", ["nsgd", "nsgd:weights=samples", "prlc:0.3", "prlc:0.3:delay=1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mean_has_the_bits_of_a_sum_step_by_step(
    dtype: torch.dtype, text: str, left_out: list[int]
) -> None:
    torch.manual_seed(0)
    method = parse_method(text)
    assert isinstance(method, Scheduled)
    model = nn.Linear(SIZE, 1, bias=False, dtype=dtype)
    packing = Packing(model, method=method)
    weights = [2.0, 0.7, 1.0] if method.weights == "samples" else [1.0, 1.0, 1.0]
    settings = RoleSettings(method, 3, weights=weights)
    like = packing.zeros(0)
    values = [torch.randn_like(flat) for flat in like]
    expected = values[0].clone()
    server = ScheduledServerRole(values, packing, 0, settings)
    for step in range(3):
        pushes = [[torch.randn_like(flat) for flat in like] for _ in range(3)]
        before = [[flat.clone() for flat in push] for push in pushes]
        for worker, push in enumerate(pushes):
            server.take(step, worker, push)
        assert server.bad_messages(step) == []
        server.leave_out(left_out, step)
        server.finish(step, lr=0.1)
        stay = [worker for worker in range(3) if worker not in left_out]
        total = weighted_sum([pushes[w][0] for w in stay], [weights[w] for w in stay])
        expected.add_(total.div_(sum(weights[w] for w in stay)))
        assert torch.equal(values[0], expected)
        for push, old in zip(pushes, before, strict=True):
            assert all(map(torch.equal, push, old))


def test_a_sum_whose_length_is_too_large_a_number_may_be_finite() -> None:
    model = nn.Linear(4, 1, bias=False)
    method = parse_method("nsgd")
    assert isinstance(method, Scheduled)
    server = ScheduledServerRole(
        [torch.zeros(4)], Packing(model, method=method), 0, RoleSettings(method, 2)
    )
    server.take(0, 0, [torch.full((4,), 1e30)])
    server.take(0, 1, [torch.full((4,), 1e30)])
    assert server.bad_messages(0) == []
    server.finish(0, lr=0.1)
    assert torch.equal(server.shard.values[0], torch.full((4,), 1e30))
    server.take(1, 0, [torch.zeros(4)])
    server.take(1, 1, [torch.tensor([0.0, 0.0, torch.nan, 0.0])])
    assert server.bad_messages(1) == [1]
