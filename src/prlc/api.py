"""The Python interface: train a model by one method, or compare several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from prlc import report
from prlc.data import Dataset, Partition, parse_partition
from prlc.engines import Execution, Loss, find_runtime
from prlc.engines.processes import Cluster
from prlc.errors import ConfigError
from prlc.methods import Method, parse_method
from prlc.network import Network
from prlc.optim.optimizers import OptimizerFactory
from prlc.optim.schedules import LRSchedule, parse_lr_schedule
from prlc.runs.config import Config, usual_method
from prlc.runs.folder import RunFolder
from prlc.runs.tensorboard import BoardWriter
from prlc.runs.training import OnProgress, Progress, Result, Training


def train(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    method: Method | str | None = None,
    workers: int = 20,
    batch_size: int = 10,
    epochs: float | None = None,
    steps: int | None = None,
    lr: float = 0.1,
    schedule: LRSchedule | str = "constant",
    optimizer: str | OptimizerFactory = "sgd",
    optimizer_at: str = "workers",
    server_optimizer: str | OptimizerFactory | None = None,
    partition: Partition | str = "iid",
    network: Network | str | Mapping[str, Any] | None = "paper",
    seed: int = 0,
    engine: str = "simulator",
    execution: Execution | None = None,
    cluster: Cluster | None = None,
    device: str = "cpu",
    eval_every: int | None = None,
    eval_samples: int | None = 10_000,
    checkpoint_every: int | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    extra_config: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Train `model` on `data`, spread over `workers` workers, by `method`.

    model: any module. It is copied, never changed; the trained one is in the result.
    loss: called with the module's output and the targets; gives the mean over the batch.
    data: a `prlc.Dataset`, a `TensorDataset`, `(inputs, targets)`, or a training and a test pair.
    method: a `prlc.Method` such as `prlc.PRLC(pull_ratio=0.1)`, or text such as "prlc:0.1"; None:
        the recommended one, as suits the optimizer, or `nsgd` if that runs on the server.
    workers, batch_size: how many workers, and the samples that each takes in a step.
    epochs or steps: how long; 10 epochs if neither is given. An epoch is as many samples as
        `data` has, over all workers.
    lr, schedule: the learning rate, and `constant`, `cosine`, `step` (the paper's: a tenth every 30
        epochs), `step:EPOCHS:FACTOR` or a schedule.
    optimizer: a name, or a function from parameters to a torch optimizer.
    optimizer_at: where it runs: on the `workers`, which push updates, or on the `server`, to which
        they push gradients (what users of DDP mean by synchronous AdamW).
    server_optimizer: what the server does with mean updates: `add`, `nesterov`, or such a function;
        None: the method's own (`nesterov` for DiLoCo, `add` for most).
    partition: who owns which samples: `iid`, `contiguous`, `dirichlet:ALPHA`, `shards:PER_WORKER`.
    network: the network of the simulated time: a preset, a `Network` or settings of one; None: no
        clock.
    seed: of all draws: partition, batches, pulls, rounding. The same seed gives the same result.
    engine: `simulator`, `reference` (plain and slow), or `distributed`.
    execution: how the simulator computes; measured and remembered if not given.
    cluster: how real processes take part (`engine="distributed"`, under torchrun). All of them
        call this function; rank 0 writes the folder, and continues a run that is already there.
    device: a torch device such as `cpu` or `cuda`.
    eval_every, eval_samples: how often, in steps (None: 50 times), and on how many samples (None:
        all) to evaluate. The summary's test accuracy is always on all test data.
    folder: where the run is written, with a checkpoint every `checkpoint_every` steps (None: 20
        times); `resume` continues the run that is there.
    tensorboard: also write TensorBoard events there; needs prlc[tensorboard].
    extra_config: more entries for the run's config.json.
    on_progress: called after every step.
    """
    data = Dataset.of(data)
    if epochs is None and steps is None:
        epochs = 10.0
    config = Config(
        method=parse_method(usual_method(optimizer, optimizer_at) if method is None else method),
        workers=workers,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        schedule=parse_lr_schedule(schedule, lr) if isinstance(schedule, str) else schedule,
        optimizer=optimizer,
        optimizer_at=optimizer_at,
        server_optimizer=server_optimizer,
        partition=_partition(partition),
        network=None if network is None else Network.of(network),
        seed=seed,
        engine=engine,
        execution=execution,
        cluster=cluster or Cluster(),
        device=device,
        eval_every=eval_every,
        eval_samples=eval_samples,
        checkpoint_every=checkpoint_every,
    )
    training = Training(model, loss, data, config)
    if not training.leads:
        return training.assist()
    if folder is None:
        if resume or tensorboard:
            raise ConfigError("To resume a run or to write TensorBoard events, name its folder.")
        return training.run(on_progress=on_progress)
    described = {
        **config.as_json(),
        "model": {"class": type(model).__name__, "parameters": _size(model)},
        "loss": getattr(loss, "__qualname__", type(loss).__name__),
        "data": {"name": data.name, "samples": data.num_train},
        **(extra_config or {}),
    }
    if (resume or training.restarts) and RunFolder(folder).exists():
        run = RunFolder.open(folder)
        run.check_config(described)
        if run.finished:
            return training.share(Result.load(run, config.method, model))
    else:
        run = RunFolder.create(folder, described)
    board = BoardWriter(run.path) if tensorboard else None
    return training.run(run, board, on_progress)


