"""Small models: logistic regression, a multi-layer perceptron, a convolutional network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import nn

from prlc.errors import ConfigError

__all__ = ["cnn", "image_shape", "logistic_regression", "mlp"]


def logistic_regression(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression: a convex problem under the cross-entropy loss.

    Weights start at zero, whatever the seed: on a convex problem the start decides nothing.
    """
    layer = nn.Linear(math.prod(sample_shape), num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(
    sample_shape: tuple[int, ...], num_classes: int, hidden: Sequence[int] = (128,)
) -> nn.Module:
    """A multi-layer perceptron: one ReLU layer per width in `hidden`, then a linear layer."""
    if any(width < 1 for width in hidden):
        raise ConfigError(f"Hidden layers must be at least 1 unit wide; got {tuple(hidden)}.")
    widths = [math.prod(sample_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def cnn(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two 3x3 convolutions, each followed by 2x2 max-pooling, then a linear layer."""
    channels, height, width = image_shape("cnn", sample_shape, smallest=4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), num_classes),
    )


def image_shape(
    model: str, sample_shape: tuple[int, ...], smallest: int = 1
) -> tuple[int, int, int]:
    """`sample_shape` as (channels, height, width); raises if samples are not images."""
    if len(sample_shape) != 3 or min(sample_shape[1:]) < smallest:
        raise ConfigError(
            f"The model {model} needs images of shape (channels, height, width), at least "
            f"{smallest} pixels high and wide; got samples of shape {sample_shape}. Use mlp, "
            "which takes any shape."
        )
    channels, height, width = sample_shape
    return channels, height, width
