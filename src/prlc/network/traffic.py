"""The bytes of every message, and what has been sent so far.

Shape and timetable determine a message's size before anything is computed: engines, clock and
planner ask the same `MessageSizes`. Real processes also measure what they send (`payload_sent` in
summary.json); tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc.methods import Lazy, Method, Scheduled, Timetable, Turn

Counts = NDArray[np.bool_] | NDArray[np.int64]


def payload_bytes(tensors: Sequence[Tensor]) -> int:
    """The size of a message with these tensors, unencoded."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class CatchUp(NamedTuple):
    """Which messages workers lack of those that lead to the shared model."""

    missed: NDArray[np.int64]
    """How many messages each worker lacks, the newest included."""
    as_model: NDArray[np.bool_]
    """Whether the model itself is shorter than those messages."""


class MessageSizes:
    """The bytes of every message of a run.

    `blocks`: the numbers of parameters and of buffer elements of each block, in `dtype`.
    `payload`: the bytes of the model itself, which is all that travels if all parts are plain.
    """

    def __init__(
        self,
        method: Method,
        num_workers: int,
        blocks: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        payload: int,
    ) -> None:
        #: The bytes of a push of all blocks.
        self.push = payload
        self._pushes = [payload]  # of each block
        self._encoded, self._plain, self._beside = [payload], [payload], [0]
        self.replays = False
        if isinstance(method, Scheduled) and not method.trivial:
            self._of_parts(method, num_workers, blocks, dtype)
        elif isinstance(method, Lazy) and not method.trivial:
            (numel, buffers), size = blocks[0], dtype.itemsize
            self._plain = self._encoded = [numel * size]
            self._beside = [buffers * size]
            self.push = method.up.size(numel, dtype) + buffers * size
        self._made = np.zeros(len(self._plain), np.int64)
        self._taken = np.zeros((len(self._plain), num_workers), np.int64)

    def _of_parts(
        self,
        method: Scheduled,
        num_workers: int,
        blocks: Sequence[tuple[int, int]],
        dtype: torch.dtype,
    ) -> None:
        down = method.down
        extra = method.meanwhile.sends_extra
        self._plain = [numel * dtype.itemsize for numel, _ in blocks]
        # What travels beside the parameters, both ways: buffers, and perhaps one more vector.
        self._beside = [
            (buffers + (numel if extra else 0)) * dtype.itemsize for numel, buffers in blocks
        ]
        ups = [method.up.size(numel, dtype) for numel, _ in blocks]
        self._pushes = [sum(pair) for pair in zip(ups, self._beside, strict=True)]
        self.push = sum(self._pushes)
        if down.raw:
            self._encoded = self._plain
        elif down.what == "gather":
            self._encoded = [num_workers * size for size in ups]
        else:
            self._encoded = [down.encoding.size(numel, dtype) for numel, _ in blocks]
            together = method.all_pull or (method.schedule == "aligned" and method.sample == 1.0)
            self.replays = down.what == "difference" and method.shares_known and not together

    @cached_property
    def pull(self) -> int:
        """The bytes of a pull of the largest block, by a worker that missed none."""
        return max(sum(pair) for pair in zip(self._encoded, self._beside, strict=True))

    def pushed(self, turn: Turn) -> int:
        """The bytes that a worker pushes in a turn."""
        if len(turn.push_blocks) == len(self._pushes):
            return self.push
        return sum(self._pushes[block] for block in turn.push_blocks)

    def pulls(self, turn: Turn) -> NDArray[np.int64]:
        """The bytes that each worker pulls in a turn. Call for every turn, in order."""
        block = turn.block
        each = np.full(len(turn.pulls), self._encoded[block], np.int64)
        if self.replays and turn.pulling:
            missed, as_model = self.catch_up(turn)
            each = np.where(as_model, self._plain[block], missed * each)
        return np.where(turn.pulls, each + self._beside[block], 0)

    def catch_up(self, turn: Turn) -> CatchUp:
        """What each worker lacks when a turn's message is made. Call once per turn, in order."""
        block = turn.block
        self._made[block] += 1
        missed = self._made[block] - self._taken[block]
        self._taken[block, turn.pulling] = self._made[block]
        return CatchUp(missed, missed * self._encoded[block] > self._plain[block])

    def longest_log(self, block: int) -> int:
        """How many messages are worth keeping: more are longer than the model."""
        return max(1, self._plain[block] // max(1, self._encoded[block]))

    def replay(self, timetable: Timetable, steps: int) -> None:
        """Continue after `steps` steps."""
        if self.replays:
            for step in range(steps):
                self.pulls(timetable[step])


class Traffic:
    """How often each worker pushed and pulled, and how many bytes. The first model is free."""

    def __init__(self, num_workers: int) -> None:
        self.pushes, self.pulls, self.up, self.down = np.zeros((4, num_workers), np.int64)

    def count(self, pushes: Counts, pulls: Counts, up: Counts, down: Counts) -> None:
        """Add worker i's `pushes[i]` updates of `up[i]` bytes in total; pulls and `down` alike."""
        self.pushes += pushes
        self.pulls += pulls
        self.up += up
        self.down += down

    @property
    def bytes_up(self) -> int:
        """Payload from all workers to the server."""
        return int(self.up.sum())

    @property
    def bytes_down(self) -> int:
        """Payload from the server to all workers."""
        return int(self.down.sum())

    def state(self) -> dict[str, Tensor]:
        """The counts, for a checkpoint."""
        return {name: torch.from_numpy(value.copy()) for name, value in vars(self).items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            getattr(self, name)[:] = value.numpy()
