"""Small integers, packed into bytes.

Numbers that ascend, such as positions, take fewer bits (Elias-Fano): of each its lowest bits, and
for the rest a row of bits in which the i-th 1 stands at place i + rest. The size is fixed by how
many there are and how large they can be, and within half a bit a number of the least possible.
"""

from __future__ import annotations

import torch
from torch import Tensor


def packed_size(count: int, bits: int) -> int:
    """How many bytes `count` numbers of `bits` bits take."""
    return -(-count * bits // 8)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Numbers (..., count) of `bits` bits each, as bytes (..., packed_size)."""
    if bits == 8:
        return numbers.to(torch.uint8)
    if 8 % bits == 0:  # several whole numbers to a byte
        per_byte = 8 // bits
        rows = split_last(_padded(numbers.to(torch.uint8), per_byte), per_byte)
        packed = rows[..., 0].clone()
        for place in range(1, per_byte):
            packed |= rows[..., place] << (place * bits)
        return packed
    places = torch.arange(bits, device=numbers.device)
    single: Tensor = ((numbers[..., None] >> places) & 1).flatten(-2)  # lowest bit first
    in_bytes = split_last(_padded(single, 8), 8)
    packed = (in_bytes << torch.arange(8, device=numbers.device)).sum(-1)
    return packed.to(torch.uint8)


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The numbers (..., count) as int64."""
    if bits == 8:
        return packed[..., :count].long()
    if 8 % bits == 0:
        places = torch.arange(0, 8, bits, device=packed.device)
        numbers: Tensor = (packed[..., None].long() >> places) & (2**bits - 1)
        return numbers.flatten(-2)[..., :count]
    single: Tensor = (packed[..., None].long() >> torch.arange(8, device=packed.device)) & 1
    rows = split_last(single.flatten(-2)[..., : count * bits], bits)
    whole: Tensor = (rows << torch.arange(bits, device=packed.device)).sum(-1)
    return whole


def ascending_size(count: int, limit: int) -> int:
    """How many bytes `count` ascending numbers below `limit` take."""
    low, upper = _split_of(count, limit)
    return packed_size(count, low) + packed_size(upper, 1)


def pack_ascending(numbers: Tensor, limit: int) -> Tensor:
    """Ascending numbers (..., count) below `limit`, as bytes (..., ascending_size)."""
    count = numbers.shape[-1]
    low, upper = _split_of(count, limit)
    parts = [pack(numbers & (2**low - 1), low)] if low else []
    if upper:
        ones = (numbers >> low) + torch.arange(count, device=numbers.device)
        marks = numbers.new_zeros(*numbers.shape[:-1], upper).scatter_(-1, ones, 1)
        parts.append(pack(marks, 1))
    return torch.cat(parts, dim=-1)


def unpack_ascending(packed: Tensor, count: int, limit: int) -> Tensor:
    """The numbers (..., count) as int64."""
    low, upper = _split_of(count, limit)
    end = packed_size(count, low)
    numbers = unpack(packed[..., :end], count, low) if low else 0
    if not upper:
        return torch.as_tensor(numbers)
    marks = unpack(packed[..., end:], upper, 1)
    ones = marks.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    high = (ones - torch.arange(count, device=packed.device)).clamp_(0, (limit - 1) >> low)
    return (numbers + (high << low)).clamp_(max=limit - 1)


def _split_of(count: int, limit: int) -> tuple[int, int]:
    """How many low bits a number keeps, and how long the row of marks for the rest is."""
    width = max(1, (limit - 1).bit_length())
    lengths = {low: count + ((limit - 1) >> low) + 1 for low in range(width)} | {width: 0}
    low = min(lengths, key=lambda bits: count * bits + lengths[bits])
    return low, lengths[low]


def split_last(rows: Tensor, length: int) -> Tensor:
    """The last axis (n * length) as two (n, length)."""
    return rows.view(*rows.shape[:-1], -1, length)


def _padded(rows: Tensor, multiple: int) -> Tensor:
    missing = -rows.shape[-1] % multiple
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows
