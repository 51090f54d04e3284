"""What turns gradients into updates on a worker, and mean updates into a step on the server.

Plain SGD needs nothing: its update is -lr times the gradient. For everything else a factory makes
a torch optimizer from parameters, for example `functools.partial(torch.optim.SGD, momentum=0.9)`;
the learning rate is set by the schedule at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from prlc.errors import ConfigError

OptimizerFactory = Callable[[Iterable[Tensor]], Optimizer]

#: Worker optimizers by name; None is plain SGD.
WORKER_OPTIMIZERS: dict[str, OptimizerFactory | None] = {
    "sgd": None,
    "momentum": partial(torch.optim.SGD, lr=1.0, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=1.0, momentum=0.9, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=1.0),
}

#: Server optimizers by name; None adds the mean update as it is.
SERVER_OPTIMIZERS: dict[str, OptimizerFactory | None] = {
    "add": None,
    # DiLoCo's outer optimizer: minus the mean update is its gradient.
    "nesterov": partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True),
}

# Their updates of one element depend on no other element, so one instance over the stacked
# parameters of many workers is the same as an instance per worker.
_ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)


def make(factory: OptimizerFactory, parameters: Iterable[Tensor]) -> Optimizer:
    """The optimizer that `factory` makes, if it is one that can be used here."""
    optimizer = factory(parameters)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            "An optimizer must be a function from parameters to a torch optimizer, but it gave "
            f"{optimizer!r}."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "LBFGS evaluates the loss several times in a step, which workers cannot do here. "
            "Take an optimizer that needs one gradient a step, such as SGD or AdamW."
        )
    return optimizer


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether the optimizer treats every element of a parameter alone."""
    return type(optimizer) in _ELEMENTWISE


def needs_whole_tensors(optimizer: Optimizer) -> bool:
    """Whether it is one of torch's that do not; of others it cannot be known."""
    return type(optimizer).__module__.startswith("torch.") and not is_elementwise(optimizer)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Use `lr` from now on."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def choose(
    name: str | OptimizerFactory | None, known: dict[str, OptimizerFactory | None], role: str
) -> OptimizerFactory | None:
    """The factory behind a name of `known`; a factory or None passes through."""
    if name is None or callable(name):
        return name
    if name not in known:
        raise ConfigError(f"There is no {role} optimizer {name!r}. Choose: {', '.join(known)}.")
    return known[name]
