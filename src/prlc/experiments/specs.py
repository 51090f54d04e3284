"""One run: what decides it, the folder it lives in, and its times on other clocks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prlc import api
from prlc.data import Dataset, load
from prlc.engines import Execution, Job
from prlc.errors import DivergedError
from prlc.experiments.pool import OnFraction
from prlc.experiments.settings import ClockOnly, Problem, paper
from prlc.methods import parse_method
from prlc.models import build, cross_entropy
from prlc.network import Network
from prlc.optim.schedules import StepDecay
from prlc.report import Run
from prlc.runs.config import Config
from prlc.runs.jobs import make_job

__all__ = [
    "CLOCK_MS",
    "Replay",
    "RunSpec",
    "Workspace",
    "finish",
    "load_data",
    "read_times",
    "seconds_per_step",
    "write_times",
    "write_whole",
]

_SUBSET_SEED = 0  # every run trains on the same subset of the data
CLOCK_MS = 0.7  # rough cost of a step on the clock alone
_DIVERGED = "diverged.json"


@dataclass(frozen=True)
class Workspace:
    """Where runs are kept, where the data is, and which device trains."""

    out: Path
    data_dir: Path | None = None
    device: str = "cpu"


# -- Training --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides one run. Figures that need the same one share it."""

    problem: Problem
    method: str
    lr: float
    seed: int
    clock: str = "half"
    tuning: bool = False

    @property
    def name(self) -> str:
        """Its folder in the workspace."""
        kind = "tuning" if self.tuning else "runs"
        run = f"{api.slug(self.method)}-lr-{self.lr:g}-seed-{self.seed}"
        other_clock = "" if self.clock == paper().main_clock else f"-{self.clock}"
        return f"{kind}/{self.problem.name}/{run}{other_clock}"

    @property
    def steps(self) -> int:
        return Config(**self.settings("cpu")).total_steps(self.problem.samples)

    @property
    def cost(self) -> float:
        """Rough seconds on one core."""
        return self.steps * self.problem.step_ms / 1e3

    def settings(self, device: str) -> dict[str, Any]:
        """The keyword arguments of `prlc.train`."""
        problem = self.problem
        stage = problem.tuning_stage if self.tuning else problem.stage
        steps_per_epoch = problem.samples / (problem.workers * problem.batch_size)
        return {
            "method": parse_method(self.method),
            "workers": problem.workers,
            "batch_size": problem.batch_size,
            "epochs": problem.stages * stage,
            "schedule": StepDecay(self.lr, stage, paper().decay),
            "network": paper().networks[self.clock],
            "seed": self.seed,
            # A GPU's kernels do not repeat bits anyway, so there the fastest plan is measured.
            "execution": Execution(problem.chunk, threads=1) if device == "cpu" else None,
            "device": device,
            "eval_every": max(1, round(problem.eval_epochs * steps_per_epoch)),
            "eval_samples": problem.eval_samples or None,
        }

    def model(self, data: Dataset) -> nn.Module:
        return build(self.problem.model, data.sample_shape, data.num_classes, self.seed)

    def job(self, data: Dataset) -> Job:
        """The run as an engine sees it; the clock needs its sizes."""
        return make_job(self.model(data), cross_entropy, data, Config(**self.settings("cpu")))

    def make(self, workspace: Workspace, on_fraction: OnFraction | None = None) -> None:
        """Train, or resume, or do nothing if the run is finished.

        Divergence is a result: the run is kept as it is and never retried.
        """
        data = load_data(self.problem, workspace.data_dir)
        settings = self.settings(workspace.device)
        finish(workspace.out / self.name, self.model(data), data, settings, on_fraction)

    def load(self, workspace: Workspace) -> Run:
        """The run on disk; one that diverged has no summary."""
        return Run.read(workspace.out / self.name)


def finish(
    folder: Path,
    model: nn.Module,
    data: Dataset,
    settings: Mapping[str, Any],
    on_fraction: OnFraction | None,
) -> None:
    """Train, or resume, until the folder holds a finished run, or one that diverged."""
    if (folder / _DIVERGED).is_file():
        return
    try:
        api.train(
            model,
            cross_entropy,
            data,
            folder=folder,
            resume=True,
            on_progress=on_fraction and (lambda at: on_fraction(at.step / at.steps)),
            **settings,
        )
    except DivergedError as error:
        reason = {"step": error.step, "why": str(error)}
        (folder / _DIVERGED).write_text(json.dumps(reason) + "\n")
    for file in folder.glob("checkpoint*.pt"):
        file.unlink()  # nothing is left to resume, and 20 ResNet-18 models fill a disk


class Part(Protocol):
    """Which part of a data set to train on."""

    @property
    def data(self) -> str: ...
    @property
    def samples(self) -> int: ...
    @property
    def test_samples(self) -> int: ...
    @property
    def shrink(self) -> int: ...


@lru_cache(maxsize=2)
def load_data(problem: Part, data_dir: Path | None) -> Dataset:
    """The problem's subset of its data set, images shrunk as it asks."""
    data = _load(problem.data, data_dir)
    if problem.samples < data.num_train:
        data = data.take(problem.samples, _SUBSET_SEED)
    assert data.test_inputs is not None
    assert data.test_targets is not None
    return replace(
        data,
        train_inputs=_shrink(data.train_inputs, problem.shrink),
        test_inputs=_shrink(data.test_inputs[: problem.test_samples], problem.shrink),
        test_targets=data.test_targets[: problem.test_samples],
    )


@lru_cache(maxsize=1)
def _load(name: str, data_dir: Path | None) -> Dataset:
    return load(name, data_dir)


def _shrink(images: Tensor, side: int) -> Tensor:
    """(N, C, H, W) -> (N, C, H / side, W / side), each pixel the mean of a square."""
    return images if side == 1 else F.avg_pool2d(images, side)


# -- Clocks: time without training -----------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """A scheduled method's run, timed on another clock. Its losses do not depend on the clock."""

    run: RunSpec
    clock: str
    run_ahead: bool

    @property
    def name(self) -> str:
        """Its file in the workspace; who pulls when does not depend on the learning rate."""
        waiting = "run-ahead" if self.run_ahead else "barrier"
        run = f"{api.slug(self.run.method)}-seed-{self.run.seed}"
        return f"clocks/{self.run.problem.name}/{run}-{self.clock}-{waiting}.json"

    @property
    def cost(self) -> float:
        """Rough seconds on one core."""
        return self.run.steps * CLOCK_MS / 1e3

    @property
    def network(self) -> Network:
        return replace(paper().networks[self.clock], run_ahead=self.run_ahead)

    @property
    def is_redundant(self) -> bool:
        """Whether the run itself was timed on this clock."""
        return self.network == paper().networks[self.run.clock]

    def steps(self) -> list[int]:
        """The steps at which the run is evaluated."""
        last = self.run.steps
        every = int(self.run.settings("cpu")["eval_every"])
        return [*range(0, last, every), last]

    def make(self, workspace: Workspace, on_fraction: OnFraction | None = None) -> None:
        """Time the evaluated steps, unless their file is complete."""
        del on_fraction  # it takes seconds
        file, steps = workspace.out / self.name, self.steps()
        if file.is_file() and list(read_times(file)) == steps:
            return
        job = self.run.job(load_data(self.run.problem, workspace.data_dir))
        write_times(file, job, self.network, steps)

    def load(self, workspace: Workspace) -> dict[int, float]:
        """Simulated seconds by step."""
        return read_times(workspace.out / self.name)


def write_times(file: Path, job: Job, network: Network, steps: Sequence[int]) -> None:
    """Write when these steps of a job are over on a network."""
    write_whole(file, dict(zip(steps, job.timeline(network).replay(steps), strict=True)))


def write_whole(file: Path, content: object) -> None:
    """Write JSON; whoever is interrupted leaves the file as it was."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".writing")
    fresh.write_text(json.dumps(content) + "\n")
    fresh.replace(file)


def read_times(file: Path) -> dict[int, float]:
    """Simulated seconds by step."""
    content = json.loads(file.read_text())
    return {int(step): float(seconds) for step, seconds in content.items()}


def seconds_per_step(model: ClockOnly, method: str, network: Network) -> float:
    """The mean simulated time of a step of a model that is not trained."""
    config = Config(
        method=parse_method(method),
        workers=model.workers,
        batch_size=model.batch_size,
        steps=model.steps,
        network=network,
    )
    samples = model.workers * model.batch_size
    inputs = torch.zeros(samples, *model.sample_shape)
    data = Dataset.from_tensors(inputs, torch.arange(samples) % model.classes)
    module = build(model.model, model.sample_shape, model.classes, seed=0)
    job = make_job(module, cross_entropy, data, config)
    nowhere = torch.device("meta")  # operations are counted, not carried out
    job = replace(job, model=module.to(nowhere), device=nowhere)
    return job.timeline(network).replay([model.steps])[0] / model.steps
