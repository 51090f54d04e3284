"""Built-in models; the same seed gives the same weights.

Each is a function of the sample shape and the number of classes. The modules have no
data-dependent branches and no in-place activations, so an engine can run the copies of many
workers at once with torch.func.functional_call under torch.func.vmap.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from prlc.draws import Purpose, torch_seed
from prlc.errors import ConfigError
from prlc.models.resnet import resnet8, resnet18
from prlc.models.small import cnn, logistic_regression, mlp
from prlc.models.transformer import cross_entropy, transformer

__all__ = [
    "MODELS",
    "build",
    "cnn",
    "cross_entropy",
    "logistic_regression",
    "mlp",
    "resnet8",
    "resnet18",
    "transformer",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic_regression,
    "mlp": mlp,
    "cnn": cnn,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "transformer": transformer,
}


def build(
    name: str,
    sample_shape: tuple[int, ...],
    num_classes: int | None,
    seed: int,
    **options: object,
) -> nn.Module:
    """The model called `name`, on the CPU, with initial weights drawn from `seed` alone.

    `options` go to the model's function: `hidden` for mlp, `norm` for the ResNets, `layers`,
    `width`, `heads` and `tied` for the transformer. Torch's own generators are left unchanged.
    """
    if name not in MODELS:
        raise ConfigError(f"The model must be one of {', '.join(MODELS)}; got {name!r}.")
    if num_classes is None or num_classes < 1:
        raise ConfigError(
            f"The model {name} is a classifier and needs at least one class; got "
            f"num_classes={num_classes}. For real-valued targets pass a module of your own."
        )
    known = list(inspect.signature(MODELS[name]).parameters)[2:]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ConfigError(
            f"The model {name} takes {'the options ' + ', '.join(known) if known else 'no options'}"
            f"; got {', '.join(unknown)}."
        )
    # On the CPU, so that a default device neither changes the weights nor is reseeded.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(torch_seed(seed, Purpose.MODEL))
        return MODELS[name](sample_shape, num_classes, **options)
