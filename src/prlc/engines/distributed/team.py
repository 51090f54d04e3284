"""Three lines for a training script of one's own: join, wrap, step.

    team = prlc.join("prlc:0.1")                    # the processes that torchrun started
    with team.wrap(model, optimizer) as worker:     # same start for all; the final model at the end
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            worker.step()                           # instead of optimizer.step()

The loop, the optimizer and the data stay the script's own. At every step the optimizer makes an
update, which is pushed; then the worker pulls, or moves by itself, as the method says.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from prlc.engines.distributed.connection import Connection, connect, own_device
from prlc.engines.distributed.member import Member
from prlc.engines.distributed.node import Node, in_background
from prlc.engines.distributed.terms import Cluster, Terms
from prlc.errors import ConfigError
from prlc.methods import Lazy, Method, parse_method
from prlc.optimizers import SERVER_OPTIMIZERS, OptimizerFactory, choose
from prlc.runs import RunFolder


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

    method: a `prlc.Method`, or text such as "prlc:0.1" or "prlc:0.1:every=4".
    layout: `sharded`: every process is a worker and keeps a part of the global model; `server`:
        the first process keeps all of it and never comes back from `wrap`.
    steps: how many steps the server takes; only LAG needs to know.
    seed: of the draws who pulls when.
    folder: where the first process writes a checkpoint every `checkpoint_every` steps; without one,
        none is written. Started again, the run goes on from there, and `worker.steps_done` says
        where. What the other processes say of it does not matter.
    window: how many pushes may be under way before a worker waits.
    peer_timeout: seconds of silence after which a process counts as hung.
    on_bad_update: what to do with an update that is not finite or misshapen: `stop`, or `skip` it.
    device: where the workers' models are. With `cuda` every process of a machine takes the GPU of
        its number, and NCCL carries what is large.
    """
    chosen = parse_method(method) if isinstance(method, str) else method
    if isinstance(chosen, Lazy) and steps is None:
        raise ConfigError(
            f"{chosen.label} asks its workers when it needs them, so it must know the number of "
            "steps: give join(..., steps=...)."
        )
    cluster = Cluster(
        layout=layout, window=window, peer_timeout=peer_timeout, on_bad_update=on_bad_update
    )
    if type(checkpoint_every) is not int or checkpoint_every < 1:
        raise ConfigError(
            "The steps between checkpoints must be a whole number, 1 or more, but are "
            f"{checkpoint_every!r}."
        )
    connection = connect(cluster.layout, cluster.peer_timeout, own_device(device))
    save_every = connection.tell_all(checkpoint_every if folder is not None else 0)
    terms = Terms(
        method=chosen,
        num_workers=len(connection.layout.workers),
        seed=seed,
        steps=steps,
        window=window,
        on_bad_update=on_bad_update,
        save_every=save_every,
    )
    return Team(connection, terms, Path(folder) if folder is not None else None)


class Team:
    """The processes that train together. Made by `join`."""

    def __init__(self, connection: Connection, terms: Terms, folder: Path | None) -> None:
        self._connection, self._terms, self._path = connection, terms, folder
        self._folder: RunFolder | None = None

    @property
    def num_workers(self) -> int:
        """How many processes compute; each takes its own part of the data."""
        return self._terms.num_workers

    @property
    def worker(self) -> int:
        """The number of this process among the workers, from 0; -1 for a server."""
        workers = self._connection.layout.workers
        return workers.index(self._connection.rank) if self._connection.rank in workers else -1

    def wrap(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        server_optimizer: str | OptimizerFactory = "add",
    ) -> TeamWorker:
        """Let `worker.step()` take the place of `optimizer.step()`.

        All models become what the first process's is (or what the checkpoint says).
        """
        node = Node(
            self._connection,
            self._terms,
            model,
            lambda _: optimizer,
            choose(server_optimizer, SERVER_OPTIMIZERS, "server"),
        )
        saved = self._open_folder() if self._connection.rank == 0 else None
        start = self._connection.tell_all(saved["steps_done"] if saved else 0)
        node.begin(start, saved["parts"] if saved else None)
        if node.member is None:
            self._keep(node, start)
            node.close()
            sys.exit(0)
        keeping = None
        if node.keeper is not None:
            keeping = in_background(lambda: self._keep(node, start), "keeper")
        return TeamWorker(node, node.member, keeping)

    def _open_folder(self) -> dict[str, Any] | None:
        if self._path is None:
            return None
        described = {
            "method": {"name": self._terms.method.name, **self._terms.method.options()},
            "workers": self.num_workers,
            "layout": self._connection.layout.name,
            "seed": self._terms.seed,
        }
        if (self._path / "config.json").exists():
            self._folder = RunFolder.open(self._path)
            self._folder.check_config(described)
        else:
            self._folder = RunFolder.create(self._path, described)
        return self._folder.newest_checkpoint()

    def _keep(self, node: Node, start: int) -> None:
        """Keep the global model, or this process's part of it, until all workers are done."""
        with ExitStack() as until_done:
            if self._folder is not None:
                until_done.enter_context(self._folder.lock())
            step = start
            while step != self._terms.steps and node.keep(step) is not None:
                step += 1
                if self._folder is not None and node.saved is not None:
                    self._folder.save_checkpoint({"steps_done": step, "parts": node.saved})
        assert node.keeper is not None
        node.keeper.dismiss()
        node.keeper.hand_out()


class TeamWorker:
    """One worker of a team. Made by `Team.wrap`; leave its `with` block when training is over."""

    def __init__(self, node: Node, member: Member, keeping: Any) -> None:
        self._node, self._member, self._keeping = node, member, keeping
        self._goes_on = member.begin()

    @property
    def steps_done(self) -> int:
        """How many steps this worker has taken, also before it was started again."""
        return self._member.next_step

    def step(self, loss: float | None = None) -> bool:
        """Take a step along the gradients that are there; False when the run is over.

        Only LAG ends a run by itself. A loss is taken for what it says: if it is not finite, the
        update is not used.
        """
        if not self._goes_on:
            raise ConfigError("The run is over: step() said so by returning False.")
        self._goes_on = self._member.step(loss)
        return self._goes_on

    def finish(self) -> None:
        """Say that this worker is done, and take the final global model."""
        self._member.finish(says_goodbye=self._goes_on)
        if self._keeping is not None:
            self._keeping.join()
        self._node.close()

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
