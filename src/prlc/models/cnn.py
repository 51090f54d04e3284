"""A small convolutional network."""

from __future__ import annotations

from torch import nn

from prlc.models.shapes import image_shape

__all__ = ["cnn"]


def cnn(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two 3x3 convolutions, each halved by max-pooling, then a linear layer."""
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
