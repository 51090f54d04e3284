"""A worker's share of a script's own data: every P-th sample, or batch, of one common order.

All workers draw the same order, since it is drawn anew in every pass from the seed and the number
of the pass. So P workers with batches of B take together the batches of P * B that one process
would. What is shared out also counts, so that a restarted script goes on at the right batch.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, Subset
from torch.utils.data.distributed import DistributedSampler

from prlc.data.random_state import (
    RandomState,
    get_random_state,
    random_state_aside,
    seed_all,
    set_random_state,
)
from prlc.draws import Purpose, torch_seed
from prlc.errors import ConfigError

_clock = count(1)


@dataclass(frozen=True)
class Part:
    """Which worker's share: the `worker`-th of `workers`; a server (-1) gets nothing."""

    worker: int
    workers: int
    seed: int

    def of(self, everything: Any) -> Iterator[Any]:
        """Every `workers`-th item."""
        if self.worker < 0:
            return iter(())
        return islice(iter(everything), self.worker, None, self.workers)

    def size(self, total: int) -> int:
        return len(range(self.worker, total, self.workers)) if self.worker >= 0 else 0


class Position:
    """How far a script is in its data."""

    def __init__(self) -> None:
        self.passes = 0
        """Passes over the data before this one."""
        self.batches = 0
        """Batches of this pass that the script has taken."""
        self.last_used = 0
        """Grows with every batch, of whatever loader."""
        self._begins_at = 0  # this pass: after a restart, in its middle
        self._counts = False  # this pass: a step has been taken in it, or it is over
        self._random: RandomState | None = None  # after a restart: for the next batch

    def begin_pass(self) -> None:
        """The next pass, or after a restart the rest of the one that was interrupted.

        A look at the first batches, without a step, is none.
        """
        if self._counts:
            self.passes, self._begins_at = self.passes + 1, 0
        self._counts, self.batches = False, self._begins_at

    def restore_random_state(self) -> None:
        """After a restart: undo what the beginning of a pass has drawn."""
        if self._random is not None:
            set_random_state(self._random)

    def end_pass(self) -> None:
        """The script has taken all its batches."""
        self._counts, self._random = True, None

    def stepped(self) -> None:
        """The script has taken a step."""
        self._counts, self._random = True, None

    def took(self) -> None:
        """The script has taken a batch."""
        self.batches += 1
        self.last_used = next(_clock)

    def state(self) -> dict[str, Any]:
        return {"passes": self.passes, "batches": self.batches, "last_used": self.last_used}

    def load_state(self, state: dict[str, Any], random: RandomState | None) -> None:
        """`random` is the random state for the next batch, if this loader gives it."""
        self.passes, self.batches = state["passes"], state["batches"]
        self._begins_at, self._counts, self._random = self.batches, False, random


class _Order(Sampler[Any]):
    """A worker's part of what a sampler gives, in an order that all workers agree on."""

    def __init__(self, sampler: Any, part: Part, position: Position, per_batch: int) -> None:
        self._sampler, self._part = sampler, part
        self._position, self._per_batch = position, per_batch

    def __iter__(self) -> Iterator[Any]:
        seed = torch_seed(self._part.seed, Purpose.SHUFFLE, self._position.passes)
        with random_state_aside():
            seed_all(seed)
            for owner in (self._sampler, getattr(self._sampler, "sampler", None)):
                generator = getattr(owner, "generator", None)
                if isinstance(generator, torch.Generator):
                    generator.manual_seed(seed)
            order = list(self._part.of(self._sampler))
        return iter(order[self._position.batches * self._per_batch :])

    def __len__(self) -> int:
        return self._part.size(len(self._sampler))


class _Stream(IterableDataset[Any]):
    """A worker's part of an iterable data set, which must be the same on all workers."""

    def __init__(self, dataset: Any, part: Part) -> None:
        self._dataset, self._part = dataset, part

    def __iter__(self) -> Iterator[Any]:
        return self._part.of(self._dataset)

    def __len__(self) -> int:
        return self._part.size(len(self._dataset))


class _SharedLoader(DataLoader[Any]):
    """Counts the batches that it gives; after a restart its first pass begins in the middle."""

    position: Position

    def __iter__(self) -> Any:
        position = self.position
        position.begin_pass()
        batches = super().__iter__()
        if isinstance(self.dataset, IterableDataset):
            for _ in range(position.batches):
                next(batches, None)
        position.restore_random_state()
        for batch in batches:
            position.took()
            yield batch
        position.end_pass()


