"""Server and workers of lazy methods (LAG, LAQ, CMFL): a trigger decides what is worth a push."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.draws import Purpose
from prlc.encodings import Draw
from prlc.engines.roles.packing import Packing, Vector, distance_sq, is_finite
from prlc.engines.roles.rule import ServerRule, Shard, check_model
from prlc.engines.roles.scheduled import Codec, PushBuffer
from prlc.errors import DivergedError
from prlc.methods import Lazy, Mask
from prlc.methods.triggers import Candidate
from prlc.optim.optimizers import RuleSettings


@dataclass(frozen=True)
class LazySettings:
    """The settings that worker and server share."""

    method: Lazy
    num_workers: int
    seed: int = 0
    rule: RuleSettings = field(default_factory=RuleSettings)

    def codec(self, packing: Packing, shard: int) -> Codec | None:
        """What encodes the pushes to a shard, if they are encoded."""
        if packing.flat is None:
            return None
        return Codec(self.method.up, packing.pieces[shard], packing.flat.dtype)

    def push_like(self, packing: Packing, shard: int) -> Vector:
        """The tensors of a push's message for a shard."""
        like, codec = packing.zeros(shard), self.codec(packing, shard)
        if codec is None:
            return like
        return [torch.zeros(sum(codec.sizes), dtype=torch.uint8, device=like[0].device), like[1]]


