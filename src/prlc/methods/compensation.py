"""What a worker does between two looks at the global model: its guess of what everybody did.

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
from prlc.errors import ConfigError
from prlc.methods.settings import check_number
from prlc.text import is_number

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
        return _times(self.share(state), update)

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
            own = _plus(own, self.share(state), pulled.since.total)
        if pulled.residual is not None:
            own = _plus(own, self.share(state), pulled.residual)
        return own


def _times(share: Tensor | float, rows: Tensor) -> Tensor:
    if isinstance(share, Tensor):
        return rows * share.to(rows.dtype)[:, None]
    return rows * share


def _plus(model: Tensor, share: Tensor | float, rows: Tensor) -> Tensor:
    if isinstance(share, Tensor):
        return torch.addcmul(model, rows, share.to(rows.dtype)[:, None])
    return torch.add(model, rows, alpha=share)


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
        return _times(state["theta"], update - lr * state["drift"])

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
        return arriving + _times(state["theta"], since.total - drifted)


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


#: The values of `meanwhile=`.
COMPENSATIONS: dict[str, type[Compensation]] = {
    kind.name: kind
    for kind in (
        Hold,
        Own,
        Share,
        SignalToNoise,
        Ahead,
        AheadBySignal,
        GainCorrection,
        Proximal,
        Mix,
        ControlVariates,
        Eager,
    )
}


def parse_compensation(value: Compensation | str) -> Compensation:
    """Read a compensation from text: `own`, `share,0.5`, `gc,beta=0.02`."""
    if isinstance(value, Compensation):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"A compensation is written as text, such as own; got {value!r}.")
    return text.read(value, ",", "compensation", COMPENSATIONS, Compensation)  # type: ignore[type-abstract]
