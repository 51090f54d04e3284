"""Optimizers: gradients become updates on a worker, mean updates become a step on the server.

Plain SGD needs no optimizer: its update is -lr times the gradient. For everything else a factory
makes a torch optimizer from parameters, such as `functools.partial(torch.optim.SGD, momentum=0.9)`.
On workers the learning-rate schedule sets the learning rate before every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from prlc import text
from prlc.errors import ConfigError

OptimizerFactory = Callable[[Iterable[Tensor]], Optimizer]


@dataclass(frozen=True)
class RuleSettings:
    """What the server does with a mean update."""

    optimizer: OptimizerFactory | None = None
    """None: it adds the update. The server's own, or with `takes_gradients` the run's."""
    takes_gradients: bool = False
    """Whether workers push gradients, which are stepped along at the run's learning rate."""


class SignStep(Optimizer):
    """A step of the learning rate along the sign of each number, with weight decay (DeMo).

    On the server it follows the run's learning rate and schedule.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1.0, weight_decay: float = 0.0
    ) -> None:
        if not (lr >= 0 and weight_decay >= 0):
            raise ValueError(f"lr={lr} and weight_decay={weight_decay} must not be negative")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


#: Worker optimizers by name; None is plain SGD.
WORKER_OPTIMIZERS: dict[str, OptimizerFactory | None] = {
    "sgd": None,
    "momentum": partial(torch.optim.SGD, lr=1.0, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=1.0, momentum=0.9, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=1.0),
}

#: Server optimizers by name; None adds the mean update unchanged.
SERVER_OPTIMIZERS: dict[str, OptimizerFactory | None] = {
    "add": None,
    # DiLoCo's outer optimizer; its gradient is minus the mean update.
    "nesterov": partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True),
    "sign": SignStep,
}

# The update of an element depends on no other element, so one instance over the stacked
# parameters of many workers equals one instance per worker.
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
    SignStep,
)


def make(factory: OptimizerFactory, parameters: Iterable[Tensor]) -> Optimizer:
    """The optimizer that `factory` makes; raises if workers cannot use it."""
    optimizer = factory(parameters)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            "An optimizer factory must take parameters and return a torch optimizer, but it "
            f"returned {optimizer!r}."
        )
    check_gradients(optimizer)
    return optimizer


def check_gradients(optimizer: Optimizer) -> None:
    """Refuse an optimizer that takes several gradients a step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "LBFGS evaluates the loss several times per step, which workers cannot do. Use an "
            "optimizer that needs one gradient per step, such as SGD or AdamW."
        )


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """Whether each step is -lr times the gradient."""
    groups = optimizer.param_groups
    return (
        type(optimizer) is torch.optim.SGD
        and len({group["lr"] for group in groups}) == 1
        and not any(g["momentum"] or g["weight_decay"] or g["maximize"] for g in groups)
    )


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether the optimizer updates every element of a parameter independently."""
    return type(optimizer) in _ELEMENTWISE


def needs_whole_tensors(optimizer: Optimizer) -> bool:
    """Whether it is one of torch's optimizers that do not; others cannot be judged."""
    return type(optimizer).__module__.startswith("torch.") and not is_elementwise(optimizer)


def prepare_server_step(optimizer: Optimizer, lr: float, takes_gradients: bool) -> None:
    """Give a server's optimizer the run's learning rate, if it follows it."""
    if takes_gradients or isinstance(optimizer, SignStep):
        set_lr(optimizer, lr)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def choose(
    name: str | OptimizerFactory | None, known: dict[str, OptimizerFactory | None], role: str
) -> OptimizerFactory | None:
    """The factory that a text names, such as `nesterov` or `nesterov,lr=0.4,momentum=0.9`.

    A factory or None passes through.
    """
    if name is None or callable(name):
        return name
    kind, pairs = text.split(name, ",")
    if kind not in known:
        raise ConfigError(f"There is no {role} optimizer {kind!r}. Choose: {', '.join(known)}.")
    factory, settings = known[kind], {key: text.value_of(value) for key, value in pairs}
    if not settings:
        return factory
    try:
        if factory is None or "" in settings:
            raise TypeError("it takes none" if factory is None else "write them as name=value")
        chosen = partial(factory, **settings)
        chosen([torch.zeros(1, requires_grad=True)])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The {role} optimizer {name!r} does not take these settings ({error})."
        ) from None
    return chosen
