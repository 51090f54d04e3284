"""What lazily aggregated gradients (LAG) remember."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.engines.simulator.stack import squared_norms
from prlc.methods import Lazy, Mask


class LazyMemory:
    """The last gradient of every worker, and what the triggers of LAG compare.

    A gradient here is an update divided by its learning rate.
    """

    def __init__(self, method: Lazy, parameters: list[Tensor]) -> None:
        P, device = len(parameters[0]), parameters[0].device
        self._method = method
        self.gradients = [torch.zeros_like(rows) for rows in parameters]
        self.asked: Mask = np.ones(P, bool)
        double = {"dtype": torch.float64, "device": device}
        self._history = torch.zeros(method.window, **double)  # type: ignore[call-overload]
        self._smoothness = torch.full((P,), method.initial_smoothness(), **double)  # type: ignore[call-overload]
        self._moved_sq = torch.zeros(P, **double)  # type: ignore[call-overload]
        self._empty = True

    def receive(self, chunk: slice, fresh: list[Tensor], computes: Mask) -> Mask:
        """Take the fresh gradients of a chunk; returns which were worth a push."""
        fits = torch.from_numpy(computes).to(self._smoothness.device)
        sends = fits
        if not self._empty:
            old = [rows[chunk] for rows in self.gradients]
            change_sq = squared_norms([new - was for new, was in zip(fresh, old, strict=True)])
            known = self._smoothness[chunk]
            if self._method.asked_by_server:
                better = self._method.refine(known, change_sq, self._moved_sq[chunk])
                self._smoothness[chunk] = torch.where(fits, better, known)
            else:
                sends = fits & self._method.worthwhile(change_sq, known, self._history)
        for rows, new in zip(self.gradients, fresh, strict=True):
            rows[chunk][sends] = new[sends]
        pushes: Mask = sends.cpu().numpy()
        return pushes

    def stepped(self, step_sq: float) -> None:
        """Record a step of the server: its squared length, per squared learning rate."""
        self._history[:-1] = self._history[1:].clone()
        self._history[-1] = step_sq
        self._empty = False

    def ask(self, server: list[Tensor], parameters: list[Tensor], chunks: list[slice]) -> Mask:
        """Which workers the server asks for the next step (LAG-PS); in LAG-WK everybody pulls."""
        if not self._method.asked_by_server:
            return self.asked
        for chunk in chunks:
            gaps = [rows[chunk] - now for rows, now in zip(parameters, server, strict=True)]
            moved_sq = squared_norms(gaps)
            asks = self._method.worthwhile(moved_sq, self._smoothness[chunk], self._history)
            self._moved_sq[chunk] = torch.where(asks, moved_sq, self._moved_sq[chunk])
            self.asked[chunk] = asks.cpu().numpy()
        return self.asked

    def state(self) -> dict[str, Any]:
        return {
            "gradients": [rows.clone() for rows in self.gradients],
            "asked": self.asked.tolist(),
            "history": self._history.clone(),
            "smoothness": self._smoothness.clone(),
            "moved_sq": self._moved_sq.clone(),
            "empty": self._empty,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        for rows, saved in zip(self.gradients, state["gradients"], strict=True):
            rows.copy_(saved)
        self.asked = np.array(state["asked"])
        self._history.copy_(state["history"])
        self._smoothness.copy_(state["smoothness"])
        self._moved_sq.copy_(state["moved_sq"])
        self._empty = state["empty"]
