"""The same seed gives the same bits, also when a run is stopped and continued."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import islice

import numpy as np
import pytest
import torch

from prlc.clock import Arrival
from prlc.engines import Engine, Job, Plan, Reference, Simulator
from prlc.errors import CheckpointError, ConfigError
from prlc.methods import ASGD, LAGPS, LAGWK, PRLC, LocalSGD, Method
from prlc.optimizers import SERVER_OPTIMIZERS, WORKER_OPTIMIZERS

from . import modules
from .builders import (
    ENGINES,
    arrivals_of,
    assert_identical,
    assert_same_reports,
    global_tensors,
    job_of,
    run,
    saved_and_loaded,
)

BEFORE, AFTER = 7, 9
KINDS = ["reference", "all at once"]


def later_arrivals(job: Job) -> Iterator[Arrival]:
    """What is still to come after the first steps."""
    return islice(arrivals_of(job.num_workers), BEFORE * job.num_workers, None)


def resumed(kind: str, job: Job) -> Engine:
    """A fresh engine for the second half of the run."""
    if kind == "reference":
        return Reference(job, later_arrivals(job))
    return Simulator(job, later_arrivals(job), plan=Plan(6, 1))


def assert_continues(kind: str, job: Job) -> None:
    """A run that goes through a file in the middle ends in the same bits as one that does not."""
    through = ENGINES[kind](job)
    run(through, BEFORE)
    state = saved_and_loaded(through.state())
    expected = run(through, AFTER)
    second = resumed(kind, job)
    second.load_state(state)
    assert second.steps_done == BEFORE
    assert_same_reports(run(second, AFTER), expected)
    assert_identical(global_tensors(second), global_tensors(through))
    assert np.array_equal(second.traffic.pulls, through.traffic.pulls)
    assert np.array_equal(second.traffic.pushes, through.traffic.pushes)


@pytest.mark.parametrize("kind", KINDS)
class TestContinuing:
    def test_every_method(self, kind: str, any_method: Method) -> None:
        assert_continues(kind, job_of(any_method))

    def test_every_method_with_momentum(self, kind: str, any_method: Method) -> None:
        assert_continues(kind, job_of(any_method, optimizer=WORKER_OPTIMIZERS["momentum"]))

    @pytest.mark.parametrize("method", [PRLC(0.3), LAGWK(), ASGD()], ids=repr)
    def test_adamw_and_momentum_on_the_server(self, kind: str, method: Method) -> None:
        worker, server = WORKER_OPTIMIZERS["adamw"], SERVER_OPTIMIZERS["nesterov"]
        assert_continues(kind, job_of(method, optimizer=worker, server_optimizer=server))

    @pytest.mark.parametrize("method", [PRLC(0.3), LAGPS(smoothness=1.0), ASGD()], ids=repr)
    def test_batch_norm(self, kind: str, method: Method) -> None:
        assert_continues(kind, job_of(method, modules.with_batch_norm()))

    def test_buffers_that_a_checkpoint_of_the_module_leaves_out(self, kind: str) -> None:
        module = modules.MovingMeanInPlace(persistent=False)
        assert_continues(kind, job_of(PRLC(0.3), module))

    def test_dropout(self, kind: str) -> None:
        assert_continues(kind, job_of(PRLC(0.3), modules.with_dropout()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [PRLC(0.3), LocalSGD(5), LAGPS(), LAGWK()], ids=repr)
def test_an_engine_can_go_back_again_and_again(kind: str, method: Method) -> None:
    engine = ENGINES[kind](job_of(method, optimizer=WORKER_OPTIMIZERS["momentum"]))
    run(engine, 3)
    state = engine.state()
    run(engine, 4)
    expected = global_tensors(engine)
    for _ in range(2):  # the state is not worn out by being used
        engine.load_state(state)
        assert engine.steps_done == 3
        run(engine, 4)
        assert_identical(global_tensors(engine), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_does_not_change_afterwards(kind: str, any_method: Method) -> None:
    engine = ENGINES[kind](job_of(any_method, optimizer=WORKER_OPTIMIZERS["momentum"]))
    run(engine, 3)
    state = engine.state()
    before = BytesIO()
    torch.save(state, before)
    run(engine, 3)
    after = BytesIO()
    torch.save(state, after)
    assert before.getvalue() == after.getvalue()


@pytest.mark.parametrize("engine", KINDS)
def test_the_same_seed_gives_the_same_bits(engine: str, any_method: Method) -> None:
    first, second, other = (ENGINES[engine](job_of(any_method, seed=seed)) for seed in (1, 1, 2))
    reports = run(first, 8)
    assert [r.loss for r in reports] == pytest.approx([r.loss for r in run(second, 8)], nan_ok=True)
    assert_identical(global_tensors(first), global_tensors(second))
    run(other, 8)
    with pytest.raises(AssertionError, match="differs"):
        assert_identical(global_tensors(first), global_tensors(other))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_model_of_the_job_stays_as_it_was(engine: str) -> None:
    job = job_of(PRLC(0.3), modules.with_batch_norm())
    before = [tensor.clone() for tensor in job.model.state_dict().values()]
    made = ENGINES[engine](job)
    run(made, 3)
    assert_identical(list(job.model.state_dict().values()), before)
    assert all(parameter.grad is None for parameter in job.model.parameters())


@pytest.mark.parametrize("kind", [Reference, Simulator])
@pytest.mark.usefixtures("cache")
def test_asynchronous_methods_ask_for_arrivals(kind: type[Engine]) -> None:
    with pytest.raises(ConfigError, match=r"ASGD.*order of arrival.*network clock"):
        kind(job_of(ASGD())).step()


def test_models_in_another_memory_order_are_refused() -> None:
    engine = ENGINES["all at once"](job_of(PRLC(0.3)))
    state = engine.state()
    state["engine"]["workers"]["strides"][0] = [1, 1]
    with pytest.raises(CheckpointError, match="another order"):
        engine.load_state(state)
