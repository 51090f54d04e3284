"""The server of a scheduled method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.draws import Purpose
from prlc.encodings import Draw
from prlc.engines.roles.lengths import Lengths, TooLong, length_of
from prlc.engines.roles.packing import Packing, Vector, is_finite
from prlc.engines.roles.rule import ServerRule, Shard, check_model
from prlc.engines.roles.scheduled import Codec, PushForm, RoleSettings
from prlc.errors import DivergedError
from prlc.methods import Turn


class ScheduledServerRole:
    """Holds one shard of the global model: takes pushes, makes pulls."""

    def __init__(
        self, values: Vector, packing: Packing, number: int, settings: RoleSettings
    ) -> None:
        self.settings, self._packing, self._method = settings, packing, settings.method
        self.shard = Shard(values, packing.parameters(number))
        self.rule = ServerRule(self.shard, settings.rule)
        self.timetable = settings.timetable()
        self._messages: dict[int, Vector] = {}
        self._total = [torch.zeros_like(flat) for flat in values]
        #: The sum of the pushes taken, by tensor: in `_total`, or the only push, not to be changed.
        self._sum: dict[int, Tensor] = {}
        self._length: float | None = None  # of the sum, once it is known
        self.form = PushForm(packing, settings, number)
        self._blocks = range(0)  # of the pushes taken
        self._flat = flat = packing.flat
        if flat is None:
            return
        method, dtype = self._method, flat.dtype
        self._pieces = pieces = packing.pieces[number]
        self._down = Codec(method.down.encoding, pieces, dtype)
        self._differs = method.down.what == "difference" and not method.down.plain
        copies = 0 if not self._differs else 1 if method.shares_known else settings.num_workers
        parameters = values[: len(pieces)]
        rides = parameters if method.meanwhile.sends_extra else ()
        self._extra = [torch.zeros_like(flat) for flat in rides]
        self._total += [torch.zeros_like(flat) for flat in rides]  # after those of the shard
        self._known = [[flat.detach().clone() for flat in parameters] for _ in range(copies)]
        encodes_mean = method.down.what == "mean"
        self._residual = [torch.zeros_like(flat) for flat in parameters if encodes_mean]
        self._mean_message = torch.zeros(0)
        self._hints: list[Tensor | None] = [None] * len(pieces)
        self._sizes = settings.sizes(packing)
        self._log: list[list[Tensor]] = [[] for _ in pieces]  # differences, newest last
        self._sizes_at = 0

    @property
    def lends(self) -> bool:
        """Whether `pulls` returns the model itself, which must not change until it is sent."""
        return self._flat is None or (self._method.down.plain and self._method.delay == 0)

    def expects(self, step: int) -> list[int]:
        """The workers whose pushes the step needs, in the order in which to `take` them."""
        pushers: list[int] = np.flatnonzero(self.timetable[step].pushes).tolist()
        return pushers

    def next_push(self, worker: int, after: int) -> int | None:
        """The step of the worker's first push after a step; None if there is none."""
        step = self.timetable.next_push(after + 1)
        while step is not None and self._method.sample < 1.0:
            if self.timetable[step].pushes[worker]:
                break
            step = self.timetable.next_push(step + 1)
        return step

    @torch.no_grad()
    def take(self, step: int, worker: int, message: Vector) -> None:
        """Add a worker's push of a step; the message must not change until `finish`."""
        self._blocks = self.timetable[step].push_blocks
        self._messages[worker] = message
        self._add(worker, message)

    def _add(self, worker: int, message: Vector) -> None:
        weight, self._length = self.settings.weight(worker), None
        if self._flat is None:
            for k, change in enumerate(message):
                self._add_weighted(k, change, weight)
            return
        form, blocks = self.form, self._blocks
        for block in blocks:
            content, count = form.content(message, blocks, block), len(self._pieces)
            if self.settings.encodes:
                if block not in self._sum:
                    self._sum[block] = self._total[block].zero_()
                form.codec.add(form.codec.decode(content, block), self._sum[block], weight)
            else:
                self._add_weighted(block, content, weight)
            self._add_weighted(count + block, form.buffers(message, blocks, block), weight)
            if self._extra:
                extra = form.extra(message, blocks, block)
                self._add_weighted(2 * count + block, extra, weight)

    def _add_weighted(self, k: int, change: Tensor, weight: float) -> None:
        """Add to a sum, of which the first change is all until there is another."""
        room, before = self._total[k], self._sum.get(k)
        if before is not None:
            self._sum[k] = torch.add(before, change, alpha=weight, out=room)
        else:
            self._sum[k] = change if weight == 1.0 else torch.mul(change, weight, out=room)

    def bad_messages(self, step: int) -> list[int]:
        """The workers whose pushes are not finite; looks only if the sum is not.

        Raises DivergedError if each is finite but the sum overflows.
        """
        if not self._messages or self._is_finite():
            return []
        bad = [worker for worker in self._messages if not is_finite(self._numbers(worker))]
        if not bad:
            raise DivergedError(min(self._messages), step, "sum of updates with that")
        return bad

    def long_messages(self, lengths: Lengths) -> list[TooLong]:
        """The pushes that are longer than they may be."""
        if not self._messages:
            return []
        weight = sum(self.settings.weight(worker) for worker in self._messages)
        return lengths.check_step(
            self._length_of_sum(),
            weight,
            lambda: {worker: length_of(self._numbers(worker)) for worker in self._messages},
        )

    def _length_of_sum(self) -> float:
        if self._length is None:
            self._length = length_of([self._sum[k] for k in self._pushed()])
        return self._length

    def _is_finite(self) -> bool:
        """Whether the sum is. Its length says so, unless that is too large a number itself."""
        known = self._pushed() if math.isfinite(self._length_of_sum()) else ()
        return is_finite([total for k, total in self._sum.items() if k not in known])

    def _numbers(self, worker: int) -> Vector:
        """A worker's push, decoded."""
        message = self._messages[worker]
        numbers = [part for part in message if part.is_floating_point()]
        if self.settings.encodes:
            numbers += [self._decoded(message, block) for block in self._blocks]
        return numbers

    @torch.no_grad()
    def leave_out(self, workers: Sequence[int], step: int) -> None:
        """Sum up again without some workers."""
        for worker in workers:
            del self._messages[worker]
        self._sum = {}
        for worker, message in self._messages.items():
            self._add(worker, message)
        if self._messages and not self._is_finite():
            self.bad_messages(step)  # the rest is finite, so this names the overflow

    def _pushed(self) -> Sequence[int]:
        """Which tensors of the shard the pushes taken are for."""
        if self._flat is None:
            return range(len(self._total))
        return [*self._blocks, *(len(self._pieces) + block for block in self._blocks)]

    def _decoded(self, message: Vector, block: int) -> Tensor:
        """The numbers of a block that a push carries."""
        content = self.form.content(message, self._blocks, block)
        if not self.settings.encodes:
            return content
        into = torch.zeros_like(self._total[block])
        self.form.codec.add(self.form.codec.decode(content, block), into)
        return into

    @torch.no_grad()
    def finish(self, step: int, lr: float) -> None:
        """Apply the mean of the pushes taken."""
        if not self._messages:
            return
        weight = sum(self.settings.weight(worker) for worker in self._messages)
        pushed = self._pushed()
        if self._flat is None and self.rule.adds:
            self.rule.add_mean([self._sum[k] for k in pushed], weight)
        else:
            self._apply_mean(step, lr, weight, pushed)
        check_model(self.shard.values, step)
        self._sum = {}
        if self._flat is None or self._method.down.what != "gather":
            self._messages = {}

    def _apply_mean(self, step: int, lr: float, weight: float, pushed: Sequence[int]) -> None:
        for k in pushed:
            torch.div(self._sum[k], weight, out=self._total[k])
        if self._flat is not None:
            if self._method.meanwhile.needs_hints:
                self._hint(weight)
            if self._method.down.what == "mean":
                self._encode_mean(step)
            share = len(self._messages) / self.settings.num_workers
            collect = self._method.meanwhile.collect
            for block in self._blocks if self._extra else ():
                mean = self._sum[2 * len(self._pieces) + block] / weight
                self._extra[block] = collect(self._extra[block], mean, share)
        self.rule.apply(self._total[: len(self.shard.values)], lr, pushed)

    def _hint(self, weight: float) -> None:
        """|mean|^2 and mean |update|^2 over this shard, smoothed over pushes."""
        for block in self._blocks:
            mean, each = self._total[block], 0.0
            for worker, message in self._messages.items():
                values = self._decoded(message, block)
                each += self.settings.weight(worker) * float(values.double().square().sum())
            of_mean = float(mean.double().square().sum())
            fresh = torch.tensor([of_mean, each / weight], dtype=torch.float64)
            self._hints[block] = self._method.meanwhile.hints(self._hints[block], fresh)

    def _encode_mean(self, step: int) -> None:
        mean, decay = self._total[0], self._method.down.encoding.error_feedback
        values = mean if decay is None else mean + decay * self._residual[0]
        draw = Draw(self.settings.seed, Purpose.ENCODE_DOWN, np.array([0]), step)
        self._mean_message = torch.zeros(self._down.sizes[0], dtype=torch.uint8, device=mean.device)
        codes = self._down.encode(values, draw, 0, self._mean_message)
        decoded = torch.zeros_like(mean)
        self._down.add(codes, decoded)
        self._residual[0] = values - decoded
        mean.copy_(decoded)

    @torch.no_grad()
    def pulls(self, step: int) -> dict[int, Vector]:
        """The messages to the workers that pull, from the new model.

        Without a delay a plain message is the model itself (`lends`).
        """
        turn = self.timetable[step]
        if self._flat is None:
            return dict.fromkeys(turn.pulling, self.shard.values)
        if not turn.pulling:
            return {}
        buffers = self.shard.values[len(self._pieces) + turn.block]
        if self._method.delay > 0:
            buffers = buffers.clone()
        beside = [buffers, *(self._extra[turn.block : turn.block + 1])]
        contents = self._contents(turn, step)
        return {worker: [contents[worker], *beside] for worker in turn.pulling}

    def _contents(self, turn: Turn, step: int) -> dict[int, Tensor]:
        """The parameters of a block, as sent to each worker that pulls."""
        method, block = self._method, turn.block
        if self._differs and not method.shares_known:
            return {i: self._difference(i, i, step, block) for i in turn.pulling}
        if self._differs:
            message = self._difference(0, 0, step, block)
            if self._sizes.replays:
                return self._caught_up(turn, message, step)
        elif method.down.what == "mean":
            message = self._mean_message
        elif method.down.what == "gather":
            everybody = self._messages.values()
            message = torch.cat([self.form.content(m, self._blocks, 0) for m in everybody])
            self._messages = {}
        else:
            source = self._total if method.down.what == "update" else self.shard.values
            model = source[block].detach()
            message = model.clone() if method.delay > 0 else model
        return dict.fromkeys(turn.pulling, message)

    def _difference(self, copy: int, worker: int, step: int, block: int) -> Tensor:
        """Encode the difference to what a worker knows, and add it to that."""
        known, model = self._known[copy][block], self.shard.values[block].detach()
        message = torch.zeros(self._down.sizes[block], dtype=torch.uint8, device=model.device)
        draw = Draw(self.settings.seed, Purpose.ENCODE_DOWN, np.array([worker]), step)
        self._down.add(self._down.encode(model - known, draw, block, message), known)
        return message

    def _caught_up(self, turn: Turn, message: Tensor, step: int) -> dict[int, Tensor]:
        """For each worker all messages that it missed, or the model that they lead to."""
        catch_up = None
        for each in range(self._sizes_at, step + 1):
            earlier = self.timetable[each]
            catch_up = self._sizes.catch_up(earlier) if earlier.pulling else None
        self._sizes_at = step + 1
        assert catch_up is not None
        log = [*self._log[turn.block], message]
        known = self._known[0][turn.block].clone()
        self._log[turn.block] = log[-self._sizes.longest_log(turn.block) :]
        return {
            i: known if catch_up.as_model[i] else torch.cat(log[-int(catch_up.missed[i]) :])
            for i in turn.pulling
        }

    def hints(self, step: int) -> Tensor | None:
        """The numbers that accompany this step's pulls; sum them over the shards."""
        if self._flat is None or not self._method.meanwhile.needs_hints:
            return None
        return self._hints[self.timetable[step].block]

    def state(self) -> dict[str, Any]:
        """This shard's part of a checkpoint, as copies."""
        kept = self.rule.state()
        if self._flat is not None:
            kept |= {
                "known": [[flat.clone() for flat in each] for each in self._known],
                "residual": [flat.clone() for flat in self._residual],
                "hints": self._hints,
                "log": self._log,
                "extra": [flat.clone() for flat in self._extra],
            }
        return kept

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        self.rule.load_state(state)
        if self._flat is None:
            return
        device = self.shard.values[0].device
        for own, saved in zip(self._known, state["known"], strict=True):
            for flat, value in zip(own, saved, strict=True):
                flat.copy_(value)
        for flat, value in zip(self._residual, state["residual"], strict=True):
            flat.copy_(value)
        self._hints = list(state["hints"])
        self._extra = [flat.to(device) for flat in state["extra"]]
        self._log = [[each.to(device) for each in log] for log in state["log"]]
