"""Training in a script's own loop: hooks on `optimizer.step()` take the team's steps.

Before the optimizer's step the method may correct gradients; after it, whatever has changed in the
models since the last step is the update. What travels is settled at the first step, when it is
seen which buffers change, and again when the script freezes or unfreezes parameters.
"""

from __future__ import annotations

import copy
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from prlc.data.random_state import get_random_state, set_random_state
from prlc.data.share import Counted
from prlc.engines.job import all_tensors, travelling
from prlc.engines.processes.agreement import check_alike, check_forms, warn_of_same_data
from prlc.engines.processes.cluster import RunSettings
from prlc.engines.processes.connection import Connection
from prlc.engines.processes.overflow import OverflowHook
from prlc.engines.processes.peer import Peer
from prlc.engines.processes.ranks import Ranks
from prlc.engines.processes.scheduled import ScheduledServer
from prlc.engines.processes.server import log
from prlc.engines.processes.threads import run_in_background
from prlc.engines.processes.worker import A_DAY, Worker
from prlc.engines.roles.local_model import ScriptModel
from prlc.engines.roles.notes import Kind
from prlc.engines.roles.packing import is_finite
from prlc.engines.roles.selection import Models, Selection
from prlc.engines.schema import PLAIN, TEXT, WHOLE, ListOf, Table
from prlc.errors import ConfigError
from prlc.methods import Lazy, Scheduled
from prlc.runs.folder import RunFolder

_CHECKPOINT = Table(
    {"steps_done": WHOLE, "parts": PLAIN, "names": ListOf(TEXT), "constants": PLAIN}
)


