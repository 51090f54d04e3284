"""Nothing that is not finite reaches the server; the error names the worker and the step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prlc
from prlc.data import Dataset
from prlc.engines import Engine, Execution, Job, Reference, Simulator
from prlc.engines.roles.packing import Packing
from prlc.engines.roles.scheduled import RoleSettings
from prlc.engines.roles.scheduled_server import ScheduledServerRole
from prlc.errors import DivergedError
from prlc.methods import ASGD, LAGWK, NSGD, PRLC, LocalSGD, Method
from prlc.network.clock import Arrival
from prlc.optim.optimizers import RuleSettings

from . import modules
from .builders import ENGINE_NAMES, ENGINES, assert_identical, digits, global_tensors, job_of, run

#: Whose every worker computes at every step, so that it is known when a sample comes.
SYNCHRONOUS: list[Method] = [NSGD(), PRLC(0.3), LocalSGD(5), LAGWK()]
WORKER, STEP = 4, 3


def with_value(job: Job, worker: int, step: int, value: float) -> Job:
    """The same job, with the first sample of that batch replaced by `value`."""
    chosen = job.batches().take(np.array([worker]), np.array([step]))[0]
    inputs = job.data.train_inputs.clone()
    inputs[chosen[0]] = value
    return dataclasses.replace(job, data=dataclasses.replace(job.data, train_inputs=inputs))


def run_until_it_diverges(engine: Engine) -> tuple[DivergedError, list[Tensor]]:
    """The error, and the server's model as it was before that step."""
    for _ in range(50):
        before = global_tensors(engine)
        try:
            engine.step()
        except DivergedError as error:
            return error, before
    raise AssertionError("it never diverged")


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize(
    ("method", "value"),
    [*((method, float("nan")) for method in SYNCHRONOUS), (PRLC(0.3), float("inf"))],
    ids=repr,
)
def test_a_loss_that_is_not_finite(engine: str, method: Method, value: float) -> None:
    job = with_value(job_of(method), WORKER, STEP, value)
    made = ENGINES[engine](job)
    error, before = run_until_it_diverges(made)
    assert (error.worker, error.step) == (WORKER, STEP)
    assert f"loss of worker {WORKER} is not finite at step {STEP}" in str(error)
    assert "Lower the learning rate" in str(error)
    assert made.steps_done == STEP
    after = global_tensors(made)
    assert_identical(after, before)
    assert all(bool(tensor.isfinite().all()) for tensor in after)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize("method", SYNCHRONOUS, ids=str)
def test_a_gradient_that_is_not_finite(engine: str, method: Method) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(120, 3, generator=generator, dtype=torch.float64) + 1.0
    data = Dataset.from_tensors(inputs, torch.zeros(120, dtype=torch.float64))
    clean = job_of(
        method,
        modules.RootOfDistance(),
        data=data,
        loss=lambda outputs, targets: (outputs - targets).mean(),
        lr=lambda _: 0.01,
    )
    made = ENGINES[engine](with_value(clean, WORKER, STEP, 0.0))
    error, before = run_until_it_diverges(made)
    assert (error.worker, error.step) == (WORKER, STEP)
    assert f"update of worker {WORKER} is not finite at step {STEP}" in str(error)
    after = global_tensors(made)
    assert_identical(after, before)
    assert all(bool(tensor.isfinite().all()) for tensor in after)


