"""Which samples are in a worker's batch: a pure function of (seed, worker, step).

A worker passes over its own samples again and again, in a new random order each time, and cuts this
endless sequence into batches. So every batch is full, there is no state to save, and any step can
be asked for. The last order of each worker is cached, which makes it fast.
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
    """The batches of all workers; worker i owns the samples `shards[i]`."""

    def __init__(self, shards: Sequence[Indices], batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self._seed = seed
        self._sizes = np.asarray([len(shard) for shard in shards], np.int64)
        if not self._sizes.all():
            empty = int(np.argmin(self._sizes))
            raise DataError(f"Every worker needs at least one sample, but worker {empty} has none.")
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        self._samples = np.concatenate(shards).astype(np.int64)
        self._order = self._samples.copy()  # each worker's samples, in the order of its ...
        self._pass = np.full(len(shards), -1, np.int64)  # ... current pass

    def take(self, workers: Indices, steps: Indices, count: int = 1) -> Indices:
        """The samples of `count` batches of `workers[k]`, starting at its step `steps[k]`.

        Returns indices (len(workers), count * batch_size). Workers must be distinct.
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
