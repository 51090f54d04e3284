"""The simulator computes what the reference computes: buffers, losses and odd modules."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prlc.data import Dataset
from prlc.engines import Execution, Job, Loss, Reference, Simulator
from prlc.engines.simulator.gradients import Gradients
from prlc.methods import ASGD, LAGWK, PRLC, LocalSGD, Method
from prlc.models import cross_entropy, transformer
from prlc.network.clock import Arrival
from prlc.optim.optimizers import OptimizerFactory

from . import modules
from .builders import (
    arrivals_of,
    assert_plans_match_reference,
    global_tensors,
    job_of,
    largest_difference,
    model_of,
    reference,
    run,
)

FAMILIES: list[Method] = [PRLC(0.3), LocalSGD(5), LAGWK(), ASGD()]
ADAMW = partial(torch.optim.AdamW, lr=1.0)


@cache
def random_data(inputs: tuple[int, ...], targets: tuple[int, ...], *, classes: int = 0) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, *inputs, generator=generator, dtype=torch.float64)
    if classes:
        return Dataset.from_tensors(x, torch.randint(classes, (90, *targets), generator=generator))
    y = torch.randn(90, *targets, generator=generator, dtype=torch.float64)
    return Dataset.from_tensors(x, y)


@pytest.mark.slow
def test_batch_norm_by_every_method(any_method: Method) -> None:
    job = job_of(any_method, modules.with_batch_norm())
    assert_plans_match_reference(job, steps=10, plans=[6])


@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_batch_norm_by_other_plans(method: Method) -> None:
    assert_plans_match_reference(job_of(method, modules.with_batch_norm()), steps=10, plans=[4, 1])


def test_a_resnet_with_batch_norm() -> None:
    job = job_of(PRLC(0.3), model_of("resnet8", norm="batch"), num_workers=3)
    assert_plans_match_reference(job, steps=3, plans=[2])


@pytest.mark.parametrize("method", FAMILIES, ids=str)
def test_mean_squared_error_on_real_valued_targets(method: Method) -> None:
    job = job_of(method, nn.Linear(5, 2).double(), data=random_data((5,), (2,)), loss=F.mse_loss)
    assert_plans_match_reference(job, steps=20)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0, dtype=torch.float64)),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(ignore_index=3),
        partial(F.cross_entropy, label_smoothing=0.1),
    ],
    ids=["plain", "weighted", "smoothed", "summed", "one class ignored", "partial"],
)
def test_every_kind_of_cross_entropy(loss: Loss) -> None:
    job = job_of(PRLC(0.3), loss=loss, lr=lambda _: 0.02)
    assert_plans_match_reference(job, steps=20, plans=[6, 1])


@pytest.mark.parametrize("optimizer", [None, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize(
    "model",
    [
        modules.Scaled(),
        modules.Tied(),
        modules.PartlyFrozen(),
        modules.PartlyUnused(),
        modules.MovingMean(),
        modules.MovingMeanInPlace(),
        modules.Remembering(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_modules_with_something_unusual(
    model: nn.Module, optimizer: OptimizerFactory | None
) -> None:
    job = job_of(PRLC(0.3), model, optimizer=optimizer)
    assert_plans_match_reference(job, steps=10, plans=[4, 1])


def test_frozen_parameters_stay() -> None:
    model = modules.PartlyFrozen()
    job = job_of(PRLC(0.3), model)
    for chunk in (6, 1):
        engine = Simulator(job, execution=Execution(chunk, 1))
        run(engine, 5)
        names = list(model.state_dict())
        after = dict(zip(names, global_tensors(engine), strict=True))
        assert torch.equal(after["body.weight"], model.body.weight)
        assert not torch.equal(after["head.weight"], model.head.weight)


@pytest.mark.parametrize("plan", [6, 4, 1])
@pytest.mark.parametrize(
    "model",
    [modules.Branching(), modules.Masking(), modules.with_cumulative_batch_norm()],
    ids=["a branch in Python", "a shape that depends on the data", "a count read in Python"],
)
def test_modules_that_cannot_be_traced(model: nn.Module, plan: int) -> None:
    job = job_of(PRLC(0.3), model, lr=lambda _: 0.01)
    assert_plans_match_reference(job, steps=15, plans=[plan])


@pytest.mark.usefixtures("cache")
def test_a_plan_is_found_for_modules_that_cannot_be_vectorised() -> None:
    job = job_of(PRLC(0.3), modules.Branching())
    oracle, engine = reference(job), Simulator(job, arrivals_of(job))
    run(oracle, 10)
    run(engine, 10)
    assert largest_difference(global_tensors(oracle), global_tensors(engine)) < 1e-10


def test_a_class_for_each_place_with_buffers() -> None:
    job = job_of(PRLC(0.3), modules.Segmenter(), data=random_data((2, 5), (5,), classes=3))
    assert_plans_match_reference(job, steps=10)


def text_job(method: Method, **settings: Any) -> Job:
    torch.manual_seed(0)
    model = transformer((9,), 7, layers=2, width=8, heads=2).double()
    text = torch.randint(7, (90, 10), generator=torch.Generator().manual_seed(0))
    data = Dataset.from_tensors(text[:, :-1], text[:, 1:])
    return job_of(method, model, data=data, loss=cross_entropy, **settings)


@pytest.mark.parametrize("method", [PRLC(0.3), ASGD()], ids=str)
def test_a_transformer(method: Method) -> None:
    assert_plans_match_reference(text_job(method), steps=6, plans=[4])


def test_a_transformer_is_computed_for_all_workers_at_once() -> None:
    job = text_job(PRLC(0.3))
    gradients = Gradients(job, vectorise=True)
    stacked = [t.detach().expand(3, *t.shape).clone() for t in job.model.parameters()]
    inputs, targets = job.data.train_inputs.view(3, 30, 9), job.data.train_targets.view(3, 30, 9)
    gradients(stacked, inputs, targets)
    (run,) = gradients._traces.values()
    assert gradients._vectorise
    assert run != gradients._plainly, "it is not traced"


def test_a_class_for_each_place_where_axes_could_be_confused() -> None:
    """As many places as classes: F.cross_entropy has the classes second, ours has them last."""
    data = random_data((2, 3), (3,), classes=3)
    for loss in (F.cross_entropy, cross_entropy):
        job = job_of(PRLC(0.3), modules.Segmenter(), data=data, loss=loss)
        assert_plans_match_reference(job, steps=10)


def test_samples_without_dimensions() -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(7, (90,), generator=generator)
    data = Dataset.from_tensors(words, torch.randint(3, (90,), generator=generator))
    job = job_of(PRLC(0.3), nn.Embedding(7, 3).double(), data=data)
    assert_plans_match_reference(job, steps=20)


def test_integer_counters_of_slow_workers() -> None:
    """The server shows the counters of worker 0 as of its last arrival, not one ahead."""
    order = [1, 2, 1, 2, 1, 0, 2, 1, 2]  # worker 0 arrives for the first time late in step 1
    seen = [Arrival(worker, float(k), 0) for k, worker in enumerate(order)]
    job = job_of(ASGD(), modules.with_batch_norm(), num_workers=3)
    oracle, engine = (
        Reference(job, iter(seen)),
        Simulator(job, iter(seen), execution=Execution(3, 1)),
    )
    for _ in range(3):
        oracle.step()
        engine.step()
        assert largest_difference(global_tensors(oracle), global_tensors(engine)) < 1e-10
