"""One run from start to end: steps, evaluations, checkpoints, and what came out."""

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

from prlc.config import Config
from prlc.data import Dataset
from prlc.engines import Engine, Loss, Plan, Reference, Simulator
from prlc.engines.distributed import Distributed, Terms, connect
from prlc.engines.distributed.connection import Connection, own_device
from prlc.engines.plan import choose_plan, use_threads
from prlc.errors import ConfigError
from prlc.evaluation import Evaluator, Metrics
from prlc.jobs import make_job
from prlc.methods import Method
from prlc.runs import RunFolder
from prlc.tensorboard import BoardWriter
from prlc.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Progress:
    """How far a run is, for whoever shows it."""

    step: int
    steps: int
    loss: float
    pull_fraction: float


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """What a run gave: the trained model, a table of metrics, and a summary."""

    method: Method
    model: nn.Module
    metrics: pd.DataFrame
    summary: dict[str, Any]
    folder: Path | None = None

    @classmethod
    def load(cls, folder: RunFolder, method: Method, model: nn.Module) -> Result:
        """That of a finished run, read from its folder."""
        model = copy.deepcopy(model)
        folder.load_model(model)
        return cls(method, model, folder.metrics(), folder.summary(), folder.path)

    def plot(self, path: Path | str | None = None) -> Figure:
        """Loss against steps, pulls and simulated time; saved if a path is given."""
        from prlc.report import plot_runs  # matplotlib is slow to import

        return plot_runs([self], path)


