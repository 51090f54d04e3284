"""Curvature: the extreme eigenvalues of a Hessian, from products with vectors alone.

Lanczos with full orthogonalisation. The basis is limited by memory: when full, it shrinks to the
best approximations of either end and grows again (a thick restart).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prlc.data import Dataset
from prlc.errors import ConfigError

__all__ = ["End", "Spectrum", "extreme_eigenvalues", "softmax_smoothness"]

_BASIS_BYTES = 2**30
_SMALLEST_BASIS = 6


# eq=False: tensors have no single truth value.
@dataclass(frozen=True, eq=False)
class End:
    """An approximate eigenvalue; a true one lies within `residual` of `value`."""

    value: float
    residual: float
    vector: Tensor
    """The unit eigenvector, shape (size,)."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The lowest and the highest eigenvalue.

    Approximations lie inside the spectrum, so the true lowest is at or below `lowest.value` and
    the true highest at or above `highest.value`.
    """

    lowest: End
    highest: End
    products: int
    converged: bool

    @property
    def largest(self) -> End:
        """The end of larger absolute value."""
        return max(self.highest, self.lowest, key=lambda end: abs(end.value))


def extreme_eigenvalues(
    product: Callable[[Tensor], Tensor],
    size: int,
    *,
    seed: int = 0,
    tolerance: float = 1e-3,
    max_products: int = 100,
    both: bool = False,
    rounding: float = 1e-14,
    basis_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Spectrum:
    """The ends of the spectrum of `product`, a symmetric map of vectors of shape (size,).

    Stops when the end of larger absolute value has a relative residual of at most `tolerance` and
    the other end cannot exceed it. With `both`, each end needs a residual of at most `tolerance`
    of itself, or `rounding` (the precision of `product`) of the larger one. Vectors are float64,
    on the CPU.

    The random first vector overlaps with every eigenvector with probability one; if it missed
    one, no residual would show it.
    """
    if size < 1 or max_products < 1:
        raise ConfigError(
            f"Lanczos needs a size and a number of products of at least 1; got {size} and "
            f"{max_products}."
        )
    limit = basis_size or _BASIS_BYTES // (8 * size)
    m = min(size, max_products, max(limit, _SMALLEST_BASIS))
    V = torch.empty(m, size, dtype=torch.float64)
    T = torch.zeros(m, m, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(size, generator=generator, dtype=torch.float64)
    V[0] = first / first.norm()
    k = products = 0
    while True:
        w = product(V[k])
        products += 1
        w, column = _orthogonalised(w, V[: k + 1])
        T[: k + 1, k] = T[k, : k + 1] = column
        beta = float(w.norm())
        theta, S = torch.linalg.eigh(T[: k + 1, : k + 1])
        residuals = beta * S[-1].abs()
        scale = float(theta.abs().max())
        # The basis spans all that the first vector can reach; the rest is rounding.
        exhausted = k + 1 == size or beta <= rounding * scale
        if k + 1 == size:
            residuals.zero_()
        done = exhausted or _converged(theta, residuals, tolerance, rounding, both)
        if progress is not None:
            progress(products)
        if done or products == max_products:
            ends = [
                End(float(theta[i]), float(residuals[i]), S[:, i] @ V[: k + 1]) for i in (0, -1)
            ]
            return Spectrum(ends[0], ends[1], products, done)
        if k + 1 == m:
            keep = max(1, m // 4)
            chosen = [*range(keep), *range(m - keep, m)]
            V[: 2 * keep] = S[:, chosen].T @ V
            T.zero_()
            T[range(2 * keep), range(2 * keep)] = theta[chosen]
            k = 2 * keep - 1
        k += 1
        V[k] = w / beta


def _orthogonalised(w: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """`w` (size,) made orthogonal to the rows of V, and its parts along them; two passes."""
    parts = V @ w
    w = w - parts @ V
    again = V @ w
    return w - again @ V, parts + again


def _converged(
    theta: Tensor, residuals: Tensor, tolerance: float, rounding: float, both: bool
) -> bool:
    size = theta.abs()
    if both:
        ends = [0, -1]
        allowed = torch.clamp(tolerance * size[ends], min=rounding * float(size.max()))
        return bool((residuals[ends] <= allowed).all())
    top, other = (-1, 0) if size[-1] >= size[0] else (0, -1)
    if residuals[top] > tolerance * size[top] or len(theta) == 1:
        return False
    return bool(size[other] + residuals[other] <= size[top] * (1 + tolerance))


def softmax_smoothness(data: object, *, bias: bool = True) -> float:
    """L of multinomial logistic regression on `data`, valid at every model.

    The Hessian of the cross entropy in the logits is diag(p) - p p', at most 1/2. In the weights
    it is at most half the largest eigenvalue of the mean of x x', where x includes a one for the
    bias.
    """
    dataset = Dataset.of(data)
    X = dataset.train_inputs.flatten(1).cpu().double()
    if bias:
        X = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], 1)

    def product(v: Tensor) -> Tensor:
        return (X @ v) @ X / len(X)

    highest = extreme_eigenvalues(product, X.shape[1], tolerance=1e-9, max_products=1000).highest
    return 0.5 * (highest.value + highest.residual)