@dataclass(frozen=True)
class Comparison:
    """The results of several methods on the same problem."""

    results: list[Result]

    @property
    def table(self) -> pd.DataFrame:
        """A row per method."""
        return report.table(self.results)

    def rows(self) -> list[dict[str, Any]]:
        """The same as plain objects."""
        return report.rows(self.results)

    def winners(self) -> dict[str, report.Winner]:
        """Who needed the fewest `bytes` and `simulated_seconds`, within 2% of NSGD's loss."""
        return report.winners(self.results)

    def plot(self, path: Path | str | None = None, title: str | None = None) -> Any:
        """Loss against steps, traffic and simulated time; saved if a path is given."""
        return report.plot_runs(self.results, path, title)

    def page(
        self,
        path: Path | str,
        title: str = "Comparison",
        *,
        lead: str = "",
        command: str | None = None,
    ) -> None:
        """Write one interactive page, with curves, table and settings, that needs no network."""
        runs = [report.Run.of(result) for result in self.results]
        series = tuple(report.Series(run.label, (run,)) for run in runs)
        chart = report.Chart(title, series)
        report.write_page(Path(path), title, [chart], lead=lead, command=command)

    def __getitem__(self, number: int) -> Result:
        return self.results[number]

    def __len__(self) -> int:
        return len(self.results)


def compare(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    methods: Sequence[Method | str] | Method | str,
    folder: Path | str | None = None,
    on_progress: Callable[[Method, Progress], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Train the same model on the same data by each of `methods`; `settings` as in `train`."""
    engine = settings.get("engine", "simulator")
    if find_runtime(engine).multi_process:
        raise ConfigError(
            "A comparison runs in one process, but real processes were asked for. Train by each "
            f"method in turn (torchrun ... prlc train --engine {engine} --out DIR), then compare "
            "the runs: prlc report DIR..."
        )
    data = Dataset.of(data)
    given = [methods] if isinstance(methods, str | Method) else methods
    chosen = [parse_method(each) for each in given]
    if not chosen:
        raise ConfigError("Give at least one method to compare.")
    labels = [method.label for method in chosen]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigError(f"Each method can be compared once, but {twice} was given twice.")
    results = []
    for method, name in zip(chosen, _folder_names(labels), strict=True):

        def report_progress(progress: Progress, method: Method = method) -> None:
            if on_progress is not None:
                on_progress(method, progress)

        own = Path(folder) / name if folder is not None else None
        results.append(
            train(
                model,
                loss,
                data,
                method=method,
                folder=own,
                on_progress=report_progress,
                **settings,
            )
        )
    return Comparison(results)


def _partition(partition: Partition | str) -> Partition:
    if isinstance(partition, str):
        return parse_partition(partition)
    if not callable(getattr(partition, "split", None)):
        raise ConfigError(
            f"A partition must be text such as 'iid' or have a method `split`; got {partition!r}."
        )
    return partition


def slug(label: str) -> str:
    """A label as the name of a folder."""
    kept = "".join(c if c.isalnum() or c == "." else "-" for c in label.lower())
    return "-".join(part for part in kept.split("-") if part)


def _folder_names(labels: Sequence[str]) -> list[str]:
    """A folder name for each label; equal slugs are numbered."""
    slugs = [slug(label) for label in labels]
    before = [slugs[:number].count(each) for number, each in enumerate(slugs)]
    return [f"{each}-{n + 1}" if n else each for each, n in zip(slugs, before, strict=True)]


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
