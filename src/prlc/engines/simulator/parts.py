"""A scheduled method of any parts, on stacked workers.

The models of all workers are one matrix with a row per worker (`flat.py`); so are unsent updates,
residuals and the state of compensations, each only if a part needs it. Workers are computed and
encoded chunk by chunk, so a step makes nothing of the size of all workers. `engine.py` has the
short way for methods whose parts are all plain.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.draws import Purpose
from prlc.encodings import Draw, Plain
from prlc.engines.base import StepReport, mean_loss
from prlc.engines.flat import Block, FlatModel
from prlc.engines.job import Job
from prlc.engines.simulator.optimizers import WorkerOptimizers
from prlc.engines.simulator.workers import StackedWorkers
from prlc.errors import DivergedError
from prlc.methods import Scheduled, Timetable, Turn
from prlc.methods.compensation import Pulled, State, Window
from prlc.optim.optimizers import make, prepare_server_step

Rows = slice | Tensor
"""Neighbouring workers, or any selection."""


@dataclass
class Pulls:
    """Models on their way to some workers, to be used together."""

    use_at: int
    workers: Tensor
    block: int
    parameters: Tensor
    """(numel,) if all are sent the same, otherwise one row each."""
    buffers: Tensor
    window: list[Tensor] | None
    hints: Tensor | None
    extra: Tensor | None
    residual: Tensor | None
    """What the workers' messages had left out when the pulls began."""


