"""The worker of a scheduled method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.draws import Purpose
from prlc.encodings import Draw
from prlc.engines.roles.local_model import LocalModel
from prlc.engines.roles.packing import Packing, Vector
from prlc.engines.roles.rule import ServerRule, Shard
from prlc.engines.roles.scheduled import Codec, PushBuffer, PushForm, RoleSettings
from prlc.methods import Scheduled
from prlc.methods.compensation import Pulled, State, Window
from prlc.network.traffic import CatchUp


class ScheduledWorkerRole:
    """Makes pushes from updates, and uses pulls; its model is a `LocalModel`."""

    def __init__(
        self, local: LocalModel, packing: Packing, number: int, settings: RoleSettings
    ) -> None:
        self.local, self.number, self.settings = local, number, settings
        self.timetable = settings.timetable()
        self._packing, self._method = packing, settings.method
        method, P = self._method, settings.num_workers
        #: Whether the model itself remembers the updates of a round.
        self.keeps_rounds = local.keeps_rounds and method.every > 1
        self._direct = (method.every == 1 or self.keeps_rounds) and not settings.encodes
        #: Whether an update takes the place of the model's values, until a pull replaces it.
        self._in_place = local.gives_values and self._direct and method.trivial
        self._in_place &= method.all_pull and method.delay == 0
        self._update = [] if self._direct else packing.zeros()
        self._unsent = packing.zeros() if method.every > 1 and not self.keeps_rounds else []
        self._num_unsent = np.zeros(method.blocks, np.int64)
        self._lr_unsent = 0.0
        # A displacement is measured after the own move, and so is what a compensation looks at.
        self._moves_first = method.meanwhile.acts_at_push or method.sends == "displacement"
        self._forms = [PushForm(packing, settings, s) for s in range(packing.num_shards)]
        self._context = method.context(P)
        self._flat = flat = packing.flat
        none = torch.zeros(0)
        self._residual = self._since = self._arriving = self._known = none
        self._anchor = self._extra = none
        self._states: list[State] = []
        self._rule: ServerRule | None = None
        if flat is None:
            return
        values = local.values[0]
        dtype, n = flat.dtype, flat.num_parameters
        self._down = [Codec(method.down.encoding, pieces, dtype) for pieces in packing.pieces]
        if method.up.error_feedback is not None:
            self._residual = torch.zeros_like(values[:n])
        self._adds_up = method.meanwhile.needs_window or (method.delay > 0 and method.gain != 0.0)
        if self._adds_up:
            self._since = torch.zeros_like(values)
        self._numbers = torch.zeros(2, len(flat.blocks), dtype=torch.float64)  # lr and steps since
        self._states = [
            method.meanwhile.init(values[block.parameters][None], self._context)
            for block in flat.blocks
        ]
        self._arriving = torch.zeros_like(values)
        if method.meanwhile.sends_extra:
            self._extra = torch.zeros_like(values[:n])
        if method.sends == "displacement":
            self._anchor = values[:n].clone()
        if not method.down.raw:
            self._known = values[:n].clone()
        if method.down.follows:  # an equal copy of the server's rule
            self._rule = ServerRule(Shard([self._known], [n]), settings.rule)
        self._pull: _Pull | None = None
        self._sizes = settings.sizes(packing)
        self._sizes_at = 0

    # -- what happens when -------------------------------------------------------------------------

    def computes(self, step: int) -> bool:
        return bool(self.timetable[step].computes[self.number])

    def pushes(self, step: int) -> bool:
        return bool(self.timetable[step].pushes[self.number])

    def begins_pull(self, step: int) -> bool:
        return bool(self.timetable[step].pulls[self.number])

    def uses_pull(self, step: int) -> bool:
        return self.number in self.timetable[step].uses

    def is_replaced(self, step: int) -> bool:
        """Whether the model that arrives in a step takes no notice of where the own one moved."""
        return self._flat is None and self.begins_pull(step)

    # -- pushing -----------------------------------------------------------------------------------

    def new_buffer(self) -> PushBuffer:
        """Room for one push."""
        if self.settings.encodes:
            return PushBuffer([form.zeros() for form in self._forms])
        whole = self.local.values if self._in_place else self._packing.zeros()
        parts = [self._packing.shard(whole, shard) for shard in range(self._packing.num_shards)]
        room = [form.zeros(part) for form, part in zip(self._forms, parts, strict=True)]
        return PushBuffer(room, whole)

    def target(self, buffer: PushBuffer | None) -> Vector:
        """Where to write the update of this step."""
        if self._direct:
            assert buffer is not None
            assert buffer.whole is not None
            return buffer.whole
        return self._update

    @torch.no_grad()
    def prepare(self) -> None:
        """Let the compensation correct the gradients, before the optimizer uses them."""
        method, flat = self._method, self._flat
        if flat is None or not method.meanwhile.corrects:
            return
        gradient = torch.zeros_like(self._arriving)
        self.local.read_gradients(gradient)
        for number, block in enumerate(flat.blocks):
            part = block.parameters
            own = self.local.values[0][part]
            self._states[number], corrected = method.meanwhile.correct(
                self._states[number], gradient[part][None], own[None]
            )
            gradient[part] = corrected[0]
        self.local.write_gradients(gradient)

    @torch.no_grad()
    def take(self, update: Vector, lr: float) -> None:
        """Add a computed update to those not sent yet."""
        self._num_unsent += 1
        self._lr_unsent += lr
        for total, change in zip(self._unsent, update, strict=True) if self._unsent else ():
            total.add_(change)
        if self._moves_first:
            self._move(update, lr)

    @property
    def num_unsent(self) -> int:
        """How many updates are not sent yet."""
        return int(self._num_unsent.max())

    def drop(self) -> None:
        """Discard the updates since the last push: none was usable."""
        self._num_unsent[:], self._lr_unsent = 0, 0.0
        for flat in self._unsent:
            flat.zero_()

    def next_push(self, step: int) -> int:
        """The first push step from a step on, in a run that goes on."""
        found = self.timetable.next_push(step)
        assert found is not None
        return found

    @torch.no_grad()
    def write_push(self, step: int, buffer: PushBuffer) -> None:
        """Write all unsent updates of the step's blocks into the buffer."""
        blocks = self.timetable[step].push_blocks
        buffer.messages = [
            form.part(room, blocks) for form, room in zip(self._forms, buffer.room, strict=True)
        ]
        content, count = self._unsent or self.target(buffer), int(self._num_unsent[0])
        if self._method.meanwhile.acts_at_push:
            self._act(content[0], buffer)
        if self.settings.rule.takes_gradients and count > 1:
            for flat, n in zip(content, self._packing.num_parameters, strict=True):
                flat[:n] /= count
        if self._method.sends == "displacement":
            n = len(self._anchor)
            content[0][:n] = self.local.values[0][:n] - self._anchor
        if self.settings.encodes:
            self._encode(step, content[0], blocks, buffer)
        elif self._unsent:
            assert buffer.whole is not None
            for into, flat in zip(buffer.whole, content, strict=True):
                into.copy_(flat)
        self._num_unsent[blocks], self._lr_unsent = 0, 0.0
        for flat in self._unsent:
            for part in self._places(flat, blocks):
                part.zero_()

    def _places(self, flat: Tensor, blocks: range) -> list[Tensor]:
        """The parts of an unsent vector that a push of some blocks sends."""
        if self._flat is None:
            return [flat]
        own = [self._flat.blocks[block] for block in blocks]
        return [flat[place] for block in own for place in (block.parameters, block.buffers)]

    def _act(self, content: Tensor, buffer: PushBuffer) -> None:
        """Let the compensation act before a push; writes what rides along."""
        assert self._flat is not None
        n, values = self._flat.num_parameters, self.local.values[0]
        numbers = torch.tensor(
            [[self._lr_unsent], [float(self._num_unsent[0])]], dtype=torch.float64
        )
        self._states[0], own, extra = self._method.meanwhile.push(
            self._states[0], values[:n][None], Window(content[:n][None], *numbers), self._context
        )
        if extra is not None:
            for form, message in zip(self._forms, buffer.messages, strict=True):
                for block, piece in enumerate(form.pieces):
                    blocks = range(len(form.pieces))
                    form.extra(message, blocks, block).copy_(extra[0, piece.parameters])
        values[:n] = own[0]
        self.local.show()

    def _encode(self, step: int, content: Tensor, blocks: range, buffer: PushBuffer) -> None:
        decay = self._method.up.error_feedback
        number = np.array([self.number])
        draw = Draw(self.settings.seed, Purpose.ENCODE_UP, number, step)
        for form, message in zip(self._forms, buffer.messages, strict=True):
            for block in blocks:
                piece = form.pieces[block]
                values = content[piece.parameters]
                if decay is not None:
                    left = self._residual[piece.parameters]
                    values = (left.mul_(decay) if decay != 1.0 else left).add_(values)
                codes = form.codec.encode(values, draw, block, form.content(message, blocks, block))
                if decay is not None:
                    form.codec.add(codes, values, -1.0)
                form.buffers(message, blocks, block).copy_(content[piece.buffers])

    @torch.no_grad()
    def move(self, update: Vector, lr: float) -> None:
        """Move the worker's model by its guess."""
        if not self._moves_first:
            self._move(update, lr)

    def _move(self, update: Vector, lr: float) -> None:
        gain, flat = self._method.gain, self._flat
        if flat is None:
            self.local.move(update, gain or 0.0)
            return
        change = update[0]
        if self._adds_up:
            self._since.add_(change)
            self._numbers += torch.tensor([[lr], [1.0]], dtype=torch.float64)
        values = self.local.values[0]
        for block, state in zip(flat.blocks, self._states, strict=True) if gain != 0.0 else ():
            part, buffers = block.parameters, block.buffers
            values[part] += self._method.meanwhile.move(state, change[part][None], lr)[0]
            values[buffers] += _buffer_share(self._method, state) * change[buffers]
        self.local.show()

    # -- pulling -----------------------------------------------------------------------------------

    def _turn_sizes(self, step: int) -> CatchUp | None:
        """Which messages workers have missed at a step; ask for steps in order."""
        found = None
        for each in range(self._sizes_at, step + 1):
            turn = self.timetable[each]
            found = self._sizes.catch_up(turn) if turn.pulling else None
        self._sizes_at = step + 1
        return found

    def begin_pull(self, step: int) -> list[Vector]:
        """Begin a pull; returns the tensors that each shard's message must fill."""
        packing, flat = self._packing, self._flat
        shards = range(packing.num_shards)
        if flat is None:
            return [packing.shard(self.local.values, shard) for shard in shards]
        block = self.timetable[step].block
        place, window = flat.blocks[block], None
        if self._adds_up:
            if self._method.meanwhile.needs_window:
                window = Window(
                    self._since[place.parameters].clone()[None],
                    self._numbers[0, block : block + 1].clone(),
                    self._numbers[1, block : block + 1].clone(),
                )
            self._since[place.parameters] = 0.0
            self._since[place.buffers] = 0.0
            self._numbers[:, block] = 0.0
        missed, as_model = 1, self._method.down.raw
        if self._sizes.replays:
            catch_up = self._turn_sizes(step)
            assert catch_up is not None
            missed, as_model = (
                int(catch_up.missed[self.number]),
                bool(catch_up.as_model[self.number]),
            )
        left = self._residual[place.parameters] if self._method.meanwhile.needs_residual else None
        if left is not None and self._method.delay:
            left = left.clone()
        self._pull = _Pull(step, block, missed, as_model, window, left)
        return [self._pull_like(shard) for shard in shards]

    def _pull_like(self, shard: int) -> Vector:
        """The tensors for a shard's message of the pull."""
        pull, arriving = self._pull, self._arriving
        assert pull is not None
        piece = self._packing.pieces[shard][pull.block]
        beside = [arriving[piece.buffers]]
        if self._method.meanwhile.sends_extra:
            beside.append(self._extra[piece.parameters])
        if pull.as_model:
            return [arriving[piece.parameters], *beside]
        if self._method.down.what == "gather":
            size = self._forms[shard].codec.sizes[pull.block] * self.settings.num_workers
        else:
            size = self._down[shard].sizes[pull.block] * pull.missed
        return [torch.empty(size, dtype=torch.uint8, device=arriving.device), *beside]

    @torch.no_grad()
    def use(self, messages: list[Vector], hints: Tensor | None, lr: float) -> None:
        """Continue from the model that arrived, plus the updates that it lacks."""
        if self._flat is None:
            self.local.show()
            return
        pull, method = self._pull, self._method
        assert pull is not None
        self._pull = None
        block = self._flat.blocks[pull.block]
        arriving = self._decoded(pull, messages, lr)
        state = self._states[pull.block]
        since = None
        if method.delay and self._adds_up:
            numbers = self._numbers[:, pull.block]
            since = Window(self._since[block.parameters][None], numbers[:1], numbers[1:])
        values, part = self.local.values[0], block.parameters
        pulled = Pulled(
            arriving[None],
            values[part][None] if method.meanwhile.needs_own else None,
            since,
            pull.window,
            hints,
            self._extra[part][None] if method.meanwhile.sends_extra else None,
            None if pull.residual is None else pull.residual[None],
        )
        state, own = method.meanwhile.use(state, pulled, self._context)
        self._states[pull.block] = state
        if method.sends == "displacement":
            self._anchor[part] = arriving
        values[block.parameters] = own[0]
        values[block.buffers] = self._arriving[block.buffers]
        if since is not None:
            share = _buffer_share(method, state)
            values[block.buffers] += share * self._since[block.buffers]
        self.local.show()

    def _decoded(self, pull: _Pull, messages: list[Vector], lr: float) -> Tensor:
        """The pulled parameters."""
        assert self._flat is not None
        block = self._flat.blocks[pull.block]
        if self._method.down.raw:
            return self._arriving[block.parameters]
        if self._rule is not None:
            self._follow(messages, lr)
        elif pull.as_model:
            self._known[block.parameters] = self._arriving[block.parameters]
        else:
            for pieces, codec, message in zip(
                self._packing.pieces, self._down, messages, strict=True
            ):
                known = self._known[pieces[pull.block].parameters]
                for packed in message[0].chunk(pull.missed) if len(message[0]) else ():
                    codec.add(codec.decode(packed, pull.block), known)
        return self._known[block.parameters]

    def _follow(self, messages: list[Vector], lr: float) -> None:
        """Repeat the server's step, from the mean or from everybody's messages."""
        assert self._rule is not None
        P, mean = self.settings.num_workers, torch.zeros_like(self._known)
        gathers = self._method.down.what == "gather"
        weights = [self.settings.weight(worker) for worker in range(P)]
        codecs = [form.codec for form in self._forms] if gathers else self._down
        for pieces, codec, message in zip(self._packing.pieces, codecs, messages, strict=True):
            part = mean[pieces[0].parameters]
            if not len(part):
                continue
            if not gathers:
                codec.add(codec.decode(message[0], 0), part)
                continue
            for packed, weight in zip(message[0].chunk(P), weights, strict=True):
                codec.add(codec.decode(packed, 0), part, weight)
            part /= sum(weights)
        self._rule.apply([mean], lr)

    # -- state -------------------------------------------------------------------------------------

    _KEPT = ("_residual", "_since", "_known", "_anchor")

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the model. A pull under way must have arrived."""
        kept: dict[str, Any] = {
            "unsent": self._unsent,
            "num_unsent": self._num_unsent.tolist(),
            "lr_unsent": self._lr_unsent,
        }
        if self._flat is not None:
            kept |= {name: getattr(self, name) for name in self._KEPT}
            kept |= {"numbers": self._numbers, "states": self._states}
            kept["rule"] = self._rule.state() if self._rule else None
            kept["pull"] = self._pull and self._pull.state()
        return kept

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        for flat, saved in zip(self._unsent, state["unsent"], strict=True):
            flat.copy_(saved)
        self._num_unsent[:], self._lr_unsent = state["num_unsent"], state["lr_unsent"]
        if self._flat is None:
            return
        for name in self._KEPT:
            getattr(self, name).copy_(state[name])
        self._numbers.copy_(state["numbers"])
        device = self.local.values[0].device
        self._states = [{k: v.to(device) for k, v in each.items()} for each in state["states"]]
        if self._rule is not None:
            self._rule.load_state(state["rule"])
        self._pull = state["pull"] and _Pull.of(state["pull"])

    @property
    def pull_step(self) -> int | None:
        """The step at which the pull under way began, if any."""
        return None if self._flat is None or self._pull is None else self._pull.step

    def pull_like(self) -> list[Vector]:
        """The tensors for the pull under way, after its state was loaded."""
        return [self._pull_like(shard) for shard in range(self._packing.num_shards)]


@dataclass
class _Pull:
    """A pull under way."""

    step: int
    block: int
    missed: int
    """How many messages it consists of."""
    as_model: bool
    """Whether it consists of the model itself."""
    window: Window | None
    residual: Tensor | None
    """What the worker's messages had left out when it began."""

    def state(self) -> dict[str, Any]:
        return vars(self) | {"window": self.window and dict(vars(self.window))}

    @classmethod
    def of(cls, state: dict[str, Any]) -> _Pull:
        return cls(**{**state, "window": state["window"] and Window(**state["window"])})


def _buffer_share(method: Scheduled, state: State) -> float:
    """The share of its own change of buffers that a worker applies: never more than all."""
    return min(1.0, max(0.0, float(method.meanwhile.share(state))))