@pytest.mark.parametrize("kind", ["reference", "simulator"])
def test_asynchronous_workers_fail_when_they_arrive(kind: str) -> None:
    """Worker 2 is slow: it arrives last, in step 2, and only then is its loss known."""
    order = [0, 1, 0, 1, 0, 1, 0, 2, 1]
    seen = [Arrival(worker, float(k), 0) for k, worker in enumerate(order)]
    clean = job_of(ASGD(), num_workers=3)
    job = with_value(clean, worker=2, step=0, value=float("nan"))
    engines: dict[str, Engine] = {
        "reference": Reference(job, iter(seen)),
        "simulator": Simulator(job, iter(seen), execution=Execution(3, 1)),
    }
    made = engines[kind]
    error, _ = run_until_it_diverges(made)
    assert (error.worker, error.step) == (2, 2)
    assert all(bool(tensor.isfinite().all()) for tensor in global_tensors(made))


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_asynchronous_workers_are_named(engine: str) -> None:
    made = ENGINES[engine](with_value(job_of(ASGD()), WORKER, 0, float("nan")))
    error, _ = run_until_it_diverges(made)
    assert error.worker == WORKER
    assert all(bool(tensor.isfinite().all()) for tensor in global_tensors(made))


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize("method", [*SYNCHRONOUS, ASGD()], ids=str)
def test_a_learning_rate_far_too_large_ends_in_an_error(engine: str, method: Method) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(120, 3, generator=generator, dtype=torch.float64)
    data = Dataset.from_tensors(inputs, inputs.sum(1, keepdim=True))
    model = torch.nn.Linear(3, 1).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    job = job_of(method, model, data=data, loss=F.mse_loss, lr=lambda _: 1e8)
    made = ENGINES[engine](job)
    with pytest.raises(DivergedError):
        run(made, 50)
    assert all(bool(tensor.isfinite().all()) for tensor in global_tensors(made))


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_finite_updates_whose_sum_is_not(engine: str) -> None:
    """Each update is a finite number of single precision, but the sum of six is not.

    An engine that divides before it adds gets the mean, which is finite; no other outcome is right.
    """
    data = Dataset.from_tensors(torch.ones(60, 1), torch.zeros(60, 1))
    model = torch.nn.Linear(1, 1, bias=False)
    job = job_of(
        NSGD(),
        model,
        data=data,
        loss=lambda outputs, _: outputs.mean() * 2e38,
        lr=lambda _: 1.0,
    )
    made = ENGINES[engine](job)
    before = global_tensors(made)
    try:
        run(made, 1)
    except DivergedError:
        assert_identical(global_tensors(made), before)
    else:
        moved = global_tensors(made)[0] - before[0]
        assert float(moved) == pytest.approx(-2e38, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize("method", [*SYNCHRONOUS, ASGD()], ids=str)
def test_finite_gradients_times_a_learning_rate_that_is_too_much(
    engine: str, method: Method
) -> None:
    ones = torch.ones(60, 1, dtype=torch.float64)
    model = torch.nn.Linear(1, 1, bias=False).double()
    job = job_of(
        method,
        model,
        data=Dataset.from_tensors(ones, ones),
        loss=lambda outputs, _: outputs.mean() * 1e300,
        lr=lambda _: 1e10,
    )
    made = ENGINES[engine](job)
    with pytest.raises(DivergedError):
        run(made, 6)
    assert all(bool(tensor.isfinite().all()) for tensor in global_tensors(made))


def test_a_sample_that_nobody_draws_does_no_harm() -> None:
    inputs = digits().train_inputs.clone()
    job = job_of(PRLC(0.3))
    taken = job.batches().take(np.arange(6), np.zeros(6, np.int64), 10)
    unused = np.setdiff1d(np.arange(len(inputs)), taken)
    inputs[torch.from_numpy(unused)] = float("nan")
    job = dataclasses.replace(job, data=dataclasses.replace(job.data, train_inputs=inputs))
    for engine in ENGINES.values():
        reports = run(engine(job), 10)
        assert all(np.isfinite(report.loss) for report in reports)


@pytest.mark.parametrize("engine", ["reference", "simulator"])
def test_finite_updates_that_make_the_model_infinite(engine: str) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = (torch.ones(8, 1), torch.ones(8, 1))
    with pytest.raises(DivergedError, match="The model is not finite after step"):
        prlc.train(
            model,
            lambda output, _: (output * 1e38).mean(),
            data,
            method=prlc.PR(1e-9),  # nobody ever looks at the model that the server has
            workers=2,
            batch_size=2,
            lr=1.0,
            steps=5,
            engine=engine,
        )


def test_a_server_does_not_make_its_model_infinite() -> None:
    model = nn.Linear(1, 1, bias=False)
    settings = RoleSettings(NSGD(), 1, 0, 5, None, RuleSettings())
    packing = Packing(model, 1, None, NSGD())
    server = ScheduledServerRole([torch.full((1,), 3e38)], packing, 0, settings)
    server.take(0, 0, [torch.full((1,), 2e38)])
    assert server.bad_messages(0) == []
    with pytest.raises(DivergedError, match="The model is not finite after step 0"):
        server.finish(0, 1.0)
