"""Lazily aggregated gradients: LAG (Chen et al. 2018) in both forms, the paper's baseline; LAQ.

All compare with the same right side. For F = mean_m F_m, step size eta and the server's
models x^k, a worker is skipped at step k while

    left side  <=  (xi / eta^2) * sum_{d=1..D} ||x^{k+1-d} - x^{k-d}||^2

LAG-WK (15a): left = ||grad_m(now) - grad_m(last pushed)||^2   the worker decides, all pull
LAG-PS (15b): left = L_m^2 ||x^k - x_m||^2                     the server decides whom to ask

(The LAG paper writes the sum of F_m and alpha = eta / P; this is the same condition.) Each step
norm is divided by the learning rate of its own step, so a decaying learning rate does not by
itself silence everybody for D steps.

LAQ (Sun et al. 2019) sends changes of the gradient in a few bits, and only those that outweigh
what these bits leave out: see `Change`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from prlc.encodings import Encoding, Grid, parse_encoding
from prlc.errors import ConfigError
from prlc.methods.base import Lazy
from prlc.methods.check import check_lazy_encoding
from prlc.methods.triggers import Change
from prlc.text import is_number


@dataclass(frozen=True)
class LAGWK(Lazy):
    """A worker pushes only when its gradient changed enough; everybody pulls every step."""

    xi: float = 0.1  # 1/D, the LAG authors' choice for this form
    window: int = 10

    summary: ClassVar[str] = "push only gradients that changed enough; all pull"
    paper: ClassVar[str] = "Chen et al. 2018, arXiv:1805.09965"
    name: ClassVar[str] = "lag-wk"

    def __post_init__(self) -> None:
        _ = self.trigger

    @property
    def label(self) -> str:
        return "LAG-WK" + self._settings()

    @cached_property
    def trigger(self) -> Change:
        return Change(self.xi, self.window)  # (15a)


@dataclass(frozen=True)
class LAQ(Lazy):
    """LAG-WK in a few bits: a message is the change of what the server knows of the gradient.

    The encoding rounds the difference between the gradient and its last known form, which therefore
    includes what the messages before left out. After `longest` steps a worker pushes in any case.
    """

    xi: float = 0.08  # 0.8/D, the authors' choice
    window: int = 10
    longest: float = 100
    up: Encoding = field(default_factory=lambda: Grid(4))

    summary: ClassVar[str] = "LAG-WK whose messages are changes in a few bits"
    paper: ClassVar[str] = "Sun et al. 2019, arXiv:1909.07588"
    name: ClassVar[str] = "laq"
    innovates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "up", parse_encoding(self.up))
        check_lazy_encoding(self.up)
        _ = self.trigger

    @property
    def label(self) -> str:
        return "LAQ" + self._settings()

    @cached_property
    def trigger(self) -> Change:
        return Change(self.xi, self.window, self.longest)


@dataclass(frozen=True)
class LAGPS(Lazy):
    """The server asks only workers for whom the model moved enough; the others hold still.

    The trigger needs each worker's smoothness L_m: `smoothness` if given, otherwise
    the largest ratio ||change of gradient|| / ||change of model|| seen so far.
    With minibatch gradients that ratio is full of noise, so the server asks nearly everybody.
    """

    xi: float = 1.0  # 10/D, the LAG authors' choice for this form
    window: int = 10
    smoothness: float | None = None

    summary: ClassVar[str] = "ask only workers for whom the model moved enough"
    paper: ClassVar[str] = "Chen et al. 2018, arXiv:1805.09965"
    name: ClassVar[str] = "lag-ps"
    asked_by_server: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _ = self.trigger
        known = self.smoothness
        if known is not None and not (is_number(known) and 0 < known < math.inf):
            raise ConfigError(
                f"LAG's smoothness must be a positive number but is {known!r}; left out, it is "
                "estimated."
            )

    @property
    def label(self) -> str:
        return "LAG-PS" + self._settings()

    @cached_property
    def trigger(self) -> Change:
        return Change(self.xi, self.window)  # (15b)

    def initial_smoothness(self) -> float:
        # Until a second gradient is known the trigger must fire, hence infinity.
        return math.inf if self.smoothness is None else self.smoothness

    def refine(self, smoothness: Tensor, gradient_sq: Tensor, model_sq: Tensor) -> Tensor:
        if self.smoothness is not None:
            return smoothness
        seen = torch.where(model_sq > 0, (gradient_sq / model_sq).sqrt(), 0.0)
        known = torch.where(smoothness.isinf(), 0.0, smoothness)
        return torch.where(model_sq > 0, torch.maximum(known, seen), smoothness)
