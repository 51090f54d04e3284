"""Small integers, packed into bytes."""

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


def split_last(rows: Tensor, length: int) -> Tensor:
    """The last axis (n * length) as two (n, length)."""
    return rows.view(*rows.shape[:-1], -1, length)


def _padded(rows: Tensor, multiple: int) -> Tensor:
    missing = -rows.shape[-1] % multiple
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows
