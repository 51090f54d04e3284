"""What a compensation is, and what it may know.

State is explicit: `init` makes it, functions take it and return it, and none changes its arguments.
Everything has a leading axis of workers, so P stacked workers and a single real one run the same
lines. Vectors hold parameters alone (workers, numel); `share` decides what happens to buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc import text

State = dict[str, Tensor]
"""Tensors by name; the first axis of each is the workers."""


@dataclass(frozen=True)
class Context:
    """What a compensation may know of the run."""

    num_workers: int
    every: int
    """Steps between two pushes."""
    interval: float
    """The mean number of steps between a worker's pulls of the same block."""


@dataclass(frozen=True)
class Window:
    """A worker's own updates over some steps."""

    total: Tensor
    """Their sum (workers, numel)."""
    lr: Tensor
    """The sum of their learning rates (workers,)."""
    steps: Tensor
    """Their number (workers,)."""


@dataclass(frozen=True)
class Pulled:
    """What a pull brings, and what the worker did in the meantime."""

    model: Tensor
    """The model that arrived, or the round's mean update if the method pulls that."""
    own: Tensor | None = None
    """The worker's model now, if `needs_own`."""
    since: Window | None = None
    """Its updates that `model` lacks; None: it has them all."""
    window: Window | None = None
    """Its updates between the previous pulled model and this one, if `needs_window`."""
    hints: Tensor | None = None
    """|mean update|^2 and mean |update|^2 of a push, smoothed, if `needs_hints`."""
    extra: Tensor | None = None
    """The server's vector that rides along, if `sends_extra`."""
    residual: Tensor | None = None
    """What the worker's messages had left out when the pull began, if `needs_residual`."""


@dataclass(frozen=True)
class Compensation(ABC):
    """How a worker moves between pulls. A frozen dataclass of settings."""

    #: Its name on the command line; a user's own needs none.
    name: ClassVar[str] = ""
    #: Whether `use` needs the worker's updates between the last two pulled models.
    needs_window: ClassVar[bool] = False
    #: Whether `use` looks at the worker's own model.
    needs_own: ClassVar[bool] = False
    #: Whether the server sends signal and noise along with a pull.
    needs_hints: ClassVar[bool] = False
    #: Whether what the worker's messages have left out counts among what a pulled model lacks.
    needs_residual: ClassVar[bool] = False
    #: Whether `correct` changes gradients.
    corrects: ClassVar[bool] = False
    #: Whether `push` does something at a push step.
    acts_at_push: ClassVar[bool] = False
    #: Whether a vector of its own rides along with every push and pull.
    sends_extra: ClassVar[bool] = False
    #: Whether a pull brings the round's mean update, from which the worker makes its own model.
    pulls_update: ClassVar[bool] = False
    #: Whether updates must be -lr times a gradient, so only plain SGD may run on the workers.
    needs_sgd: ClassVar[bool] = False

    def __str__(self) -> str:
        return text.write(self, ",")

    def init(self, start: Tensor, context: Context) -> State:
        """The state at the first model, `start`."""
        del start, context
        return {}

    def correct(self, state: State, gradient: Tensor, own: Tensor) -> tuple[State, Tensor]:
        """The gradient that the optimizer gets. This changes what is pushed."""
        del own
        return state, gradient

    @abstractmethod
    def share(self, state: State) -> Tensor | float:
        """The share of its own update that a worker applies: one for each worker, or for all."""

    def move(self, state: State, update: Tensor, lr: float) -> Tensor:
        """What a step adds to the worker's model."""
        del lr
        return times(self.share(state), update)

    def push(
        self, state: State, own: Tensor, sent: Window, context: Context
    ) -> tuple[State, Tensor, Tensor | None]:
        """At a push of the updates `sent`, after the own move.

        Returns the new state, the worker's model, and the vector that rides along.
        """
        del sent, context
        return state, own, None

    def collect(self, kept: Tensor, mean: Tensor, share: float) -> Tensor:
        """The server's vector, after the mean of those that a `share` of the workers sent."""
        return kept + share * mean

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        """Use what a pull brought; returns the new state and the worker's new model."""
        del context
        return state, self.ahead(state, pulled)

    def hints(self, before: Tensor | None, fresh: Tensor) -> Tensor:
        """What the server sends along: the numbers of a push, given what it sent before.

        Linear, so that the hints of all shards add up.
        """
        del before
        return fresh

    def ahead(self, state: State, pulled: Pulled) -> Tensor:
        """The model that arrived, plus the share of the own updates that it lacks."""
        own = pulled.model
        if pulled.since is not None:
            own = plus(own, self.share(state), pulled.since.total)
        if pulled.residual is not None:
            own = plus(own, self.share(state), pulled.residual)
        return own


def times(share: Tensor | float, rows: Tensor) -> Tensor:
    """Each row times its share."""
    if isinstance(share, Tensor):
        return rows * share.to(rows.dtype)[:, None]
    return rows * share


def plus(model: Tensor, share: Tensor | float, rows: Tensor) -> Tensor:
    """A model plus each row times its share."""
    if isinstance(share, Tensor):
        return torch.addcmul(model, rows, share.to(rows.dtype)[:, None])
    return torch.add(model, rows, alpha=share)
