"""Dropout draws from streams of its own: it repeats, and the caller's numbers are left alone."""

from __future__ import annotations

import pytest
import torch

from prlc.engines import Simulator
from prlc.methods import ASGD, LAGWK, PRLC, Method

from . import modules
from .builders import (
    ENGINE_NAMES,
    ENGINES,
    arrivals_of,
    assert_identical,
    global_tensors,
    job_of,
    run,
)

FAMILIES: list[Method] = [PRLC(0.3), LAGWK(), ASGD()]


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_dropout_repeats_whatever_the_caller_drew(engine: str, method: Method) -> None:
    results = []
    for caller in (5, 6):
        torch.manual_seed(caller)
        made = ENGINES[engine](job_of(method, modules.with_dropout()))
        torch.rand(caller)
        run(made, 6)
        results.append(global_tensors(made))
    assert_identical(*results)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_the_seed_decides_what_is_dropped(engine: str) -> None:
    """Of a batch that is all samples, only the dropout can depend on the seed."""
    results = []
    for seed in (1, 2):
        job = job_of(PRLC(1.0), modules.with_dropout(), num_workers=6, batch_size=300, seed=seed)
        made = ENGINES[engine](job)
        run(made, 1)
        results.append(global_tensors(made))
    with pytest.raises(AssertionError, match="differs"):
        assert_identical(*results)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize("method", [PRLC(0.3), ASGD()], ids=str)
def test_the_numbers_of_the_caller_are_left_alone(engine: str, method: Method) -> None:
    model = modules.with_dropout()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    made = ENGINES[engine](job_of(method, model))
    assert torch.equal(before, torch.get_rng_state()), "by making the engine"
    run(made, 3)
    assert torch.equal(before, torch.get_rng_state()), "by running it"


@pytest.mark.usefixtures("cache")
def test_choosing_a_plan_leaves_the_numbers_of_the_caller_alone() -> None:
    job = job_of(PRLC(0.3), modules.with_dropout())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Simulator(job, arrivals_of(job))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_workers_and_steps_drop_different_units(engine: str) -> None:
    """The gradient of a worker is zero where its dropout was; those places must differ."""
    made = ENGINES[engine](job_of(PRLC(1.0), modules.with_dropout(), batch_size=1))
    before = global_tensors(made)[0]
    run(made, 1)
    after = global_tensors(made)[0]
    # With six workers dropping half each, independently, hardly any pixel is untouched by all.
    reached = (after != before).any(0).double().mean()
    assert float(reached) > 0.5


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_model_without_randomness_needs_none(engine: str) -> None:
    before = torch.get_rng_state()
    run(ENGINES[engine](job_of(PRLC(0.3))), 3)
    assert torch.equal(before, torch.get_rng_state())
