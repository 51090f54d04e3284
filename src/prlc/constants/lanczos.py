"""Both ends of the spectrum of a symmetric operator, from products with vectors alone.

Lanczos with full orthogonalisation. The basis is kept small enough for memory: when it is full,
it is cut down to the best approximations of either end and grown again (a thick restart).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prlc.errors import ConfigError

__all__ = ["End", "Spectrum", "extreme_eigenvalues"]

_BASIS_BYTES = 2**30
_SMALLEST_BASIS = 6


# Neither compared nor hashed by value: tensors have no single truth value.
@dataclass(frozen=True, eq=False)
class End:
    """An approximate eigenvalue: some true one lies within `residual` of `value`."""

    value: float
    residual: float
    vector: Tensor


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
    """The ends of the spectrum of `product`, a symmetric map of vectors of length `size`.

    Stops when the residual of the end of largest absolute value is at most `tolerance` of it and
    the other end cannot be larger; with `both`, when the residual of either end is at most
    `tolerance` of that end or `rounding` of the larger one (the precision of `product`). Vectors
    are double, on the CPU. The random first vector has a part in every eigenvector with
    probability one; a residual cannot tell if it had not.
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
        # The basis spans all that the first vector can reach: nothing is left but rounding.
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
    """`w` without its parts along the rows of V, and those parts. Twice is enough for rounding."""
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