class Run:
    """A training. Made by `Team.train`; this one, of a process alone, counts steps."""

    steps_done = 0
    """How many steps this worker has taken, including those before a restart."""
    epochs_done = 0
    """How many passes over its first shared loader this worker had taken before a restart."""
    over = False
    """Whether the server has ended the run; only LAG's does."""

    def __init__(self, optimizers: Sequence[Optimizer] = (), steps: int | None = None) -> None:
        self._steps = steps
        self._hooks: list[Any] = [o.register_step_post_hook(self._after_step) for o in optimizers]

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        self.steps_done += 1
        self.over = self.steps_done == self._steps

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """Inside the block the models are the global one, to evaluate or to save."""
        yield

    def finish(self) -> None:
        """Take no more steps; leaves the final global model in the models."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()


class TeamRun(Run):
    """A training of several processes."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        settings: RunSettings,
        models: Models,
        also: Sequence[Any],
        folder: Callable[[], RunFolder] | None,
        positions: Sequence[Counted],
        wait_for_others: Callable[[], None],
        ranks: Ranks | None = None,
    ) -> None:
        """`ranks`: those of this worker, if there are several."""
        self._connect, self._settings, self._models, self._also = connect, settings, models, also
        self._positions, self._wait_for_others = positions, wait_for_others
        self._ranks = ranks
        self._connection = connection = self._connected()
        self._folder: RunFolder | None = None
        self.finished = self.failed = False
        self._peer: Peer | None = None
        self._worker: Worker | None = None
        self._serving: threading.Thread | None = None
        self._unfinished_save: dict[str, Any] | None = None
        self._spoilt: list[tuple[nn.Parameter, Tensor]] = []
        self._own_steps = 0
        self._shows_global = False
        self._changing: set[str] = set()
        saved = None
        if connection.rank == 0 and folder is not None:
            self._folder = folder()
            saved = self._folder.newest_checkpoint(_CHECKPOINT)
            if saved is not None:
                self._load_constants(saved["constants"])
        self._start_alike()
        begun = (saved["steps_done"], saved["names"]) if saved else (0, None)
        self._begun_at, names = connection.broadcast(begun)
        self.steps_done = self._begun_at
        if names is not None:
            self._compare({"optimizers": self._models.describe()})
            self._build(names, saved["parts"] if saved else None)
        if connection.layout.worker_of(connection.rank) < 0:
            self._serve_to_the_end()
        super().__init__(models.optimizers, settings.steps)
        self._hooks += [o.register_step_pre_hook(self._before_step) for o in models.optimizers]
        if len(models.optimizers) > 1:
            self._hooks += [
                model.register_forward_pre_hook(self._before_forward) for model in models.models
            ]
        self._hooks.append(register_optimizer_step_pre_hook(self._check_foreign))
        self._hooks.append(OverflowHook(lambda: self._own_steps, self._left_out))
        self._strangers: set[int] = set()

    def _connected(self) -> Connection:
        """A connection on which nobody is waited for in vain, but whoever lives in patience."""
        connection = self._connect()
        remedy = "prlc.join(peer_timeout=...)"
        return replace(connection, wire=replace(connection.wire, timeout=A_DAY, remedy=remedy))

    def pause(self) -> None:
        """Say that this worker is about to wait for the others."""
        self._complete_save()
        if self._worker is not None and not (self.finished or self.over):
            self._worker.pause()

    def together(self) -> AbstractContextManager[None]:
        """While all ranks do something together: who hangs is named."""
        return self._connection.together()

    # -- agreeing on what travels -----------------------------------------------------------------

    def _floating(self) -> dict[str, Tensor]:
        """What may travel: the parameters that train, and all floating-point buffers."""
        trained = set(self._models.trained())
        parameters = {n: p for n, p in self._models.all.named_parameters() if n in trained}
        return parameters | self._models.buffers()

    def _copies(self) -> dict[str, Tensor]:
        """Copies of what may travel: one piece of memory, which is given back as a whole."""
        copies: dict[str, Tensor] = {}
        floating = self._floating()
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in floating.values()):
            own = {n: t.detach() for n, t in floating.items() if (t.dtype, t.device) == kind}
            flat = torch.cat([tensor.reshape(-1) for tensor in own.values()])
            parts = torch.split(flat, [tensor.numel() for tensor in own.values()])
            copies |= {n: part.view(own[n].shape) for n, part in zip(own, parts, strict=True)}
        return copies

    def _start_alike(self, source: int = 0) -> None:
        """Make all models copies of one, which is where training starts."""
        own = self._models.form()
        digest = zlib.crc32(repr(own).encode())
        if len({*self._connection.gather_everywhere(digest)}) > 1:
            check_forms(self._connection.gather_everywhere(own))
        self._connection.broadcast_tensors(all_tensors(self._models.all), source)
        self._start = self._copies()

    def _start_again(self) -> None:
        """With all ranks: the same with the tensors that train from now on."""
        self._connection = self._connected()
        self._start_alike(self._connection.layout.workers[0])

    def _compare(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """What every worker says; refuses workers that differ where they must not."""
        connection = self._connection
        is_worker = connection.rank in connection.layout.workers
        everyone = connection.gather_everywhere(own if is_worker else {})
        found = [everyone[rank] for rank in connection.layout.workers]
        for number, each in enumerate(found):
            check_alike(number, each, found[0])
        return found

    def _settle(self, gradient: float | None = None) -> None:
        """With all ranks: settle what travels, and begin."""
        start, buffers = self._start, self._models.buffers()
        self._changing |= {n for n, b in buffers.items() if not _same(b, start.get(n))}
        found = self._compare(
            {
                "trained": self._models.trained(),
                "optimizers": self._models.describe(),
                "changing": sorted(self._changing),
                "gradient": gradient,
                "step": self.steps_done,
            }
        )
        if self._connection.rank == self._connection.layout.workers[0]:
            warn_of_same_data([each["gradient"] for each in found])
        self._changing = {name for each in found for name in each["changing"]}
        self._begun_at = self.steps_done = max(each["step"] for each in found)
        trained: list[str] = found[0]["trained"]
        self._build([*trained, *(name for name in buffers if name in self._changing)], None)

    def _build(self, names: list[str], parts: dict[str, Any] | None) -> None:
        """Begin with these tensors, from their values at the start."""
        models = self._models
        self._names, self._selection = names, Selection(models.models, names)
        floating = self._floating()
        self._trained = {name for name, _ in models.all.named_parameters()} & {*names}
        self._changing = {*names} - self._trained
        now = {
            name: floating[name].detach().clone()
            for name in names
            if name in self._start and not torch.equal(floating[name], self._start[name])
        }
        # The models are put back as they were: a backward pass that waits may use them.
        with torch.autograd._unsafe_preserve_version_counter(tuple(floating.values())):  # type: ignore[attr-defined]
            _write(self._start, floating)
            peer = self._begin_peer(parts)
            if peer.worker is not None and peer.worker.script is None:
                _write(now, floating)
        self._start = {}
        self._worker = peer.worker
        self._follow_a_restart()
        if self._worker is not None:
            if self._worker.script is not None:
                self._load_script(self._worker.script)
                self.steps_done = self._worker.next_step
            else:
                self._worker.next_step = self._worker.lr_step = self.steps_done
            self._worker.on_save = self._save
            if peer.server is not None:
                self._serving = run_in_background(self._serve, "server")
            self.over = not self._worker.begin()
        self._follow(touched=True)
        self._marks = models.marks()

    # -- a worker of several ranks ----------------------------------------------------------------

    def _follow_a_restart(self) -> None:
        """On the other ranks of a worker: take up what its leader was given of a checkpoint."""
        if self._ranks is None:
            return
        given = None
        if self._worker is not None and self._worker.script is not None:
            optimizers = [optimizer.state_dict() for optimizer in self._models.optimizers]
            given = {"script": self._worker.script, "optimizers": optimizers}
        given = self._ranks.tell(given)
        if given is not None and self._worker is None:
            for optimizer, state in zip(self._models.optimizers, given["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self._load_script(given["script"])

    def _follow(self, touched: bool) -> None:
        """All ranks of this worker do as its leader."""
        if self._ranks is None:
            return
        saving = self._unfinished_save is not None
        told = self._ranks.tell([self.over, self.steps_done, touched, saving])
        self.over, self.steps_done, touched, saving = told
        if touched:
            self._ranks.tell_tensors(travelling(self._selection))
        if saving:
            states = self._ranks.gather(get_random_state())
            if self._unfinished_save is not None:
                self._unfinished_save["script"]["random"] = states
                self._complete_unless_later()

    def _begin_peer(self, parts: dict[str, Any] | None) -> Peer:
        settings = self._settings
        self._peer = Peer(
            self._connection,
            settings,
            self._selection,
            lambda packing: ScriptModel(
                self._selection,
                self._models,
                packing,
                method=settings.method,
                goes_back=settings.on_bad_update != "stop",
            ),
        )
        self._peer.begin(self.steps_done, parts)
        return self._peer

    def _has_changed(self) -> bool:
        """Whether other tensors train than those that travel, or other buffers change."""
        if {*self._models.trained()} != self._trained or not self._selection.is_of(self._models):
            return True
        return bool(self._newly_changing())

    def _newly_changing(self) -> set[str]:
        """The buffers that were written to, or replaced, though they did not travel."""
        marks = self._models.marks()
        return {n for n in marks if n not in self._changing and marks[n] != self._marks.get(n)}

    def _change(self) -> None:
        """Go on with other tensors, from the global model."""
        if not isinstance(self._settings.method, Scheduled):
            raise ConfigError(
                f"{self._settings.method.label} cannot change what trains during a run. Leave the "
                "block of team.train first, and begin another."
            )
        self._models.check_replaced(self._trained)
        self._changing |= self._newly_changing()
        unsaid: list[tuple[Tensor, Tensor]] = []
        if self._worker is not None:
            self._local.stepped_by(None)
            if not self._worker.pushes_changes_at_end:
                unsaid = self._local.unsaid()
            self._worker.leave(Kind.CHANGE)
        self._end_of_peer()
        self._start_again()
        for tensor, change in unsaid:
            tensor.add_(change)
        self._settle()

    # -- serving ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Serve the global model, or this process's shard, until all workers are done."""
        peer, step = self._peer, self._begun_at
        assert peer is not None
        assert peer.server is not None
        with ExitStack() as until_done:
            if self._folder is not None:
                until_done.enter_context(self._folder.lock())
            while step != self._settings.steps and peer.serve(step) is not None:
                step += 1
                if self._folder is not None and peer.saved is not None:
                    self._folder.save_checkpoint(
                        {
                            "steps_done": step,
                            "parts": peer.saved,
                            "names": self._names,
                            "constants": self._constants(),
                        }
                    )
        peer.server.drain()
        peer.server.send_final_model()
        self._served = step

    def _serve_to_the_end(self) -> None:
        """Do nothing but serve; returns with the final model."""
        goes_on = True
        while goes_on:
            if self._peer is None:
                self._settle()
            assert self._peer is not None
            self._serve()
            server, peer = self._peer.server, self._peer
            assert server is not None
            with torch.no_grad():
                peer.packing.unpack(
                    [v.detach() for v in server.values], travelling(self._selection)
                )
            peer.close()
            goes_on = isinstance(server, ScheduledServer) and server.changed
            self._peer = None
            if goes_on:
                self._start_again()
        self.steps_done, self.finished = self._served, True

    # -- a step -----------------------------------------------------------------------------------

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        del optimizer
        if self.finished:
            raise ConfigError(
                "This process serves the global model and takes no steps, or its training is over, "
                "but its script called optimizer.step(). In the server layout rank 0 takes no "
                "batches: split them with team.shard, or ask for layout='sharded'."
            )
        if self._shows_global:
            raise ConfigError(
                "optimizer.step() was called inside run.global_model(), where the model is the "
                "global one for a while: what is learnt there would be lost. Step outside."
            )
        if self.over:
            raise ConfigError(
                f"The run is over after {self._settings.steps} steps, as join(steps=...) said. "
                "Leave the loop when run.over is true."
            )
        self._complete_save()
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)  # after self
        if closure is None:
            self._prepare()
            return None

        def prepared() -> Any:
            loss = closure()  # forward and backward happen here
            self._prepare()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": prepared}
        return (args[0], prepared, *args[2:]), kwargs

    @torch.no_grad()
    def _prepare(self) -> None:
        """Before the optimizer uses the gradients."""
        self._settle_or_change(self._checksum)
        if self._worker is not None:
            self._local.adopt()
        if self._settings.on_bad_update == "skip":
            held = [(p, p.grad) for p in self._selection.parameters() if p.grad is not None]
            if not is_finite([grad.to_dense() for _, grad in held]):
                self._spoilt = held
                for parameter, _ in held:  # the optimizer must not take them into its state
                    parameter.grad = None
                return
        if self._worker is not None:
            self._worker.prepare()

    def _settle_or_change(self, checksum: Callable[[], float] | None) -> None:
        """Settle what travels at the first step, and again when that has changed."""
        if self._peer is None:
            self._settle(checksum() if checksum else None)
        elif self._has_changed():
            self._change()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if self._peer is None:  # an optimizer that did not call its closure
            self._settle()
        self._own_steps += 1
        for position in self._positions:
            position.stepped()
        loss = None
        if self._spoilt:
            for parameter, grad in self._spoilt:
                parameter.grad = grad
            self._spoilt, loss = [], float("nan")
        touched = False
        if self._worker is not None:
            self._local.stepped_by(optimizer)
            self.over = not self._worker.stepped(loss)
            self.steps_done = self._worker.next_step
            touched, self._local.touched = self._local.touched, False
        self._follow(touched)

    def _left_out(self, optimizer: Optimizer) -> None:
        """Count a step that a scaler has left out, as an update of zero.

        Otherwise this worker would be a step behind the others, who would wait for it while it
        waits for them, as in `team.any`.
        """
        if self.finished or all(optimizer is not each for each in self._models.optimizers):
            return
        self._complete_save()
        with torch.no_grad():
            self._settle_or_change(None)
            if self._worker is not None:
                self._local.adopt()
        self._after_step(optimizer, None, None)

    @property
    def _local(self) -> ScriptModel:
        """The worker's model."""
        assert self._worker is not None
        assert isinstance(self._worker.local, ScriptModel)
        return self._worker.local

    def _before_forward(self, model: nn.Module, inputs: Any) -> None:
        del inputs
        if self._worker is not None:
            self._local.called(model)

    def _checksum(self) -> float:
        """A number that two workers share only if they computed on the same data."""
        grads = [p.grad for p in self._models.all.parameters() if p.grad is not None]
        return sum(float(grad.to_dense().abs().double().sum()) for grad in grads)

    def _check_foreign(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Refuse steps of the models by an optimizer that was not given."""
        del args, kwargs
        if id(optimizer) in self._strangers or any(optimizer is o for o in self._models.optimizers):
            return
        own = {id(p) for p in self._models.all.parameters()}
        if any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise ConfigError(
                f"A {type(optimizer).__name__} that was not given to team.train steps the model's "
                "parameters, so its steps would not count. Give team.train all optimizers: "
                "team.train(model, [first, second])."
            )
        self._strangers.add(id(optimizer))

    # -- the global model and the end -------------------------------------------------------------

    @contextmanager
    def global_model(self) -> Iterator[None]:
        if self.finished or self._peer is None:
            yield  # nothing trained yet, or the final model
            return
        self._complete_save()
        model = self._worker.fetch() if self._worker is not None else None
        differs = model is not None
        if not (self._ranks.tell(differs) if self._ranks is not None else differs):
            yield
            return
        tensors = [t.detach() for t in travelling(self._selection)]
        own = [t.clone() for t in tensors]
        if model is not None:
            self._peer.packing.unpack(model, tensors)
        if self._ranks is not None:
            self._ranks.tell_tensors(tensors)
        self._shows_global = True
        try:
            yield
        finally:
            self._shows_global = False
            for tensor, value in zip(tensors, own, strict=True):
                tensor.copy_(value)

    def finish(self) -> None:
        if self.finished:
            return
        if self._peer is None:
            self._settle()
        self._complete_save()
        if self._worker is not None:
            self._local.stepped_by(None)
            # A lazy method's last step waits to be asked for.
            keeps = isinstance(self._settings.method, Lazy) or self._worker.pushes_changes_at_end
            if not keeps and not self._local.is_as_left():
                log.warning(
                    "The weights of worker %d were changed after its last optimizer.step(): the "
                    "final model lacks that. Change them before a step, or after the block of "
                    "team.train.",
                    self._worker.number,
                )
        # To leave a worker may need pushes of the others, who may wait for its vote.
        voting = run_in_background(self._wait_for_others, "voting")
        if self._worker is not None and not self.over:
            self._worker.leave()
        voting.join()
        self._end_of_peer()
        self.finished = True
        super().finish()
        if not self.steps_done:
            log.warning(
                "Worker %d has taken no step: optimizer.step() of the optimizer given to "
                "team.train was never called here.",
                self._connection.layout.worker_of(self._connection.rank),
            )

    def _end_of_peer(self) -> None:
        assert self._peer is not None
        if self._worker is not None:
            self._worker.finish()
        self._follow(touched=True)
        if self._serving is not None:
            self._serving.join()
        self._peer.close()
        self._peer = self._serving = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
            return
        self.failed = True
        log.warning(
            "The block of team.train was left by %s after %d steps: the model here is this "
            "worker's own, and this process will end with code 1.",
            type(error).__name__,
            self.steps_done,
        )

    # -- checkpoints ------------------------------------------------------------------------------

    def _save(self, state: dict[str, Any]) -> None:
        """Keep this worker's state until the script's iteration is over, then send it."""
        state["script"] = {
            "positions": [position.state() for position in self._positions],
            "random": [get_random_state()],
        }
        self._unfinished_save = copy.deepcopy(state) if self._also else state
        if self._ranks is None:
            self._complete_unless_later()

    def _complete_unless_later(self) -> None:
        """Complete a checkpoint now, unless the script's iteration still changes what it keeps."""
        if not self._also or isinstance(self._settings.method, Lazy):
            self._complete_save()

    def _complete_save(self) -> None:
        """Complete a checkpoint that waits for the end of the script's iteration."""
        state, self._unfinished_save = self._unfinished_save, None
        if state is not None:
            assert self._worker is not None
            state["script"]["also"] = [each.state_dict() for each in self._also]
            saved = zip(state["own"]["optimizer"], self._models.optimizers, strict=True)
            for kept, optimizer in saved:  # a scheduler has changed the learning rate since
                kept["param_groups"] = optimizer.state_dict()["param_groups"]
            self._worker.send(state)

    def _load_script(self, script: dict[str, Any]) -> None:
        saved = {"also": len(script["also"]), "shared loaders": len(script["positions"])}
        given = {"also": len(self._also), "shared loaders": len(self._positions)}
        for what, number in saved.items():
            if number != given[what]:
                raise ConfigError(
                    f"The checkpoint has {number} objects of {what}, but the script gives "
                    f"{given[what]}. Resume it with the same script, which calls team.shard before "
                    "team.train, or begin in another folder."
                )
        for each, state in zip(self._also, script["also"], strict=True):
            each.load_state_dict(state)
        newest = max((each["last_used"] for each in script["positions"]), default=0)
        random = script["random"][self._ranks.place if self._ranks is not None else 0]
        for position, state in zip(self._positions, script["positions"], strict=True):
            next_one = state["last_used"] == newest > 0
            position.load_state(state, random if next_one else None)
        self.epochs_done = script["positions"][0]["passes"] if script["positions"] else 0
        set_random_state(random)

    def _constants(self) -> dict[str, Tensor]:
        """What belongs to the models, but does not change."""
        names = set(self._names)
        return {
            name: tensor
            for name, tensor in self._models.all.state_dict().items()
            if name not in names and isinstance(tensor, Tensor) and tensor.is_floating_point()
        }

    def _load_constants(self, constants: dict[str, Tensor]) -> None:
        own = self._models.all.state_dict()
        _write({n: t for n, t in constants.items() if n in own and own[n].shape == t.shape}, own)


def _same(a: Tensor, b: Tensor | None) -> bool:
    """Whether two tensors hold the same numbers, of which some may not be finite."""
    return b is not None and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


@torch.no_grad()
def _write(values: dict[str, Tensor], into: dict[str, Tensor]) -> None:
    for name, value in values.items():
        if name in into:
            into[name].detach().copy_(value)
