"""Small modules, each with something that an engine could get wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def with_batch_norm() -> nn.Module:
    """Floating-point buffers that travel, and an integer one that does not."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10)
    ).double()


def with_cumulative_batch_norm() -> nn.Module:
    """`momentum=None` reads the number of batches in Python, which vmap cannot follow."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, 10)
    ).double()


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).double()


class Linear(nn.Module):
    """What the others add to: a linear layer on flattened samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 10)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.flatten(1))
        return outputs


class Scaled(Linear):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.scale


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.second(self.first(inputs.flatten(1)).tanh()).tanh())
        return outputs


class PartlyFrozen(nn.Module):
    """The first layer keeps the weights it came with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 10)
        self.body.requires_grad_(False)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(inputs.flatten(1)).tanh())
        return outputs


class PartlyUnused(Linear):
    """A layer that the forward pass never touches."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3).double()


class MovingMean(Linear):
    """A buffer that is assigned anew instead of written in place."""

    mean: Tensor

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        zeros = torch.zeros(64, dtype=torch.float64)
        self.register_buffer("mean", zeros, persistent=persistent)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.flatten(1)
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        return super().forward(inputs - self.mean)


class MovingMeanInPlace(MovingMean):
    """The same, written in place."""

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.flatten(1)
        self.mean.mul_(0.9).add_(0.1 * inputs.mean(0))
        return Linear.forward(self, inputs - self.mean)


class Branching(Linear):
    """Python decides by the data: can be neither traced nor vectorised."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        return outputs * 2 if float(outputs.detach().sum()) > 0 else outputs


class Masking(Linear):
    """The shape of an intermediate depends on the data: a trace fits one batch alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        return outputs + outputs[outputs > 0].sum()


class Remembering(Linear):
    """A side effect that the result does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.shapes.append(tuple(inputs.shape))
        return super().forward(inputs)


class Segmenter(nn.Module):
    """Predicts a class for each of several places, with buffers on the way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)).double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


class RootOfDistance(nn.Module):
    """At an input of zeros the loss is finite, but its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs * self.scale).square().sum(1).sqrt()
