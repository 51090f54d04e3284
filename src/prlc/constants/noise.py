"""The noise of minibatch gradients at one model, from gradients of single samples.

A single sample tells the most per gradient computed: a batch of b says no more about the
covariance than one sample does, at b times the price.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc.constants.objective import Objective

__all__ = ["Noise", "gradient_noise"]


@dataclass(frozen=True, eq=False)
class Noise:
    """Variance of a minibatch gradient (the trace of its covariance), and norms."""

    variance: float
    error: float
    """Standard error of the variance; 0 if every sample was used."""
    norms: NDArray[np.float64]
    """Norms of disjoint minibatch gradients."""
    ceiling: float
    """Mean of the b largest single-sample norms: no batch of these samples exceeds it."""


def gradient_noise(
    objective: Objective,
    w: Tensor,
    mean: Tensor,
    samples: Tensor,
    batch_size: int,
    num_train: int,
) -> Noise:
    """The noise at w. `samples` are in random order and `mean` is the mean of their gradients.

    With S^2 the variance of single gradients (divisor n-1), a batch of b out of N without
    repeats has S^2/b (1 - b/N): for b much smaller than N the S^2/b of independent draws, and
    none at all for b = N.
    """
    b, n, N = batch_size, len(samples), num_train
    squares, singles, norms = [], [], []
    total, filled = torch.zeros_like(mean), 0
    for rows in objective.single_gradients(w, samples):
        squares.append((rows - mean).square().sum(1).numpy())
        singles.append(rows.norm(dim=1).numpy())
        done = 0
        while done < len(rows):
            piece = rows[done : done + b - filled]
            total += piece.sum(0)
            filled += len(piece)
            done += len(piece)
            if filled == b:
                norms.append(float(total.norm()) / b)
                total, filled = torch.zeros_like(mean), 0
    deviations = np.concatenate(squares) * (n / max(n - 1, 1))
    scale = (1 - b / N) / b
    error = float(np.std(deviations, ddof=1)) * np.sqrt((1 - n / N) / n) if n > 1 else 0.0
    return Noise(
        variance=float(np.mean(deviations)) * scale,
        error=float(error) * scale,
        norms=np.asarray(norms),
        ceiling=float(np.sort(np.concatenate(singles))[-b:].mean()),
    )
