"""How long a method takes on a network, without training: its schedule is all the clock needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from prlc import api
from prlc.config import Config
from prlc.data import Dataset
from prlc.experiments.recipes import Place, Recipe, load_data
from prlc.experiments.settings import ClockOnly, shared
from prlc.jobs import make_job
from prlc.methods import parse_method
from prlc.models import build
from prlc.network import Network
from prlc.timeline import replay

__all__ = ["Replay", "seconds_per_step"]


@dataclass(frozen=True)
class Replay:
    """A finished run of a scheduled method, seen on another clock: the losses stay the same."""

    recipe: Recipe
    clock: str
    run_ahead: bool

    @property
    def name(self) -> str:
        # Who pulls when does not depend on the learning rate.
        waiting = "run-ahead" if self.run_ahead else "barrier"
        run = f"{api.slug(self.recipe.method)}-seed-{self.recipe.seed}"
        return f"clocks/{self.recipe.task.name}/{run}-{self.clock}-{waiting}.json"

    @property
    def network(self) -> Network:
        return replace(shared().networks[self.clock], run_ahead=self.run_ahead)

    @property
    def is_the_runs_own(self) -> bool:
        """Whether the run was clocked so in the first place."""
        return self.network == shared().networks[self.recipe.clock]

    def steps(self) -> list[int]:
        """Where runs of the task are evaluated."""
        last = self.recipe.steps
        every = int(self.recipe.settings("cpu")["eval_every"])
        return [*range(0, last, every), last]

    def make(self, place: Place) -> None:
        """Write the times of the evaluated steps, if they are not there already."""
        file, steps = place.out / self.name, self.steps()
        if file.is_file() and list(self.load(place)) == steps:
            return
        job = self.recipe.job(load_data(self.recipe.task, place.data_dir))
        times = dict(zip(steps, replay(job, self.network, steps), strict=True))
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".writing")
        fresh.write_text(json.dumps(times) + "\n")
        fresh.replace(file)

    def load(self, place: Place) -> dict[int, float]:
        """The seconds of each evaluated step."""
        content = json.loads((place.out / self.name).read_text())
        return {int(step): float(seconds) for step, seconds in content.items()}


def seconds_per_step(setting: ClockOnly, method: str, network: Network) -> float:
    """What a step costs a model that is not trained, on average."""
    config = Config(
        method=parse_method(method),
        workers=setting.workers,
        batch_size=setting.batch_size,
        steps=setting.steps,
        network=network,
        device="meta",  # operations are counted, not carried out
    )
    count = setting.workers * setting.batch_size
    inputs = torch.zeros(count, *setting.sample_shape)
    data = Dataset.from_tensors(inputs, torch.arange(count) % setting.classes)
    model = build(setting.model, setting.sample_shape, setting.classes, seed=0)
    job = make_job(model, F.cross_entropy, data, config)
    return replay(job, network, [setting.steps])[0] / setting.steps
