"""How much of its own update a worker takes for everybody's: none, all, or what is certain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc.errors import ConfigError
from prlc.methods.compensation.base import Compensation, Context, Pulled, State
from prlc.methods.settings import check_number
from prlc.text import is_number


@dataclass(frozen=True)
class Hold(Compensation):
    """Stand still (PR)."""

    name: ClassVar[str] = "hold"

    def share(self, state: State) -> float:
        del state
        return 0.0


@dataclass(frozen=True)
class Own(Compensation):
    """Take the own update for everybody's (PRLC, Local SGD)."""

    name: ClassVar[str] = "own"

    def share(self, state: State) -> float:
        del state
        return 1.0


@dataclass(frozen=True)
class Share(Compensation):
    """Apply a constant share of the own update."""

    gain: float = 0.5

    name: ClassVar[str] = "share"

    def __post_init__(self) -> None:
        check_number("The gain of `share`", self.gain)

    def share(self, state: State) -> float:
        del state
        return float(self.gain)


@dataclass(frozen=True)
class SignalToNoise(Compensation):
    """The share of its own update that best predicts everybody's step, learnt at pulls.

    An update is signal plus noise, u_i = s + n_i, S = |s|^2, N = E|n_i|^2. The sum of k own updates
    predicts the global displacement over k steps best by the factor

        gain(k) = (k S + N/P) / (k S + N)

    S and N follow from the two numbers that the server sends along; k is the mean number of steps
    between pulls. Until the first pull the gain is 1.
    """

    smoothing: float = 0.9

    name: ClassVar[str] = "snr"
    needs_hints: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (is_number(self.smoothing) and 0 <= self.smoothing < 1):
            raise ConfigError(f"The smoothing must lie in [0, 1) but is {self.smoothing!r}.")

    def init(self, start: Tensor, context: Context) -> State:
        del context
        return {"gain": torch.ones(len(start), dtype=torch.float64, device=start.device)}

    def hints(self, before: Tensor | None, fresh: Tensor) -> Tensor:
        if before is None:
            return fresh
        return self.smoothing * before + (1 - self.smoothing) * fresh

    def share(self, state: State) -> Tensor:
        return state["gain"]

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        hints = pulled.hints
        assert hints is not None
        P, H, k = context.num_workers, context.every, context.interval
        of_mean, mean_of = hints[..., 0], hints[..., 1]  # of pushes, sums of H updates
        gain = torch.ones_like(state["gain"])
        if P > 1:
            signal = ((P * of_mean - mean_of) / (P - 1)).clamp(min=0)  # H^2 S
            noise = (mean_of - signal).clamp(min=0)  # H N
            S, N = signal / H**2, noise / H
            total = k * S + N
            gain = torch.where(total > 0, (k * S + N / P) / total, gain).expand_as(gain).clone()
        state = {"gain": gain}
        return state, self.ahead(state, pulled)


@dataclass(frozen=True)
class Ahead(Compensation):
    """What is certain of everybody's step: the own part of the mean, said or not yet said.

    With error feedback a message holds part of what a worker did; the rest, e_i, waits. The server
    will add the mean of all workers' e_j to its model. Of that a worker knows e_i/P, so it goes
    ahead of the model that it has pulled:

        x_i = model + (e_i + the own updates that the model lacks) / P

    It computes gradients where its own part of what is still to come has already happened, and does
    not ask for it again. Otherwise error feedback is a delay of 1/share messages, and diverges at
    step sizes that synchronous SGD takes.
    """

    name: ClassVar[str] = "ahead"
    needs_residual: ClassVar[bool] = True

    def init(self, start: Tensor, context: Context) -> State:
        P = context.num_workers
        return {"gain": torch.full((len(start),), 1 / P, dtype=torch.float64, device=start.device)}

    def share(self, state: State) -> Tensor:
        return state["gain"]


@dataclass(frozen=True)
class AheadBySignal(SignalToNoise):
    """`ahead` with the gain of `snr` in place of 1/P: of what others will say, the part that shows.

    The two numbers are those of the encoded messages. While workers ask for the same, early in
    training and in long rounds, the gain is large and holds back what all would ask for again;
    where they ask for noise it is 1/P.
    """

    name: ClassVar[str] = "ahead-snr"
    needs_residual: ClassVar[bool] = True
