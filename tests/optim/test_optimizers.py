"""Optimizers by name, and which of them may be stacked."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adafactor, Optimizer

from prlc.errors import ConfigError
from prlc.optim.optimizers import (
    SERVER_OPTIMIZERS,
    WORKER_OPTIMIZERS,
    OptimizerFactory,
    choose,
    is_elementwise,
    set_lr,
)

FACTORIES = [f for f in (*WORKER_OPTIMIZERS.values(), *SERVER_OPTIMIZERS.values()) if f is not None]


class Custom(SGD):
    """What a subclass does with its tensors is anybody's guess."""


def leaf(*shape: int) -> Tensor:
    return torch.ones(*shape, requires_grad=True)


@pytest.mark.parametrize("factory", FACTORIES)
def test_named_optimizers_can_be_made_and_stacked(factory: OptimizerFactory) -> None:
    optimizer = factory([leaf(2)])
    assert isinstance(optimizer, Optimizer)
    assert is_elementwise(optimizer)


@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
    ],
)
def test_what_counts_as_elementwise_is(kind: Any) -> None:
    """One instance over two stacked rows does what two instances do over one row each."""
    generator = torch.Generator().manual_seed(0)
    stacked, rows = leaf(2, 3), [leaf(3), leaf(3)]
    together, apart = kind([stacked], lr=0.1), [kind([row], lr=0.1) for row in rows]
    for _ in range(5):
        gradient = torch.randn(2, 3, generator=generator)
        stacked.grad = gradient.clone()
        together.step()
        for row, optimizer, own in zip(rows, apart, gradient, strict=True):
            row.grad = own.clone()
            optimizer.step()
    assert is_elementwise(together)
    assert torch.allclose(stacked, torch.stack(rows), atol=1e-7)


def test_others_are_not_trusted() -> None:
    assert not is_elementwise(Adafactor([leaf(2, 2)]))
    assert not is_elementwise(Custom([leaf(2)], lr=0.1))


def test_the_learning_rate_reaches_every_group() -> None:
    optimizer = SGD([{"params": [leaf(1)], "lr": 1.0}, {"params": [leaf(1)], "lr": 2.0}])
    set_lr(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_the_server_s_nesterov_is_that_of_diloco() -> None:
    factory = SERVER_OPTIMIZERS["nesterov"]
    assert factory is not None
    group = factory([leaf(1)]).param_groups[0]
    assert math.isclose(group["lr"], 0.7)
    assert math.isclose(group["momentum"], 0.9)
    assert group["nesterov"] is True


def test_names_become_factories_and_factories_stay() -> None:
    factory = partial(SGD, lr=1.0)
    assert choose("adamw", WORKER_OPTIMIZERS, "worker") is WORKER_OPTIMIZERS["adamw"]
    assert choose("sgd", WORKER_OPTIMIZERS, "worker") is None
    assert choose("add", SERVER_OPTIMIZERS, "server") is None
    assert choose(factory, WORKER_OPTIMIZERS, "worker") is factory
    assert choose(None, WORKER_OPTIMIZERS, "worker") is None


@pytest.mark.parametrize(
    ("name", "known", "role"),
    [("adam", WORKER_OPTIMIZERS, "worker"), ("", SERVER_OPTIMIZERS, "server")],
)
def test_unknown_names_are_refused_with_the_choices(
    name: str, known: dict[str, OptimizerFactory | None], role: str
) -> None:
    with pytest.raises(ConfigError, match=f"no {role} optimizer {name!r}") as error:
        choose(name, known, role)
    assert ", ".join(known) in str(error.value)


def test_settings_follow_commas() -> None:
    factory = choose("nesterov,lr=0.4,momentum=0.5", SERVER_OPTIMIZERS, "server")
    assert factory is not None
    group = factory([leaf(1)]).param_groups[0]
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.4, 0.5, True)


@pytest.mark.parametrize(
    "name", ["nesterov,lr=x", "nesterov,speed=1", "nesterov,0.4", "add,lr=1", "sign,lr=-1"]
)
def test_bad_settings_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=f"server optimizer {name!r} does not take these"):
        choose(name, SERVER_OPTIMIZERS, "server")


def test_a_step_by_the_sign_by_hand() -> None:
    parameter = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    optimizer = choose("sign,lr=0.1,weight_decay=0.5", SERVER_OPTIMIZERS, "server")
    assert optimizer is not None
    parameter.grad = torch.tensor([5.0, -1e-9, 0.0])
    optimizer([parameter]).step()
    assert parameter.tolist() == pytest.approx([0.95 - 0.1, -1.9 + 0.1, 2.85])
