"""Every encoding: bytes and back, exact sizes, chunk by chunk, with draws that repeat."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prlc.draws import Purpose
from prlc.encodings import ENCODINGS, Code, Down, Draw, Encoding, TopK, parse_down, parse_encoding
from prlc.encodings.bits import (
    ascending_size,
    pack_ascending,
    packed_size,
    unpack_ascending,
)
from prlc.encodings.topk import _ranks
from prlc.errors import ConfigError

#: A new encoding is a new row here.
TEXTS = [
    "plain",
    "float32",
    "bfloat16",
    "float16",
    "int8,chunk=16",
    "int8,l2,chunk=7",
    "int4,chunk=16",
    "int2,chunk=16",
    "grid,1,chunk=16",
    "grid,3,chunk=7",
    "grid,8,chunk=16",
    "ternary,chunk=16",
    "ternary,chunk=16,clip=0",
    "topk,0.2,chunk=16",
    "topk,0.3,bits=2,chunk=9",
    "topk,0.1,bits=7,chunk=33",
    "topk,0.25,bits=32,chunk=16",
    "topk,1,bits=32,chunk=16",
    "topk,0.2,bits=1,chunk=16",
    "topk,0.2,chunk=16,transform=yes",
    "signs,chunk=16",
]
QUANTISERS = ["int8", "int4", "int2", "int8,l2", "int4,l2", "ternary,clip=0"]

texts = st.sampled_from(TEXTS)
dtypes = st.sampled_from([torch.float32, torch.float64])


def draw_of(
    workers: int = 1, *, step: int = 3, block: int = 0, first_chunk: int = 0, seed: int = 5
) -> Draw:
    return Draw(seed, Purpose.ENCODE_UP, np.arange(workers), step, block, first_chunk)


def values_of(workers: int, numel: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Of very different sizes, a few of them zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(workers, numel, generator=generator, dtype=torch.float64)
    values *= torch.exp(2 * torch.randn(workers, numel, generator=generator, dtype=torch.float64))
    values[torch.rand(workers, numel, generator=generator) < 0.2] = 0.0
    return values.to(dtype)


def packed(encoding: Encoding, codes: list[Code], values: Tensor) -> Tensor:
    rows, numel = values.shape
    out = torch.empty(rows, encoding.size(numel, values.dtype), dtype=torch.uint8)
    encoding.pack(codes, numel, out)
    return out


def decoded(encoding: Encoding, codes: list[Code], like: Tensor) -> Tensor:
    out = torch.zeros_like(like)
    encoding.add(codes, out)
    return out


def round_trip(encoding: Encoding, values: Tensor, draw: Draw) -> Tensor:
    return decoded(encoding, encoding.encode(values, draw), values)


def test_the_table_has_every_encoding() -> None:
    assert {text.partition(",")[0] for text in TEXTS} == set(ENCODINGS)


@given(
    text=texts,
    workers=st.integers(1, 3),
    numel=st.integers(1, 70),
    dtype=dtypes,
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_bytes_say_what_the_code_says_and_have_the_size_rule_15(
    text: str, workers: int, numel: int, dtype: torch.dtype, seed: int
) -> None:
    encoding, values = parse_encoding(text), values_of(workers, numel, seed, dtype)
    before = values.clone()
    codes = encoding.encode(values, draw_of(workers))
    assert torch.equal(values, before), "what is encoded stays as it was"
    out = packed(encoding, codes, values)  # fails unless the size is exact
    again = encoding.unpack(out, numel, dtype)
    assert torch.equal(decoded(encoding, again, values), decoded(encoding, codes, values))
    assert torch.equal(packed(encoding, again, values), out)
    if not isinstance(encoding, TopK):  # whose bytes put the places in order
        for ours, theirs in zip(codes, again, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@given(text=texts, chunks=st.integers(1, 3), numel=st.integers(1, 70), seed=st.integers(0, 99))
@settings(max_examples=100)
def test_cut_at_a_chunk_the_bytes_stay_rule_16(
    text: str, chunks: int, numel: int, seed: int
) -> None:
    encoding, values = parse_encoding(text), values_of(2, numel, seed)
    cut = chunks * (encoding.chunk_length or 1)
    if cut >= numel:
        return
    whole = packed(encoding, encoding.encode(values, draw_of(2)), values)
    parts = []
    for part, first in ((values[:, :cut], 0), (values[:, cut:], chunks)):
        codes = encoding.encode(part, draw_of(2, first_chunk=first))
        parts.append(packed(encoding, codes, part))
    assert torch.equal(torch.cat(parts, dim=1), whole)


@given(text=texts, workers=st.integers(1, 4), numel=st.integers(1, 50), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_workers_together_are_workers_alone_rule_30(
    text: str, workers: int, numel: int, seed: int
) -> None:
    """And their weighted sum is that of what each would decode."""
    encoding, values = parse_encoding(text), values_of(workers, numel, seed)
    codes = encoding.encode(values, draw_of(workers))
    together = decoded(encoding, codes, values)
    for i in range(workers):
        alone = Draw(5, Purpose.ENCODE_UP, np.array([i]), 3)
        assert torch.equal(round_trip(encoding, values[i : i + 1], alone)[0], together[i])
    weights = torch.arange(1, workers + 1, dtype=torch.float64)
    total = torch.ones(numel, dtype=torch.float64)
    encoding.add_sum(codes, total, weights)
    torch.testing.assert_close(total, 1 + weights @ together, rtol=1e-12, atol=1e-12)
    half = torch.ones_like(values)
    encoding.add(codes, half, 0.5)
    torch.testing.assert_close(half, 1 + 0.5 * together, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", ["int8", "ternary"])
def test_draws_depend_on_what_they_are_for_alone_rule_17(text: str) -> None:
    encoding, values = parse_encoding(text), values_of(1, 200, 0)
    once = round_trip(encoding, values, draw_of())
    torch.manual_seed(99)  # nobody's generator matters
    assert torch.equal(round_trip(encoding, values, draw_of()), once)
    others = [
        draw_of(step=4),
        draw_of(block=1),
        draw_of(first_chunk=1),
        draw_of(seed=6),
        Draw(5, Purpose.ENCODE_UP, np.array([1]), 3),
        Draw(5, Purpose.ENCODE_DOWN, np.array([0]), 3),
    ]
    drawn = [round_trip(encoding, values, other) for other in others]
    assert not any(torch.equal(other, once) for other in drawn)


@pytest.mark.parametrize("text", QUANTISERS)
def test_quantisers_are_right_on_average(text: str) -> None:
    encoding = parse_encoding(f"{text},chunk=32")
    n = 4000
    values = torch.randn(1, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total, squares = torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    for start in range(0, n, 1000):  # each worker draws for itself
        draw = Draw(5, Purpose.ENCODE_UP, np.arange(start, start + 1000), 3)
        got = round_trip(encoding, values.expand(1000, -1), draw)
        total += got.sum(0)
        squares += (got - values).square().sum(0)
    error = (total / n - values[0]).abs()
    spread = (squares / n).sqrt() / math.sqrt(n)
    # Draws have 24 bits and scales are float32, so six deviations and that.
    assert bool((error <= 6 * spread + 2e-7 * values.abs().max()).all())
    assert float(spread.max()) > 0, "something should be rounded"


def test_qsgd_has_the_variance_of_its_paper() -> None:
    """E|Q(v) - v|^2 <= min(n/s^2, sqrt(n)/s) |v|^2 (Alistarh et al. 2017, lemma 3.1)."""
    values = torch.randn(1, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for text in ("int8,l2,chunk=64", "int4,l2,chunk=64", "int2,l2,chunk=64"):
        encoding = parse_encoding(text)
        s = 2 ** (int(text[3]) - 1) - 1
        got = round_trip(encoding, values.expand(2000, -1), draw_of(2000))
        error = (got - values).square().sum(1).mean() / values.square().sum()
        assert float(error) <= 1.05 * min(64 / s**2, 8 / s)


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_a_grid_rounds_to_the_nearest_point(bits: int) -> None:
    values = values_of(2, 64, 0)
    got = round_trip(parse_encoding(f"grid,{bits},chunk=32"), values, draw_of(2))
    radius = values.view(2, 2, 32).abs().amax(-1, keepdim=True)
    step = 2 * radius / (2**bits - 1)
    error = (got - values).view(2, 2, 32).abs()
    assert bool((error <= step / 2 + 1e-6 * radius).all())
    ends = values.view(2, 2, 32).abs() == radius
    assert bool((error[ends] <= 1e-6).all()), "the largest is a point itself"


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-30, 1e37])
def test_a_grid_of_any_size(size: float) -> None:
    values = torch.tensor([[size, -size, 0.0, size / 3]], dtype=torch.float32)
    got = round_trip(parse_encoding("grid,4"), values, draw_of())
    assert bool(((got - values).abs() <= size / 15 * 1.001 + 1e-45).all())


def test_ternary_clips_what_is_far_out() -> None:
    values = torch.ones(1, 100, dtype=torch.float64)
    values[0, 0] = 100.0
    clipped = round_trip(parse_encoding("ternary,clip=2.5,chunk=100"), values, draw_of())
    limit = 2.5 * float(values.std())
    assert float(clipped.max()) == pytest.approx(limit, rel=1e-6)
    alone = parse_encoding("ternary,clip=0,chunk=100")
    assert float(round_trip(alone, values, draw_of()).max()) == pytest.approx(100.0)


@given(share=st.sampled_from([0.05, 0.3, 1.0]), numel=st.integers(1, 64), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_topk_is_a_contraction(share: float, numel: int, seed: int) -> None:
    """|C(x) - x|^2 <= (1 - k/n) |x|^2 in every chunk."""
    encoding, values = TopK(share, bits=32, chunk=64), values_of(2, numel, seed)
    got = round_trip(encoding, values, draw_of(2))
    left = (got - values).square().sum(1)
    rounding = 1e-12 * values.square().sum(1)  # values travel as float32
    bound = (1 - encoding.count(numel) / numel) * values.square().sum(1)
    assert bool((left <= bound + rounding).all())
    assert bool(((got != 0).sum(1) <= encoding.count(numel)).all())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_topk_with_short_values_contracts_too(bits: int) -> None:
    values = torch.randn(50, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = round_trip(TopK(0.1, bits, chunk=128), values, draw_of(50))
    assert bool(((got - values).square().sum(1) < values.square().sum(1)).all())
    sent = got != 0
    smallest = torch.where(sent, values.abs(), math.inf).amin(1)
    largest = torch.where(sent, 0.0, values.abs()).amax(1)
    assert bool((smallest >= largest).all()), "the largest are sent"
    assert bool((got.sign() == values.sign() * sent).all())
    # A value lies in one of 2^(bits-1) equal parts of the range and is sent as its middle.
    width = torch.where(sent, values.abs(), 0.0).amax(1) - smallest
    error = torch.where(sent, (got - values).abs(), 0.0).amax(1)
    assert bool((error <= width / 2**bits + 0.02 * values.abs().amax(1)).all())


@pytest.mark.parametrize("bits", [2, 4, 32])
def test_a_zero_is_never_selected_and_places_stay_free_rule_18(bits: int) -> None:
    encoding = TopK(0.5, bits, chunk=8)
    values = torch.tensor([[0, 3, 0, 0, 0, 0, 0, -2], [0.0] * 8], dtype=torch.float64)
    codes = encoding.encode(values, draw_of(2))
    out = packed(encoding, codes, values)
    got = decoded(encoding, encoding.unpack(out, 8, values.dtype), values)
    assert (got != 0).nonzero().tolist() == [[0, 1], [0, 7]]
    assert torch.equal(got, decoded(encoding, codes, values))
    assert got[0, 1] > 0 > got[0, 7]


@pytest.mark.parametrize("bits", [1, 4, 32])
def test_of_equal_numbers_the_earlier_are_sent_rule_18(bits: int) -> None:
    values = torch.tensor([[0.5, -1.0, 1.0, -1.0, 1.0, 0.5]], dtype=torch.float64)
    got = round_trip(TopK(0.5, bits, chunk=6), values, draw_of())
    assert got.nonzero()[:, 1].tolist() == [1, 2, 3]


@given(seed=st.integers(0, 99), share=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
@settings(max_examples=30)
def test_the_largest_are_those_that_torch_selects(seed: int, share: float) -> None:
    values = torch.randn(3, 200, generator=torch.Generator().manual_seed(seed))
    encoding = TopK(share, bits=32, chunk=100)
    chunks = values.view(3, 2, 100)
    expected = torch.topk(chunks.abs(), encoding.count(100)).indices.sort(-1).values
    assert torch.equal(encoding.encode(values, draw_of(3))[0][0], expected)


def test_float16_is_clamped_to_what_is_finite_rule_10() -> None:
    values = torch.tensor([[1e9, -1e9, 1.0]], dtype=torch.float32)
    got = round_trip(parse_encoding("float16"), values, draw_of())
    assert got.tolist() == [[65504.0, -65504.0, 1.0]]
    assert round_trip(parse_encoding("bfloat16"), values, draw_of()).isfinite().all()
    huge = torch.tensor([[1e300]], dtype=torch.float64)
    assert round_trip(parse_encoding("float32"), huge, draw_of()).isfinite().all()


@given(limit=st.integers(1, 5000), count=st.integers(1, 300), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_ascending_numbers_come_back(limit: int, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(limit, (2, 3, count), generator=generator).sort(-1).values
    packed = pack_ascending(numbers, limit)
    assert packed.shape[-1] == ascending_size(count, limit)
    assert torch.equal(unpack_ascending(packed, count, limit), numbers)
    assert ascending_size(count, limit) <= packed_size(count, max(1, (limit - 1).bit_length())) + 1


def test_sizes_by_hand_rule_15() -> None:
    sizes = {
        "plain": 1000 * 8,
        "float32": 1000 * 4,
        "bfloat16": 1000 * 2,
        "int8,chunk=256": 1000 + 4 * 4,
        "int4,chunk=256": 500 + 4 * 4,
        "ternary,chunk=256": 250 + 4 * 4,
        # Of 10 places in 1,000, 6 bits each and 10 + 15 + 1 marks; 10 values at 4 bits; a range.
        "topk,0.01": 8 + 4 + 5 + 4,
        "topk,0.01,bits=32": 8 + 4 + 40,
        "topk,0.01,bits=1": 8 + 4 + 2 + 4,
        "signs": 200 + 4,
    }
    for text, size in sizes.items():
        assert parse_encoding(text).size(1000, torch.float64) == size, text
    # 41 places in 4,096 need at least log2(4096 over 41) = 327 bits; they have 248 + 112.
    assert parse_encoding("topk,0.01").size(4096, torch.float32) == 31 + 14 + 21 + 4
    assert parse_encoding("int8").size(0, torch.float32) == 0


@pytest.mark.parametrize("text", [*TEXTS, "topk,0.02,ef=no", "int4,ef=yes,decay=0.9"])
def test_texts_are_read_back_rule_23(text: str) -> None:
    encoding = parse_encoding(text)
    assert parse_encoding(str(encoding)) == encoding
    assert parse_encoding(encoding) is encoding
    assert str(parse_encoding(str(encoding))) == str(encoding)


@pytest.mark.parametrize(
    "text", ["plain", "gather", "int8", "topk,0.1,state=own", "int4,what=mean", "int4,l2,what=mean"]
)
def test_ways_down_are_read_back_rule_23(text: str) -> None:
    down = parse_down(text)
    assert parse_down(str(down)) == down
    assert down.plain == (text == "plain")


def test_an_encoding_is_a_way_down() -> None:
    assert parse_down(TopK(0.1)) == Down(TopK(0.1)) == parse_down("topk,0.1")
    assert Down(what="gather") == parse_down("gather")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("zip", "no encoding 'zip'. Choose one of: plain, float32"),
        ("topk,0", "share of all numbers in (0, 1] but the share is 0"),
        ("topk,2", "in (0, 1] but the share is 2"),
        ("topk,yes", "in (0, 1] but the share is True"),
        ("topk,0.1,bits=0", "1 to 8 bits, or 32, but not 0"),
        ("topk,0.1,bits=yes", "1 to 8 bits, or 32, but not True"),
        ("topk,0.1,chunk=0", "whole number of elements from 1 to 2^20 but is 0"),
        ("int8,chunk=2.5", "whole number of elements from 1 to 2^20 but is 2.5"),
        ("topk,0.1,ef=2", "`ef` must be yes or no but is 2"),
        ("topk,0.1,decay=0", "must lie in (0, 1] but is 0"),
        ("topk,0.1,decay=no", "must lie in (0, 1] but is False"),
        ("int8,l1", "must be max or l2 but is 'l1'"),
        ("ternary,clip=-1", "standard deviations, 0 or more, but is -1"),
        ("ternary,clip=inf", "standard deviations, 0 or more, but is inf"),
        ("float32,8", "float32 takes no settings, but '8' was given"),
        ("float32,bits=8", "float32 has no setting 'bits': it takes none"),
        ("topk,share=0.1,0.2", "'0.2' should be written as setting=value"),
        ("topk,places=2", "topk has no setting 'places': it takes share, bits, chunk, ef, decay"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence_rule_22(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_encoding(text)
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("int8,what=all", "what must be one of difference, mean, gather, update but is 'all'"),
        ("int8,state=mine", "state must be one of auto, shared, own but is 'mine'"),
        ("gather,state=own", "no encoding 'gather'"),
    ],
)
def test_bad_ways_down(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_down(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize("value", [8, None, 0.1])
def test_what_is_no_text_is_refused(value: Any) -> None:
    for parse in (parse_encoding, parse_down):
        with pytest.raises(ConfigError, match="written as text"):
            parse(value)


def test_encodings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_encoding("int8").chunk = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("roughly", [True, False])
@pytest.mark.parametrize("length", [16, 2**16, 2**16 + 1])
def test_ranks_follow_magnitudes_then_places_at_any_length(length: int, roughly: bool) -> None:
    sizes = torch.linspace(0, 1, length).flip(0)
    sizes[1] = sizes[0] = torch.finfo(torch.float32).max  # the largest that there are
    ranks = _ranks(sizes[None], roughly=roughly)[0].long()
    assert ranks.argsort(descending=True)[:2].tolist() == [0, 1]
    assert (ranks[1:] < ranks[:-1]).all()
    assert ranks.min() >= 0
