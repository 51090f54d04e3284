"""Optimizers that look at whole tensors get whole tensors, of one worker at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from prlc.methods import ASGD, LAGPS, PRLC, LocalSGD, Method

from .builders import assert_plans_match_reference, job_of, slow_decay


class Normalised(Optimizer):
    """Steps of fixed length along each tensor's gradient, with a memory of its length."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state: dict[str, Any] = self.state[parameter]
                length = 0.5 * state.get("length", 1.0) + 0.5 * parameter.grad.norm()
                state["length"] = length
                parameter.sub_(parameter.grad / (length + 0.1), alpha=group["lr"])


class MatricesOnly(Normalised):
    """Refuses vectors, as Muon does."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1.0) -> None:
        parameters = list(parameters)
        if any(parameter.ndim != 2 for parameter in parameters):
            raise ValueError("only matrices can be trained by this optimizer")
        super().__init__(parameters, lr)


@pytest.mark.parametrize("method", [PRLC(0.3), LocalSGD(5), LAGPS(), ASGD()], ids=str)
@pytest.mark.parametrize("factory", [Normalised, partial(torch.optim.Adafactor, lr=1.0)])
def test_workers_run_their_own(method: Method, factory: Any) -> None:
    job = job_of(method, optimizer=factory, lr=slow_decay)
    assert_plans_match_reference(job, steps=30, plans=[4])


def test_a_cnn_keeps_the_shape_of_its_tensors() -> None:
    job = job_of(
        PRLC(0.3),
        "cnn",
        num_workers=3,
        batch_size=2,
        optimizer=torch.optim.Adafactor,
        lr=slow_decay,
    )
    assert_plans_match_reference(job, steps=6, plans=[2, 1])


def test_an_optimizer_for_matrices_only() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10, bias=False)).double()
    job = job_of(PRLC(0.3), model, optimizer=MatricesOnly, lr=slow_decay)
    assert_plans_match_reference(job, steps=10)


@pytest.mark.parametrize("factory", [Normalised, partial(torch.optim.Adafactor, lr=0.01)])
def test_the_server_keeps_the_shape_of_its_tensors(factory: Any) -> None:
    job = job_of(PRLC(0.3), server_optimizer=factory)
    assert_plans_match_reference(job, steps=10, plans=[6])
