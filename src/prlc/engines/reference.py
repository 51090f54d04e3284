"""The methods as the papers write them, worker by worker, without tricks.

Slow and plain on purpose: the other engines are tested against it. A model or an update is one flat
vector: parameters, then buffers (`flat.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prlc.draws import Purpose
from prlc.encodings import Draw, Encoding
from prlc.engines.base import (
    Assignment,
    Engine,
    Runtime,
    StepReport,
    asynchronous_report,
    mean_loss,
)
from prlc.engines.flat import FlatModel
from prlc.engines.job import Job, all_tensors, fixed_seed, staying, travelling
from prlc.errors import DivergedError
from prlc.methods import Asynchronous, Lazy, Method, Scheduled
from prlc.methods.compensation import Pulled, State, Window
from prlc.methods.triggers import Candidate
from prlc.network.clock import Arrival
from prlc.optim.optimizers import OptimizerFactory, make, prepare_server_step, set_lr


class Party:
    """A worker or the server: a model, its values as a flat vector, perhaps an optimizer."""

    def __init__(
        self, model: nn.Module, flat: FlatModel, factory: OptimizerFactory | None, method: Method
    ) -> None:
        self.model, self.flat = copy.deepcopy(model).train(), flat
        # If parts are not plain, values keep the precision of the flat vector.
        self.keeps_more = not method.trivial
        self.optimizer = make(factory, self.model.parameters()) if factory else None
        self.values = torch.zeros(flat.numel, dtype=flat.dtype, device=_device(model))
        flat.pack(self.tensors(), self.values)

    def tensors(self) -> list[Tensor]:
        return [tensor.detach() for tensor in travelling(self.model)]

    def parameters(self) -> Tensor:
        return self.values[: self.flat.num_parameters]

    def set(self, values: Tensor) -> None:
        """Take these values, `rounded`, into the model."""
        self.values = self.rounded(values).clone()
        self.flat.unpack(self.values, self.tensors())

    def read(self) -> Tensor:
        """The current values of the model's tensors."""
        values = torch.zeros_like(self.values)
        self.flat.pack(self.tensors(), values)
        return values

    def rounded(self, values: Tensor) -> Tensor:
        """Round each element to its tensor's precision, if the model mixes dtypes."""
        if self.keeps_more or len({tensor.dtype for tensor in self.tensors()}) == 1:
            return values
        values = values.clone()
        for view, tensor in zip(self.flat.views(values[None]), self.tensors(), strict=True):
            own = torch.promote_types(tensor.dtype, torch.float32)
            view.copy_(view.to(own))
        return values

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "values": self.values,
                "staying": [tensor.detach() for tensor in staying(self.model)],
                "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            }
        )

    def load_state(self, state: dict[str, Any]) -> None:
        self.set(state["values"])
        for tensor, saved in zip(staying(self.model), state["staying"], strict=True):
            tensor.detach().copy_(saved)
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])


@dataclass
class Sum:
    """The sum of a worker's updates over some steps, with their learning rates."""

    total: Tensor
    lr: float = 0.0
    steps: int = 0

    def add(self, update: Tensor, lr: float) -> None:
        self.total = self.total + update
        self.lr += lr
        self.steps += 1

    def window(self) -> Window:
        lr, steps = torch.tensor(
            [[self.lr], [self.steps]], dtype=torch.float64, device=self.total.device
        )
        return Window(self.total[None], lr, steps)


@dataclass
class Pull:
    """A model, or a block of one, on its way to a worker."""

    block: int
    parameters: Tensor
    buffers: Tensor
    window: Sum
    hints: Tensor | None
    extra: Tensor
    residual: Tensor


@dataclass
class OfBlock:
    """A worker's state for one block."""

    state: State
    unsent: Sum
    buffers_unsent: Tensor
    since: Sum
    buffers_since: Tensor
    residual: Tensor
    anchor: Tensor


