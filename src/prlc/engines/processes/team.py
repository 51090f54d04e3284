"""A user's own training script: join, share out the data, train.

    team = prlc.join("prlc:0.1")                # the processes that torchrun started
    loader = team.shard(loader)                 # each worker takes its part of the data
    with team.train(model, optimizer) as run:   # same start for all, the final model at the end
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            optimizer.step()                    # the team's step, too

The script keeps its loop. At every step the optimizer's update is pushed; then the worker pulls, or
moves by its own guess, as the method says. Without torchrun the same script is a process alone.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from prlc.data.share import Counted, Part, share
from prlc.engines.processes.agreement import check_models
from prlc.engines.processes.cluster import Cluster, RunSettings
from prlc.engines.processes.connection import Connection, connect, local_device
from prlc.engines.processes.ranks import Ranks
from prlc.engines.processes.script import Run, TeamRun
from prlc.engines.processes.server import log
from prlc.engines.processes.wire import from_bytes, to_bytes
from prlc.engines.processes.worker import A_DAY
from prlc.engines.roles.selection import Models
from prlc.errors import ConfigError, PrlcError
from prlc.methods import Lazy, Method, Scheduled, parse_method
from prlc.methods.check import check_optimizer
from prlc.optim.optimizers import (
    SERVER_OPTIMIZERS,
    OptimizerFactory,
    RuleSettings,
    check_gradients,
    choose,
    is_plain_sgd,
)
from prlc.runs.folder import RunFolder


def join(
    method: Method | str = "prlc:0.1",
    *,
    layout: str = "sharded",
    seed: int = 0,
    steps: int | None = None,
    folder: Path | str | None = None,
    checkpoint_every: int = 100,
    window: int = 2,
    peer_timeout: float = Cluster.peer_timeout,
    on_bad_update: str = Cluster.on_bad_update,
    device: str = "cpu",
    ranks_per_worker: int = 1,
    hides_torchrun: bool = False,
) -> Team:
    """Join the processes that torchrun started, to train together; without torchrun, stay alone.

    method: a `prlc.Method`, or text such as "prlc:0.1" or "prlc:0.1:every=4:delay=4"; any parts
        but `sample` and `weights`.
    layout: `sharded`: every process is a worker and holds a part of the global model; `server`:
        the first process holds all of it; it gets no batches, and goes on after `train` with the
        final model.
    steps: how many steps the server takes; only LAG needs to know.
    seed: decides who pulls when, and how encodings round.
    folder: where the first process writes a checkpoint every `checkpoint_every` steps; without one,
        none is written. A restarted run continues from it; `run.steps_done` says where. Folders
        given to other processes are ignored.
    window: how many pushes may be in flight before a worker waits; each needs a buffer.
    peer_timeout: seconds of silence after which a process counts as hung.
    on_bad_update: what to do with an update that is not finite or misshapen: `stop`, or `skip` it.
    device: where the workers' models are. With `cuda` every process takes the GPU of its local
        rank, and NCCL carries updates and models.
    ranks_per_worker: how many neighbouring ranks are one worker, such as the GPUs of a machine:
        they average their gradients at every step, by DistributedDataParallel(model,
        process_group=team.group), and the method rules between workers. For the sharded layout.
    hides_torchrun: whether trainers that would average gradients themselves (Lightning, Hugging
        Face) shall find a single process.
    """
    _explain_errors()
    chosen = parse_method(method) if isinstance(method, str) else method
    if isinstance(chosen, Lazy) and steps is None:
        raise ConfigError(
            f"{chosen.label} asks its workers when it needs them, so it must know the number of "
            "steps: give join(..., steps=...)."
        )
    if isinstance(chosen, Scheduled) and (chosen.sample < 1.0 or chosen.weights != "equal"):
        raise ConfigError(
            f"Your script decides which data each worker takes, so {chosen.label} cannot sample or "
            "weigh its workers: leave out sample and weights."
        )
    cluster = Cluster(
        layout=layout, window=window, peer_timeout=peer_timeout, on_bad_update=on_bad_update
    )
    if type(checkpoint_every) is not int or checkpoint_every < 1:
        raise ConfigError(
            "The steps between checkpoints must be a whole number, 1 or more, but are "
            f"{checkpoint_every!r}."
        )
    if "RANK" not in os.environ and not dist.is_initialized():
        return Team(steps)
    connection = connect(
        cluster.layout,
        cluster.peer_timeout,
        local_device(device),
        ranks_per_worker=ranks_per_worker,
    )
    save_every = connection.broadcast(checkpoint_every if folder is not None else 0)
    settings = RunSettings(
        method=chosen,
        num_workers=len(connection.layout.workers),
        seed=seed,
        steps=steps,
        window=window,
        on_bad_update=on_bad_update,
        save_every=save_every,
    )
    team = Workers(connection, settings, Path(folder) if folder is not None else None, device)
    if hides_torchrun:
        team.hide_torchrun()
    return team


class Team:
    """The processes that train together. Made by `join`; this one is a process alone."""

    num_workers = 1
    """How many processes compute; each trains on its own part of the data."""
    worker = 0
    """The number of this process among the workers, from 0; -1 for a server."""
    group: dist.ProcessGroup | None = None
    """The ranks of this worker, for DistributedDataParallel, if there are several."""

    def __init__(self, steps: int | None = None) -> None:
        self._steps = steps

    def shard(self, data: Any, *, ahead: int = 0) -> Any:
        """This worker's part of the data.

        data: a DataLoader (every P-th sample of one order, shuffled anew in each pass), a Dataset,
            an IterableDataset, a sequence; or a function that draws random batches, which then has
            random numbers of its own.
        ahead: how many batches of such a function are drawn but not yet used at a step.
        """
        del ahead
        return data

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any worker; all that still train must ask, as often."""
        return bool(flag)

    def train(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        also: Any | Sequence[Any] = (),
        server_optimizer: str | OptimizerFactory | None = None,
    ) -> Run:
        """From here on `optimizer.step()` is a step of the team; use as `with`, or call `finish`.

        All models start as a copy of the first process's (or from the checkpoint).
        also: what else a checkpoint keeps: schedulers, scalers, averaged models; anything with
            `state_dict` and `load_state_dict`.
        server_optimizer: applied to mean updates, instead of the method's own.
        """
        models = Models(_listed(model), _unwrapped(optimizer))
        _kept(also)
        del server_optimizer
        return Run(models.optimizers, self._steps)


