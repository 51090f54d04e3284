"""Built-in models: sizes, seeds, vmap, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn import functional as F

from prlc.errors import ConfigError
from prlc.models import MODELS, build, cross_entropy

DIGITS, FASHION, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)
TEXT = (12,)

SMALL_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("logistic", {}),
    ("mlp", {"hidden": (16, 8)}),
    ("cnn", {}),
    ("resnet8", {"norm": "group"}),
    ("resnet8", {"norm": "batch"}),
]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "options", "expected"),
    [
        ("logistic", DIGITS, {}, 650),
        ("logistic", CIFAR, {}, 30_730),
        ("mlp", DIGITS, {}, 64 * 128 + 128 + 1_290),
        ("mlp", DIGITS, {"hidden": ()}, 650),
        ("cnn", DIGITS, {}, 21_386),
        ("cnn", FASHION, {}, 50_186),
        ("cnn", CIFAR, {}, 60_362),
        ("resnet8", CIFAR, {}, 78_042),
        ("resnet18", CIFAR, {"norm": "group"}, 11_173_962),
        ("resnet18", CIFAR, {"norm": "batch"}, 11_173_962),
    ],
)
def test_parameter_counts(
    name: str, shape: tuple[int, ...], options: dict[str, Any], expected: int
) -> None:
    assert count(build(name, shape, 10, seed=0, **options)) == expected


@pytest.mark.parametrize("shape", [DIGITS, FASHION, CIFAR])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "transformer"])
def test_every_model_takes_every_image(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 7, seed=0)
    logits = model(torch.randn(2, *shape))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


def test_images_matter_on_one_pixel_maps() -> None:
    """The last stage of resnet18 sees digits as 1x1: normalisation must not erase them."""
    logits = build("resnet18", DIGITS, 10, seed=0)(torch.randn(2, *DIGITS))
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)


def test_logistic_regression_starts_at_zero() -> None:
    model = build("logistic", DIGITS, 10, seed=3)
    assert all(torch.count_nonzero(parameter) == 0 for parameter in model.parameters())


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8"])
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, DIGITS, 10, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = build(name, DIGITS, 10, seed=5), build(name, DIGITS, 10, seed=6)
    same = [torch.equal(a, b) for a, b in _pairs(first, again)]
    assert all(same)
    assert not all(torch.equal(a, b) for a, b in _pairs(first, other))


def _pairs(first: nn.Module, second: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return list(zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize(("name", "options"), SMALL_MODELS)
def test_vmap_over_workers_equals_a_loop(name: str, options: dict[str, Any]) -> None:
    """Losses, gradients and batch-norm buffers of stacked copies, in float64 to compare closely."""
    models = [build(name, DIGITS, 10, seed, **options).double() for seed in range(3)]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 5, *DIGITS, generator=generator, dtype=torch.float64)
    targets = torch.randint(10, (3, 5), generator=generator)
    stacked, buffers = stack_module_state(models)
    stacked = {key: value.detach() for key, value in stacked.items()}

    def loss_of(
        parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = functional_call(models[0], (parameters, buffers), (x,))
        return F.cross_entropy(logits, y), buffers

    gradients, (losses, buffers_after) = vmap(grad_and_value(loss_of, has_aux=True))(
        stacked, {key: value.clone() for key, value in buffers.items()}, inputs, targets
    )
    for worker, model in enumerate(models):
        loss = F.cross_entropy(model(inputs[worker]), targets[worker])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(losses[worker], loss.detach())
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[key][worker], parameter.grad)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(buffers_after[key][worker], buffer)


def test_norms_have_buffers_only_where_they_should() -> None:
    assert not list(build("resnet8", CIFAR, 10, seed=0, norm="group").buffers())
    assert list(build("resnet8", CIFAR, 10, seed=0, norm="batch").buffers())


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8"])
def test_models_learn(name: str) -> None:
    model = build(name, DIGITS, 4, seed=0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, *DIGITS, generator=generator)
    targets = torch.arange(16) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < 0.1


def text(num_classes: int, *shape: int) -> Tensor:
    return torch.randint(num_classes, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (65 + 64) * 64 + 2 * (12 * 64**2 + 2 * 64) + 64),
        ({"tied": False}, (65 + 64) * 64 + 2 * (12 * 64**2 + 2 * 64) + 64 + 65 * 64),
        ({"layers": 4, "width": 128}, (65 + 64) * 128 + 4 * (12 * 128**2 + 2 * 128) + 128),
    ],
)
def test_parameters_of_a_transformer(options: dict[str, Any], expected: int) -> None:
    model = build("transformer", (64,), 65, seed=0, **options)
    assert count(model) == expected
    logits = model(text(65, 2, 64))
    assert logits.shape == (2, 64, 65)
    # Before training all characters are about as likely.
    assert cross_entropy(logits, text(65, 2, 64).flip(1)).item() == pytest.approx(4.17, abs=0.1)


def test_a_transformer_does_not_see_the_future() -> None:
    model = build("transformer", TEXT, 5, seed=0).double()
    before = text(5, 1, 12)
    after = before.clone()
    after[0, 7] = (after[0, 7] + 1) % 5
    same = (model(before) == model(after)).all(-1)[0]
    assert same.tolist() == [True] * 7 + [False] * 5


def test_a_transformer_takes_shorter_texts() -> None:
    model = build("transformer", TEXT, 5, seed=0).double()
    whole = text(5, 1, 12)
    torch.testing.assert_close(model(whole[:, :4]), model(whole)[:, :4])


def test_a_transformer_learns_to_look_back() -> None:
    """The next character is the one three places ago, which only attention can know."""
    model = build("transformer", TEXT, 5, seed=0, layers=1, width=32)
    sample = text(5, 64, 3).repeat(1, 5)[:, :13]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        loss = cross_entropy(model(sample[:, :-1]), sample[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    logits = model(sample[:, :-1])[:, 2:]
    assert cross_entropy(logits, sample[:, 3:]).item() < 0.1


def test_cross_entropy_takes_one_target_or_many() -> None:
    logits, targets = torch.randn(4, 3, 5), text(5, 4, 3)
    torch.testing.assert_close(
        cross_entropy(logits, targets), F.cross_entropy(logits.movedim(-1, 1), targets)
    )
    assert torch.equal(
        cross_entropy(logits[:, 0], targets[:, 0]), F.cross_entropy(logits[:, 0], targets[:, 0])
    )


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "options", "message"),
    [
        ("vgg", CIFAR, 10, {}, "resnet18, transformer; got 'vgg'"),
        ("mlp", CIFAR, None, {}, "num_classes=None"),
        ("mlp", CIFAR, 10, {"width": 3}, "takes the options hidden; got width"),
        ("cnn", CIFAR, 10, {"norm": "group"}, "takes no options; got norm"),
        ("mlp", CIFAR, 10, {"hidden": (8, 0)}, r"at least 1 unit wide; got \(8, 0\)"),
        ("resnet8", CIFAR, 10, {"norm": "layer"}, "'group' or 'batch'; got 'layer'"),
        ("cnn", (64,), 10, {}, r"got samples of shape \(64,\)"),
        ("cnn", (1, 3, 8), 10, {}, "at least 4 pixels"),
        ("resnet18", (32, 32), 10, {}, r"got samples of shape \(32, 32\)"),
        ("transformer", DIGITS, 10, {}, r"got samples of shape \(1, 8, 8\)"),
        ("transformer", TEXT, 10, {"heads": 3}, "heads=3, width=64"),
        ("transformer", TEXT, 10, {"layers": 0}, "layers=0"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str,
    shape: tuple[int, ...],
    num_classes: int | None,
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, shape, num_classes, 0, **options)
