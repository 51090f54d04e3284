"""Worker and server of scheduled methods as state machines: messages in, messages out.

Roles own state; transports own buffers and carry messages. A message is a `Vector` of tensors whose
shapes both sides know in advance. In step t a transport calls

    on a worker  prepare(); the update into target(); take(update); write_push(t) at a push step;
                 move(update); use() for a pull begun `delay` steps ago; begin_pull(t)
    on a server  take(t, worker, message) for everybody in expects(t), in that order; finish(t);
                 then it sends pulls(t) and hints(t)

A server role holds one shard of the global model; a worker talks to all of them. This file has what
both know: settings, and the form of a push.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from prlc.encodings import Code, Draw, Encoding, Plain
from prlc.engines.roles.packing import Packing, Piece, Vector
from prlc.methods import Scheduled, Timetable
from prlc.network.traffic import MessageSizes
from prlc.optim.optimizers import RuleSettings


@dataclass(frozen=True)
class RoleSettings:
    """The settings that worker and server share."""

    method: Scheduled
    num_workers: int
    seed: int = 0
    steps: int | None = None
    weights: Sequence[float] | None = None
    """How much each worker counts, if the method weighs them."""
    rule: RuleSettings = field(default_factory=RuleSettings)

    @property
    def encodes(self) -> bool:
        """Whether pushes travel as encoded bytes."""
        return not isinstance(self.method.up, Plain) or self.method.down.what == "gather"

    def timetable(self) -> Timetable:
        return Timetable(self.method, self.num_workers, self.seed, self.steps)

    def sizes(self, packing: Packing) -> MessageSizes:
        """Message sizes, here to know which messages a worker missed."""
        flat = packing.flat
        blocks = [(b.numel, b.num_buffers) for b in flat.blocks] if flat else []
        dtype = flat.dtype if flat else torch.float32
        return MessageSizes(self.method, self.num_workers, blocks, dtype, payload=0)

    def weight(self, worker: int) -> float:
        return 1.0 if self.method.weights == "equal" or not self.weights else self.weights[worker]


@dataclass
class PushBuffer:
    """Memory for one push: a message per shard, perhaps as views of a whole vector."""

    room: list[Vector]
    """For a push of all blocks."""
    whole: Vector | None = None
    messages: list[Vector] = field(init=False)
    """What is sent: all of the room, or some blocks of it."""

    def __post_init__(self) -> None:
        self.messages = self.room


class Codec:
    """One encoding for all pieces of a shard."""

    def __init__(self, encoding: Encoding, pieces: Sequence[Piece], dtype: torch.dtype) -> None:
        self._encoding, self._pieces, self._dtype = encoding, pieces, dtype
        self.sizes = [encoding.size(piece.numel, dtype) for piece in pieces]
        self.starts = [0, *np.cumsum(self.sizes).tolist()]

    def draw(self, base: Draw, block: int) -> Draw:
        length = self._encoding.chunk_length
        first = self._pieces[block].start // length if length else 0
        return Draw(base.seed, base.direction, base.workers, base.step, block, first)

    def encode(self, values: Tensor, base: Draw, block: int, out: Tensor) -> list[Code]:
        """Encode a piece's values (numel,) into the bytes `out`; returns the code."""
        codes = self._encoding.encode(values[None], self.draw(base, block))
        if codes:
            self._encoding.pack(codes, len(values), out[None])
        return codes

    def decode(self, packed: Tensor, block: int) -> list[Code]:
        """The code of a piece, from its bytes."""
        return self._encoding.unpack(packed[None], self._pieces[block].numel, self._dtype)

    def part(self, packed: Tensor, block: int) -> Tensor:
        """A piece's bytes within the shard's."""
        return packed[self.starts[block] : self.starts[block + 1]]

    def add(self, codes: list[Code], into: Tensor, factor: float = 1.0) -> None:
        """Add the decoded values, times `factor`, to `into` (numel,)."""
        self._encoding.add(codes, into[None], factor)


class PushForm:
    """The tensors of a push to a shard.

    The pieces of all blocks, one by one or as the bytes of all of them; then their buffers; then,
    if one rides along, their pieces of another vector. A push of some blocks has only theirs.
    """

    def __init__(self, packing: Packing, settings: RoleSettings, shard: int) -> None:
        self._packing, self._shard, self._encodes = packing, shard, settings.encodes
        self._extra = settings.method.meanwhile.sends_extra
        self.pieces: Sequence[Piece] = packing.pieces[shard] if packing.flat else ()
        if packing.flat is not None:
            self.codec = Codec(settings.method.up, self.pieces, packing.flat.dtype)

    def zeros(self, plain: Vector | None = None) -> Vector:
        """Room for a push of all blocks; `plain`: of a plain one's numbers, if there is already."""
        plain = self._packing.zeros(self._shard) if plain is None else [*plain]
        count = len(self.pieces)
        if self._extra:
            plain += [torch.zeros_like(piece) for piece in plain[:count]]
        if not self._encodes:
            return plain
        size = self.codec.starts[-1]
        return [torch.zeros(size, dtype=torch.uint8, device=plain[0].device), *plain[count:]]

    def part(self, room: Vector, blocks: range) -> Vector:
        """What a push of some blocks has of the room for all, as views."""
        count = len(self.pieces)
        if len(blocks) >= count:
            return room
        starts, first = self.codec.starts, 1 if self._encodes else count
        packed = [room[0][starts[blocks.start] : starts[blocks.stop]]] if self._encodes else []
        beside = [room[k + b] for k in range(first, len(room), count) for b in blocks]
        return [*(packed or [room[b] for b in blocks]), *beside]

    def content(self, message: Vector, blocks: range, block: int) -> Tensor:
        """The numbers, or the bytes, of a block in a push of some."""
        if not self._encodes:
            return message[block - blocks.start]
        first, starts = self.codec.starts[blocks.start], self.codec.starts
        return message[0][starts[block] - first : starts[block + 1] - first]

    def buffers(self, message: Vector, blocks: range, block: int) -> Tensor:
        return message[(1 if self._encodes else len(blocks)) + block - blocks.start]

    def extra(self, message: Vector, blocks: range, block: int) -> Tensor:
        return message[(1 if self._encodes else len(blocks)) + len(blocks) + block - blocks.start]
