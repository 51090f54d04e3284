"""Lanczos against dense eigenvalue solvers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prlc.errors import ConfigError
from prlc.theory.measure import Spectrum, extreme_eigenvalues


def symmetric(size: int, seed: int = 0) -> Tensor:
    A = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()
    return (A + A.T) / 2


def ends(A: Tensor, **settings: object) -> Spectrum:
    return extreme_eigenvalues(lambda v: A @ v, len(A), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
def test_small_operators_are_solved_exactly(size: int) -> None:
    A = symmetric(size)
    true = torch.linalg.eigvalsh(A)
    found = ends(A, tolerance=1e-12, both=True)
    assert found.converged
    assert found.products <= size
    assert found.lowest.value == pytest.approx(float(true[0]), rel=1e-10)
    assert found.highest.value == pytest.approx(float(true[-1]), rel=1e-10)


@pytest.mark.parametrize("basis_size", [6, 9, 20])
def test_a_small_basis_restarts_and_still_converges(basis_size: int) -> None:
    A = symmetric(300)
    true = torch.linalg.eigvalsh(A)
    found = ends(A, tolerance=1e-7, max_products=2000, both=True, basis_size=basis_size)
    assert found.converged
    assert found.products > basis_size
    assert found.lowest.value == pytest.approx(float(true[0]), rel=1e-9)
    assert found.highest.value == pytest.approx(float(true[-1]), rel=1e-9)


@pytest.mark.parametrize("products", [3, 10, 25])
@pytest.mark.parametrize("seed", range(5))
def test_the_residual_bounds_the_error_at_any_time(products: int, seed: int) -> None:
    A = symmetric(200, seed)
    true = torch.linalg.eigvalsh(A)
    found = ends(A, seed=seed, tolerance=1e-12, max_products=products, basis_size=8)
    assert not found.converged
    assert found.products == products
    for end in (found.lowest, found.highest):
        residual = float((A @ end.vector - end.value * end.vector).norm())
        assert residual == pytest.approx(end.residual, rel=1e-6)
        assert float((true - end.value).abs().min()) <= end.residual
    assert found.highest.value <= float(true[-1]) + 1e-12
    assert found.lowest.value >= float(true[0]) - 1e-12


def test_the_largest_may_be_negative() -> None:
    found = ends(torch.diag(torch.tensor([1.0, 2.0, -5.0, 0.5]).double()))
    assert found.largest.value == pytest.approx(-5)


def test_one_eigenvalue_alone_ends_at_once() -> None:
    assert ends(3 * torch.eye(50).double()).products == 1
    nothing = ends(torch.zeros(50, 50).double(), both=True)
    assert (nothing.largest.value, nothing.largest.residual, nothing.products) == (0, 0, 1)


def test_the_same_seed_gives_the_same_numbers() -> None:
    A = symmetric(60)
    first, second, other = (ends(A, seed=seed, max_products=8) for seed in (1, 1, 2))
    assert first.highest.value == second.highest.value
    assert first.highest.value != other.highest.value


def test_bad_sizes() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        extreme_eigenvalues(lambda v: v, 0)
    with pytest.raises(ConfigError, match="at least 1"):
        extreme_eigenvalues(lambda v: v, 2, max_products=0)
