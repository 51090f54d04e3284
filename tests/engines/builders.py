"""Small jobs, and how to run and compare them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prlc.clock import Arrival, ArrivalClock
from prlc.data import IID, Dataset, load_digits
from prlc.engines import Engine, Job, Loss, Plan, Reference, Simulator, StepReport
from prlc.methods import Method
from prlc.models import build
from prlc.network import Network
from prlc.optimizers import OptimizerFactory

Build = Callable[[Job], Engine]


def step_decay(step: int) -> float:
    """A learning rate that changes in the middle of a run."""
    return 0.05 if step < 25 else 0.02


def slow_decay(step: int) -> float:
    """The same for AdamW, whose steps do not shrink with the gradients."""
    return 0.005 if step < 25 else 0.002


@cache
def digits() -> Dataset:
    return load_digits().to("cpu", torch.float64)


@cache
def _built(name: str, options: tuple[tuple[str, object], ...]) -> nn.Module:
    return build(name, digits().sample_shape, 10, seed=0, **dict(options)).double()


def model_of(name: str, **options: object) -> nn.Module:
    return copy.deepcopy(_built(name, tuple(options.items())))


def job_of(
    method: Method,
    model: nn.Module | str = "logistic",
    *,
    num_workers: int = 6,
    batch_size: int = 4,
    seed: int = 1,
    data: Dataset | None = None,
    loss: Loss = F.cross_entropy,
    lr: Callable[[int], float] = step_decay,
    optimizer: OptimizerFactory | None = None,
    server_optimizer: OptimizerFactory | None = None,
) -> Job:
    data = data or digits()
    return Job(
        model=model_of(model) if isinstance(model, str) else model,
        loss=loss,
        data=data,
        method=method,
        shards=IID().split(None, data.num_train, num_workers, seed),
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        optimizer=optimizer,
        server_optimizer=server_optimizer,
    )


def arrivals_of(num_workers: int) -> Iterator[Arrival]:
    """A network in which workers differ in speed, so that staleness varies."""
    network = Network.of("mobile", stragglers=0.4, straggler_factor=3.0)
    clock = ArrivalClock(
        network, num_workers, bytes_up=1000, bytes_down=1000, step_seconds=0.5, seed=3
    )
    return iter(clock)


def reference(job: Job) -> Reference:
    return Reference(job, arrivals_of(job.num_workers))


def simulator(chunk: int) -> Callable[[Job], Simulator]:
    """How to make a simulator that computes `chunk` workers at a time."""
    return lambda job: Simulator(job, arrivals_of(job.num_workers), plan=Plan(chunk, 1))


#: Every engine, for a job of six workers.
ENGINES: dict[str, Build] = {
    "reference": reference,
    "all at once": simulator(6),
    "with a remainder": simulator(4),
    "one by one": simulator(1),
}
PLANS = {name: engine for name, engine in ENGINES.items() if name != "reference"}


def run(engine: Engine, steps: int) -> list[StepReport]:
    return [engine.step() for _ in range(steps)]


def global_tensors(engine: Engine) -> list[Tensor]:
    """Everything the server would hand out: parameters and buffers, integer ones too."""
    target = copy.deepcopy(engine.job.model)
    engine.copy_global_model(target)
    return [tensor.detach().clone() for tensor in target.state_dict(keep_vars=True).values()]


def largest_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    gaps = [(x.double() - y.double()).abs().max() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(gaps).max())


def assert_identical(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y), f"differs by up to {float((x - y).abs().max())}"


def assert_same_reports(a: Sequence[StepReport], b: Sequence[StepReport]) -> None:
    for step, (x, y) in enumerate(zip(a, b, strict=True)):
        assert np.array_equal(x.pushes, y.pushes), f"pushes of step {step}"
        assert np.array_equal(x.pulls, y.pulls), f"pulls of step {step}"
        assert np.array_equal(x.computes, y.computes), f"computes of step {step}"
        assert np.isclose(x.loss, y.loss, rtol=1e-9, atol=1e-10, equal_nan=True), step
        assert (x.seconds, x.staleness) == (y.seconds, y.staleness)


def assert_plans_match_reference(job: Job, steps: int, plans: Sequence[int] = (6, 4, 1)) -> None:
    """Runs the job by the reference and by the simulator with each of the chunk sizes."""
    oracle = reference(job)
    expected_reports = run(oracle, steps)
    expected = global_tensors(oracle)
    start = [tensor.detach() for tensor in job.model.state_dict().values()]
    assert largest_difference(expected, start) > 1e-4, "the model should have been trained"
    for chunk in plans:
        engine = simulator(chunk)(job)
        assert_same_reports(expected_reports, run(engine, steps))
        assert largest_difference(expected, global_tensors(engine)) < 1e-10
        assert np.array_equal(oracle.traffic.pushes, engine.traffic.pushes)
        assert np.array_equal(oracle.traffic.pulls, engine.traffic.pulls)


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes back from a file that may hold nothing but tensors and numbers."""
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
