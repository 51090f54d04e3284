"""How a measurement behaves: repeatable, without side effects, with clear refusals."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prlc.data import Dataset, load_digits
from prlc.errors import ConfigError, DataError, PrlcError
from prlc.models import build
from prlc.theory.measure import measure_constants
from prlc.theory.measure.objective import Objective


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits().take(120, seed=0)


def small(name: str, data: Dataset, seed: int = 0, **options: object) -> nn.Module:
    return build(name, data.sample_shape, data.num_classes, seed, **options)


def mlp(data: Dataset) -> nn.Module:
    return small("mlp", data, hidden=(8,))


FAST: dict[str, Any] = {"batch_size": 8, "steps": 20, "samples": 60}


def test_the_same_seed_repeats_and_another_does_not(digits: Dataset) -> None:
    first, second, other = (
        measure_constants(mlp(digits), F.cross_entropy, digits, seed=seed, **FAST)
        for seed in (3, 3, 4)
    )
    assert first == second
    assert first.smoothness.value != other.smoothness.value
    assert first.gradient_bound.value != other.gradient_bound.value


def test_nothing_of_the_users_changes(digits: Dataset) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(),
                          nn.Linear(8, 10))  # fmt: skip
    model[3].eval()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    with torch.no_grad():
        found = measure_constants(model, F.cross_entropy, digits, **FAST)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert not model[3].training
    assert "eval() mode" in found.notes[0]


def test_eval_mode_is_what_is_measured(digits: Dataset) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    dropped = nn.Sequential(nn.Flatten(), nn.Dropout(), plain[1])
    a = measure_constants(plain, F.cross_entropy, digits, **FAST)
    b = measure_constants(dropped, F.cross_entropy, digits, **FAST)
    assert a.smoothness == b.smoothness
    assert a.variance == b.variance
    assert (len(a.notes), len(b.notes)) == (0, 1)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_chunks_make_no_difference(digits: Dataset, chunk: int) -> None:
    data = digits.to("cpu", torch.float64)
    objective = Objective(mlp(digits).double(), F.cross_entropy, data)
    indices = torch.arange(data.num_train)
    w, v = objective.start, torch.linspace(-1, 1, objective.size, dtype=torch.float64)
    parts = torch.split(indices, chunk)
    whole = objective.hessian(w, [indices])(v)
    assert torch.allclose(objective.hessian(w, parts)(v), whole, rtol=1e-10, atol=1e-12)
    loss, gradient = objective.gradient(w, parts)
    whole_loss, whole_gradient = objective.gradient(w, [indices])
    assert loss == pytest.approx(whole_loss, rel=1e-12)
    assert torch.allclose(gradient, whole_gradient, rtol=1e-10, atol=1e-13)


def test_products_are_derivatives_of_the_gradient(digits: Dataset) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10)).double()
    objective = Objective(model, F.cross_entropy, digits.to("cpu", torch.float64))
    parts = [torch.arange(digits.num_train)]
    w, v = objective.start, torch.linspace(-1, 1, objective.size, dtype=torch.float64)
    ahead, behind = (objective.gradient(w + h * v, parts)[1] for h in (1e-5, -1e-5))
    Hv = objective.hessian(w, parts)(v)
    assert torch.allclose(Hv, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-7)
    assert torch.allclose(v @ Hv, objective.curvatures(w, v, parts))


class Branching(nn.Module):
    """Cannot run under vmap: it looks at the data."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        if not bool(x.isfinite().all()):
            raise ValueError("not finite")
        out: Tensor = self.layer(x)
        return out


def test_modules_that_cannot_be_vectorised_go_one_by_one(digits: Dataset) -> None:
    layer = mlp(digits)
    fast = measure_constants(layer, F.cross_entropy, digits, **FAST)
    slow = measure_constants(Branching(layer), F.cross_entropy, digits, **FAST)
    assert slow.variance.value == pytest.approx(fast.variance.value, rel=1e-5)
    assert slow.smoothness == fast.smoothness


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1).view(-1, 8, 8)
        mixed: Tensor = self.attention(rows, rows, rows, need_weights=False)[0]
        out: Tensor = self.out(mixed.mean(1))
        return out


def test_attention_has_a_curvature(digits: Dataset) -> None:
    found = measure_constants(Attention(), F.cross_entropy, digits, **FAST)
    assert found.smoothness.value > 0
    assert found.variance.value > 0


@pytest.mark.parametrize("name", ["logistic", "cnn"])
def test_models_that_ship(digits: Dataset, name: str) -> None:
    settings = FAST | {"samples": 120}
    found = measure_constants(small(name, digits), F.cross_entropy, digits, **settings)
    for estimate in (found.smoothness, found.variance, found.gradient_bound, found.initial_gap):
        assert 0 < estimate.low <= estimate.value <= estimate.high
    assert found.points[-1].loss < found.points[0].loss


def test_frozen_parameters_do_not_count(digits: Dataset) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    head = Dataset.from_tensors(model[:3](digits.train_inputs).detach(), digits.train_targets)
    a = measure_constants(model, F.cross_entropy, digits, **FAST)
    b = measure_constants(model[3], F.cross_entropy, head, **FAST)
    assert a.smoothness.value == pytest.approx(b.smoothness.value, rel=1e-4)
    assert a.variance.value == pytest.approx(b.variance.value, rel=1e-4)


