"""Who owns which training samples.

A partition is a pure function of its seed: every engine, every process and every resumed run
splits the samples in the same way. Each worker's indices are in ascending order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prlc.data.batches import Indices
from prlc.draws import Purpose, bits, uniform
from prlc.errors import ConfigError, DataError

__all__ = ["IID", "Contiguous", "Dirichlet", "Partition", "Shards", "parse_partition"]

_ACCEPTED = (
    "iid, contiguous, dirichlet:ALPHA (such as dirichlet:0.3) or shards:PER_WORKER (such as "
    "shards:2)"
)
_SMALLEST_ALPHA = 1e-6  # far below any skew that shows; keeps log(u) / alpha finite

# Keys that keep draws for different purposes apart.
_SAMPLES, _SHARDS, _SHARES, _STREAMS = range(4)


class Partition(Protocol):
    """A rule that splits all samples among the workers, at least one to each."""

    def split(
        self, targets: Indices | None, num_samples: int, num_workers: int, seed: int
    ) -> list[Indices]:
        """The samples of each worker: disjoint, and complete when taken together."""
        ...


@dataclass(frozen=True)
class IID:
    """Split at random, regardless of labels; sizes differ by at most one."""

    def split(
        self, targets: Indices | None, num_samples: int, num_workers: int, seed: int
    ) -> list[Indices]:
        del targets  # not needed
        _check_counts(num_samples, num_workers)
        order = np.argsort(_shuffle_keys(seed, num_samples), kind="stable")
        return [np.sort(part) for part in np.array_split(order, num_workers)]

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True)
class Contiguous:
    """In the order of the data: each worker owns a stretch of it, such as a part of a text."""

    def split(
        self, targets: Indices | None, num_samples: int, num_workers: int, seed: int
    ) -> list[Indices]:
        del targets, seed  # not needed
        _check_counts(num_samples, num_workers)
        return np.array_split(np.arange(num_samples), num_workers)

    def __str__(self) -> str:
        return "contiguous"


@dataclass(frozen=True)
class Dirichlet:
    """The samples of each class go to the workers in shares drawn from Dirichlet(alpha).

    Small alpha: few workers hold most of a class. Large alpha: nearly equal shares. Workers left
    without a sample, in order, take the last one of the worker that then holds most (of the first,
    if there is a tie).
    """

    alpha: float

    def __post_init__(self) -> None:
        if not _SMALLEST_ALPHA <= self.alpha < math.inf:
            raise ConfigError(
                f"The alpha of a Dirichlet partition must be a number of at least "
                f"{_SMALLEST_ALPHA:g} (0.1 is very skewed, 100 nearly even); got {self.alpha}."
            )

    def split(
        self, targets: Indices | None, num_samples: int, num_workers: int, seed: int
    ) -> list[Indices]:
        _check_counts(num_samples, num_workers)
        labels = _labels(targets, num_samples, self)
        keys = _shuffle_keys(seed, num_samples)
        owner = np.empty(num_samples, np.int64)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            members = members[np.argsort(keys[members], kind="stable")]
            ends = np.cumsum(self._shares(num_workers, seed, int(label)))[:-1] * len(members)
            for worker, part in enumerate(np.split(members, np.rint(ends).astype(np.int64))):
                owner[part] = worker
        _fill_empty(owner, num_workers)
        order = np.argsort(owner, kind="stable")
        return np.split(order, np.cumsum(np.bincount(owner, minlength=num_workers))[:-1])

    def _shares(self, num_workers: int, seed: int, label: int) -> NDArray[np.float64]:
        """Normalised Gamma(alpha) variates, as logarithms: a small alpha would underflow to 0/0.

        Gamma(alpha) is distributed as Gamma(alpha + 1) * U^(1 / alpha). RandomState, because
        NumPy guarantees that its streams never change; those of Generator may.
        """
        stream = int(bits(seed, Purpose.PARTITION, _STREAMS, label))
        gamma = np.random.RandomState(np.random.MT19937(stream)).standard_gamma(
            self.alpha + 1.0, num_workers
        )
        u = 1.0 - uniform(seed, Purpose.PARTITION, _SHARES, label, np.arange(num_workers))
        log_gamma = np.log(gamma) + np.log(u) / self.alpha
        weights = np.exp(log_gamma - log_gamma.max())
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha}"


@dataclass(frozen=True)
class Shards:
    """Samples sorted by label, cut into equal shards, `per_worker` of them dealt to each worker."""

    per_worker: int = 2

    def __post_init__(self) -> None:
        if self.per_worker < 1:
            raise ConfigError(
                f"A worker must get at least 1 shard of the data; got {self.per_worker}."
            )

    def split(
        self, targets: Indices | None, num_samples: int, num_workers: int, seed: int
    ) -> list[Indices]:
        _check_counts(num_samples, num_workers)
        labels = _labels(targets, num_samples, self)
        num_shards = num_workers * self.per_worker
        if num_shards > num_samples:
            raise DataError(
                f"{num_workers} workers with {self.per_worker} shards each need at least "
                f"{num_shards} training samples, got {num_samples}; use fewer workers or shards."
            )
        order = np.lexsort((_shuffle_keys(seed, num_samples), labels))
        shards = np.array_split(order, num_shards)
        deal = np.argsort(
            bits(seed, Purpose.PARTITION, _SHARDS, np.arange(num_shards)), kind="stable"
        )
        return [
            np.sort(np.concatenate([shards[shard] for shard in hand]))
            for hand in deal.reshape(num_workers, self.per_worker)
        ]

    def __str__(self) -> str:
        return f"shards:{self.per_worker}"


def parse_partition(text: str) -> Partition:
    """The partition that `text` names on the command line; str() of a partition gives it back."""
    name, colon, value = text.strip().lower().partition(":")
    try:
        if name == "iid" and not colon:
            return IID()
        if name == "contiguous" and not colon:
            return Contiguous()
        if name == "dirichlet":
            return Dirichlet(float(value))
        if name == "shards":
            return Shards(int(value)) if colon else Shards()
    except ConfigError:
        raise
    except ValueError:  # not a number
        pass
    raise ConfigError(f"A partition must be {_ACCEPTED}; got {text!r}.")


def _shuffle_keys(seed: int, num_samples: int) -> NDArray[np.uint64]:
    return bits(seed, Purpose.PARTITION, _SAMPLES, np.arange(num_samples))


def _check_counts(num_samples: int, num_workers: int) -> None:
    if num_workers < 1:
        raise ConfigError(f"There must be at least 1 worker; got {num_workers}.")
    if num_workers > num_samples:
        raise DataError(
            f"{num_workers} workers need at least {num_workers} training samples, one each, got "
            f"{num_samples}; use fewer workers or more data."
        )


def _labels(targets: Indices | None, num_samples: int, partition: Partition) -> Indices:
    if targets is None or targets.ndim != 1 or not np.issubdtype(targets.dtype, np.integer):
        came = "no targets" if targets is None else f"{targets.dtype} of shape {targets.shape}"
        raise DataError(
            f"The partition {partition} deals by label and needs one integer target a sample, got "
            f"{came}; use the partition iid or contiguous."
        )
    if len(targets) != num_samples:
        raise DataError(
            f"Expected one target for each of {num_samples} samples, got {len(targets)} targets."
        )
    return targets


def _fill_empty(owner: Indices, num_workers: int) -> None:
    sizes = np.bincount(owner, minlength=num_workers)
    for worker in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        owner[np.flatnonzero(owner == richest)[-1]] = worker
        sizes[richest] -= 1
        sizes[worker] += 1
