"""Residual networks for small images (He et al., 2016, in the form used for CIFAR).

The stem is one 3x3 convolution without pooling, so a 32x32 image keeps its detail. GroupNorm is
the default because it has no running statistics: averaged over workers with different data, these
would fit none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from prlc.errors import ConfigError
from prlc.models.small import image_shape

__all__ = ["resnet8", "resnet18"]


def resnet18(sample_shape: tuple[int, ...], num_classes: int, norm: str = "group") -> nn.Module:
    """Four stages of two blocks, 64 to 512 channels: 11.2 million parameters, 44.7 MB."""
    in_channels = image_shape("resnet18", sample_shape)[0]
    return _ResNet(in_channels, num_classes, (64, 128, 256, 512), blocks=2, norm=norm)


def resnet8(sample_shape: tuple[int, ...], num_classes: int, norm: str = "group") -> nn.Module:
    """Three stages of one block, 16 to 64 channels: 78 thousand parameters."""
    in_channels = image_shape("resnet8", sample_shape)[0]
    return _ResNet(in_channels, num_classes, (16, 32, 64), blocks=1, norm=norm)


class _ResNet(nn.Module):
    def __init__(
        self, in_channels: int, num_classes: int, widths: Sequence[int], blocks: int, norm: str
    ) -> None:
        super().__init__()
        channels = widths[0]
        self.stem = nn.Sequential(_conv(in_channels, channels), _norm(norm, channels))
        stages: list[nn.Module] = []
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(_BasicBlock(channels, width, stride, norm))
                channels = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(F.relu(self.stem(images)))
        logits: Tensor = self.head(features.mean(dim=(-2, -1)))
        return logits


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions plus a shortcut, the identity where shapes allow."""

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, stride=stride)
        self.norm1 = _norm(norm, channels)
        self.conv2 = _conv(channels, channels)
        self.norm2 = _norm(norm, channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                _conv(in_channels, channels, size=1, stride=stride), _norm(norm, channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _conv(in_channels: int, channels: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    # No bias: the following normalisation has one.
    conv = nn.Conv2d(in_channels, channels, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        # At most 32 groups, as in the GroupNorm paper, of at least four channels: on a 1x1 map
        # (the last stage on 8x8 images) a single channel would be normalised to zero.
        return nn.GroupNorm(math.gcd(32, channels // 4), channels)
    raise ConfigError(f"The norm of a ResNet must be 'group' or 'batch'; got {kind!r}.")
