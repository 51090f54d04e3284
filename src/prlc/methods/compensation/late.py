"""What to do with a model, or a round's mean, that arrives late: two kinds of DiLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc.errors import ConfigError
from prlc.methods.compensation.base import Context, Pulled, State, Window
from prlc.methods.compensation.gains import Own
from prlc.methods.settings import check_number
from prlc.text import is_number


@dataclass(frozen=True)
class Mix(Own):
    """The own update; of a model that arrives, all but the share `alpha` of the own one is taken.

    Streaming DiLoCo's x_i <- alpha x_i + (1 - alpha) W.
    """

    alpha: float = 0.5

    name: ClassVar[str] = "mix"
    needs_own: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (is_number(self.alpha) and 0 <= self.alpha < 1):
            raise ConfigError(f"alpha of `mix` must lie in [0, 1) but is {self.alpha!r}.")

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        del context
        assert pulled.own is not None
        return state, pulled.model + self.alpha * (pulled.own - pulled.model)


@dataclass(frozen=True)
class Eager(Own):
    """Eager DiLoCo: at the end of a round, the own displacement and the others' last.

    Every worker has outer parameters of its own and takes the server's Nesterov step on them, with

        (D_i(k) + sum_{j != i} D_j(k-1)) / P  =  mean(k-1) + (D_i(k) - D_i(k-1)) / P

    mean(k-1) is the pull that arrives then. In the first round the others count 0.
    """

    lr: float = 0.4
    momentum: float = 0.9

    name: ClassVar[str] = "eager"
    acts_at_push: ClassVar[bool] = True
    pulls_update: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("The outer learning rate of `eager`", self.lr)
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ConfigError(
                f"The outer momentum of `eager` must lie in [0, 1) but is {self.momentum!r}."
            )

    def init(self, start: Tensor, context: Context) -> State:
        del context
        return {
            "outer": start.clone(),
            "momentum": torch.zeros_like(start),
            "last": torch.zeros_like(start),  # D_i of this round, at its end, and of the one before
            "before": torch.zeros_like(start),
            "rounds": torch.zeros(len(start), dtype=torch.float64, device=start.device),
        }

    def push(
        self, state: State, own: Tensor, sent: Window, context: Context
    ) -> tuple[State, Tensor, Tensor | None]:
        first = not bool(state["rounds"].any())  # all workers have as many
        state = state | {
            "last": sent.total.clone(),
            "before": state["last"],
            "rounds": state["rounds"] + 1,
        }
        if first:
            state = self._step(state, sent.total / context.num_workers)
            own = state["outer"]
        return state, own, None

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        fresh = (state["last"] - state["before"]) / context.num_workers
        state = self._step(state, pulled.model + fresh)
        return state, state["outer"]

    def _step(self, state: State, displacement: Tensor) -> State:
        momentum = self.momentum * state["momentum"] + displacement
        outer = state["outer"] + self.lr * (displacement + self.momentum * momentum)
        return state | {"momentum": momentum, "outer": outer}
