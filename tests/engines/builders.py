"""Small jobs, and how to run and compare them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prlc.data import IID, Dataset, load_digits
from prlc.engines import Engine, Execution, Job, Loss, Reference, Simulator, StepReport
from prlc.engines.roles.memory import InMemory
from prlc.methods import Asynchronous, Method, parse_method
from prlc.models import build
from prlc.network import Network
from prlc.network.clock import Arrival, ArrivalClock
from prlc.optim.optimizers import SERVER_OPTIMIZERS, OptimizerFactory, choose

Build = Callable[[Job], Engine]
_TRACED: dict[tuple[object, ...], Simulator] = {}


def step_decay(step: int) -> float:
    """A learning rate that changes in the middle of a run."""
    return 0.05 if step < 25 else 0.02


def slow_decay(step: int) -> float:
    """The same for AdamW, whose steps do not shrink with the gradients."""
    return 0.005 if step < 25 else 0.002


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@cache
def digits() -> Dataset:
    """No two pixels are quite equal, so that no two gradients tie for a place among the largest."""
    data = load_digits().to("cpu", torch.float64)
    noise = torch.randn(data.train_inputs.shape, generator=_generator(), dtype=torch.float64)
    return replace(data, train_inputs=data.train_inputs + 1e-3 * noise)


@cache
def _built(name: str, options: tuple[tuple[str, object], ...]) -> nn.Module:
    """With weights that are never zero, for the same reason."""
    model = build(name, digits().sample_shape, 10, seed=0, **dict(options)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=_generator(), dtype=torch.float64)
            parameter.add_(0.01 * noise)
    return model


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
    optimizer_at: str = "workers",
    server_optimizer: OptimizerFactory | None = None,
    steps: int | None = None,
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
        optimizer_at=optimizer_at,
        server_optimizer=server_optimizer,
        steps=steps,
    )


@cache
def small_data() -> Dataset:
    generator = _generator()
    inputs = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    truth = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return Dataset.from_tensors(inputs, (inputs @ truth).argmax(1))


def small_model() -> nn.Module:
    """A hundred parameters and sixteen buffers.

    No bias before BatchNorm: its gradient would be rounding errors, which AdamW blows up.
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)
        ).double()


def small_job(method: Method | str, *, steps: int | None = 60, **more: Any) -> Job:
    """A job that takes little time, for the many choices of parts."""
    method = parse_method(method)
    if more.get("optimizer_at") != "server":
        more.setdefault("server_optimizer", choose(method.server, SERVER_OPTIMIZERS, "server"))
    given: dict[str, Any] = {"num_workers": 3, "batch_size": 5, "data": small_data(), **more}
    given["model"] = given.get("model") or small_model()
    return job_of(method, steps=steps, **given)


def arrivals_of(job: Job) -> Iterator[Arrival]:
    """A network in which workers differ in speed, so that staleness varies."""
    network = Network.of("mobile", stragglers=0.4, straggler_factor=3.0)
    window = job.method.window if isinstance(job.method, Asynchronous) else math.inf
    return ArrivalClock(
        network,
        job.num_workers,
        bytes_up=1000,
        bytes_down=1000,
        step_seconds=0.5,
        seed=3,
        window=window,
    )


def reference(job: Job) -> Reference:
    return Reference(job, arrivals_of(job))


Arrivals = Callable[[Job], Iterator[Arrival]]


def simulator(chunk: int, arrivals: Arrivals = arrivals_of) -> Callable[[Job], Simulator]:
    """How to make a simulator that computes `chunk` workers at a time.

    Tracing takes longer than most runs, so models of one form share their traces.
    """

    def make(job: Job) -> Simulator:
        execution = Execution(chunk, 1)
        tensors = job.model.state_dict(keep_vars=True).items()
        form = [(name, t.shape, t.dtype, t.requires_grad) for name, t in tensors]
        key = (repr(job.model), *form, id(job.loss), id(job.data), execution.vectorise)
        made = Simulator(job, arrivals(job), execution, like=_TRACED.get(key))
        _TRACED.setdefault(key, made)  # which keeps loss and data, so that their ids stay theirs
        return made

    return make


def roles(num_shards: int) -> Callable[[Job], InMemory]:
    """How to make roles in memory, with a server for each of so many shards."""
    return lambda job: InMemory(job, arrivals_of(job), num_shards)


#: Every engine, for a job of six workers.
ENGINES: dict[str, Build] = {
    "reference": reference,
    "all at once": simulator(6),
    "with a remainder": simulator(4),
    "one by one": simulator(1),
    "roles in two shards": roles(2),
}
#: Their names to parametrize with; other plans are held against the reference for every method.
ENGINE_NAMES = [
    pytest.param(name, marks=pytest.mark.slow)
    if name in ("with a remainder", "one by one")
    else name
    for name in ENGINES
]
#: The same for what follows from one engine for all of them, since they are held equal elsewhere.
SIMULATOR_FIRST = [
    name if name == "all at once" else pytest.param(name, marks=pytest.mark.slow)
    for name in ENGINES
]
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


def assert_same_traffic(a: Engine, b: Engine) -> None:
    for name, value in a.traffic.state().items():
        assert torch.equal(value, b.traffic.state()[name]), name


def assert_plans_match_reference(
    job: Job, steps: int, plans: Sequence[int] = (6, 4, 1), shards: Sequence[int] = ()
) -> None:
    """Runs the job by the reference, by the simulator with each of the chunk sizes, and by roles
    with each of the numbers of shards."""
    oracle = reference(job)
    expected_reports = run(oracle, steps)
    expected = global_tensors(oracle)
    start = [tensor.detach() for tensor in job.model.state_dict().values()]
    assert largest_difference(expected, start) > 1e-4, "the model should have been trained"
    made: list[Engine] = [simulator(chunk)(job) for chunk in plans]
    made += [roles(count)(job) for count in shards]
    for engine in made:
        assert_same_reports(expected_reports, run(engine, steps))
        assert largest_difference(expected, global_tensors(engine)) < 1e-10
        assert_same_traffic(oracle, engine)


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes back from a file that may hold nothing but tensors and numbers."""
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded
