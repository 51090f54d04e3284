"""The estimators against problems whose constants are known exactly."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F

from prlc.data import Dataset, load_digits
from prlc.models import logistic_regression
from prlc.theory.measure import Estimate, MeasuredConstants, measure_constants, softmax_smoothness


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def least_squares(eigenvalues: list[float], n: int, seed: int = 0) -> tuple[nn.Module, Dataset]:
    """A linear model at zero and data for which the Hessian of the MSE has these eigenvalues."""
    d = len(eigenvalues)
    Q = torch.linalg.qr(torch.randn(n, d, generator=generator(seed)).double()).Q
    R = torch.linalg.qr(torch.randn(d, d, generator=generator(seed + 1)).double()).Q
    X = math.sqrt(n / 2) * Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64).sqrt()) @ R
    noise = torch.randn(n, 1, generator=generator(seed + 2)).double()
    return zero_linear(d), Dataset.from_tensors(X, X.sum(1, keepdim=True) + 0.3 * noise)


def gaussian(d: int, n: int) -> tuple[nn.Module, Dataset]:
    X = torch.randn(n, d, generator=generator(5)).double() * torch.linspace(0.5, 2, d).double()
    y = X.sum(1, keepdim=True) + torch.randn(n, 1, generator=generator(6)).double()
    return zero_linear(d), Dataset.from_tensors(X, y)


def zero_linear(d: int) -> nn.Module:
    layer = nn.Linear(d, 1, bias=False).double()
    nn.init.zeros_(layer.weight)
    return layer


def single_gradients(data: Dataset) -> Tensor:
    """Of the squared error at the zero model."""
    return -2 * data.train_targets * data.train_inputs


def exact_variance(g: Tensor, b: int) -> float:
    """Of the mean of b of the rows, drawn without repeats."""
    return float(g.var(0).sum()) / b * (1 - b / len(g))


def covers(estimate: Estimate, true: float) -> bool:
    return estimate.low * (1 - 1e-9) <= true <= estimate.high * (1 + 1e-9)


def test_least_squares_curvature_is_exact() -> None:
    model, data = least_squares([0.02, 0.3, 0.7, 1.0, 2.5, 6.0, 6.1, 9.0], n=100)
    found = measure_constants(
        model, F.mse_loss, data, batch_size=10, strong_convexity=True, tolerance=1e-7, points=3
    )
    assert found.smoothness.value == pytest.approx(9, rel=1e-6)
    assert found.strong_convexity is not None
    assert found.strong_convexity.value == pytest.approx(0.02, rel=1e-6)
    assert covers(found.smoothness, 9)
    assert covers(found.strong_convexity, 0.02)
    assert [point.step for point in found.points] == [0, 100, 200]
    constants = found.constants()
    assert constants.smoothness == found.smoothness.value
    assert constants.mu == found.strong_convexity.value


def test_least_squares_gap_lies_between_its_ends() -> None:
    model, data = least_squares([0.5, 1.0, 2.0, 3.0], n=200)
    X, y = data.train_inputs, data.train_targets
    w = torch.linalg.lstsq(X, y).solution
    true = float(y.square().mean() - (X @ w - y).square().mean())
    found = measure_constants(model, F.mse_loss, data, batch_size=20, strong_convexity=True)
    assert covers(found.initial_gap, true)
    assert found.initial_gap.high - found.initial_gap.low < 0.1 * true
    assert "from mu" in found.initial_gap.how
    alone = measure_constants(model, F.mse_loss, data, batch_size=20)
    assert alone.initial_gap.high == pytest.approx(float(y.square().mean()))
    unbounded = measure_constants(model, F.mse_loss, data, batch_size=20, lower_bound=None)
    assert unbounded.initial_gap.high == math.inf
    assert unbounded.initial_gap.value == alone.initial_gap.value


def test_variance_and_curvature_of_a_subset_are_within_their_intervals() -> None:
    model, data = gaussian(d=8, n=3000)
    variance = exact_variance(single_gradients(data), 16)
    eigenvalues = torch.linalg.eigvalsh(2 * data.train_inputs.T @ data.train_inputs / 3000)
    hits = {"variance": 0, "L": 0, "mu": 0}
    for seed in range(10):
        found = measure_constants(
            model, F.mse_loss, data, batch_size=16, seed=seed, samples=400, points=1, steps=0,
            strong_convexity=True,
        )  # fmt: skip
        assert found.strong_convexity is not None
        hits["variance"] += covers(found.variance, variance)
        hits["L"] += covers(found.smoothness, float(eigenvalues[-1]))
        hits["mu"] += covers(found.strong_convexity, float(eigenvalues[0]))
        assert found.variance.high < 2 * found.variance.low
        assert found.smoothness.high < 2 * found.smoothness.low
        assert "400 of 3000" in found.smoothness.how
    assert min(hits.values()) >= 9, hits


def test_gradient_bound_of_all_data_encloses_every_batch() -> None:
    model, data = gaussian(d=5, n=30)
    g = single_gradients(data)
    true = max(float((g[i] + g[j]).norm()) / 2 for i, j in itertools.combinations(range(30), 2))
    for seed in range(10):
        found = measure_constants(
            model, F.mse_loss, data, batch_size=2, seed=seed, points=1, steps=0
        )
        assert covers(found.gradient_bound, true)
        assert found.gradient_bound.high < 2 * true
        assert found.gradient_quantile.value <= found.gradient_bound.value


def test_gradient_bound_of_a_subset_is_only_a_lower_estimate() -> None:
    model, data = gaussian(d=5, n=300)
    found = measure_constants(model, F.mse_loss, data, batch_size=4, samples=100)
    assert found.gradient_bound.high == math.inf
    assert "lower estimate" in found.gradient_bound.how


@pytest.mark.parametrize("batch_size", [1, 4, 50, 100])
def test_variance_scales_with_the_batch(batch_size: int) -> None:
    model, data = gaussian(d=5, n=100)
    found = measure_constants(model, F.mse_loss, data, batch_size=batch_size, points=1, steps=0)
    true = exact_variance(single_gradients(data), batch_size)
    assert found.variance.value == pytest.approx(true, rel=1e-9, abs=1e-12)
    assert found.variance.low == found.variance.high == found.variance.value
    assert len(found.notes) == 0


def test_variance_is_that_of_drawn_batches() -> None:
    model, data = gaussian(d=5, n=100)
    g = single_gradients(data)
    random = np.random.default_rng(0)
    batches = torch.stack([g[random.choice(100, 8, replace=False)].mean(0) for _ in range(20000)])
    found = measure_constants(model, F.mse_loss, data, batch_size=8, points=1, steps=0)
    assert found.variance.value == pytest.approx(float(batches.var(0).sum()), rel=0.05)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits().take(250, seed=0).to("cpu", torch.float64)


def dense_hessian(model: nn.Module, data: Dataset) -> Tensor:
    named = {name: p.detach() for name, p in model.named_parameters()}

    def loss(flat: Tensor) -> Tensor:
        pieces = flat.split([p.numel() for p in named.values()])  # type: ignore[no-untyped-call]
        parameters = {n: t.view(p.shape) for (n, p), t in zip(named.items(), pieces, strict=True)}
        return F.cross_entropy(
            functional_call(model, parameters, (data.train_inputs,)), data.train_targets
        )

    H: Tensor = jacrev(jacrev(loss))(torch.cat([p.flatten() for p in named.values()]))
    return H


def test_logistic_regression_against_the_dense_hessian(digits: Dataset) -> None:
    model = logistic_regression(digits.sample_shape, 10).double()
    nn.init.normal_(next(model.parameters()), std=0.1, generator=generator(3))
    found = measure_constants(
        model, F.cross_entropy, digits, batch_size=25, points=1, steps=20, tolerance=1e-6
    )
    true = float(torch.linalg.eigvalsh(dense_hessian(model, digits))[-1])
    assert found.smoothness.value == pytest.approx(true, rel=1e-9)
    assert covers(found.smoothness, true)

    x, y = digits.train_inputs, digits.train_targets
    rows = []
    for i in range(len(x)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        found_i = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in found_i]))
    g = torch.stack(rows)
    assert found.variance.value == pytest.approx(exact_variance(g, 25), rel=1e-9)
    assert found.points[0].gradient_norm == pytest.approx(float(g.mean(0).norm()))


def test_softmax_smoothness_holds_everywhere_and_is_reached(digits: Dataset) -> None:
    bound = softmax_smoothness(digits)
    model = logistic_regression(digits.sample_shape, 10).double()
    for scale in (0.0, 0.1, 1.0):
        nn.init.normal_(next(model.parameters()), std=scale, generator=generator(3))
        top = float(torch.linalg.eigvalsh(dense_hessian(model, digits))[-1])
        assert top <= bound
    two = replaced_labels(digits)
    model = logistic_regression(digits.sample_shape, 2).double()
    top = float(torch.linalg.eigvalsh(dense_hessian(model, two))[-1])
    assert softmax_smoothness(two) == pytest.approx(top, rel=1e-8)
    assert softmax_smoothness(digits, bias=False) < bound


def replaced_labels(data: Dataset) -> Dataset:
    return Dataset.from_tensors(data.train_inputs, data.train_targets % 2)


class Saddle(nn.Module):
    """x (w_0^2 - 3 w_1^2)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.4, 0.1], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.w[0] ** 2 - 3 * self.w[1] ** 2)


def output_itself(outputs: Tensor, targets: Tensor) -> Tensor:
    del targets
    return outputs.mean()


def saddle(**settings: object) -> MeasuredConstants:
    x = torch.linspace(0.5, 1.5, 11).double()
    return measure_constants(
        Saddle(), output_itself, (x, x), batch_size=2, steps=4, lower_bound=None, points=1,
        **settings,  # type: ignore[arg-type]
    )  # fmt: skip


def test_negative_curvature_keeps_its_sign() -> None:
    found = saddle(strong_convexity=True)
    assert found.smoothness.value == pytest.approx(6)
    assert "(negative)" in found.smoothness.how
    assert found.points[0].curvature == pytest.approx(-6)
    assert found.strong_convexity is not None
    assert found.strong_convexity.value == pytest.approx(-6)
    assert found.constants().strong_convexity is None
