"""Corrections of what data that differ do to a worker between two pulls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc.errors import ConfigError
from prlc.methods.compensation.base import Compensation, Context, Pulled, State, Window, times
from prlc.methods.compensation.gains import Own
from prlc.methods.settings import check_number
from prlc.text import is_number


@dataclass(frozen=True)
class GainCorrection(Compensation):
    """PRLC-GC: a drift correction and a least-squares gain, both learnt from consecutive pulls.

    A pull reveals Y, what everybody did since the one before; U is what the worker did itself, over
    steps whose learning rates add up to S. Per unit of learning rate the drift is (U - Y)/S:

        b     <- (1-a) b + a (U - Y)/S,   a = 1 - (1-beta)^k, and 1 the first time
        X      = U - S b                  what the correction would have predicted
        theta  = clip((<X,Y> + lam <X,X>) / ((1+lam) <X,X>), 0, 1.2), sums decaying by rho
        a step: theta (u - lr b)
    """

    beta: float = 0.01
    rho: float = 0.9
    lam: float = 0.05

    name: ClassVar[str] = "gc"
    needs_window: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("beta", "rho"):
            value = getattr(self, name)
            if not (is_number(value) and 0 < value <= 1):
                raise ConfigError(f"{name} of `gc` must lie in (0, 1] but is {value!r}.")
        check_number("lam of `gc`", self.lam)

    def init(self, start: Tensor, context: Context) -> State:
        del context
        numbers = torch.zeros(len(start), dtype=torch.float64, device=start.device)
        return {
            "last": start.clone(),
            "drift": torch.zeros_like(start),
            "theta": torch.ones_like(numbers),
            "own_sq": numbers,
            "product": numbers.clone(),
            "pulls": numbers.clone(),
        }

    def share(self, state: State) -> Tensor:
        return state["theta"]

    def move(self, state: State, update: Tensor, lr: float) -> Tensor:
        return times(state["theta"], update - lr * state["drift"])

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        del context
        arriving, window = pulled.model, pulled.window
        assert window is not None
        Y, U = arriving - state["last"], window.total
        lr_sum = window.lr.to(U.dtype)[:, None]
        X = U - lr_sum * state["drift"]
        own_sq = self.rho * state["own_sq"] + (X.double() * X.double()).sum(1)
        product = self.rho * state["product"] + (X.double() * Y.double()).sum(1)
        best = (product + self.lam * own_sq) / ((1 + self.lam) * own_sq)
        theta = torch.where(own_sq > 0, best.clamp(0.0, 1.2), state["theta"])
        fresh = 1 - (1 - self.beta) ** window.steps.double()
        fresh = torch.where(state["pulls"] == 0, torch.ones_like(fresh), fresh)[:, None]
        seen = torch.where(lr_sum > 0, (U - Y) / lr_sum, state["drift"])
        drift = state["drift"] + fresh.to(U.dtype) * (seen - state["drift"])
        state = {
            "last": arriving.clone(),
            "drift": drift,
            "theta": theta,
            "own_sq": own_sq,
            "product": product,
            "pulls": state["pulls"] + 1,
        }
        return state, self.ahead(state, pulled)

    def ahead(self, state: State, pulled: Pulled) -> Tensor:
        arriving, since = pulled.model, pulled.since
        if since is None:
            return arriving
        drifted = since.lr.to(arriving.dtype)[:, None] * state["drift"]
        return arriving + times(state["theta"], since.total - drifted)


@dataclass(frozen=True)
class Proximal(Own):
    """The own update, for a loss plus mu/2 |x - anchor|^2; the anchor is the last model used."""

    mu: float = 0.01

    name: ClassVar[str] = "prox"
    corrects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("FedProx's mu", self.mu)

    def init(self, start: Tensor, context: Context) -> State:
        del context
        return {"anchor": start.clone()}

    def correct(self, state: State, gradient: Tensor, own: Tensor) -> tuple[State, Tensor]:
        return state, gradient + self.mu * (own - state["anchor"])

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        del context
        own = self.ahead(state, pulled)
        return {"anchor": own.clone()}, own


@dataclass(frozen=True)
class ControlVariates(Own):
    """SCAFFOLD: the own update, corrected by what everybody's gradient is known to be.

    a step:   -lr (g - c_i + c)
    a push:   c_i' = the first gradient of the round (option 1), or
              c_i' = c_i - c + (x - y) / (sum of the round's lr) (option 2); sends c_i' - c_i
    server:   c += (|S|/N) mean (c_i' - c_i)
    """

    option: int = 2

    name: ClassVar[str] = "scaffold"
    corrects: ClassVar[bool] = True
    acts_at_push: ClassVar[bool] = True
    sends_extra: ClassVar[bool] = True
    needs_sgd: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.option) is not int or self.option not in (1, 2):
            raise ConfigError(f"SCAFFOLD's option must be 1 or 2 but is {self.option!r}.")

    def init(self, start: Tensor, context: Context) -> State:
        del context
        state = {"own": torch.zeros_like(start), "common": torch.zeros_like(start)}
        if self.option == 1:
            numbers = torch.ones(len(start), dtype=torch.float64, device=start.device)
            state |= {"first": torch.zeros_like(start), "begins": numbers}
        return state

    def correct(self, state: State, gradient: Tensor, own: Tensor) -> tuple[State, Tensor]:
        del own
        if self.option == 1:
            first = torch.where(state["begins"][:, None] > 0, gradient, state["first"])
            state = state | {"first": first, "begins": torch.zeros_like(state["begins"])}
        return state, gradient - state["own"] + state["common"]

    def push(
        self, state: State, own: Tensor, sent: Window, context: Context
    ) -> tuple[State, Tensor, Tensor | None]:
        del context
        before = state["own"]
        if self.option == 1:
            fresh = state["first"]
            state = state | {"begins": torch.ones_like(state["begins"])}
        else:
            lr = sent.lr.to(before.dtype)[:, None]
            fresh = before - state["common"] - torch.where(lr > 0, sent.total / lr, 0.0)
        return state | {"own": fresh}, own, fresh - before

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        assert pulled.extra is not None
        return super().use(state | {"common": pulled.extra.clone()}, pulled, context)
