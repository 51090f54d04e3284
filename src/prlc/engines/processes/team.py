"""A user's own training script: join, wrap, step.

    team = prlc.join("prlc:0.1")                    # the processes that torchrun started
    with team.wrap(model, optimizer) as worker:     # same start for all; the final model at the end
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            worker.step()                           # instead of optimizer.step()

The script keeps its loop, its optimizer and its data, of which every worker takes its own part. At
every step the optimizer makes an update, which is pushed; then the worker pulls, or moves by its
own guess, as the method says.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from prlc.engines.processes.cluster import Cluster, RunSettings
from prlc.engines.processes.connection import Connection, connect, local_device
from prlc.engines.processes.peer import Peer
from prlc.engines.processes.threads import run_in_background
from prlc.engines.processes.worker import Worker
from prlc.errors import ConfigError
from prlc.methods import Lazy, Method, Scheduled, parse_method
from prlc.optim.optimizers import SERVER_OPTIMIZERS, OptimizerFactory, RuleSettings, choose
from prlc.runs.folder import RunFolder
from prlc.schema import PLAIN, WHOLE, Table


def join(
    method: Method | str = "prlc:0.1",
    *,
    layout: str = "sharded",
    seed: int = 0,
    steps: int | None = None,
    folder: Path | str | None = None,
    checkpoint_every: int = 100,
    window: int = Cluster.window,
    peer_timeout: float = Cluster.peer_timeout,
    on_bad_update: str = Cluster.on_bad_update,
    device: str = "cpu",
) -> Team:
    """Join the processes that torchrun started, to train one model together.

    method: a `prlc.Method`, or text such as "prlc:0.1" or "prlc:0.1:every=4:delay=4"; any parts
        but `sample` and `weights`.
    layout: `sharded`: every process is a worker and holds a part of the global model; `server`:
        the first process holds all of it and never returns from `wrap`.
    steps: how many steps the server takes; only LAG needs to know.
    seed: decides who pulls when, and how encodings round.
    folder: where the first process writes a checkpoint every `checkpoint_every` steps; without one,
        none is written. A restarted run continues from it; `worker.steps_done` says where. Folders
        given to other processes are ignored.
    window: how many pushes may be in flight before a worker waits.
    peer_timeout: seconds of silence after which a process counts as hung.
    on_bad_update: what to do with an update that is not finite or misshapen: `stop`, or `skip` it.
    device: where the workers' models are. With `cuda` every process takes the GPU of its local
        rank, and NCCL carries updates and models.
    """
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
    connection = connect(cluster.layout, cluster.peer_timeout, local_device(device))
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
    return Team(connection, settings, Path(folder) if folder is not None else None)


class Team:
    """The processes that train together. Made by `join`."""

    def __init__(self, connection: Connection, settings: RunSettings, folder: Path | None) -> None:
        self._connection, self._settings, self._path = connection, settings, folder
        self._folder: RunFolder | None = None

    @property
    def num_workers(self) -> int:
        """How many processes compute; each trains on its own part of the data."""
        return self._settings.num_workers

    @property
    def worker(self) -> int:
        """The number of this process among the workers, from 0; -1 for a server."""
        workers = self._connection.layout.workers
        return workers.index(self._connection.rank) if self._connection.rank in workers else -1

    def wrap(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        server_optimizer: str | OptimizerFactory | None = None,
    ) -> TeamWorker:
        """Make a worker whose `step()` replaces `optimizer.step()`.

        All models start as a copy of the first process's (or from the checkpoint). The server's
        optimizer is the method's own if none is given.
        """
        chosen = server_optimizer or self._settings.method.server
        rule = RuleSettings(choose(chosen, SERVER_OPTIMIZERS, "server"))
        settings = replace(self._settings, rule=rule)
        peer = Peer(self._connection, settings, model, lambda _: optimizer)
        saved = self._open_folder() if self._connection.rank == 0 else None
        start = self._connection.broadcast(saved["steps_done"] if saved else 0)
        peer.begin(start, saved["parts"] if saved else None)
        if peer.worker is None:
            self._serve(peer, start)
            peer.close()
            sys.exit(0)
        serving = None
        if peer.server is not None:
            serving = run_in_background(lambda: self._serve(peer, start), "server")
        return TeamWorker(peer, peer.worker, serving)

    def _open_folder(self) -> dict[str, Any] | None:
        if self._path is None:
            return None
        described = {
            "method": str(self._settings.method),
            "workers": self.num_workers,
            "layout": self._connection.layout.name,
            "seed": self._settings.seed,
        }
        if (self._path / "config.json").exists():
            self._folder = RunFolder.open(self._path)
            self._folder.check_config(described)
        else:
            self._folder = RunFolder.create(self._path, described)
        return self._folder.newest_checkpoint(Table({"steps_done": WHOLE, "parts": PLAIN}))

    def _serve(self, peer: Peer, start: int) -> None:
        """Serve the global model, or this process's shard, until all workers are done."""
        with ExitStack() as until_done:
            if self._folder is not None:
                until_done.enter_context(self._folder.lock())
            step = start
            while step != self._settings.steps and peer.serve(step) is not None:
                step += 1
                if self._folder is not None and peer.saved is not None:
                    self._folder.save_checkpoint({"steps_done": step, "parts": peer.saved})
        assert peer.server is not None
        peer.server.drain()
        peer.server.send_final_model()


class TeamWorker:
    """One worker of a team. Made by `Team.wrap`; leave its `with` block when training is over."""

    def __init__(self, peer: Peer, worker: Worker, serving: Any) -> None:
        self._peer, self._worker, self._serving = peer, worker, serving
        self._goes_on = worker.begin()

    @property
    def steps_done(self) -> int:
        """How many steps this worker has taken, including those before a restart."""
        return self._worker.next_step

    def step(self, loss: float | None = None) -> bool:
        """Take a step along the current gradients; False when the run is over.

        Only LAG ends a run by itself. If a loss is given and is not finite, the update is not used.
        """
        if not self._goes_on:
            raise ConfigError("The run is over: step() said so by returning False.")
        self._goes_on = self._worker.step(loss)
        return self._goes_on

    def finish(self) -> None:
        """Say that this worker is done, and fetch the final global model."""
        self._worker.finish(says_goodbye=self._goes_on)
        if self._serving is not None:
            self._serving.join()
        self._peer.close()

    def __enter__(self) -> TeamWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
