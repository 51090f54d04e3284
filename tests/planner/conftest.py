"""A problem small enough to plan for in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from torch.nn import functional as F

import prlc
from prlc.data import Dataset, load_digits
from prlc.models import build
from prlc.planner import Plan

QUICK: dict[str, Any] = {
    "workers": 4,
    "batch_size": 5,
    "steps": 40,
    "methods": ["local-sgd:{H}", "nsgd:up=int4:down=int4", "prlc:0.2:delay=2"],
    "execution": prlc.Execution(4, 1),
}


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_digits().take(400, seed=0)


@pytest.fixture(scope="session")
def model(digits: Dataset) -> nn.Module:
    return build("logistic", digits.sample_shape, digits.num_classes, 0)


@pytest.fixture(scope="session")
def plan_anew(model: nn.Module, digits: Dataset) -> Callable[..., Plan]:
    """A plan for a few methods, with changes."""

    def make(**changes: Any) -> Plan:
        return prlc.plan(model, F.cross_entropy, digits, **{**QUICK, **changes})

    return make


@pytest.fixture(scope="session")
def quick(plan_anew: Callable[..., Plan]) -> Callable[..., Plan]:
    """The same, made once for all tests that ask for the same changes."""
    made: dict[str, Plan] = {}

    def find(**changes: Any) -> Plan:
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = plan_anew(**changes)
        return made[key]

    return find