class Worker(Party):
    """Computes updates at its own model."""

    def __init__(self, model: nn.Module, flat: FlatModel, job: Job) -> None:
        at_workers = job.optimizer_at == "workers"
        super().__init__(model, flat, job.optimizer if at_workers else None, job.method)
        self.job = job
        self.steps = 0
        self.pull: Pull | None = None
        self.blocks: list[OfBlock] = []
        self.known = self.parameters().clone()
        if isinstance(job.method, Scheduled):
            context = job.method.context(job.num_workers)
            for block in flat.blocks:
                own = self.values[block.parameters]
                self.blocks.append(
                    OfBlock(
                        state=job.method.meanwhile.init(own[None], context),
                        unsent=Sum(torch.zeros_like(own)),
                        buffers_unsent=torch.zeros_like(self.values[block.buffers]),
                        since=Sum(torch.zeros_like(own)),
                        buffers_since=torch.zeros_like(self.values[block.buffers]),
                        residual=torch.zeros_like(own),
                        anchor=own.clone(),
                    )
                )

    def update(self, inputs: Tensor, targets: Tensor, lr: float) -> tuple[float, Tensor]:
        """The loss and the update of a batch; the model does not change."""
        before, start, n = self.values, self.read(), self.flat.num_parameters
        self.model.zero_grad()
        loss = self.job.loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if isinstance(self.job.method, Scheduled) and self.job.method.meanwhile.corrects:
            self._correct(self.job.method)
        if self.optimizer is None:
            update = torch.zeros_like(before)
            scale = 1.0 if self.job.optimizer_at == "server" else lr
            for view, parameter in zip(
                self.flat.views(update[None]), self.model.parameters(), strict=False
            ):
                if parameter.grad is not None:
                    gradient = parameter.grad.to_dense()
                    gradient = gradient.to(view.dtype) if self.keeps_more else gradient
                    view[0].copy_(-scale * gradient)
        else:
            set_lr(self.optimizer, lr)
            self.optimizer.step()
            update = self.read() - start
        update[n:] = self.read()[n:] - start[n:]
        self.set(before)
        self.steps += 1
        return float(loss.detach()), update

    def _correct(self, method: Scheduled) -> None:
        """Change the gradients as the compensation says."""
        parameters = list(self.model.parameters())
        gradient = torch.zeros_like(self.values)
        views = self.flat.views(gradient[None])
        for view, parameter in zip(views, parameters, strict=False):
            if parameter.grad is not None:
                view[0].copy_(parameter.grad.to_dense())
        for block, own in zip(self.flat.blocks, self.blocks, strict=True):
            part = block.parameters
            own.state, corrected = method.meanwhile.correct(
                own.state, gradient[part][None], self.values[part][None]
            )
            gradient[part] = corrected[0]
        for view, parameter in zip(views, parameters, strict=False):
            if parameter.grad is not None:
                parameter.grad = view[0].to(parameter.dtype)


class Server(Party):
    """Holds the global model."""

    def __init__(self, model: nn.Module, flat: FlatModel, job: Job) -> None:
        at_server = job.optimizer_at == "server"
        factory = job.optimizer if at_server else job.server_optimizer
        super().__init__(model, flat, factory, job.method)
        self.at_server = at_server
        self.residual = torch.zeros_like(self.parameters())
        self.known = self.parameters().clone()
        self.hints: list[Tensor | None] = [None] * len(flat.blocks)
        self.mean = torch.zeros_like(self.parameters())  # of the last push
        self.extra = torch.zeros_like(self.parameters())

    def apply(self, update: Tensor, lr: float, blocks: Sequence[int] = (0,)) -> None:
        """Add a mean update of some blocks, or hand it to the optimizer as a negative gradient."""
        n = self.flat.num_parameters
        if self.optimizer is None:
            step = update.clone()
            if self.at_server:
                step[:n] = lr * update[:n]
            self.set(self.values + self.rounded(step))
            return
        prepare_server_step(self.optimizer, lr, self.at_server)
        pushed = {i for number in blocks for i in self.flat.tensors_of(self.flat.blocks[number])}
        views = self.flat.views(update[None])
        for i, (parameter, change) in enumerate(zip(self.model.parameters(), views, strict=False)):
            parameter.grad = -change[0].to(parameter.dtype) if i in pushed else None
        self.optimizer.step()
        values = self.read()
        values[n:] = self.values[n:] + update[n:]
        self.set(values)