def test_table_cost_and_progress(digits: Dataset) -> None:
    seen: list[tuple[str, int, int]] = []
    found = measure_constants(
        mlp(digits), F.cross_entropy, digits, strong_convexity=True, points=3,
        progress=lambda *call: seen.append(call), **FAST,
    )  # fmt: skip
    rows = found.table()
    assert [row[0].split()[-1] for row in rows] == ["L", "8", "G", "norms", "Delta", "mu"]
    assert all(all(row) for row in rows)
    products = sum(point.products for point in found.points)
    assert found.cost.gradients > 2 * 60 * products + 3 * 60 + 20 * 8
    assert found.cost.seconds > 0
    assert {what for what, _, _ in seen} == {
        "short SGD run", "curvature at the start", "curvature at step 10", "curvature at step 20",
        "noise at the start", "noise at step 10", "noise at step 20",
    }  # fmt: skip
    assert all(0 <= done <= total for _, done, total in seen)


def test_too_few_products_are_said(digits: Dataset) -> None:
    found = measure_constants(mlp(digits), F.cross_entropy, digits, max_products=2, **FAST)
    assert "not converged after 2 products" in found.notes[0]
    longer = measure_constants(mlp(digits), F.cross_entropy, digits, **FAST)
    assert found.points[0].curvature < longer.points[0].curvature
    assert found.points[0].residual > longer.points[0].residual


class Curve(nn.Module):
    """exp(5 w) - w + 2, at a point far flatter than what follows."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.exp(5 * self.w) - self.w + 2)


def output_itself(outputs: Tensor, targets: Tensor) -> Tensor:
    del targets
    return outputs.mean()


def test_a_run_that_diverges_is_repeated_with_smaller_steps() -> None:
    x = torch.ones(10, dtype=torch.float64)
    found = measure_constants(Curve(-1.0), output_itself, (x, x), batch_size=2, steps=20)
    assert len(found.points) == 2
    assert found.points[1].loss < found.points[0].loss
    assert found.smoothness.how.count("step 20") == 1


def test_a_run_that_never_goes_down_leaves_the_start() -> None:
    x = torch.ones(10, dtype=torch.float64)
    found = measure_constants(Curve(-4.0), output_itself, (x, x), batch_size=2, steps=20)
    assert [point.step for point in found.points] == [0]
    assert found.initial_gap.value == 0
    assert any("No step size" in note for note in found.notes)
    assert found.constants().initial_gap == 0


def test_a_loss_linear_in_the_parameters_has_no_curvature() -> None:
    x = torch.ones(10, 3)
    found = measure_constants(
        nn.Linear(3, 1), output_itself, (x, x), batch_size=2, steps=1, lower_bound=None
    )
    assert found.smoothness.value == 0
    with pytest.raises(ConfigError, match="smoothness should be above 0"):
        found.constants()


def test_one_sample_is_enough() -> None:
    x = torch.ones(1, 3)
    found = measure_constants(nn.Linear(3, 1), F.mse_loss, (x, x[:, :1]), batch_size=1, steps=1)
    assert found.variance.value == 0
    assert found.smoothness.value == pytest.approx(8, rel=1e-5)


X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2


def detached(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.detach(), targets)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, torch.tensor([1.0, 9.0]))


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


def separate(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def rooted(outputs: Tensor, targets: Tensor) -> Tensor:
    del targets
    return (outputs * 0).sum(1).sqrt().mean()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"batch_size": 21}, ConfigError, "between 1 and the 20 training samples.*21"),
        ({"batch_size": 0}, ConfigError, "batch_size"),
        ({"samples": 3}, ConfigError, "samples should be at least 2 .* 4, but is 3"),
        ({"points": 0}, ConfigError, "points should be at least 1"),
        ({"points": 5, "steps": 3}, ConfigError, "steps should be at least 4"),
        ({"max_products": 0}, ConfigError, "max_products"),
        ({"chunk_size": 0}, ConfigError, "chunk_size"),
        ({"tolerance": 0.0}, ConfigError, "tolerance"),
        ({"lower_bound": 5.0}, ConfigError, "lower_bound=5, but it is"),
        ({"data": (X[:0], Y[:0])}, DataError, "at least one training sample"),
        ({"data": X}, ConfigError, "Data must be"),
        ({"data": (X / 0, Y)}, DataError, "finite loss"),
        ({"loss": rooted}, DataError, "finite gradient"),
        ({"loss": detached}, ConfigError, "detaches"),
        ({"loss": weighted}, ConfigError, "class weights"),
        ({"loss": summed}, ConfigError, "reduction='mean'"),
        ({"loss": separate}, ConfigError, "must be one number"),
        ({"model": nn.Flatten()}, ConfigError, "at least one parameter"),
    ],
)
def test_refusals(change: dict[str, Any], kind: type[PrlcError], message: str) -> None:
    settings: dict[str, Any] = {"model": nn.Linear(3, 2), "loss": F.cross_entropy, "data": (X, Y),
                                "batch_size": 4, "steps": 10}  # fmt: skip
    with pytest.raises(kind, match=message):
        measure_constants(**(settings | change))


def test_a_subset_of_a_network_encloses_the_whole(digits: Dataset) -> None:
    model = mlp(digits)
    settings: dict[str, Any] = {"batch_size": 8, "points": 1, "steps": 0}
    whole = measure_constants(model, F.cross_entropy, digits, samples=120, **settings)
    hits = 0
    for seed in range(10):
        part = measure_constants(model, F.cross_entropy, digits, samples=40, seed=seed, **settings)
        hits += part.smoothness.low <= whole.smoothness.value <= part.smoothness.high
    assert hits >= 9
    assert math.isfinite(whole.gradient_bound.high)
