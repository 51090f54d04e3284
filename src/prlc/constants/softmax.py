"""A smoothness that holds everywhere, for the one model where it is simple."""

from __future__ import annotations

import torch
from torch import Tensor

from prlc.constants.lanczos import extreme_eigenvalues
from prlc.data import Dataset

__all__ = ["softmax_smoothness"]


def softmax_smoothness(data: object, *, bias: bool = True) -> float:
    """L of multinomial logistic regression on `data`, at every model and not only those visited.

    The Hessian of the cross entropy in the logits is diag(p) - p p', at most 1/2; in the weights
    it is at most half the largest eigenvalue of the mean of x x', x with a one for the bias.
    """
    dataset = Dataset.of(data)
    X = dataset.train_inputs.flatten(1).cpu().double()
    if bias:
        X = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], 1)

    def product(v: Tensor) -> Tensor:
        return (X @ v) @ X / len(X)

    highest = extreme_eigenvalues(product, X.shape[1], tolerance=1e-9, max_products=1000).highest
    return 0.5 * (highest.value + highest.residual)