class ReferenceRuntime(Runtime):
    """Runs in this process."""

    def engine(self, assignment: Assignment) -> Reference:
        return Reference(assignment.job, assignment.arrivals())


class Reference(Engine):
    """The oracle."""

    def __init__(self, job: Job, arrivals: Iterator[Arrival] | None = None) -> None:
        super().__init__(job, arrivals)
        self.data = job.data.to(job.device)
        self.batches = job.batches()
        model = copy.deepcopy(job.model).to(job.device)
        P, method = job.num_workers, job.method
        self.flat = job.flat()
        self.server = Server(model, self.flat, job)
        self.workers = [Worker(model, self.flat, job) for _ in range(P)]
        if isinstance(method, Lazy):
            # A gradient here is an update divided by its learning rate.
            self.gradients: list[Tensor | None] = [None] * P
            self.history: list[float] = []
            self.direction: Tensor | None = None  # the server's last step that was not zero
            self.triggers = [method.trigger.init(1, job.device) for _ in range(P)]
            self.smoothness = [method.initial_smoothness()] * P
            self.moved_sq = [0.0] * P
            self.asked = np.ones(P, bool)
        self.waiting: list[int] = []  # of SSP: who may not go on yet

    # -- scheduled methods: the step, exactly ------------------------------------------------------

    def _scheduled(self, method: Scheduled, step: int) -> StepReport:
        turn, lr = self.timetable[step], self.job.lr(step)
        losses, updates = [], {}
        for i in np.flatnonzero(turn.computes).tolist():  # (a)
            loss, updates[i] = self._update(i, step, step)
            losses.append(loss)
        for i, update in updates.items():  # (b)
            self._move(method, self.workers[i], update, lr)
        if turn.is_push:  # (c), (d)
            senders = np.flatnonzero(turn.pushes).tolist()
            extras = {i: self._at_push(method, self.workers[i]) for i in senders}
            messages = {i: self._message(method, i, step, turn.push_blocks) for i in senders}
            self._serve(method, messages, step, turn.push_blocks)
            if method.meanwhile.sends_extra:
                self._collect(method, {i: e for i, e in extras.items() if e is not None})
        for i in turn.uses if method.delay else ():  # (e)
            self._use(method, self.workers[i])
        for i, pull in self._make_pulls(method, turn.pulling, turn.block, step).items():
            self.workers[i].pull = pull
            if method.delay == 0:
                self._use(method, self.workers[i])
        return StepReport(mean_loss(losses), turn.computes, turn.pushes, turn.pulls)

    def _move(self, method: Scheduled, worker: Worker, update: Tensor, lr: float) -> None:
        """Add to the unsent updates, and move the worker's model by its guess."""
        values = worker.values.clone()
        for block, own in zip(self.flat.blocks, worker.blocks, strict=True):
            of_parameters, of_buffers = update[block.parameters], update[block.buffers]
            own.unsent.add(of_parameters, lr)
            own.buffers_unsent = own.buffers_unsent + of_buffers
            own.since.add(of_parameters, lr)
            own.buffers_since = own.buffers_since + of_buffers
            values[block.parameters] += method.meanwhile.move(own.state, of_parameters[None], lr)[0]
            values[block.buffers] += _buffer_share(method, own.state) * of_buffers
        worker.set(values)

    def _at_push(self, method: Scheduled, worker: Worker) -> Tensor | None:
        """What the compensation does before a push; returns the vector that rides along."""
        if not method.meanwhile.acts_at_push:
            return None
        (block,), (own,) = self.flat.blocks, worker.blocks  # there is but one
        values = worker.values.clone()
        own.state, model, extra = method.meanwhile.push(
            own.state,
            values[block.parameters][None],
            own.unsent.window(),
            method.context(len(self.workers)),
        )
        values[block.parameters] = model[0]
        worker.set(values)
        return None if extra is None else extra[0]

    def _message(self, method: Scheduled, i: int, step: int, blocks: Sequence[int]) -> Tensor:
        """Worker i's push of some blocks, as the server decodes it; the others are zero."""
        worker = self.workers[i]
        content = torch.zeros_like(worker.values)
        decay = method.up.error_feedback
        for number in blocks:
            block, own = self.flat.blocks[number], worker.blocks[number]
            values = own.unsent.total
            if method.sends == "displacement":
                values = worker.values[block.parameters] - own.anchor
            if self.job.optimizer_at == "server":  # the mean gradient of the round
                values = values / own.unsent.steps
            content[block.buffers] = own.buffers_unsent
            own.unsent = Sum(torch.zeros_like(values))
            own.buffers_unsent = torch.zeros_like(own.buffers_unsent)
            if decay is not None:
                values = values + decay * own.residual
            draw = Draw(self.job.seed, Purpose.ENCODE_UP, np.array([i]), step, number)
            sent = _round_trip(method.up, values, draw)
            own.residual = values - sent
            content[block.parameters] = sent
        return content

    def _collect(self, method: Scheduled, extras: dict[int, Tensor]) -> None:
        """The server's own vector, from those that rode along with the pushes."""
        weights = self.job.weights() if method.weights == "samples" else [1.0] * len(self.workers)
        total = _sum([weights[i] * extra for i, extra in extras.items()])
        mean = total / sum(weights[i] for i in extras)
        share = len(extras) / len(self.workers)
        self.server.extra = method.meanwhile.collect(self.server.extra, mean, share)

    def _serve(
        self, method: Scheduled, messages: dict[int, Tensor], step: int, blocks: Sequence[int]
    ) -> None:
        """Apply the weighted mean of the messages to the server's model."""
        weights = self.job.weights()
        if method.weights == "equal":
            total, weight = self._sum(list(messages.values())), float(len(messages))
        else:
            total = self._sum([weights[i] * message for i, message in messages.items()])
            weight = sum(weights[i] for i in messages)
        _check_sum(total, [messages.get(i) for i in range(len(self.workers))], step)
        mean = self.server.rounded(total / weight)
        if method.meanwhile.needs_hints:
            each = [(w if method.weights == "samples" else 1.0, messages[i])
                    for i, w in enumerate(weights) if i in messages]  # fmt: skip
            self._hint(method, mean, each, weight, blocks)
        self.server.mean = mean[: self.flat.num_parameters].clone()
        if method.down.what == "mean":
            n = self.flat.num_parameters
            values = mean[:n]
            if method.down.encoding.error_feedback is not None:
                values = values + method.down.encoding.error_feedback * self.server.residual
            draw = Draw(self.job.seed, Purpose.ENCODE_DOWN, np.array([0]), step)
            mean[:n] = _round_trip(method.down.encoding, values, draw)
            self.server.residual = values - mean[:n]
        self.server.apply(mean, self.job.lr(step), blocks)

    def _sum(self, vectors: Sequence[Tensor]) -> Tensor:
        """Element by element, in the order of the workers."""
        total = torch.zeros_like(vectors[0])
        for vector in vectors:
            total = self.server.rounded(total + vector)
        return total

    def _hint(
        self,
        method: Scheduled,
        mean: Tensor,
        each: list[tuple[float, Tensor]],
        weight: float,
        blocks: Sequence[int],
    ) -> None:
        """|mean|^2 and mean |update|^2 of a block, smoothed over pushes."""
        for number in blocks:
            part = self.flat.blocks[number].parameters
            fresh = torch.tensor(
                [_length_sq(mean[part]), sum(w * _length_sq(u[part]) for w, u in each) / weight],
                dtype=torch.float64,
            )
            self.server.hints[number] = method.meanwhile.hints(self.server.hints[number], fresh)

    def _make_pulls(
        self, method: Scheduled, pulling: list[int], number: int, step: int
    ) -> dict[int, Pull]:
        """What the server sends to the workers that pull, from its new model."""
        block, pulls = self.flat.blocks[number], {}
        part, model = block.parameters, self.server.values
        differences = method.down.what == "difference" and not method.down.plain
        if differences and method.shares_known and pulling:
            draw = Draw(self.job.seed, Purpose.ENCODE_DOWN, np.array([0]), step, number)
            gap = model[part] - self.server.known[part]
            self.server.known[part] += _round_trip(method.down.encoding, gap, draw)
        for i in pulling:
            worker, of_block = self.workers[i], self.workers[i].blocks[number]
            if method.down.what == "update":
                arriving = self.server.mean[part].clone()
            elif not differences:
                arriving = model[part].clone()
            elif method.shares_known:
                arriving = self.server.known[part].clone()
            else:
                draw = Draw(self.job.seed, Purpose.ENCODE_DOWN, np.array([i]), step, number)
                gap = model[part] - worker.known[part]
                worker.known[part] += _round_trip(method.down.encoding, gap, draw)
                arriving = worker.known[part].clone()
            window = of_block.since
            of_block.since = Sum(torch.zeros_like(window.total))
            of_block.buffers_since = torch.zeros_like(of_block.buffers_since)
            buffers = model[block.buffers].clone()
            hints, extra = self.server.hints[number], self.server.extra[part].clone()
            left = of_block.residual.clone()
            pulls[i] = Pull(number, arriving, buffers, window, hints, extra, left)
        return pulls

    def _use(self, method: Scheduled, worker: Worker) -> None:
        """Continue from the model that arrived, plus the updates that it lacks."""
        pull = worker.pull
        assert pull is not None
        worker.pull = None
        block, own = self.flat.blocks[pull.block], worker.blocks[pull.block]
        values = worker.values.clone()
        pulled = Pulled(
            pull.parameters[None],
            values[block.parameters][None] if method.meanwhile.needs_own else None,
            own.since.window() if method.delay else None,
            pull.window.window(),
            pull.hints,
            pull.extra[None] if method.meanwhile.sends_extra else None,
            pull.residual[None] if method.meanwhile.needs_residual else None,
        )
        context = method.context(len(self.workers))
        own.state, parameters = method.meanwhile.use(own.state, pulled, context)
        own.anchor = pull.parameters
        values[block.parameters] = parameters[0]
        share = _buffer_share(method, own.state)
        values[block.buffers] = pull.buffers + share * own.buffers_since
        worker.set(values)

    # -- lazy methods -----------------------------------------------------------------------------

    def _lazy(self, method: Lazy, step: int) -> StepReport:
        P, n, lr = len(self.workers), self.flat.num_parameters, self.job.lr(step)
        computes = self.asked if method.asked_by_server else np.ones(P, bool)
        pushes = np.zeros(P, bool)
        losses, buffers = [], []
        if not method.reuses:
            self.gradients = [None] * P
        for i in range(P):
            if not computes[i]:
                continue
            loss, update = self._update(i, step, step)
            losses.append(loss)
            gradient = self.workers[i].rounded(update / lr)[:n]
            known = self._known_after(method, i, gradient, step)
            pushes[i] = self._wants_push(method, i, gradient, known, step)
            if pushes[i]:
                self.gradients[i] = known
                buffers.append(update[n:])
        # Old gradients serve again unless the method forgets them; of buffers, only fresh changes.
        total = _sum([gradient for gradient in self.gradients if gradient is not None])
        _check_sum(total, self.gradients, step)
        mean = torch.zeros_like(self.server.values)
        mean[:n] = lr * total / (P if method.reuses else pushes.sum())
        if buffers:
            mean[n:] = _sum(buffers) / len(buffers)
        before = self.server.parameters().clone()
        self.server.apply(mean, lr)
        moved = self.server.parameters() - before
        self.history = [*self.history, _length_sq(moved) / lr**2][-method.trigger.window :]
        if bool(moved.any()):
            self.direction = moved
        pulls = np.array([self._wants_pull(method, i) for i in range(P)])
        self.asked = pulls
        for i in range(P):
            if pulls[i]:
                self.workers[i].set(self.server.values)
        return StepReport(mean_loss(losses), computes, pushes, pulls)

    def _known_after(self, method: Lazy, i: int, gradient: Tensor, step: int) -> Tensor:
        """What the server would know of worker i's gradient after a push."""
        if not method.innovates:
            return gradient
        known = self.gradients[i]
        known = torch.zeros_like(gradient) if known is None else known
        draw = Draw(self.job.seed, Purpose.ENCODE_UP, np.array([i]), step)
        return known + _round_trip(method.up, gradient - known, draw)

    def _wants_push(self, method: Lazy, i: int, gradient: Tensor, known: Tensor, step: int) -> bool:
        """By the trigger. An asked worker always pushes, and the server learns its L_m."""
        old = self.gradients[i]
        change_sq = _length_sq(known if old is None else known - old)
        if method.asked_by_server:
            if old is not None:
                seen = (self.smoothness[i], change_sq, self.moved_sq[i])
                self.smoothness[i] = float(method.refine(*map(_scalar, seen)))
            return True
        agreement = 0.0
        if self.direction is not None:
            same = gradient.sign() == self.direction.sign()
            agreement = float(same.double().mean())
        error_sq = _length_sq(gradient - known)
        candidate = Candidate(
            _scalar(change_sq)[None], _scalar(error_sq)[None], _scalar(agreement)[None], step
        )
        drawn = method.always_pushes(self.job.seed, step, len(self.workers))
        fires = not self.history or drawn == i or self._fires(method, i, candidate)
        self.triggers[i] = method.trigger.decided(
            self.triggers[i], candidate, torch.tensor([fires])
        )
        return fires

    def _wants_pull(self, method: Lazy, i: int) -> bool:
        """LAG-PS's trigger (15b). In LAG-WK everybody pulls."""
        if not method.asked_by_server:
            return True
        moved_sq = _length_sq(self.server.parameters() - self.workers[i].parameters())
        left = self.smoothness[i] ** 2 * moved_sq if moved_sq > 0 else 0.0
        nothing = _scalar(0.0)[None]
        if not self._fires(method, i, Candidate(_scalar(left)[None], nothing, nothing, 0)):
            return False
        self.moved_sq[i] = moved_sq
        return True

    def _fires(self, method: Lazy, i: int, candidate: Candidate) -> bool:
        history = torch.tensor(self.history, dtype=torch.float64)
        return bool(method.trigger.fires(self.triggers[i], candidate, history))

    # -- asynchronous methods ---------------------------------------------------------------------

    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport:
        P = len(self.workers)
        arrivals = [self.next_arrival() for _ in range(P)]
        losses, pulling = [], []
        for arrival in arrivals:
            worker = self.workers[arrival.worker]
            loss, update = self._update(arrival.worker, worker.steps, step)
            share = method.share(arrival.staleness, P)
            self.server.apply(share * update, self.job.lr(step))
            losses.append(loss)
            self.waiting.append(arrival.worker)
            slowest = min(worker.steps for worker in self.workers)
            for i in sorted(self.waiting):
                if self.workers[i].steps - slowest <= method.window:
                    self.workers[i].set(self.server.values)
                    self.waiting.remove(i)
                    pulling.append(i)
        return asynchronous_report(losses, arrivals, pulling, P)

    # -- pieces -----------------------------------------------------------------------------------

    def _update(self, i: int, own_step: int, step: int) -> tuple[float, Tensor]:
        """Worker i's loss and update at its `own_step`, checked to be finite."""
        chosen = torch.from_numpy(self.batches.take(np.array([i]), np.array([own_step]))[0])
        chosen = chosen.to(self.job.device)
        inputs, targets = self.data.train_inputs[chosen], self.data.train_targets[chosen]
        with fixed_seed(self.job, own_step, i):
            loss, update = self.workers[i].update(inputs, targets, self.job.lr(step))
        if not np.isfinite(loss):
            raise DivergedError(i, step)
        if not bool(update.isfinite().all()):
            raise DivergedError(i, step, "update")
        return loss, update

    def copy_global_model(self, target: nn.Module) -> None:
        with torch.no_grad():
            self.flat.unpack(self.server.values, travelling(target))
            for tensor, value in zip(staying(target), staying(self.workers[0].model), strict=True):
                tensor.copy_(value)

    #: What a checkpoint keeps of a worker and the server beside their models, and of lazy methods.
    _OF_WORKER = ("steps", "known")
    _OF_SERVER = ("residual", "known", "hints", "extra")
    _OF_LAZY = ("gradients", "history", "direction", "triggers", "smoothness", "moved_sq")

    def _own_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "waiting": self.waiting,
            "server": self.server.state() | {k: getattr(self.server, k) for k in self._OF_SERVER},
            "workers": [
                worker.state()
                | {k: getattr(worker, k) for k in self._OF_WORKER}
                | {
                    "blocks": [_plainly(own) for own in worker.blocks],
                    "pull": worker.pull and _plainly(worker.pull),
                }
                for worker in self.workers
            ],
        }
        if isinstance(self.job.method, Lazy):
            state |= {name: getattr(self, name) for name in self._OF_LAZY}
            state["asked"] = self.asked.tolist()
        return copy.deepcopy(state)

    def _load_own_state(self, state: dict[str, Any]) -> None:
        state = _to_device(state, self.job.device)
        self.waiting = state["waiting"]
        self.server.load_state(state["server"])
        for name in self._OF_SERVER:
            setattr(self.server, name, state["server"][name])
        for worker, saved in zip(self.workers, state["workers"], strict=True):
            worker.load_state(saved)
            for name in self._OF_WORKER:
                setattr(worker, name, saved[name])
            worker.blocks = [
                OfBlock(**{**b, "since": Sum(**b["since"]), "unsent": Sum(**b["unsent"])})
                for b in saved["blocks"]
            ]
            pull = saved["pull"]
            worker.pull = pull and Pull(**{**pull, "window": Sum(**pull["window"])})
        if isinstance(self.job.method, Lazy):
            for name in self._OF_LAZY:
                setattr(self, name, state[name])
            self.asked = np.array(state["asked"])


