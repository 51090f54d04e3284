"""Which samples stand for all of them, and the error of doing so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc.draws import Purpose, bits

__all__ = ["Subset", "mean_and_error"]

_GROUPS = 20  # enough for a standard error from the spread between them


class Subset:
    """Up to `samples` of the training samples in random order, and as many fresh ones."""

    def __init__(self, num_train: int, samples: int, chunk_size: int, seed: int) -> None:
        keys = bits(seed, Purpose.EVALUATION, 1, np.arange(num_train))
        order = np.argsort(keys, kind="stable")
        n = min(samples, num_train)
        self.num_train = num_train
        self.samples: NDArray[np.int64] = order[:n]
        self.share = n / num_train
        rest = order[n : 2 * n]
        self.rest_share = len(rest) / (num_train - n) if n < num_train else 1.0
        """How much of what is left out the fresh samples are."""
        chunk = chunk_size if n == num_train else min(chunk_size, -(-n // _GROUPS))
        self.parts = _pieces(self.samples, chunk)
        self.rest_parts = _pieces(rest, chunk)

    @property
    def said(self) -> str:
        """How the text of an estimate ends."""
        if self.share == 1:
            return ""
        return f"; on {len(self.samples)} of {self.num_train} samples"


def _pieces(numbers: NDArray[np.int64], chunk: int) -> list[NDArray[np.int64]]:
    return [numbers[i : i + chunk] for i in range(0, len(numbers), chunk)]


def mean_and_error(values: Tensor, parts: Sequence[Tensor]) -> tuple[float, float]:
    """The mean over all samples from the means of parts, and its standard error.

    The error is that of samples drawn with repeats; times sqrt(1 - share) without.
    """
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.float64)
    weights, count = sizes / sizes.sum(), len(parts)
    mean = float(weights @ values)
    if count < 2:
        return mean, 0.0
    spread = float((weights.square() * (values - mean).square()).sum()) * count / (count - 1)
    return mean, math.sqrt(spread)
