"""A run as a plain description: what is trained how, and in which folder it is found again."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from prlc import api
from prlc.config import Config
from prlc.data import Dataset, load
from prlc.engines import Job, Plan
from prlc.errors import DivergedError
from prlc.experiments.settings import Task, shared
from prlc.jobs import make_job
from prlc.methods import parse_method
from prlc.models import build
from prlc.report import Run
from prlc.schedules import StepDecay
from prlc.training import OnProgress

__all__ = ["Place", "Recipe", "load_data", "load_run", "train"]

_SAMPLES_SEED = 0  # of the part of the data that is taken: the same for every run
_DIVERGED = "diverged.json"


@dataclass(frozen=True)
class Place:
    """Where runs are kept, where their data are, and what computes them."""

    out: Path
    data_dir: Path | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Recipe:
    """One run. Figures that ask for the same recipe share the run."""

    task: Task
    method: str
    lr: float
    seed: int
    clock: str = "half"
    tuning: bool = False

    @property
    def name(self) -> str:
        """Its folder, under that of all runs."""
        kind = "tuning" if self.tuning else "runs"
        method = f"{api.slug(self.method)}-lr-{self.lr:g}-seed-{self.seed}"
        other_clock = "" if self.clock == next(iter(shared().networks)) else f"-{self.clock}"
        return f"{kind}/{self.task.name}/{method}{other_clock}"

    @property
    def steps(self) -> int:
        return Config(**self.settings("cpu")).total_steps(self.task.samples)

    def settings(self, device: str) -> dict[str, Any]:
        """Everything that decides the result, as `prlc.train` takes it."""
        task, stage = self.task, self.task.tuning_stage if self.tuning else self.task.stage
        per_epoch = task.samples / (task.workers * task.batch_size)
        return {
            "method": parse_method(self.method),
            "workers": task.workers,
            "batch_size": task.batch_size,
            "epochs": task.stages * stage,
            "schedule": StepDecay(self.lr, stage, shared().decay),
            "network": shared().networks[self.clock],
            "seed": self.seed,
            # Kernels of a GPU repeat no bits anyway; what is fastest there is measured.
            "plan": Plan(task.chunk, threads=1) if device == "cpu" else None,
            "device": device,
            "eval_every": max(1, round(task.eval_epochs * per_epoch)),
            "eval_samples": task.eval_samples or None,
        }

    def model(self, data: Dataset) -> nn.Module:
        return build(self.task.model, data.sample_shape, data.num_classes, self.seed)

    def job(self, data: Dataset) -> Job:
        """What an engine would run: the clock asks it."""
        return make_job(self.model(data), F.cross_entropy, data, Config(**self.settings("cpu")))


def train(recipe: Recipe, place: Place, on_progress: OnProgress | None = None) -> None:
    """Make the run of the recipe, go on with it, or leave it alone if it is finished.

    One that diverges is a result too: it is kept as it is, and not tried again.
    """
    folder = place.out / recipe.name
    if (folder / _DIVERGED).is_file():
        return
    data = load_data(recipe.task, place.data_dir)
    settings = recipe.settings(place.device)
    try:
        api.train(
            recipe.model(data),
            F.cross_entropy,
            data,
            folder=folder,
            resume=True,
            on_progress=on_progress,
            **settings,
        )
    except DivergedError as error:
        (folder / _DIVERGED).write_text(json.dumps({"step": error.step, "why": str(error)}) + "\n")
    for file in folder.glob("checkpoint*.pt"):
        file.unlink()  # nothing is left to resume, and 20 models of ResNet-18 fill a disk


def load_run(recipe: Recipe, place: Place) -> Run:
    """The run of the recipe, as reports see it; one that diverged has no summary."""
    return Run.read(place.out / recipe.name)


@lru_cache(maxsize=2)
def load_data(task: Task, data_dir: Path | None) -> Dataset:
    """The task's part of its data set, with images as small as it wants them."""
    data = _load(task.data, data_dir)
    if task.samples < data.num_train:
        data = data.take(task.samples, _SAMPLES_SEED)
    assert data.test_inputs is not None
    assert data.test_targets is not None
    return replace(
        data,
        train_inputs=_shrunk(data.train_inputs, task.shrink),
        test_inputs=_shrunk(data.test_inputs[: task.test_samples], task.shrink),
        test_targets=data.test_targets[: task.test_samples],
    )


@lru_cache(maxsize=1)
def _load(name: str, data_dir: Path | None) -> Dataset:
    return load(name, data_dir)


def _shrunk(images: Tensor, side: int) -> Tensor:
    return images if side == 1 else F.avg_pool2d(images, side)
