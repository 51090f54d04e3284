"""A model on the wire: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from prlc.engines.job import travelling
from prlc.engines.processes import Layout
from prlc.engines.roles.notes import Kind, Note
from prlc.engines.roles.packing import Packing, Vector, distance_sq, is_finite
from prlc.errors import ConfigError

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TENSORS = st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6)


def module(
    parameters: list[tuple[tuple[int, ...], torch.dtype]],
    buffers: list[tuple[tuple[int, ...], torch.dtype]],
) -> nn.Module:
    """A module with numbers that are all different (and small enough for any dtype)."""
    found = nn.Module()
    for i, (shape, dtype) in enumerate(parameters):
        found.register_parameter(f"p{i}", nn.Parameter(torch.zeros(shape, dtype=dtype)))
    for i, (shape, dtype) in enumerate(buffers):
        found.register_buffer(f"b{i}", torch.zeros(shape, dtype=dtype))
    found.register_buffer("count", torch.zeros(2, dtype=torch.int64))
    next_number = 0
    with torch.no_grad():
        for tensor in travelling(found):
            size = tensor.numel()
            numbers = torch.arange(next_number, next_number + size) % 256
            tensor.copy_(numbers.reshape(tensor.shape))
            next_number += size
    return found


def packed(model: nn.Module, packing: Packing) -> Vector:
    vector = packing.zeros()
    packing.pack([tensor.detach() for tensor in travelling(model)], vector)
    return vector


@given(TENSORS, TENSORS)
def test_what_is_packed_comes_out_again(
    parameters: list[tuple[tuple[int, ...], torch.dtype]],
    buffers: list[tuple[tuple[int, ...], torch.dtype]],
) -> None:
    model = module(parameters, buffers)
    packing = Packing(model)
    vector = packed(model, packing)
    assert [flat.dtype for flat in vector] == [*dict.fromkeys(t.dtype for t in travelling(model))]
    target = module(parameters, buffers)
    with torch.no_grad():
        for tensor in travelling(target):
            tensor.fill_(-1)
        packing.unpack(vector, travelling(target))
    for ours, theirs in zip(travelling(target), travelling(model), strict=True):
        assert torch.equal(ours, theirs)
    views = packing.tensors(vector)
    assert all(torch.equal(v, t) for v, t in zip(views, travelling(model), strict=True))
    assert packing.fits(travelling(target))


@given(TENSORS, TENSORS, st.integers(1, 7))
def test_shards_are_the_whole_once(
    parameters: list[tuple[tuple[int, ...], torch.dtype]],
    buffers: list[tuple[tuple[int, ...], torch.dtype]],
    num_shards: int,
) -> None:
    model = module(parameters, buffers)
    packing = Packing(model, num_shards)
    vector = packed(model, packing)
    shards = [packing.shard(vector, shard) for shard in range(num_shards)]
    for kind, flat in enumerate(vector):
        assert torch.equal(torch.cat([shard[kind] for shard in shards]), flat)
        sizes = [len(shard[kind]) for shard in shards]
        assert max(sizes) - min(sizes) <= 1
    for shard in range(num_shards):
        alike = zip(packing.zeros(shard), shards[shard], strict=True)
        assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in alike)
    # Every shard knows which of its numbers are parameters: all before the first buffer.
    marks = packing.zeros()
    ones = [torch.ones_like(p) for p in model.parameters()]
    zeros = [torch.zeros_like(t) for t in travelling(model)[len(ones) :]]
    packing.pack(ones + zeros, marks)
    for shard in range(num_shards):
        for flat, count in zip(packing.shard(marks, shard), packing.parameters(shard), strict=True):
            assert float(flat[:count].sum()) == count
            assert not flat[count:].any()


def test_shards_are_views() -> None:
    model = module([((3, 2), torch.float64)], [])
    packing = Packing(model, 4)
    vector = packed(model, packing)
    packing.shard(vector, 3)[0].fill_(-1.0)
    assert int((vector[0] == -1).sum()) == 2


def test_what_has_other_shapes_does_not_fit() -> None:
    packing = Packing(nn.Linear(2, 3))
    assert packing.fits([torch.zeros(3, 2), torch.zeros(3)])
    assert not packing.fits([torch.zeros(2, 3), torch.zeros(3)])
    assert not packing.fits([torch.zeros(3, 2)])


def test_models_that_differ_are_described_differently() -> None:
    models = [
        nn.Linear(2, 3),
        nn.Linear(2, 3).double(),
        nn.Linear(3, 2),
        nn.Linear(2, 3, bias=False),
        nn.Linear(3, 2, bias=False),  # as many numbers in as many tensors as the one before
    ]
    described = [Packing(model).describe() for model in models]
    assert len(set(described)) == len(models)
    assert described[0] == Packing(nn.Linear(2, 3)).describe()
    assert "2 tensors with 9 numbers of float32" in described[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_finite_is_finite_however_large(dtype: torch.dtype) -> None:
    huge = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    assert not huge.sum().isfinite()
    assert is_finite([huge])
    assert is_finite([torch.zeros(0, dtype=dtype), -huge])
    assert is_finite([])
    for bad in (math.inf, -math.inf, math.nan):
        spoilt = huge.clone()
        spoilt[17] = bad
        assert not is_finite([spoilt])
        assert not is_finite([torch.ones(3, dtype=dtype), spoilt])
    assert not is_finite([torch.tensor([math.inf, -math.inf], dtype=dtype)])


def test_distances_are_in_double_precision() -> None:
    a, b = torch.full((10_000,), 1e-4), torch.zeros(10_000)
    exact = 10_000 * float(a[0].double()) ** 2
    assert distance_sq([a, a.double()], [b, b.double()]) == pytest.approx(2 * exact, rel=1e-12)


@given(
    st.sampled_from(Kind),
    st.integers(0, 2**53),
    st.floats(),
    st.floats(),
    st.integers(0, 2**31),
    st.integers(0, 2**31),
)
def test_a_note_arrives_as_it_was_sent(
    kind: Kind, step: int, loss: float, lr: float, save: int, bad: int
) -> None:
    note = Note(kind, step, loss, lr, save, bad)
    blank = Note.blank()
    blank.copy_(note.tensor())
    arrived = Note.of(blank)
    assert arrived.kind is kind
    assert arrived == note or (math.isnan(loss) or math.isnan(lr))
    assert repr(arrived) == repr(note)


def test_a_server_keeps_all_and_the_others_work() -> None:
    layout = Layout("server", 3)
    assert (layout.servers, layout.workers) == ([0], [1, 2])
    assert layout.names() == ["rank 0 (the server)", "rank 1 (worker 0)", "rank 2 (worker 1)"]
    with pytest.raises(ConfigError, match="at least two processes"):
        Layout("server", 1)


def test_sharded_everybody_does_both() -> None:
    layout = Layout("sharded", 3)
    assert layout.servers == layout.workers == [0, 1, 2]
    assert layout.names()[2] == "rank 2 (worker 2)"
    assert Layout("sharded", 1).workers == [0]