class Workers(Team):
    """Several processes."""

    def __init__(
        self, connection: Connection, settings: RunSettings, folder: Path | None, device: str
    ) -> None:
        layout, wire = connection.layout, connection.wire
        self._settings, self._path, self._device = settings, folder, device
        self._layout, self._timeout = layout, wire.timeout
        self._spare: Connection | None = replace(connection, leaves=False)
        voters = [rank for rank in range(layout.num_ranks) if layout.worker_of(rank) >= 0]
        self._votes = dist.new_group(voters, timeout=timedelta(seconds=A_DAY), backend="gloo")
        self._ranks = Ranks(layout, wire.rank) if layout.ranks_per_worker > 1 else None
        self.group = self._ranks.group if self._ranks is not None else None
        self._positions: list[Counted] = []
        self._hidden: dict[str, str] = {}
        self._run: TeamRun | None = None
        self._trainings = 0
        self.num_workers = settings.num_workers
        self.worker = layout.worker_of(wire.rank)
        if connection.leaves:
            atexit.register(_disconnect)
        atexit.register(self._at_exit)

    def shard(self, data: Any, *, ahead: int = 0) -> Any:
        each = self._layout.ranks_per_worker
        place = self._ranks.place if self._ranks is not None else 0
        number, parts = self.worker * each + place, self.num_workers * each
        part = Part(number if self.worker >= 0 else -1, parts, self._settings.seed)
        shared, position = share(data, part, ahead)
        if position is not None:
            self._positions.append(position)
        return shared

    def any(self, flag: bool) -> bool:
        if self.worker < 0:
            return bool(flag)
        if self._run is not None:
            self._run.pause()
        return self._vote(bool(flag), 1)[0] > 0

    def _vote(self, flag: int, here: int) -> list[int]:
        """The sums of both over all workers."""
        votes = torch.tensor([flag, here])
        with self._run.together() if self._run is not None else nullcontext():
            dist.all_reduce(votes, group=self._votes)
        return [int(vote) for vote in votes]

    def _wait_for_others(self) -> None:
        """Take part in the others' votes until all have left."""
        while self._vote(0, 0)[1]:
            pass

    def _connect(self) -> Connection:
        """A connection for one training."""
        spare, self._spare = self._spare, None
        if spare is not None:
            return spare
        os.environ.update(self._hidden)
        try:
            return connect(
                self._layout.name,
                self._timeout,
                local_device(self._device),
                ranks_per_worker=self._layout.ranks_per_worker,
            )
        finally:
            for name in self._hidden:
                del os.environ[name]

    def hide_torchrun(self) -> None:
        """Take out of the environment what torchrun has put there."""
        for name in _SET_BY_TORCHRUN:
            if name in os.environ:
                self._hidden[name] = os.environ.pop(name)

    def train(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        also: Any | Sequence[Any] = (),
        server_optimizer: str | OptimizerFactory | None = None,
    ) -> Run:
        if self._run is not None and not self._run.finished:
            raise ConfigError(
                "Another training of this team is not over yet. To train several models together, "
                "give all of them: team.train([a, b], [optimizer_a, optimizer_b]). To train one "
                "after the other, finish the first (run.finish(), or its `with` block)."
            )
        listed = _listed(model)
        check_models(listed, self._ranks.members if self._ranks is not None else [0])
        models = Models(listed, _unwrapped(optimizer))
        if self._ranks is not None and len(models.optimizers) > 1:
            raise ConfigError(
                "A worker of several ranks takes one optimizer, but there are "
                f"{len(models.optimizers)}. Put all parameters into one, or leave out "
                "ranks_per_worker."
            )
        plain_sgd = all(map(is_plain_sgd, models.optimizers))
        check_optimizer(self._settings.method, plain_sgd=plain_sgd)
        also = _kept(also)
        if self._settings.save_every and not also and models.scheduled():
            log.warning(
                "A scheduler changes the learning rate, but checkpoints do not keep it: name it in "
                "team.train(..., also=[scheduler])."
            )
        chosen = server_optimizer or self._settings.method.server
        rule = RuleSettings(choose(chosen, SERVER_OPTIMIZERS, "server"))
        self._trainings += 1
        self._run = TeamRun(
            self._connect,
            replace(self._settings, rule=rule),
            models,
            also,
            self._open_folder if self._path is not None else None,
            self._positions,
            self._wait_for_others,
            self._ranks,
        )
        return self._run

    def _open_folder(self) -> RunFolder:
        """A folder for each training of the script, the first one's around the others'."""
        assert self._path is not None
        path = self._path
        if self._trainings > 1:
            path /= f"training-{self._trainings}"
        described = {
            "method": str(self._settings.method),
            "workers": self.num_workers,
            "layout": self._layout.name,
            "seed": self._settings.seed,
            "ranks_per_worker": self._layout.ranks_per_worker,
        }
        if not (path / "config.json").exists():
            return RunFolder.create(path, described)
        folder = RunFolder.open(path)
        folder.check_config(described)
        return folder

    def _at_exit(self) -> None:
        """Finish a training that the script forgot to finish, unless it failed."""
        run = self._run
        if run is None or run.finished or run.failed or hasattr(sys, "last_value"):
            return
        log.warning(
            "The script ended without run.finish(), or a `with` block around its training. What it "
            "saved or printed after its last step was worker %d's own model.",
            self.worker,
        )
        run.finish()


