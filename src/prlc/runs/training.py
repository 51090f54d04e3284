"""One run from start to end: steps, evaluations, checkpoints, and its result."""

from __future__ import annotations

import contextlib
import copy
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from prlc.data import Dataset
from prlc.engines import Assignment, Cadence, Engine, Loss, Outcome
from prlc.engines.roles.rule import check_model
from prlc.engines.schema import (
    NOTHING,
    NUMBER,
    PLAIN,
    SECONDS,
    WHOLE,
    Like,
    ListOf,
    Table,
    Value,
    check,
)
from prlc.engines.simulator.execution import use_threads
from prlc.methods import Method
from prlc.network.timeline import Timeline
from prlc.runs.config import Config
from prlc.runs.evaluation import Evaluator, Metrics
from prlc.runs.folder import RunFolder
from prlc.runs.jobs import deciding, make_job
from prlc.runs.tensorboard import BoardWriter

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    step: int
    steps: int
    loss: float
    pull_fraction: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """What a run produced: the trained model, a table of metrics, and a summary."""

    method: Method
    model: nn.Module
    metrics: pd.DataFrame
    summary: dict[str, Any]
    folder: Path | None = None

    @classmethod
    def load(cls, folder: RunFolder, method: Method, model: nn.Module) -> Result:
        """The result of a finished run, read from its folder."""
        model = copy.deepcopy(model)
        folder.load_model(model)
        return cls(method, model, folder.metrics(), folder.summary(), folder.path)

    def plot(self, path: Path | str | None = None) -> Figure:
        """Loss against steps, traffic and simulated time; saved if a path is given."""
        from prlc.report import plot_runs  # matplotlib is slow to import

        return plot_runs([self], path)


