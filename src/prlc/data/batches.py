"""Which samples form the batch of a worker's step: a pure function of (seed, worker, step).

A worker goes through its own samples in one random order after another (one per pass), and cuts
that endless sequence into batches. So every batch is full, no state needs saving, and a worker
may ask for any step. Recently used orders are kept, which is what makes it fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prlc.draws import Purpose, bits
from prlc.errors import DataError

Indices = NDArray[np.int64]

_RANK_BITS = 24  # up to 16 million workers reshuffled at once


class Batches:
    """The batches of all workers, whose samples are `shards[worker]`."""

    def __init__(self, shards: Sequence[Indices], batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self._seed = seed
        self._sizes = np.asarray([len(shard) for shard in shards], np.int64)
        if not self._sizes.all():
            empty = int(np.argmin(self._sizes))
            raise DataError(f"Every worker needs at least one sample, but worker {empty} has none.")
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        self._samples = np.concatenate(shards).astype(np.int64)
        self._order = self._samples.copy()  # every worker's samples in the order of ...
        self._pass = np.full(len(shards), -1, np.int64)  # ... this pass

    def take(self, workers: Indices, steps: Indices, count: int = 1) -> Indices:
        """Sample numbers of `count` batches from step `steps[k]` of `workers[k]` on.

        Shape: (len(workers), count * batch_size). Workers must be distinct.
        """
        width = count * self.batch_size
        columns = np.arange(width)
        taken = np.empty((len(workers), width), np.int64)
        sizes, starts = self._sizes[workers], self._starts[workers]
        position = steps * self.batch_size
        filled = np.zeros(len(workers), np.int64)
        while (filled < width).any():
            passes, offset = np.divmod(position, sizes)
            stale = (self._pass[workers] != passes) & (filled < width)
            self._reshuffle(workers[stale], passes[stale])
            until = np.minimum(filled + sizes - offset, width)
            here = (columns >= filled[:, None]) & (columns < until[:, None])
            source = (starts + offset - filled)[:, None] + columns
            taken[here] = self._order[source[here]]
            position += until - filled
            filled = until
        return taken

    def _reshuffle(self, workers: Indices, passes: Indices) -> None:
        """Put the samples of `workers` into the random order of their `passes`."""
        if len(workers) == 0:
            return
        sizes = self._sizes[workers]
        rank = np.repeat(np.arange(len(workers)), sizes)
        within = np.arange(len(rank)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        keys = bits(self._seed, Purpose.SHUFFLE, workers[rank], passes[rank], within)
        # One sort for all: the worker's rank in the high bits keeps the workers apart.
        keys = (rank.astype(np.uint64) << np.uint64(64 - _RANK_BITS)) | (keys >> np.uint64(24))
        place = np.repeat(self._starts[workers], sizes) + within
        self._order[place] = self._samples[place[np.argsort(keys)]]
        self._pass[workers] = passes
