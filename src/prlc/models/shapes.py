"""What the convolutional models ask of a sample."""

from __future__ import annotations

from prlc.errors import ConfigError

__all__ = ["image_shape"]


def image_shape(
    model: str, sample_shape: tuple[int, ...], smallest: int = 1
) -> tuple[int, int, int]:
    """`sample_shape` as (channels, height, width), or an error that says why it is none."""
    if len(sample_shape) != 3 or min(sample_shape[1:]) < smallest:
        raise ConfigError(
            f"The model {model} needs images of shape (channels, height, width), at least "
            f"{smallest} pixels high and wide; got samples of shape {sample_shape}. Use mlp, "
            "which takes any shape."
        )
    channels, height, width = sample_shape
    return channels, height, width