class PartsStep:
    """The workers and the server of a scheduled method, a step at a time."""

    def __init__(
        self, job: Job, workers: StackedWorkers, optimizers: WorkerOptimizers, flat: FlatModel
    ) -> None:
        assert isinstance(job.method, Scheduled)
        self._job, self._method, self._flat = job, job.method, flat
        self._workers, self._optimizers = workers, optimizers
        method, P = self._method, job.num_workers
        assert workers.flat is not None
        self._models = workers.flat  # (P, numel)
        self._n = flat.num_parameters
        self._context = method.context(P)
        self._weights = torch.tensor(
            job.weights() if method.weights == "samples" else [1.0] * P,
            dtype=flat.dtype,
            device=job.device,
        )
        self._server = self._models[0].clone()
        self._leaves = [
            view[0].detach().requires_grad_()
            for view in flat.views(self._server[None])[: flat.num_tensors]
        ]
        self._at_server = job.optimizer_at == "server"
        factory = job.optimizer if self._at_server else job.server_optimizer
        self._server_optimizer = make(factory, self._leaves) if factory else None
        # What parts remember; empty if none does.
        none = self._models.new_zeros(0, 0)
        decay = method.up.error_feedback
        self._residual = self._new_rows(self._n) if decay is not None else none
        self._unsent = self._new_rows(flat.numel) if method.every > 1 else none
        self._num_unsent, self._lr_unsent = 0, 0.0
        displaces = method.sends == "displacement"
        self._anchor = self._models[:, : self._n].clone() if displaces else none
        self._extra = torch.zeros_like(self._models[0, : self._n])
        self._adds_up = method.meanwhile.needs_window or (method.delay > 0 and method.gain != 0.0)
        self._since = self._new_rows(flat.numel) if self._adds_up else none
        numbers = torch.zeros(P, len(flat.blocks), dtype=torch.float64, device=job.device)
        self._lr_since, self._steps_since = numbers, numbers.clone()
        self._differs = method.down.what == "difference" and not method.down.plain
        own_known = self._differs and not method.shares_known
        self._known = self._models[:, : self._n].clone() if own_known else none
        self._shared_known = self._server[: self._n].clone()
        self._server_residual = torch.zeros_like(self._server[: self._n])
        self._mean = torch.zeros_like(self._server[: self._n])  # of the round
        self._states: list[State] = [
            method.meanwhile.init(self._models[:, block.parameters], self._context)
            for block in flat.blocks
        ]
        self._hints: list[Tensor | None] = [None] * len(flat.blocks)
        self._pending: list[Pulls] = []
        at_once = max(chunk.rows.stop - chunk.rows.start for chunk in workers.chunks)
        self._updates = self._models.new_empty(at_once, flat.numel)

    def _new_rows(self, numel: int) -> Tensor:
        return self._models.new_zeros(self._job.num_workers, numel)

    # -- the step ---------------------------------------------------------------------------------

    def step(self, step: int, timetable: Timetable) -> StepReport:
        turn, lr = timetable[step], self._job.lr(step)
        total = torch.zeros_like(self._server)
        lengths_sq = torch.zeros(len(self._flat.blocks), dtype=torch.float64)
        extra = torch.zeros_like(self._extra)
        losses = []
        self._num_unsent += 1
        self._lr_unsent += lr
        for rows, numbers, loss, update in self._compute(turn, step, lr):
            losses += loss.tolist()
            content = update
            if self._method.every > 1:
                _add(self._unsent, rows, update)
                content = self._unsent[rows]
            if self._adds_up:
                _add(self._since, rows, update)
            self._move(rows, update, lr)
            if turn.is_push:
                if self._method.meanwhile.acts_at_push:
                    self._act(rows, content, extra)
                self._push(rows, numbers, content, turn, total, lengths_sq, step)
        if self._adds_up:
            computing = torch.from_numpy(turn.computes).to(self._lr_since.device)
            self._lr_since[computing] += lr
            self._steps_since[computing] += 1
        if turn.is_push:
            self._serve(turn, total, lengths_sq, extra, step, lr)
            self._num_unsent, self._lr_unsent = 0, 0.0
        while self._pending and self._pending[0].use_at == step:
            self._use(self._pending.pop(0))
        if turn.pulling:
            pulls = self._begin(turn, step)
            if self._method.delay == 0:
                self._use(pulls)
            else:
                self._pending.append(pulls)
        self._workers.sync()
        return StepReport(mean_loss(losses), turn.computes, turn.pushes, turn.pulls)

    def _compute(
        self, turn: Turn, step: int, lr: float
    ) -> Iterator[tuple[Rows, np.ndarray[Any, Any], Tensor, Tensor]]:
        """Rows, their workers, losses and updates (rows, numel), chunk by chunk."""
        scale = -1.0 if self._at_server else -lr
        parts = self._workers.compute_parts(turn.computes, step)
        for number, rows, workers, losses, raw, changes in parts:
            update = self._updates[: len(workers)]
            gradients = self._corrected(rows, raw) if self._method.meanwhile.corrects else raw
            views = [update[:, start : start + n] for start, n in
                     zip(self._flat.starts, self._flat.sizes, strict=False)]  # fmt: skip
            if self._job.optimizer is None or self._at_server:
                for view, gradient in zip(views, gradients, strict=False):
                    torch.mul(gradient, scale, out=view)
            elif number is None:
                for k, worker in enumerate(workers.tolist()):
                    row = [gradient[k : k + 1] for gradient in gradients]
                    directions, factor = self._optimizers.worker(worker, row, lr)
                    for view, direction in zip(views, directions, strict=False):
                        torch.mul(direction[0], factor, out=view[k])
            else:
                directions, factor = self._optimizers.chunk(number, gradients, lr)
                for view, direction in zip(views, directions, strict=False):
                    torch.mul(direction, factor, out=view)
            for view, change in zip(views[len(gradients) :], changes, strict=True):
                view.copy_(change)
            self._check(update, workers, step)
            yield rows, workers, losses, update

    def _corrected(self, rows: Rows, gradients: list[Tensor]) -> list[Tensor]:
        flat = torch.cat(gradients, dim=1).to(self._models.dtype)
        for block, state in zip(self._flat.blocks, self._states, strict=True):
            part = block.parameters
            own = _rows_of(state, rows)
            fresh, flat[:, part] = self._method.meanwhile.correct(
                own, flat[:, part], self._models[rows][:, part]
            )
            if fresh is not own:
                _write(state, rows, fresh)
        return list(torch.split(flat, self._flat.sizes[: self._flat.num_tensors], dim=1))

    @staticmethod
    def _check(update: Tensor, workers: np.ndarray[Any, Any], step: int) -> None:
        """Refuse non-finite updates before an encoding rounds them to something finite."""
        sums = update.sum(1)
        if not bool(sums.isfinite().all()):
            bad = ~update.isfinite().all(1)
            if bool(bad.any()):
                raise DivergedError(int(workers[int(bad.int().argmax())]), step, "update")

    def _move(self, rows: Rows, update: Tensor, lr: float) -> None:
        """Move the workers' models by their guess."""
        gain = self._method.gain
        if gain == 0.0:
            return
        if gain is not None and len(self._flat.blocks) == 1 and gain <= 1.0:
            _add(self._models, rows, update, gain)
            return
        for block, state in zip(self._flat.blocks, self._states, strict=True):
            own = _rows_of(state, rows)
            moves = self._method.meanwhile.move(own, update[:, block.parameters], lr)
            _add(self._models[:, block.parameters], rows, moves)
            share = _buffer_share(self._method, own)
            _add(self._models[:, block.buffers], rows, update[:, block.buffers] * share)

    def _act(self, rows: Rows, content: Tensor, extra: Tensor) -> None:
        """Let the compensation act before a push; adds up the vectors that ride along."""
        (block,), (state,) = self._flat.blocks, self._states  # there is but one
        sent, like = content[:, block.parameters], self._lr_since[rows, 0]
        window = Window(
            sent,
            torch.full_like(like, self._lr_unsent),
            torch.full_like(like, float(self._num_unsent)),
        )
        own = self._models[rows][:, block.parameters]
        fresh, model, riding = self._method.meanwhile.push(
            _rows_of(state, rows), own, window, self._context
        )
        _write(state, rows, fresh)
        if model is not own:
            self._models[:, block.parameters][rows] = model
        if riding is not None:
            extra += self._weights[rows] @ riding

    def _push(
        self,
        rows: Rows,
        workers: np.ndarray[Any, Any],
        content: Tensor,
        turn: Turn,
        total: Tensor,
        lengths_sq: Tensor,
        step: int,
    ) -> None:
        """Encode the pushes of some workers, and add them to the total."""
        method, weights = self._method, self._weights[rows]
        pushed = [self._flat.blocks[number] for number in turn.push_blocks]
        if self._at_server and self._num_unsent > 1:  # the mean gradient of the round
            content = content.clone()
            content[:, : self._n] /= self._num_unsent
        decay = method.up.error_feedback
        for number, block in zip(turn.push_blocks, pushed, strict=True):
            part = block.parameters
            total[block.buffers] += weights @ content[:, block.buffers]
            values = content[:, part]
            if method.sends == "displacement":
                values = self._models[rows][:, part] - self._anchor[rows][:, part]
            if isinstance(method.up, Plain):
                total[part] += weights @ values
                if method.meanwhile.needs_hints:
                    squares = torch.linalg.vector_norm(values, dim=1).double().square()
                    lengths_sq[number] += float(squares @ weights.double())
                continue
            if decay is not None:
                left = self._residual[rows][:, part]
                values = (left.mul_(decay) if decay != 1.0 else left).add_(values)
            draw = Draw(self._job.seed, Purpose.ENCODE_UP, workers, step, number)
            codes = method.up.encode(values, draw)
            method.up.add_sum(codes, total[part], weights)
            if method.meanwhile.needs_hints:
                decoded = torch.zeros_like(values)
                method.up.add(codes, decoded)
                squares = torch.linalg.vector_norm(decoded, dim=1).double().square()
                lengths_sq[number] += float(squares @ weights.double())
            if decay is not None:
                method.up.add(codes, values, -1.0)
                if not isinstance(rows, slice):
                    self._residual[:, part][rows] = values
        if method.every > 1:
            for block in pushed:
                self._unsent[:, block.parameters][rows] = 0.0
                self._unsent[:, block.buffers][rows] = 0.0

    # -- the server -------------------------------------------------------------------------------

    def _serve(
        self,
        turn: Turn,
        total: Tensor,
        lengths_sq: Tensor,
        extra: Tensor,
        step: int,
        lr: float,
    ) -> None:
        """Apply the weighted mean of the pushes."""
        method, n = self._method, self._n
        senders = torch.from_numpy(turn.pushes).to(self._weights.device)
        weight = float(self._weights[senders].sum())
        if not bool(total.sum().isfinite()) and not bool(total.isfinite().all()):
            raise DivergedError(int(np.argmax(turn.pushes)), step, "sum of updates with that")
        mean = total.div_(weight)
        if method.meanwhile.needs_hints:
            self._hint(turn, mean, lengths_sq / weight)
        if method.meanwhile.sends_extra:
            share = float(senders.double().mean())
            self._extra = method.meanwhile.collect(self._extra, extra / weight, share)
        if method.meanwhile.pulls_update:
            self._mean.copy_(mean[:n])
        if method.down.what == "mean":
            values, decay = mean[None, :n], method.down.encoding.error_feedback
            if decay is not None:
                values = values + decay * self._server_residual
            draw = Draw(self._job.seed, Purpose.ENCODE_DOWN, np.array([0]), step)
            codes = method.down.encoding.encode(values, draw)
            decoded = torch.zeros_like(values)
            method.down.encoding.add(codes, decoded)
            self._server_residual = (values - decoded)[0]
            mean[:n] = decoded[0]
        self._apply(mean, lr, turn)

    def _apply(self, update: Tensor, lr: float, turn: Turn) -> None:
        n, optimizer = self._n, self._server_optimizer
        if optimizer is None:
            if self._at_server:
                update[:n] *= lr
            self._server.add_(update)
            return
        prepare_server_step(optimizer, lr, self._at_server)
        views = self._flat.views(update[None])
        for number, block in enumerate(self._flat.blocks):
            for i in self._flat.tensors_of(block):
                self._leaves[i].grad = -views[i][0] if number in turn.push_blocks else None
        optimizer.step()
        self._server[n:] += update[n:]

    def _hint(self, turn: Turn, mean: Tensor, lengths_sq: Tensor) -> None:
        """|mean|^2 and mean |update|^2 of a block, smoothed over pushes."""
        for number in turn.push_blocks:
            of_mean = mean[self._flat.blocks[number].parameters].double().square().sum().cpu()
            fresh = torch.stack([of_mean, lengths_sq[number]])
            self._hints[number] = self._method.meanwhile.hints(self._hints[number], fresh)

    # -- pulls ------------------------------------------------------------------------------------

    def _begin(self, turn: Turn, step: int) -> Pulls:
        """What the server sends to the workers that pull, from its new model."""
        method, number = self._method, turn.block
        block = self._flat.blocks[number]
        part, workers = block.parameters, torch.tensor(turn.pulling, device=self._models.device)
        rows: Rows = slice(None) if len(workers) == self._job.num_workers else workers
        arriving = (self._mean if method.meanwhile.pulls_update else self._server)[part]
        if self._differs:
            encoding = method.down.encoding
            shared = method.shares_known
            senders = np.array([0]) if shared else np.array(turn.pulling)
            draw = Draw(self._job.seed, Purpose.ENCODE_DOWN, senders, step, number)
            if shared:
                gap = (arriving - self._shared_known[part])[None]
                encoding.add(encoding.encode(gap, draw), self._shared_known[part][None])
                arriving = self._shared_known[part]
            else:
                known = self._known[workers][:, part]
                encoding.add(encoding.encode(arriving - known, draw), known)
                self._known[:, part][workers] = known
                arriving = known
        window = None
        if self._adds_up:
            if method.meanwhile.needs_window:
                window = [
                    self._since[workers][:, part],
                    self._lr_since[workers, number],
                    self._steps_since[workers, number],
                ]
            self._since[:, part][workers] = 0.0
            self._since[:, block.buffers][workers] = 0.0
            self._lr_since[workers, number] = 0.0
            self._steps_since[workers, number] = 0.0
        late = method.delay > 0
        residual = None
        if method.meanwhile.needs_residual:
            residual = self._residual[rows][:, part]
            residual = residual.clone() if late else residual
        return Pulls(
            step + method.delay,
            workers,
            number,
            arriving.clone() if late else arriving,
            self._server[block.buffers].clone(),
            window,
            self._hints[number],
            self._extra[part] if method.meanwhile.sends_extra else None,
            residual,
        )

    def _use(self, pulls: Pulls) -> None:
        """Continue from the models that arrived, plus the updates that they lack."""
        method, workers, block = self._method, pulls.workers, self._flat.blocks[pulls.block]
        state = _rows_of(self._states[pulls.block], workers)
        since = None
        if method.delay and self._adds_up:
            since = Window(
                self._since[workers][:, block.parameters],
                self._lr_since[workers, pulls.block],
                self._steps_since[workers, pulls.block],
            )
        arriving = pulls.parameters.expand(len(workers), -1)
        pulled = Pulled(
            arriving,
            self._models[workers][:, block.parameters] if method.meanwhile.needs_own else None,
            since,
            Window(*pulls.window) if pulls.window else None,
            pulls.hints,
            None if pulls.extra is None else pulls.extra.expand(len(workers), -1),
            pulls.residual,
        )
        state, own = method.meanwhile.use(state, pulled, self._context)
        _write(self._states[pulls.block], workers, state)
        if method.sends == "displacement":
            self._anchor[:, block.parameters][workers] = arriving
        buffers = pulls.buffers.expand(len(workers), -1)
        if since is not None:
            share = _buffer_share(method, state)
            buffers = buffers + self._since[workers][:, block.buffers] * share
        self._set(workers, block, own, buffers)

    def _set(self, workers: Tensor, block: Block, parameters: Tensor, buffers: Tensor) -> None:
        if len(workers) == self._job.num_workers:
            self._models[:, block.parameters] = parameters
            self._models[:, block.buffers] = buffers
            return
        for k, i in enumerate(workers.tolist()):  # whole rows copy faster than indexing does
            self._models[i, block.parameters] = parameters[k]
            self._models[i, block.buffers] = buffers[k]

    # -- state ------------------------------------------------------------------------------------

    @property
    def server(self) -> Tensor:
        """The global model (numel,)."""
        return self._server.detach()

    _KEPT = (
        *("_residual", "_unsent", "_since", "_lr_since", "_steps_since"),
        *("_known", "_shared_known", "_server_residual", "_anchor", "_extra"),
    )

    def state(self) -> dict[str, Any]:
        optimizer = self._server_optimizer
        return {
            "server": self.server.clone(),
            "server_optimizer": copy.deepcopy(optimizer.state_dict()) if optimizer else None,
            "kept": [getattr(self, name).clone() for name in self._KEPT],
            "states": [{k: v.clone() for k, v in state.items()} for state in self._states],
            "hints": list(self._hints),
            "num_unsent": self._num_unsent,
            "lr_unsent": self._lr_unsent,
            "pending": [dict(vars(pulls)) for pulls in self._pending],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._server.copy_(state["server"])
        if self._server_optimizer is not None:
            self._server_optimizer.load_state_dict(copy.deepcopy(state["server_optimizer"]))
        for name, saved in zip(self._KEPT, state["kept"], strict=True):
            getattr(self, name).copy_(saved)
        for own, saved in zip(self._states, state["states"], strict=True):
            for name, values in saved.items():
                own[name].copy_(values)
        self._hints = list(state["hints"])
        self._num_unsent, self._lr_unsent = state["num_unsent"], state["lr_unsent"]
        device = self._models.device
        self._pending = [
            Pulls(**{k: _on(v, device) for k, v in saved.items()}) for saved in state["pending"]
        ]


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return [_on(each, device) for each in value] if isinstance(value, list) else value


def _rows_of(state: State, rows: Rows) -> State:
    return {name: values[rows] for name, values in state.items()}


def _write(state: State, rows: Rows, fresh: State) -> None:
    """Put rows back into a state. A value may be the rows of another one, so all are read first."""
    places = {state[name][rows].data_ptr(): name for name in fresh}
    moved = [name for name, v in fresh.items() if places.get(v.data_ptr(), name) != name]
    fresh = fresh | {name: fresh[name].clone() for name in moved}
    for name, values in fresh.items():
        state[name][rows] = values


def _add(into: Tensor, rows: Rows, values: Tensor, factor: float = 1.0) -> None:
    """Add values to some rows of a matrix, in place."""
    if isinstance(rows, slice):
        into[rows].add_(values, alpha=factor)
    else:
        into.index_add_(0, rows, values, alpha=factor)


def _buffer_share(method: Scheduled, state: State) -> Tensor | float:
    """The share of its own change of buffers that a worker applies: never more than all."""
    share = method.meanwhile.share(state)
    if isinstance(share, Tensor):
        return share.clamp(0.0, 1.0)[:, None]
    return min(1.0, max(0.0, share))