class Training:
    """A run that can be stopped at any step and continued to the same result."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Dataset,
        config: Config,
    ) -> None:
        """Checks everything that can be checked before the first step."""
        if config.engine == "distributed":
            config = replace(config, device=str(own_device(config.device)))
        self.config = config
        self._folder: RunFolder | None = None
        self._board: BoardWriter | None = None
        self._job = make_job(model, loss, data, config)
        self._model = copy.deepcopy(self._job.model)
        self._home = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._steps = config.total_steps(data.num_train)
        self._per_epoch = config.steps_per_epoch(data.num_train)
        self._evaluator = Evaluator(self._job, config.eval_samples)
        self._eval_every = config.eval_every or max(1, self._steps // 50)
        self._checkpoint_every = config.checkpoint_every or max(1, self._steps // 20)
        self._timeline = Timeline(self._job, config.network)
        self._connection = self._connect() if config.engine == "distributed" else None
        self._batch_losses: list[float] = []
        self._rows: list[dict[str, Any]] = []
        self._wall = 0.0
        self._saves = False

    def run(
        self,
        folder: RunFolder | None = None,
        board: BoardWriter | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result:
        """Train to the end, from the folder's checkpoint if there is one."""
        if self.assists:
            return self._assist()
        self._folder, self._board = folder, board
        with folder.lock() if folder else contextlib.nullcontext():
            return self._run(on_progress)

    def _run(self, on_progress: OnProgress | None) -> Result:
        saved = self._folder.load_checkpoint() if self._folder else None
        engine = self._engine(saved)
        if saved is None:
            self._add_row(engine)
            self._save(engine)
        engine.begin()
        started = time.perf_counter()
        before = self._wall
        catch = self._folder is not None and self._connection is None
        with _stop_between_steps(catch) as stop:
            for step in range(engine.steps_done, self._steps):
                report = engine.step()
                self._wall = before + time.perf_counter() - started
                self._timeline.record(step, report)
                self._batch_losses.append(report.loss)
                done, last = step + 1, step + 1 == self._steps
                if last:
                    engine.finish()
                if done % self._eval_every == 0 or last:
                    self._add_row(engine, report.staleness)
                if done % self._checkpoint_every == 0 or last or stop.requested:
                    self._save(engine)
                if on_progress is not None:
                    pulls = float(engine.traffic.pulls.mean()) / done
                    on_progress(Progress(done, self._steps, report.loss, pulls))
                if stop.requested and not last:
                    raise KeyboardInterrupt
        result = self._finish(engine)
        if self._connection is not None:
            self._share(result)
        return result

    # -- real processes: rank 0 runs, the others assist -------------------------------------------
    #
    # In step with each other they 1. connect, 2. hear from rank 0 whether there is anything left to
    # do (`announce`), 3. build their engines, which compare models and settings, 4. take the steps,
    # 5. tell rank 0 the rest (`Engine.finish`), 6. are given the result (`_share`), and part.

    @property
    def assists(self) -> bool:
        """Whether this process only takes part; rank 0 keeps the run."""
        return self._connection is not None and self._connection.rank != 0

    def _connect(self) -> Connection:
        config = self.config
        connection = connect(config.cluster.layout, config.cluster.peer_timeout, self._job.device)
        workers = len(connection.layout.workers)
        if workers != config.workers:
            raise ConfigError(
                f"There are {connection.layout.num_ranks} processes, so {workers} workers in the "
                f"{config.cluster.layout} layout, but {config.workers} were asked for. Start as "
                f"many processes as that takes, or ask for {workers} (--workers {workers})."
            )
        return connection

    def _distributed(self) -> Distributed:
        assert self._connection is not None
        cluster = self.config.cluster
        terms = Terms(
            method=self.config.method,
            num_workers=self.config.workers,
            seed=self.config.seed,
            steps=self._steps,
            window=cluster.window,
            on_bad_update=cluster.on_bad_update,
            lr=self._job.lr,
            save_every=self._checkpoint_every if self._saves else 0,
            show_every=self._eval_every,
        )
        pace = self._timeline.step_seconds if cluster.emulate_compute else None
        return Distributed(self._job, self._connection, terms, pace, cluster.record_timeline)

    def announce(self, finished: Result | None, saves: bool = False) -> None:
        """Tell the other processes whether there is anything left to do, and to be saved."""
        if self._connection is not None:
            self._saves = saves
            self._connection.tell_all((finished is None, saves))
            if finished is not None:
                self._share(finished)

    def _assist(self) -> Result:
        """Take part in what rank 0 runs; gives the same result as there."""
        assert self._connection is not None
        goes_on, self._saves = self._connection.tell_all(None)
        if goes_on:
            engine = self._distributed()
            engine.assist()
        rows, summary, tensors = self._connection.tell_all(None)
        self._model.load_state_dict(tensors)
        self._connection.close()
        return Result(self.config.method, self._model.to(self._home), _table(rows), summary)

    def _share(self, result: Result) -> None:
        assert self._connection is not None
        rows = result.metrics.to_dict("records")
        self._connection.tell_all((rows, result.summary, result.model.state_dict()))
        self._connection.close()

    # -- pieces -----------------------------------------------------------------------------------

    def _engine(self, saved: dict[str, Any] | None) -> Engine:
        """The engine, where the checkpoint left off."""
        done = saved["engine"]["steps_done"] if saved else 0
        arrivals = self._timeline.arrivals(done)
        engine: Engine
        if self.config.engine == "reference":
            self._plan = None
            engine = Reference(self._job, arrivals)
        elif self.config.engine == "distributed":
            self._plan = None
            engine = self._distributed()
        else:
            # The plan decides the order of floating-point operations, so a resumed run keeps it.
            known = Plan(**saved["plan"]) if saved else self.config.plan
            self._plan = known or choose_plan(self._job)
            engine = Simulator(self._job, arrivals, self._plan)
        if saved:
            engine.load_state(saved["engine"])
            self._timeline.load_state(saved["timeline"])
            self._batch_losses = list(saved["batch_losses"])
            self._rows = list(saved["metrics"])
            self._wall = saved["wall_seconds"]
        return engine

    def _save(self, engine: Engine) -> None:
        if self._folder is None or not engine.can_save:
            return
        self._folder.save_checkpoint(
            {
                "engine": engine.state(),
                "timeline": self._timeline.state(),
                "metrics": self._rows,
                "plan": asdict(self._plan) if self._plan else None,
                "batch_losses": self._batch_losses,
                "wall_seconds": self._wall,
            }
        )

    def _add_row(self, engine: Engine, staleness: float | None = None) -> None:
        """Evaluate the server's model and note where the run is."""
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
        if self._connection is not None:
            row["wall_seconds"] = self._wall
        self._batch_losses = []
        self._rows.append(row)
        if self._folder:
            self._folder.add_metrics(row, header=len(self._rows) == 1)
        if self._board:
            self._board.write(row)

    def _evaluate(self, engine: Engine, evaluate: Callable[[nn.Module], Metrics]) -> Metrics:
        engine.copy_global_model(self._model)
        with use_threads(self._plan.threads if self._plan else torch.get_num_threads()):
            return evaluate(self._model)

    def _finish(self, engine: Engine) -> Result:
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
            "plan": asdict(self._plan) if self._plan else None,
            **(
                {"bad_updates": engine.bad_updates, "payload_sent": engine.sent}
                if isinstance(engine, Distributed)
                else {}
            ),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }
        self._model.to(self._home)
        if self._folder:
            if isinstance(engine, Distributed) and self.config.cluster.record_timeline:
                self._folder.write_timeline(engine.recorded)
            self._folder.finish(self._model, summary)
        return Result(
            self.config.method,
            self._model,
            _table(self._rows),
            summary,
            self._folder.path if self._folder else None,
        )


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The rows as `pandas.read_csv` would read them: what is None is a number that is missing."""
    table = pd.DataFrame(rows)
    missing = [name for name in table.columns if table[name].dtype == object]
    return table.astype(dict.fromkeys(missing, float))


class _Stop:
    requested = False


@contextlib.contextmanager
def _stop_between_steps(catch: bool) -> Iterator[_Stop]:
    """While a run has a folder, Ctrl-C and SIGTERM wait for the step; a second one does not."""
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