_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@cache
def _explain_errors() -> None:
    """From here on an error of this package that ends the script is a sentence with its line."""
    before = sys.excepthook

    def explain(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, PrlcError):
            before(kind, error, trace)
            return
        script = getattr(sys.modules["__main__"], "__file__", None)
        lines = [f.lineno for f in traceback.extract_tb(trace) if f.filename == script]
        rank = [f"rank {os.environ['RANK']}"] if "RANK" in os.environ else []
        where = [f"{Path(script).name}, line {lines[-1]}"] if script and lines else []
        about = f" ({', '.join(rank + where)})" if rank + where else ""
        print(f"error{about}: {error}", file=sys.stderr, flush=True)

    sys.excepthook = explain


def _disconnect() -> None:
    with suppress(RuntimeError, AssertionError):
        dist.destroy_process_group()


def _listed(models: Any) -> list[nn.Module]:
    one = isinstance(models, nn.Module) or not isinstance(models, Iterable)
    found: list[Any] = [models] if one else list(models)
    for each in found:
        if not isinstance(each, nn.Module):
            raise ConfigError(
                "team.train takes a model, or a list of models, and then the optimizers, but "
                f"among the models is a {type(each).__name__}."
            )
    return found


def _unwrapped(optimizers: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """The optimizers themselves, from under the wrappers of accelerate or Lightning."""
    listed = optimizers if isinstance(optimizers, Sequence) else [optimizers]
    found = []
    for optimizer in listed:
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = inner  # noqa: PLW2901
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                "team.train takes the models, and then an optimizer of torch's kind, or a list of "
                f"them, but was given a {type(optimizer).__name__}."
            )
        check_gradients(optimizer)
        found.append(optimizer)
    return found


def _kept(also: Any | Sequence[Any]) -> Sequence[Any]:
    """What a checkpoint keeps besides, as a list."""
    listed = [also] if hasattr(also, "state_dict") else also
    for each in listed:
        try:
            from_bytes(to_bytes(each.state_dict()))
        except Exception as error:  # whatever a state_dict may raise
            raise ConfigError(
                f"also= takes objects whose state_dict() holds tensors and numbers, which a "
                f"checkpoint can keep, but {type(each).__name__} is none "
                f"({str(error).partition(chr(10))[0][:80]})."
            ) from None
    return listed
