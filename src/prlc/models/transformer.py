"""A character transformer (a GPT as nanoGPT has it): the next character, at every place."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prlc.errors import ConfigError

__all__ = ["cross_entropy", "transformer"]


def transformer(
    sample_shape: tuple[int, ...],
    num_classes: int,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    tied: bool = True,
) -> nn.Module:
    """Inputs (N, context) of character numbers become logits (N, context, num_classes).

    107 thousand parameters by default on 65 characters. `layers=4, width=128` is nanoGPT's small
    setting for a CPU: 0.8 million. `tied`: the head shares the weights of the embedding.
    """
    if len(sample_shape) != 1:
        raise ConfigError(
            "The model transformer needs texts of shape (context,); got samples of shape "
            f"{sample_shape}. Use the data shakespeare, or another model."
        )
    if layers < 1 or heads < 1 or width < 1 or width % heads:
        raise ConfigError(
            "A transformer must have at least one layer, and heads that divide its width evenly; "
            f"got layers={layers}, heads={heads}, width={width}."
        )
    return _Transformer(sample_shape[0], num_classes, layers, width, heads, tied)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all targets: one a sample, logits (N, classes), or many, (N, ..., classes)."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class _Transformer(nn.Module):
    def __init__(
        self, context: int, characters: int, layers: int, width: int, heads: int, tied: bool
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(*(_Block(width, heads, layers) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        # A shared weight is used twice rather than registered twice: it travels once.
        self.head = None if tied else _linear(width, characters)
        for table in (self.characters.weight, self.places):
            nn.init.normal_(table, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.places[: text.shape[-1]]
        x = self.norm(self.blocks(x))
        return F.linear(x, self.characters.weight) if self.head is None else self.head(x)


class _Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, bias=False)
        self.attend = _linear(width, 3 * width)
        self.gather = _linear(width, width, layers)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width, bias=False),
            _linear(width, 4 * width),
            nn.GELU(),
            _linear(4 * width, width, layers),
        )

    def forward(self, x: Tensor) -> Tensor:
        # (N, context, width) as (N, heads, context, width / heads)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for part in self.attend(self.norm(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.gather(seen.transpose(-3, -2).flatten(-2))
        out: Tensor = x + self.mlp(x)
        return out


def _linear(fan_in: int, fan_out: int, layers: int | None = None) -> nn.Linear:
    """Without bias. One that ends a residual branch starts smaller, the more layers there are."""
    linear = nn.Linear(fan_in, fan_out, bias=False)
    nn.init.normal_(linear.weight, std=0.02 if layers is None else 0.02 / math.sqrt(2 * layers))
    return linear