class Training:
    """A run that can be stopped at any step and continued to the same result."""

    def __init__(self, model: nn.Module, loss: Loss, data: Dataset, config: Config) -> None:
        """Checks everything that can be checked before the first step."""
        self._runtime = config.runtime()
        self.config = config = replace(config, device=self._runtime.device(config.device))
        self._job = make_job(model, loss, data, config)
        self._model = copy.deepcopy(self._job.model)
        self._home = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._steps = steps = config.total_steps(data.num_train)
        self._per_epoch = config.steps_per_epoch(data.num_train)
        self._cadence = Cadence(
            steps,
            eval_every=config.eval_every or max(1, steps // 50),
            checkpoint_every=config.checkpoint_every or max(1, steps // 20),
        )
        self._evaluator = Evaluator(self._job, config.eval_samples)
        self._timeline = self._job.timeline(config.network)
        several = self._runtime.multi_process
        settings = deciding(config, self._job, self._cadence) if several else {}
        self._runtime.connect(self._job, settings)
        self._folder: RunFolder | None = None
        self._board: BoardWriter | None = None
        self._batch_losses: list[float] = []
        self._rows: list[dict[str, Any]] = []
        self._wall = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process should `run`; otherwise it should `assist` the one that does."""
        return self._runtime.leads

    @property
    def restarts(self) -> bool:
        """Whether a restart repeats the command, so that an existing run is continued."""
        return self._runtime.multi_process

    def assist(self) -> Result:
        """Take part in a run that another process leads; returns the same result."""
        outcome = self._runtime.assist(Assignment(self._job, self._timeline, self._cadence))
        self._model.load_state_dict(outcome.model)
        model = self._model.to(self._home)
        return Result(self.config.method, model, _table(outcome.metrics), outcome.summary)

    def share(self, result: Result) -> Result:
        """Send the assisting processes the result of a run that is already finished."""
        self._runtime.announce(finished=True)
        return self._share(result)

    def run(
        self,
        folder: RunFolder | None = None,
        board: BoardWriter | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result:
        """Train to the end, from the folder's checkpoint if there is one."""
        self._folder, self._board = folder, board
        self._runtime.announce(finished=False, saves=folder is not None)
        with folder.lock() if folder else contextlib.nullcontext():
            return self._share(self._run(on_progress))

    def _run(self, on_progress: OnProgress | None) -> Result:
        engine = self._begin()
        started, before = time.perf_counter(), self._wall
        catch = self._folder is not None and not self._runtime.multi_process
        with _stop_between_steps(catch) as stop:
            for step in range(engine.steps_done, self._steps):
                report = engine.step()
                self._wall = before + time.perf_counter() - started
                self._timeline.record(
                    step, report.computes, report.pushes, report.pulls, report.seconds
                )
                self._batch_losses.append(report.loss)
                done, last = step + 1, step + 1 == self._steps
                if last:
                    engine.finish()
                if self._cadence.evaluates(done):
                    self._add_row(engine, report.staleness)
                if self._cadence.saves(done) or stop.requested:
                    self._save(engine)
                if on_progress is not None:
                    pulls = int(engine.traffic.pulls.sum()) / (self._job.num_workers * done)
                    on_progress(Progress(done, self._steps, report.loss, pulls))
                if stop.requested and not last:
                    raise KeyboardInterrupt
        return self._finish(engine)

    def _begin(self) -> Engine:
        """The engine, ready for its first step or the one after the checkpoint."""
        form = _checkpoint_form(self._steps, self._timeline)
        saved = self._folder.load_checkpoint(form) if self._folder else None
        assignment = Assignment(self._job, self._timeline, self._cadence, saved)
        engine = self._runtime.engine(assignment)
        if saved is not None:
            assert self._folder is not None
            with self._folder.loading():
                check(saved["engine"], engine.state_form(), "engine")
                engine.load_state(saved["engine"])
                self._timeline.load_state(saved["timeline"])
            self._batch_losses = list(saved["batch_losses"])
            self._rows = list(saved["metrics"])
            self._wall = saved["wall_seconds"]
        else:
            self._add_row(engine)
            self._save(engine)
        engine.begin()
        return engine

    def _add_row(self, engine: Engine, staleness: float | None = None) -> None:
        """Evaluate the server's model and add a row of metrics."""
        step, traffic = engine.steps_done, engine.traffic
        losses = [loss for loss in self._batch_losses if np.isfinite(loss)]
        row = {
            "step": step,
            "epoch": step / self._per_epoch,
            "lr": self._job.lr(max(0, step - 1)),
            **self._evaluate(engine, self._evaluator),
            "batch_loss": float(np.mean(losses)) if losses else None,
            "pulls_per_worker": float(traffic.pulls.mean()),
            "pushes_per_worker": float(traffic.pushes.mean()),
            "bytes_up": traffic.bytes_up,
            "bytes_down": traffic.bytes_down,
            "simulated_seconds": self._timeline.seconds(),
            "staleness": staleness,
        }
        if engine.measures_time:
            row["wall_seconds"] = self._wall
        self._batch_losses = []
        self._rows.append(row)
        if self._folder:
            self._folder.add_metrics(row, header=len(self._rows) == 1)
        if self._board:
            self._board.write(row)

    def _evaluate(self, engine: Engine, evaluate: Callable[[nn.Module], Metrics]) -> Metrics:
        engine.copy_global_model(self._model)
        numbers = [t for t in self._model.state_dict().values() if t.is_floating_point()]
        check_model(numbers, engine.steps_done)
        execution = engine.execution
        with use_threads(execution.threads) if execution else contextlib.nullcontext():
            return evaluate(self._model)

    def _save(self, engine: Engine) -> None:
        if self._folder is None or not engine.can_save:
            return
        self._folder.save_checkpoint(
            {
                "engine": engine.state(),
                "timeline": self._timeline.state(),
                "metrics": self._rows,
                "execution": asdict(engine.execution) if engine.execution else None,
                "batch_losses": self._batch_losses,
                "wall_seconds": self._wall,
            }
        )

    def _finish(self, engine: Engine) -> Result:
        """Evaluate on all test data, summarise, and write both."""
        last = self._rows[-1]
        final = self._evaluate(engine, self._evaluator.final)
        pulls = last["pulls_per_worker"]
        summary = {
            "method": self.config.method.label,
            "train_loss": final["train_loss"],
            "test_accuracy": final["test_accuracy"],
            "test_loss": final["test_loss"],
            "pulls_per_worker": pulls,
            "pull_fraction": pulls / self._steps,
            "pushes_per_worker": last["pushes_per_worker"],
            "bytes_up": last["bytes_up"],
            "bytes_down": last["bytes_down"],
            "simulated_seconds": last["simulated_seconds"],
            "steps": self._steps,
            "seed": self.config.seed,
            "wall_seconds": round(self._wall, 3),
            "engine": self.config.engine,
            "execution": asdict(engine.execution) if engine.execution else None,
            **engine.details(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }
        self._model.to(self._home)
        if self._folder:
            if engine.events is not None:
                self._folder.write_timeline(engine.events)
            self._folder.finish(self._model, summary)
        path = self._folder.path if self._folder else None
        return Result(self.config.method, self._model, _table(self._rows), summary, path)

    def _share(self, result: Result) -> Result:
        rows: Any = result.metrics.to_dict("records")
        self._runtime.share(Outcome(rows, result.summary, result.model.state_dict()))
        return result


def _checkpoint_form(steps: int, timeline: Timeline) -> Table:
    """The form of a checkpoint, but for the engine's own part, which the engine knows."""
    done = Value(f"a number of steps, 0 to {steps}", lambda n: type(n) is int and 0 <= n <= steps)
    return Table(
        {
            "engine": Table({"steps_done": done, "traffic": PLAIN, "engine": PLAIN}),
            "timeline": Like(timeline.state()),
            "metrics": ListOf(Table({"step": WHOLE}, others=(NUMBER, NOTHING))),
            "execution": (Table({"chunk": WHOLE, "threads": WHOLE}), NOTHING),
            "batch_losses": ListOf(NUMBER),
            "wall_seconds": SECONDS,
        }
    )


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The rows as `pandas.read_csv` would read them: None is a missing number."""
    table = pd.DataFrame(rows)
    missing = [name for name in table.columns if table[name].dtype == object]
    return table.astype(dict.fromkeys(missing, float))


class _Stop:
    requested = False


@contextlib.contextmanager
def _stop_between_steps(catch: bool) -> Iterator[_Stop]:
    """If a run has a folder, Ctrl-C and SIGTERM wait for the end of the step; a second does not."""
    stop = _Stop()
    if not catch or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
