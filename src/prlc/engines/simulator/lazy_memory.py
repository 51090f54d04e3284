"""What lazy methods (LAG, LAQ, CMFL) remember."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.draws import Purpose
from prlc.encodings import Draw
from prlc.engines.simulator.stack import Layout, squared_norms
from prlc.methods import Lazy, Mask
from prlc.methods.triggers import Candidate


class LazyMemory:
    """What triggers compare: the workers' last gradients, the server's last steps.

    A gradient here is an update divided by its learning rate.
    """

    def __init__(self, method: Lazy, parameters: list[Tensor], seed: int) -> None:
        P, device = len(parameters[0]), parameters[0].device
        self._method, self._seed = method, seed
        self.gradients = self._rows(parameters) if method.reuses else []
        self.asked: Mask = np.ones(P, bool)
        double = {"dtype": torch.float64, "device": device}
        self._history = torch.zeros(method.trigger.window, **double)  # type: ignore[call-overload]
        self._trigger = method.trigger.init(P, device)
        self._smoothness = torch.full((P,), method.initial_smoothness(), **double)  # type: ignore[call-overload]
        self._moved_sq = torch.zeros(P, **double)  # type: ignore[call-overload]
        self._direction = [torch.zeros_like(rows[0]) for rows in parameters]
        self._empty = True
        self._fresh = [torch.zeros_like(rows[0]) for rows in parameters]

    def _rows(self, parameters: list[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(rows) for rows in parameters]

    def receive(self, chunk: slice, fresh: list[Tensor], computes: Mask, step: int) -> Mask:
        """Take the fresh gradients of a chunk; returns which were worth a push."""
        fits = torch.from_numpy(computes).to(self._smoothness.device)
        sends = fits
        if self._method.asked_by_server:
            self._refine(chunk, fresh, fits)
        else:
            sends = fits & self._fires(chunk, self._candidate(chunk, fresh, step))
        self._keep(chunk, fresh, sends)
        pushes: Mask = sends.cpu().numpy()
        return pushes

    def _refine(self, chunk: slice, fresh: list[Tensor], fits: Tensor) -> None:
        """Learn the smoothness of those who were asked."""
        if not self._empty:
            known, change_sq = self._smoothness[chunk], self._change_sq(chunk, fresh)
            better = self._method.refine(known, change_sq, self._moved_sq[chunk])
            self._smoothness[chunk] = torch.where(fits, better, known)

    def _change_sq(self, chunk: slice, fresh: list[Tensor]) -> Tensor:
        old = [rows[chunk] for rows in self.gradients]
        return squared_norms([new - was for new, was in zip(fresh, old, strict=True)])

    def _candidate(self, chunk: slice, fresh: list[Tensor], step: int) -> Candidate:
        nothing = torch.zeros_like(self._smoothness[chunk])
        change_sq = self._change_sq(chunk, fresh) if self._method.reuses else nothing
        agreement = nothing
        if self._method.trigger.compares_signs:
            pairs = zip(fresh, self._direction, strict=True)
            same = [(new.sign() == last.sign()).sum(1) for new, last in pairs]
            numel = sum(last.numel() for last in self._direction)
            agreement = torch.stack(same).sum(0).double() / numel
        return Candidate(change_sq, nothing, agreement, step)

    def _fires(self, chunk: slice, candidate: Candidate) -> Tensor:
        trigger = self._method.trigger
        state = {name: values[chunk] for name, values in self._trigger.items()}
        fires = trigger.fires(state, candidate, self._history) | self._empty
        always = self._method.always_pushes(self._seed, candidate.step, len(self.asked))
        if always is not None and chunk.start <= always < chunk.stop:
            fires[always - chunk.start] = True
        for name, values in trigger.decided(state, candidate, fires).items():
            self._trigger[name][chunk] = values
        return fires

    def _keep(self, chunk: slice, fresh: list[Tensor], sends: Tensor) -> None:
        """Remember what was pushed."""
        if self._method.reuses:
            for rows, new in zip(self.gradients, fresh, strict=True):
                rows[chunk][sends] = new[sends]
        else:
            for total, new in zip(self._fresh, fresh, strict=True):
                total.add_(new[sends].sum(0))

    def sums(self) -> list[Tensor]:
        """What the server adds up in this step, by tensor."""
        if self._method.reuses:
            return [rows.sum(0) for rows in self.gradients]
        sums, self._fresh = self._fresh, [torch.zeros_like(total) for total in self._fresh]
        return sums

    def stepped(self, moved: list[Tensor], lr: float) -> None:
        """Record a step of the server."""
        self._history[:-1] = self._history[1:].clone()
        self._history[-1] = float(squared_norms([step[None] for step in moved])) / lr**2
        if self._method.trigger.compares_signs and any(bool(step.any()) for step in moved):
            for last, step in zip(self._direction, moved, strict=True):
                last.copy_(step)
        self._empty = False

    def ask(self, server: list[Tensor], parameters: list[Tensor], chunks: list[slice]) -> Mask:
        """Which workers the server asks for the next step (LAG-PS); else everybody pulls."""
        if not self._method.asked_by_server:
            return self.asked
        for chunk in chunks:
            gaps = [rows[chunk] - now for rows, now in zip(parameters, server, strict=True)]
            moved_sq = squared_norms(gaps)
            left = torch.where(moved_sq > 0, self._smoothness[chunk] ** 2 * moved_sq, 0.0)
            nothing = torch.zeros_like(left)
            state = {name: values[chunk] for name, values in self._trigger.items()}
            asks = self._method.trigger.fires(
                state, Candidate(left, nothing, nothing, 0), self._history
            )
            self._moved_sq[chunk] = torch.where(asks, moved_sq, self._moved_sq[chunk])
            self.asked[chunk] = asks.cpu().numpy()
        return self.asked

    def state(self) -> dict[str, Any]:
        return {
            "gradients": [rows.clone() for rows in self.gradients],
            "asked": self.asked.tolist(),
            "history": self._history.clone(),
            "trigger": {name: values.clone() for name, values in self._trigger.items()},
            "smoothness": self._smoothness.clone(),
            "moved_sq": self._moved_sq.clone(),
            "direction": [last.clone() for last in self._direction],
            "empty": self._empty,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        for own, saved in (
            *zip(self.gradients, state["gradients"], strict=True),
            *zip(self._direction, state["direction"], strict=True),
            *((values, state["trigger"][name]) for name, values in self._trigger.items()),
        ):
            own.copy_(saved)
        self.asked = np.array(state["asked"])
        self._history.copy_(state["history"])
        self._smoothness.copy_(state["smoothness"])
        self._moved_sq.copy_(state["moved_sq"])
        self._empty = state["empty"]


class InnovationMemory(LazyMemory):
    """The gradients as the server knows them, of which it keeps the sum (LAQ).

    All are rows in the usual memory order, since encodings count positions in it.
    """

    def __init__(
        self, method: Lazy, parameters: list[Tensor], seed: int, layouts: list[Layout]
    ) -> None:
        self._layouts, self._sizes = layouts, [layout.numel for layout in layouts]
        super().__init__(method, parameters, seed)
        self._sum = torch.zeros_like(self.gradients[0][0])

    def _rows(self, parameters: list[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(self._flat(parameters))]

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        """Stacked tensors as one matrix of at least float32."""
        pairs = zip(self._layouts, tensors, strict=True)
        rows = torch.cat([layout.view(t).reshape(len(t), -1) for layout, t in pairs], dim=1)
        return rows.to(torch.promote_types(rows.dtype, torch.float32))

    def receive(self, chunk: slice, fresh: list[Tensor], computes: Mask, step: int) -> Mask:
        assert computes.all(), "the workers decide"
        up, known, gradients = self._method.up, self.gradients[0][chunk], self._flat(fresh)
        draw = Draw(self._seed, Purpose.ENCODE_UP, np.arange(chunk.start, chunk.stop), step)
        codes, changes = up.encode(gradients - known, draw), torch.zeros_like(known)
        up.add(codes, changes)
        after = known + changes
        candidate = Candidate(
            squared_norms([after - known]),
            squared_norms([gradients - after]),
            torch.zeros_like(self._smoothness[chunk]),
            step,
        )
        sends = self._fires(chunk, candidate)
        known[sends] = after[sends]
        self._sum += changes[sends].sum(0)
        pushes: Mask = sends.cpu().numpy()
        return pushes

    def sums(self) -> list[Tensor]:
        parts = torch.split(self._sum.clone(), self._sizes)
        pairs = zip(parts, self._layouts, strict=True)
        return [layout.rows(part.view(1, *layout.shape))[0] for part, layout in pairs]

    def state(self) -> dict[str, Any]:
        return super().state() | {"sum": self._sum.clone()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._sum.copy_(state["sum"])