def _plainly(kept: Any) -> dict[str, Any]:
    """A dataclass of tensors and numbers, and the sums in it, as dicts."""
    return {k: vars(v) if isinstance(v, Sum) else v for k, v in vars(kept).items()}


def _to_device(state: Any, device: torch.device) -> Any:
    """A copy of nested containers with every tensor on `device`."""
    if isinstance(state, Tensor):
        return state.to(device, copy=True)
    if isinstance(state, dict):
        return {key: _to_device(value, device) for key, value in state.items()}
    if isinstance(state, list):
        return [_to_device(value, device) for value in state]
    return state


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in all_tensors(model)), torch.device("cpu"))


def _round_trip(encoding: Encoding, values: Tensor, draw: Draw) -> Tensor:
    """The values (numel,) as the other side decodes them, by way of real bytes."""
    codes = encoding.encode(values[None], draw)
    packed = torch.empty(
        (1, encoding.size(len(values), values.dtype)), dtype=torch.uint8, device=values.device
    )
    encoding.pack(codes, len(values), packed)
    read = torch.zeros_like(values)[None]
    encoding.add(encoding.unpack(packed, len(values), values.dtype), read)
    return read[0]


def _buffer_share(method: Scheduled, state: State) -> float:
    """The share of its own change of buffers that a worker applies: never more than all."""
    share = method.meanwhile.share(state)
    return min(1.0, max(0.0, float(share)))


def _sum(vectors: Sequence[Tensor]) -> Tensor:
    """Element by element, in the order of the workers."""
    total = torch.zeros_like(vectors[0])
    for vector in vectors:
        total = total + vector
    return total


def _check_sum(total: Tensor, parts: Sequence[Tensor | None], step: int) -> None:
    """Refuse a sum that overflows though its parts do not; name the worker with the largest."""
    if not bool(total.isfinite().all()):
        sizes = [0.0 if part is None else float(part.abs().max()) for part in parts]
        raise DivergedError(int(np.argmax(sizes)), step, "update")


def _length_sq(vector: Tensor) -> float:
    return float(vector.double().square().sum())


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
