"""Models of fully connected layers; they take samples of any shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import nn

from prlc.errors import ConfigError

__all__ = ["logistic_regression", "mlp"]


def logistic_regression(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression: with the cross-entropy loss, a convex problem.

    Convex, so the starting point decides nothing; weights start at zero, whatever the seed.
    """
    layer = nn.Linear(math.prod(sample_shape), num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(
    sample_shape: tuple[int, ...], num_classes: int, hidden: Sequence[int] = (128,)
) -> nn.Module:
    """A multi-layer perceptron: a ReLU layer of each width in `hidden`, then the classes."""
    if any(width < 1 for width in hidden):
        raise ConfigError(f"Hidden layers must be at least 1 unit wide; got {tuple(hidden)}.")
    widths = [math.prod(sample_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
