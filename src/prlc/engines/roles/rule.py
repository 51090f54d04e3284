"""What a server does with a mean update: add it, or take an optimizer's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prlc.engines.roles.packing import Vector, is_finite
from prlc.errors import ConfigError, DivergedError
from prlc.optim.optimizers import (
    RuleSettings,
    make,
    needs_whole_tensors,
    prepare_server_step,
)


@dataclass
class Shard:
    """The part of the global model that one server holds."""

    values: Vector
    num_parameters: list[int]
    """How many elements of each tensor are parameters; buffers follow."""

    def split(self, vector: Vector) -> tuple[Vector, Vector]:
        """The parameters and the buffers of a vector like `values`, as views."""
        pairs = list(zip(vector, self.num_parameters, strict=True))
        return [flat[:n] for flat, n in pairs], [flat[n:] for flat, n in pairs]


def check_model(values: Sequence[Tensor], step: int) -> None:
    """Refuse a model that finite updates have made infinite."""
    if not is_finite(values):
        raise DivergedError(
            -1,
            step,
            message=f"The model is not finite after step {step}, though every update was. Lower "
            "the learning rate and start again.",
        )


class ServerRule:
    """Applies mean updates to a shard."""

    def __init__(self, shard: Shard, settings: RuleSettings) -> None:
        self.shard, self._takes_gradients = shard, settings.takes_gradients
        self._optimizer = None
        if settings.optimizer is not None:
            parameters, _ = shard.split(shard.values)
            self._optimizer = make(settings.optimizer, [p.requires_grad_() for p in parameters])
            if needs_whole_tensors(self._optimizer):
                raise ConfigError(
                    f"The server optimizer {type(self._optimizer).__name__} looks at tensors as a "
                    "whole, but real processes keep the global model as flat vectors. Choose one "
                    "that treats every number by itself, such as SGD or Adam."
                )

    @property
    def adds(self) -> bool:
        """Whether it adds updates, and does nothing else."""
        return self._optimizer is None and not self._takes_gradients

    @torch.no_grad()
    def add_mean(self, total: Vector, weight: float) -> None:
        """Add a total over a weight, which `apply` would also do, to the same bits."""
        for values, change in zip(self.shard.values, total, strict=True):
            if values.is_cpu and values.dtype in (torch.float32, torch.float64):  # in one pass
                values.addcdiv_(change, values.new_tensor(weight))
            else:
                values.add_(change / weight)

    @torch.no_grad()
    def apply(self, update: Vector, lr: float, only: Sequence[int] | None = None) -> None:
        """Add an update, or pass its parameters to the optimizer as minus a gradient.

        `only`: the tensors of the shard that it is for; None: all.
        """
        chosen = range(len(update)) if only is None else only
        if self.adds:
            for k in chosen:
                self.shard.values[k].add_(update[k])
            return
        changes, of_buffers = self.shard.split(update)
        parameters, buffers = self.shard.split(self.shard.values)
        if self._optimizer is None:
            for k in chosen:
                parameters[k].add_(changes[k].mul(lr))
        else:
            prepare_server_step(self._optimizer, lr, self._takes_gradients)
            leaves: list[Tensor] = self._optimizer.param_groups[0]["params"]
            for k, leaf in enumerate(leaves):
                leaf.grad = -changes[k] if k in chosen else None
            self._optimizer.step()
        for k in chosen:
            buffers[k].add_(of_buffers[k])

    def state(self) -> dict[str, Any]:
        """Copies of the shard and of the optimizer's state."""
        return {
            "values": [flat.detach().clone() for flat in self.shard.values],
            "optimizer": self._optimizer.state_dict() if self._optimizer else None,
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        for flat, saved in zip(self.shard.values, state["values"], strict=True):
            flat.copy_(saved)
        if self._optimizer:
            self._optimizer.load_state_dict(state["optimizer"])
