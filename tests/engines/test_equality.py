"""The simulator computes what the reference computes: every method, plan and kind of optimizer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from prlc.engines import Execution, Job, Simulator
from prlc.methods import ASGD, LAGWK, LAQ, PRLC, LocalSGD, Method, parse_method
from prlc.optim.optimizers import SERVER_OPTIMIZERS, WORKER_OPTIMIZERS, OptimizerFactory

from .builders import (
    assert_plans_match_reference,
    assert_same_reports,
    digits,
    global_tensors,
    job_of,
    largest_difference,
    reference,
    roles,
    run,
    simulator,
    slow_decay,
    small_data,
    small_job,
    small_model,
)

#: One of each family, and of each way of treating updates that are not sent at once.
FAMILIES: list[Method] = [PRLC(0.3), LocalSGD(5), LAGWK(), LAQ(), ASGD()]


def test_logistic_regression_by_every_method(any_method: Method) -> None:
    assert_plans_match_reference(job_of(any_method), steps=30, plans=[6])


@pytest.mark.slow
def test_every_method_one_worker_at_a_time(any_method: Method) -> None:
    assert_plans_match_reference(job_of(any_method), steps=30, plans=[4, 1])


def with_momentum_on_both_sides(method: Method) -> Job:
    momentum, nesterov = WORKER_OPTIMIZERS["momentum"], SERVER_OPTIMIZERS["nesterov"]
    return job_of(method, optimizer=momentum, server_optimizer=nesterov, lr=slow_decay)


@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_momentum_on_both_sides(method: Method) -> None:
    assert_plans_match_reference(with_momentum_on_both_sides(method), steps=30, plans=[4])


@pytest.mark.slow
def test_every_method_with_momentum_on_both_sides(any_method: Method) -> None:
    assert_plans_match_reference(with_momentum_on_both_sides(any_method), steps=30, plans=[4])


@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_workers_with_momentum(method: Method) -> None:
    job = job_of(method, optimizer=WORKER_OPTIMIZERS["momentum"])
    assert_plans_match_reference(job, steps=30, plans=[6])


@pytest.mark.parametrize(
    "text",
    [
        "laq:0.4:window=4:up=grid,2,chunk=16",
        "laq:3:longest=3:up=int4,chunk=16",
        "laq:0.1:up=topk,0.2",
        "cmfl:0.6",
    ],
)
def test_lazy_methods_in_shards(text: str) -> None:
    """With BatchNorm's buffers, of which only those who push send a change; all bytes measured."""
    job = small_job(text)
    oracle, made = reference(job), roles(2)(job)
    expected = run(oracle, 40)
    assert_same_reports(expected, run(made, 40))
    assert largest_difference(global_tensors(oracle), global_tensors(made)) < 1e-10
    pushes = sum(int(report.pushes.sum()) for report in expected)
    assert 6 < pushes < 115, "some should be skipped"
    for direction, counted in (("up", made.traffic.up), ("down", made.traffic.down)):
        assert np.array_equal(made.sent[direction], counted)


@pytest.mark.parametrize("text", ["laq:up=grid,4,chunk=16", "cmfl:0.2", "ssp:1"])
def test_models_in_16_bits(text: str) -> None:
    model, data = small_model().bfloat16(), small_data().to("cpu", torch.bfloat16)
    job = small_job(text, model=model, data=data)
    ended = []
    for build in (reference, simulator(3), roles(2)):
        engine = build(job)
        run(engine, 10)
        ended.append(global_tensors(engine))
    assert all(largest_difference(ended[0], other) < 0.1 for other in ended[1:])


@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_adamw(method: Method) -> None:
    job = job_of(method, optimizer=WORKER_OPTIMIZERS["adamw"], lr=slow_decay)
    assert_plans_match_reference(job, steps=30, plans=[6, 1])


@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_a_cnn(method: Method) -> None:
    job = job_of(method, "cnn", num_workers=3, batch_size=2)
    assert_plans_match_reference(job, steps=20, plans=[3, 2])


@pytest.mark.slow
def test_a_cnn_by_every_method(any_method: Method) -> None:
    job = job_of(any_method, "cnn", num_workers=3, batch_size=2)
    assert_plans_match_reference(job, steps=30, plans=[3])


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("method", [PRLC(0.3), ASGD()], ids=str)
def test_a_cnn_with_optimizers_that_remember(method: Method, optimizer: str) -> None:
    factory = WORKER_OPTIMIZERS[optimizer]
    job = job_of(method, "cnn", num_workers=3, batch_size=2, optimizer=factory, lr=slow_decay)
    assert_plans_match_reference(job, steps=10, plans=[2])


@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_a_server_with_momentum(method: Method) -> None:
    nesterov = SERVER_OPTIMIZERS["nesterov"]
    job = job_of(method, server_optimizer=nesterov, lr=slow_decay)
    assert_plans_match_reference(job, steps=30, plans=[6])


@pytest.mark.parametrize(
    "factory",
    [
        partial(torch.optim.SGD, lr=1.0, momentum=0.9, weight_decay=0.1, dampening=0.5),
        partial(torch.optim.Adam, lr=1.0, amsgrad=True, weight_decay=0.1),
        partial(torch.optim.RMSprop, lr=1.0, momentum=0.5, centered=True),
        partial(torch.optim.Adagrad, lr=1.0),
        partial(torch.optim.Adadelta, lr=1.0),
        partial(torch.optim.Adamax, lr=1.0),
        partial(torch.optim.NAdam, lr=1.0),
        partial(torch.optim.RAdam, lr=1.0),
    ],
    ids=lambda factory: factory.func.__name__,
)
def test_every_optimizer_that_is_stacked(factory: OptimizerFactory) -> None:
    job = job_of(PRLC(0.3), optimizer=factory, lr=slow_decay)
    assert_plans_match_reference(job, steps=20, plans=[6])


def test_traces_serve_those_whose_tensors_lie_alike() -> None:
    """A CNN's weights lie otherwise where parts are collected, and a trace may depend on that."""
    texts = ("nsgd", "prlc:0.3:delay=1", "pr:0.3", "prlc:0.3:up=int8")
    jobs = [job_of(parse_method(t), "cnn", num_workers=3, batch_size=2, steps=5) for t in texts]
    execution = Execution(2, 1)
    first = Simulator(jobs[0], execution=execution)
    others = [Simulator(job, execution=execution, like=first) for job in jobs[1:]]
    functions = [engine._workers._function for engine in (first, *others)]
    assert functions[0] is functions[2] is not functions[1] is functions[3]
    for engine in (first, *others):
        oracle = reference(engine.job)
        assert_same_reports(run(oracle, 5), run(engine, 5))
        assert largest_difference(global_tensors(oracle), global_tensors(engine)) < 1e-10


def test_a_single_worker(any_method: Method) -> None:
    assert_plans_match_reference(job_of(any_method, num_workers=1), steps=15, plans=[1])


def test_a_chunk_larger_than_all_workers_is_all_of_them() -> None:
    assert_plans_match_reference(job_of(PRLC(0.3)), steps=10, plans=[100])


def test_single_precision_stays_close() -> None:
    job = job_of(PRLC(0.3), "cnn", num_workers=3, data=digits().to("cpu", torch.float32))
    job.model.float()
    engines = [reference(job), simulator(3)(job), simulator(2)(job), simulator(1)(job)]
    results = []
    for engine in engines:
        run(engine, 20)
        results.append(global_tensors(engine))
    assert all(tensor.dtype == torch.float32 for tensor in results[1])
    assert all(largest_difference(results[0], other) < 1e-4 for other in results[1:])