class LazyServerRole:
    """Keeps what the method adds up and, for LAG-PS, the model that each worker has.

    That is every worker's last gradient or, if messages are changes of it, the sum of all. A step:
    `take` what came, `decode`d; `finish`; then `decide`, given the sums of `finish` over all
    shards, says who pulls.
    """

    def __init__(self, shard: Shard, packing: Packing, number: int, settings: LazySettings) -> None:
        method, num_workers = settings.method, settings.num_workers
        self.shard, self._method, self._num_workers = shard, method, num_workers
        self.rule = ServerRule(shard, settings.rule)
        self._codec = settings.codec(packing, number)
        self._gradients: list[Vector | None] = [None] * num_workers
        self._sum = [torch.zeros_like(flat) for flat in self._copy()]
        seen = num_workers if method.asked_by_server else 0
        self._seen = [self._copy() for _ in range(seen)]  # the model of each worker
        self._history: list[float] = []
        self._smoothness = np.full(num_workers, method.initial_smoothness())
        self._moved_sq = np.zeros(num_workers)
        self.asked: Mask = np.ones(num_workers, bool)
        """Who computes in the next step."""
        self._lr = math.nan
        self._changes = np.full(num_workers, math.nan)
        self._buffers: list[Vector] = []

    def decode(self, message: Vector) -> Vector:
        """A push as the numbers of a shard."""
        if self._codec is None:
            return message
        values = [torch.zeros_like(flat) for flat in self.shard.values]
        self._codec.add(self._codec.decode(message[0], 0), values[0])
        values[1].copy_(message[1])
        return values

    def take(self, worker: int, update: Vector, lr: float) -> None:
        """Store a worker's fresh gradient, its update divided by its learning rate; or add up the
        change of it."""
        of_parameters, of_buffers = self.shard.split(update)
        self._buffers.append([flat.clone() for flat in of_buffers])
        if self._method.innovates:
            for total, change in zip(self._sum, of_parameters, strict=True):
                total.add_(change)
            return
        gradient = [flat / lr for flat in of_parameters]
        old, self._gradients[worker] = self._gradients[worker], gradient
        self._changes[worker] = math.nan if old is None else distance_sq(gradient, old)

    @torch.no_grad()
    def finish(self, step: int, lr: float) -> Tensor:
        """Step along the mean of the gradients; returns squared lengths over this shard.

        First the step's; then each worker's distance from the model; then each worker's change of
        gradient.
        """
        self._lr, P = lr, self._num_workers
        total = [torch.zeros_like(flat) for flat in self.shard.values]
        parameters, means = self.shard.split(total)
        for gradient in self._gradients + ([self._sum] if self._method.innovates else []):
            for flat, part in zip(parameters, gradient or [], strict=gradient is not None):
                flat.add_(part)
        if not is_finite(total):
            raise DivergedError(0, step, "sum of gradients with that")
        if not self._method.reuses:
            P = max(1, sum(gradient is not None for gradient in self._gradients))
            self._gradients = [None] * self._num_workers
        for flat in parameters:
            flat.mul_(lr).div_(P)
        for pushed in self._buffers:  # an old change of a running mean must not be applied again
            for flat, part in zip(means, pushed, strict=True):
                flat.add_(part / len(self._buffers))
        before = self._copy()
        self.rule.apply(total, lr)
        check_model(self.shard.values, step)
        now = self.shard.split(self.shard.values)[0]
        distances = [distance_sq(now, seen) for seen in self._seen] or [0.0] * self._num_workers
        changes = np.nan_to_num(self._changes)
        return torch.tensor([distance_sq(now, before), *distances, *changes], dtype=torch.float64)

    def decide(self, sums: Tensor) -> Mask:
        """Who pulls: by LAG-PS's trigger (15b); else everybody."""
        P, method = self._num_workers, self._method
        moved_sq, distance, change = float(sums[0]), sums[1 : P + 1], sums[P + 1 :]
        changes, self._changes, self._buffers = self._changes, np.full(P, math.nan), []
        self._history = [*self._history, moved_sq / self._lr**2][-method.trigger.window :]
        if not method.asked_by_server:
            return np.ones(P, bool)
        known = torch.from_numpy(self._smoothness)
        refined = method.refine(known, change, torch.from_numpy(self._moved_sq))
        self._smoothness = np.where(np.isnan(changes), self._smoothness, refined.numpy())
        history = torch.tensor(self._history, dtype=torch.float64)
        left = torch.where(distance > 0, torch.from_numpy(self._smoothness) ** 2 * distance, 0.0)
        nothing = torch.zeros_like(left)
        candidate = Candidate(left, nothing, nothing, 0)
        pulls: Mask = method.trigger.fires(method.trigger.init(P), candidate, history).numpy()
        self._moved_sq = np.where(pulls, distance.numpy(), self._moved_sq)
        self.asked = pulls
        return pulls

    def sent(self, worker: int) -> None:
        """Note that the worker gets the current model."""
        if self._seen:
            self._seen[worker] = self._copy()

    def _copy(self) -> Vector:
        return [flat.detach().clone() for flat in self.shard.split(self.shard.values)[0]]

    def state(self) -> dict[str, Any]:
        return self.rule.state() | {
            "gradients": self._gradients,
            "sum": [flat.clone() for flat in self._sum],
            "seen": self._seen,
            "history": self._history,
            "smoothness": self._smoothness.tolist(),
            "moved_sq": self._moved_sq.tolist(),
            "asked": self.asked.tolist(),
            "lr": self._lr,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.rule.load_state(state)
        self._gradients, self._seen = state["gradients"], state["seen"]
        self._sum = state["sum"]
        self._history = state["history"]
        self._smoothness = np.array(state["smoothness"])
        self._moved_sq = np.array(state["moved_sq"])
        self.asked = np.array(state["asked"])
        self._lr = state["lr"]


class LazyWorkerRole:
    """A worker that decides by the method's trigger whether to push."""

    def __init__(self, packing: Packing, number: int, settings: LazySettings) -> None:
        self._packing, self._number, self._settings = packing, number, settings
        self._method = settings.method
        shards = range(packing.num_shards)
        self._codecs = [settings.codec(packing, shard) for shard in shards]
        self._known: Vector | None = None  # what the server knows of the gradient
        self._history: list[float] = []
        self._direction: Vector | None = None  # the server's last step that was not zero
        self._trigger = self._method.trigger.init(1)

    def new_buffer(self) -> PushBuffer:
        """Memory for one push."""
        whole, shards = self._packing.zeros(), range(self._packing.num_shards)
        if self._packing.flat is None:
            return PushBuffer([self._packing.shard(whole, shard) for shard in shards], whole)
        like = [self._settings.push_like(self._packing, shard) for shard in shards]
        return PushBuffer(like, whole)

    def wants_push(self, buffer: PushBuffer, lr: float, step: int) -> bool:
        """Decide on the update in `buffer`, encode it if need be, and remember what is pushed."""
        assert buffer.whole is not None
        gradient = [flat / lr for flat in self.parameters(buffer.whole)]
        known = self._write(buffer, gradient, step) if self._method.innovates else gradient
        old = self._known or [torch.zeros_like(flat) for flat in known]
        reused = self._method.reuses
        candidate = Candidate(
            _double(distance_sq(known, old) if reused else 0.0),
            _double(distance_sq(gradient, known)),
            _double(self._agreement(gradient)),
            step,
        )
        if not bool(candidate.change_sq.isfinite()):
            return True  # which the server refuses
        trigger, P = self._method.trigger, self._settings.num_workers
        history = torch.tensor(self._history, dtype=torch.float64)
        always = self._method.always_pushes(self._settings.seed, step, P) == self._number
        first = self._known is None if reused else not self._history
        fires = first or always or bool(trigger.fires(self._trigger, candidate, history))
        self._trigger = trigger.decided(self._trigger, candidate, torch.tensor([fires]))
        if fires and reused:
            self._known = known
        return fires

    def _write(self, buffer: PushBuffer, gradient: Vector, step: int) -> Vector:
        """Encode the change of the gradient; returns what the server would know then."""
        known = (self._known or [torch.zeros_like(flat) for flat in gradient])[0].clone()
        base = Draw(self._settings.seed, Purpose.ENCODE_UP, np.array([self._number]), step)
        assert buffer.whole is not None
        for shard, (codec, message) in enumerate(zip(self._codecs, buffer.messages, strict=True)):
            assert codec is not None
            part = self._packing.pieces[shard][0].parameters
            codes = codec.encode(gradient[0][part] - known[part], base, 0, message[0])
            codec.add(codes, known[part])
            message[1].copy_(self._packing.shard(buffer.whole, shard)[1])
        return [known]

    def _agreement(self, gradient: Vector) -> float:
        """The share of numbers with the sign of the server's last step."""
        if self._direction is None:
            return 0.0
        pairs = list(zip(gradient, self._direction, strict=True))
        same = sum(int((new.sign() == last.sign()).sum()) for new, last in pairs)
        return same / sum(last.numel() for _, last in pairs)

    def pulled(self, before: Vector, now: Vector, lr: float) -> None:
        """Note how the server moved, from the models before and after a pull."""
        parameters, trigger = self.parameters(now), self._method.trigger
        moved_sq = distance_sq(parameters, before) / lr**2
        self._history = [*self._history, moved_sq][-trigger.window :]
        if trigger.compares_signs:
            moved = [flat - last for flat, last in zip(parameters, before, strict=True)]
            if any(bool(flat.any()) for flat in moved):
                self._direction = moved

    def parameters(self, vector: Vector) -> Vector:
        """A vector without its buffers."""
        pairs = zip(vector, self._packing.num_parameters, strict=True)
        return [flat[:n] for flat, n in pairs]

    _KEPT = ("known", "history", "direction", "trigger")

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}") for name in self._KEPT}

    def load_state(self, state: dict[str, Any]) -> None:
        for name in self._KEPT:
            setattr(self, f"_{name}", state[name])


def _double(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)
