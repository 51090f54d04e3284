"""Trial runs in the simulator.

What a scheduled method does depends on the seed, not on the network; the network only decides when
each step ends. So a trial is trained once and can be priced for any number of networks.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prlc.data import Dataset
from prlc.engines import Engine, Execution, Job, Loss, Simulator
from prlc.engines.simulator.execution import choose_execution, use_threads
from prlc.errors import ConfigError, DivergedError
from prlc.methods import Scheduled
from prlc.optim.schedules import parse_lr_schedule
from prlc.planner.journal import Journal
from prlc.runs.config import Config
from prlc.runs.evaluation import Evaluator
from prlc.runs.jobs import make_job
from prlc.text import file_digests

_MEMORY_BYTES = 10**9  # of worker models kept for continuing; trials beyond that are replayed
_EVALUATIONS = 40  # of NSGD's trial
_MIN_STEPS = 8


@dataclass(frozen=True)
class Candidate:
    """A method, where the optimizer runs, a step size, and how long the run is."""

    method: Scheduled
    optimizer_at: str
    lr: float
    steps: int


class Trial:
    """The training loss of one run, evaluated every few steps, trained only as far as asked."""

    def __init__(self, trials: Trials, candidate: Candidate) -> None:
        self._trials, self.candidate = trials, candidate
        self.every = math.ceil(trials.every / candidate.method.every) * candidate.method.every
        self._engine: Engine | None = None
        self._losses = trials.known(candidate)

    @cached_property
    def job(self) -> Job:
        return self._trials.job(self.candidate)

    def losses(self, steps: int) -> list[float]:
        """The losses at steps 0, every, 2 every, ... up to `steps`; infinite once diverged."""
        wanted = steps // self.every + 1
        while len(self._losses) < wanted:
            self._losses.append(self._next())
            self._trials.note(self.candidate, self._losses[-1])
        return self._losses[:wanted]

    def reaches(self, target: float, steps: int) -> int | None:
        """The first step, up to `steps`, at which a loss at the target was measured.

        Trains no further than that.
        """
        for at in range(0, steps + 1, self.every):
            if self.losses(at)[-1] <= target:
                return at
        return None

    def release(self) -> None:
        """Free the worker models; asking for more steps replays the trial."""
        self._engine = None

    def _next(self) -> float:
        if self._losses and not math.isfinite(self._losses[-1]):
            return math.inf
        try:
            engine = self._train_to(len(self._losses) * self.every)
        except DivergedError:
            self.release()
            return math.inf
        return self._trials.evaluate(engine)

    def _train_to(self, steps: int) -> Engine:
        if self._engine is None:
            self._engine = self._trials.simulator(self.job)
        self._trials.keep(self)
        while self._engine.steps_done < steps:
            self._engine.step()
            self._trials.own_steps += 1
        return self._engine


class Trials:
    """All trial runs on one model, loss, data set and settings."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Dataset,
        config: Config,
        schedule: str,
        journal: Path | None = None,
    ) -> None:
        """`config`: of NSGD's run; `journal`: a file in which losses are kept, if any."""
        assert config.steps is not None
        if config.steps < _MIN_STEPS:
            raise ConfigError(
                f"A plan needs trials of at least {_MIN_STEPS} steps, but steps is {config.steps}."
            )
        self.config, self.schedule, self.steps = config, schedule, config.steps
        self.every = max(1, config.steps // _EVALUATIONS)
        self._problem = model, loss, dataclasses.replace(data, test_inputs=None, test_targets=None)
        job = make_job(*self._problem, config)
        self._evaluator, self._scratch = (
            Evaluator(job, config.eval_samples),
            copy.deepcopy(job.model),
        )
        self.execution: Execution = config.execution or choose_execution(job)
        self.own_steps = 0
        self._trials: dict[Candidate, Trial] = {}
        self._recent: list[Trial] = []
        self._others: dict[int, Trials] = {}
        self._traced: Simulator | None = None
        model_bytes = job.sizes().push * job.num_workers
        self._max_kept = max(1, _MEMORY_BYTES // max(1, model_bytes))
        self._journal = None if journal is None else Journal(journal, self.about)

    def __call__(self, candidate: Candidate) -> Trial:
        if candidate not in self._trials:
            self._trials[candidate] = Trial(self, candidate)
        return self._trials[candidate]

    @property
    def constant(self) -> bool:
        """Whether the step size is; else a run counts as a whole."""
        return self.schedule == "constant"

    @property
    def steps_trained(self) -> int:
        """Of all trials, on other seeds too."""
        return self.own_steps + sum(other.steps_trained for other in self._others.values())

    def on_another_seed(self, number: int) -> Trials:
        """The same, `number` seeds on; made once."""
        if number not in self._others:
            config = dataclasses.replace(
                self.config, seed=self.config.seed + number, execution=self.execution
            )
            self._others[number] = Trials(*self._problem, config, self.schedule)
            self._others[number]._journal = self._journal
        return self._others[number]

    @cached_property
    def about(self) -> dict[str, Any]:
        """All that decides the losses of a candidate."""
        model, loss, data = self._problem
        return {
            **self.config.as_json(),
            "schedule": self.schedule,
            "loss": getattr(loss, "__qualname__", type(loss).__qualname__),
            "model": _checksum(model.state_dict().values()),
            "data": _checksum([data.train_inputs, data.train_targets]),
        }

    def known(self, candidate: Candidate) -> list[float]:
        """The losses in the journal."""
        return [] if self._journal is None else self._journal.losses(self._entry(candidate))

    def note(self, candidate: Candidate, loss: float) -> None:
        """Keep the next loss in the journal."""
        if self._journal is not None:
            self._journal.add(self._entry(candidate), loss)

    def _entry(self, candidate: Candidate) -> str:
        method, digests = candidate.method, file_digests(candidate.method).values()
        settings = (candidate.optimizer_at, candidate.lr, candidate.steps, self.config.seed)
        return " ".join(map(str, (method, *settings, *digests)))

    def job(self, candidate: Candidate) -> Job:
        """The job of a candidate; raises ConfigError if its parts do not go together."""
        config = dataclasses.replace(
            self.config,
            method=candidate.method,
            optimizer_at=candidate.optimizer_at,
            schedule=parse_lr_schedule(self.schedule, candidate.lr),
            steps=candidate.steps,
        )
        return make_job(*self._problem, config)

    def simulator(self, job: Job) -> Simulator:
        """A new engine; tracing, which takes longer than a short trial, is done once for all."""
        engine = Simulator(job, None, self.execution, like=self._traced)
        self._traced = self._traced or engine
        return engine

    def evaluate(self, engine: Engine) -> float:
        """The training loss of the server's model; infinite if it has none."""
        engine.copy_global_model(self._scratch)
        with use_threads(self.execution.threads):
            loss = self._evaluator(self._scratch)["train_loss"]
        return loss if loss is not None and math.isfinite(loss) else math.inf

    def keep(self, trial: Trial) -> None:
        """Keep the models of the trial in use; release those least recently used."""
        self._recent = [other for other in self._recent if other is not trial] + [trial]
        while len(self._recent) > self._max_kept:
            self._recent.pop(0).release()


def _checksum(tensors: Iterable[Tensor]) -> str:
    """Of their values."""
    found = 0
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        found = zlib.crc32(flat.view(torch.uint8).numpy().data, found)
    return f"{found:08x}"
