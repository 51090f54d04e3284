"""A script's own data, split among workers: nothing twice, nothing left out, and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from prlc.data.random_state import get_random_state, set_random_state
from prlc.data.share import Part, Position, SharedFunction, share
from prlc.errors import ConfigError

DATA = TensorDataset(torch.arange(23))


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(23))


def split(data: Any, workers: int = 3) -> list[Any]:
    return [share(data, Part(worker, workers, seed=4))[0] for worker in range(workers)]


def numbers(loader: DataLoader[Any]) -> list[int]:
    return [int(x) for batch in loader for x in torch.as_tensor(batch[0]).flatten()]


LOADERS: dict[str, DataLoader[Any]] = {
    "shuffled": DataLoader(DATA, batch_size=2, shuffle=True),
    "with a generator": DataLoader(DATA, shuffle=True, generator=torch.Generator()),
    "in order": DataLoader(DATA, batch_size=4),
    "batches": DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)),
    "in processes": DataLoader(DATA, batch_size=2, shuffle=True, num_workers=1),
}


@pytest.mark.parametrize("name", LOADERS)
def test_every_sample_goes_to_one_worker_in_every_pass(name: str) -> None:
    shared = split(LOADERS[name])
    passes = []
    for number in range(2):
        torch.manual_seed(number)
        parts = [numbers(loader) for loader in shared]
        assert sorted(x for part in parts for x in part) == list(range(23))
        assert [len(loader) for loader in shared] == [len(list(loader)) for loader in shared]
        passes.append(parts)
    drawn = name not in ("in order", "batches")
    assert (passes[0] != passes[1]) == drawn


def test_p_workers_take_the_batches_of_one_process() -> None:
    parts = [list(loader) for loader in split(DataLoader(DATA, batch_size=2), 2)]
    for step, (a, b) in enumerate(zip(*parts, strict=False)):
        joint = sorted(torch.cat([a[0], b[0]]).tolist())
        assert joint == list(range(4 * step, min(4 * step + 4, 23)))


def test_other_kinds_of_data() -> None:
    streams = split(DataLoader(Numbers(), batch_size=2))
    assert sorted(int(x) for s in streams for batch in s for x in batch) == list(range(23))
    assert sorted(x for stream in split(Numbers()) for x in stream) == list(range(23))
    assert sorted(int(x) for part in split(DATA) for (x,) in part) == list(range(23))
    assert [list(part) for part in split(list(range(5)))] == [[0, 3], [1, 4], [2]]
    assert [part.tolist() for part in split(torch.arange(5))] == [[0, 3], [1, 4], [2]]
    weighted = WeightedRandomSampler([1.0] * 22 + [0.0], 30)
    assert sum(len(numbers(s)) for s in split(DataLoader(DATA, sampler=weighted))) == 30
    server = Part(-1, 3, 0)
    for data in (LOADERS["shuffled"], Numbers(), DATA, [1, 2], LOADERS["batches"]):
        assert list(share(data, server)[0]) == []


def test_a_distributed_sampler_is_kept() -> None:
    parts = []
    for worker in range(3):
        sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=3, rank=worker)
        loader = DataLoader(DATA, sampler=sampler)
        parts += numbers(share(loader, Part(worker, 3, 0))[0])
    assert sorted({*parts}) == list(range(23))
    assert len(parts) == 24


class Noisy(Dataset[Any]):
    """A sample with a random number, as augmentation gives it."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1)


@pytest.mark.parametrize("done", [0, 1, 5, 8, 11])
@pytest.mark.parametrize("kind", ["samples", "stream"])
def test_a_pass_goes_on_in_its_middle(kind: str, done: int) -> None:
    made = Numbers() if kind == "stream" else Noisy()
    loader: DataLoader[Any] = DataLoader(made, batch_size=1, shuffle=kind == "samples" or None)
    torch.manual_seed(1)
    whole, position = share(loader, Part(1, 3, 0))
    taken = [*whole, *whole]
    assert isinstance(position, Position)
    torch.manual_seed(1)
    first, position = share(loader, Part(1, 3, 0))
    assert isinstance(position, Position)
    got = list(islice(chain.from_iterable(first for _ in range(2)), done))
    state, random = position.state(), get_random_state()
    torch.manual_seed(99)
    again, position = share(loader, Part(1, 3, 0))
    assert isinstance(position, Position)
    position.load_state(state, random if done else None)
    set_random_state(random)
    rest = [*again, *(again if state["passes"] == 0 else ())]
    assert got + rest == taken


def test_a_look_at_the_first_batch_is_no_pass() -> None:
    loader = DataLoader(DATA, batch_size=2, shuffle=True)
    (whole, _), (shared, position) = (share(loader, Part(0, 3, 0)) for _ in range(2))
    assert isinstance(position, Position)
    passes = [numbers(whole) for _ in range(2)]
    for expected in passes:
        next(iter(shared))
        begun = iter(shared)
        got = [int(x) for x in next(begun)[0]]
        position.stepped()
        got += [int(x) for (batch,) in begun for x in batch]
        assert got == expected
    state = {"passes": 0, "batches": 2, "last_used": 0}
    again, position = share(loader, Part(0, 3, 0))
    assert isinstance(position, Position)
    position.load_state(state, None)
    next(iter(again))
    assert numbers(again) == passes[0][4:]
    assert numbers(again) == passes[1]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_function_goes_on_with_the_batch_that_is_due(ahead: int) -> None:
    def draw() -> float:
        return float(torch.rand(1))

    torch.manual_seed(3)
    state = torch.get_rng_state()
    functions = [share(draw, Part(worker, 3, 0), ahead)[0] for worker in range(3)]
    drawn = [[function() for _ in range(6)] for function in functions]
    assert len({x for each in drawn for x in each}) == 18
    assert torch.equal(state, torch.get_rng_state()), (
        "the script's own random numbers are untouched"
    )
    again = share(draw, Part(2, 3, 0), ahead)[0]
    kept = functions[2].state()
    assert isinstance(again, SharedFunction)
    more = [functions[2]() for _ in range(2)]
    again.load_state(kept, None)
    assert [again() for _ in range(2 + ahead)] == [*drawn[2][6 - ahead :], *more]


def test_what_cannot_be_split_is_refused() -> None:
    class Endless(WeightedRandomSampler):
        __len__ = None  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="Endless has no length"):
        share(DataLoader(DATA, sampler=Endless([1.0], 1)), Part(0, 2, 0))
    with pytest.raises(ConfigError, match="not a int"):
        share(3, Part(0, 2, 0))