class SharedFunction:
    """A function that draws batches, with random numbers of the worker's own.

    `ahead` is how many batches the script has drawn, but not yet used, when it takes a step.
    """

    def __init__(self, function: Callable[..., Any], part: Part, ahead: int) -> None:
        self._function, self._calls = function, 0
        with random_state_aside():
            seed_all(torch_seed(torch.initial_seed() % 2**32, Purpose.SHUFFLE, part.worker + 1))
            # The states before the last calls, and the one for the next.
            self._states = deque([get_random_state()], maxlen=ahead + 1)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with random_state_aside():
            set_random_state(self._states[-1])
            batch = self._function(*args, **kwargs)
            self._states.append(get_random_state())
        self._calls += 1
        return batch

    def stepped(self) -> None:
        """The script has taken a step."""

    def state(self) -> dict[str, Any]:
        own = {"passes": 0, "batches": self._calls, "last_used": -1}
        return own | {"random": self._states[0]}

    def load_state(self, state: dict[str, Any], random: RandomState | None) -> None:
        del random
        self._calls = state["batches"]
        self._states.clear()
        self._states.append(state["random"])


Counted = Position | SharedFunction


def share(data: Any, part: Part, ahead: int = 0) -> tuple[Any, Counted | None]:
    """A worker's share of a loader, data set, sequence or function; and what counts its batches."""
    if isinstance(data, DataLoader):
        return _share_loader(data, part)
    if isinstance(data, IterableDataset):
        return _Stream(data, part), None
    if isinstance(data, Dataset):
        return Subset(data, list(part.of(range(len(data))))), None  # type: ignore[arg-type]
    if isinstance(data, Tensor | Sequence) and not isinstance(data, str):
        return data[part.worker :: part.workers] if part.worker >= 0 else data[:0], None
    if callable(data):
        function = SharedFunction(data, part, ahead)
        return function, function
    raise ConfigError(
        "team.shard takes a DataLoader, a Dataset, a sequence, or a function that draws batches, "
        f"not a {type(data).__name__}. Split it yourself: worker team.worker of team.num_workers."
    )


def _share_loader(loader: DataLoader[Any], part: Part) -> tuple[Any, Position]:
    if isinstance(loader, _SharedLoader):
        raise ConfigError("This loader has been through team.shard already: do that once.")
    shared, position = copy.copy(loader), Position()
    kind = type(loader)
    shared.__class__ = type(f"Shared{kind.__name__}", (_SharedLoader, kind), {"position": position})

    def put(name: str, value: Any) -> None:
        object.__setattr__(shared, name, value)  # a DataLoader refuses to be changed

    put("_iterator", None)
    if isinstance(loader.dataset, IterableDataset):
        put("dataset", _Stream(loader.dataset, part))
        return shared, position
    if loader.batch_size is None and loader.batch_sampler is not None:
        batches = _Order(_sized(loader.batch_sampler), part, position, 1)
        put("batch_sampler", batches)
        return shared, position
    sampler = _Order(_sized(loader.sampler), _split(loader, part), position, loader.batch_size or 1)
    put("sampler", sampler)
    if loader.batch_sampler is not None:
        put("batch_sampler", BatchSampler(sampler, loader.batch_size or 1, loader.drop_last))
    return shared, position


def _split(loader: DataLoader[Any], part: Part) -> Part:
    """The part, unless a DistributedSampler has split the data already."""
    sampler = loader.sampler
    if not isinstance(sampler, DistributedSampler) or part.worker < 0:
        return part
    if (sampler.num_replicas, sampler.rank) != (part.workers, part.worker):
        raise ConfigError(
            f"The loader's DistributedSampler takes part {sampler.rank} of {sampler.num_replicas}, "
            f"but this is worker {part.worker} of {part.workers}. Leave the sampler out: "
            "team.shard splits the data. Or give it num_replicas=team.num_workers and "
            "rank=team.worker."
        )
    return Part(0, 1, part.seed)


def _sized(sampler: Any) -> Any:
    try:
        len(sampler)
    except TypeError:
        raise ConfigError(
            f"team.shard must know the end of a sampler, but {type(sampler).__name__} has no "
            "length. Split it yourself: worker team.worker of team.num_workers."
        ) from None
    return sampler
