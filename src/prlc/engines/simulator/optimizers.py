"""From stacked gradients to stacked updates: any torch optimizer, on all workers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from prlc.engines.simulator.stack import Layout
from prlc.optim.optimizers import OptimizerFactory, is_elementwise, make, set_lr


class WorkerOptimizers:
    """The optimizers of all workers, over `models` (a stacked matrix per parameter).

    An update is given as directions and a scale, update = scale * direction. Plain SGD's
    directions are the gradients themselves, which saves a pass over memory. An optimizer that
    treats every element alone serves a whole chunk of workers; any other is made per worker.
    """

    def __init__(
        self,
        factory: OptimizerFactory | None,
        models: list[Tensor],
        layouts: Sequence[Layout],
        chunks: Sequence[slice],
        *,
        used: Sequence[bool],
        one_by_one: bool,
    ) -> None:
        """`used`: which parameters have gradients; optimizers leave the others alone.

        `one_by_one`: workers do not all step together, so each needs an optimizer of its own.
        """
        self._used = used
        self._models = models
        self._layouts = layouts
        self._chunks = chunks
        self._factory = factory
        self._leaves: list[list[Tensor]] = []
        self._optimizers: list[Optimizer] = []
        self._per_worker = False
        if factory is None:
            return
        probe = make(factory, [model.new_zeros(layout.shape).requires_grad_()
                         for model, layout in zip(models, layouts, strict=True)])  # fmt: skip
        self._per_worker = one_by_one or not is_elementwise(probe)
        if self._per_worker:
            rows = [slice(i, i + 1) for i in range(len(models[0]))]
        else:
            rows = list(chunks)
        for each in rows:
            leaves = [model[each].detach() for model in models]
            if self._per_worker:
                leaves = [
                    layout.view(leaf)[0] for layout, leaf in zip(layouts, leaves, strict=True)
                ]
            self._leaves.append([leaf.requires_grad_() for leaf in leaves])
            self._optimizers.append(make(factory, self._leaves[-1]))

    def chunk(self, number: int, gradients: list[Tensor], lr: float) -> tuple[list[Tensor], float]:
        """Directions and scale for a whole chunk of workers. The models do not change."""
        if self._factory is None:
            return gradients, -lr
        if not self._per_worker:
            return self._step(number, gradients, lr), 1.0
        start = self._chunks[number].start
        directions = [torch.empty_like(gradient) for gradient in gradients]
        for k in range(len(gradients[0])):
            changes, _ = self.worker(start + k, [g[k : k + 1] for g in gradients], lr)
            for direction, change in zip(directions, changes, strict=True):
                direction[k : k + 1] = change
        return directions, 1.0

    def worker(self, i: int, gradients: list[Tensor], lr: float) -> tuple[list[Tensor], float]:
        """Directions (1, n) and scale for one worker, from its gradients (1, n)."""
        if self._factory is None:
            return gradients, -lr
        shaped = [
            layout.view(gradient)[0]
            for layout, gradient in zip(self._layouts, gradients, strict=True)
        ]
        changes = self._step(i, shaped, lr)
        return [
            layout.rows(change[None]) for layout, change in zip(self._layouts, changes, strict=True)
        ], 1.0

    def _step(self, number: int, gradients: list[Tensor], lr: float) -> list[Tensor]:
        """Step one optimizer, and restore its parameters; returns the changes."""
        leaves, optimizer = self._leaves[number], self._optimizers[number]
        before = [leaf.detach().clone() for leaf in leaves]
        for leaf, gradient, used in zip(leaves, gradients, self._used, strict=True):
            leaf.grad = gradient if used else None
        set_lr(optimizer, lr)
        optimizer.step()
        changes = []
        for leaf, old in zip(leaves, before, strict=True):
            changes.append(leaf.detach() - old)
            leaf.detach().copy_(old)
            leaf.grad = None
        return changes

    def state(self) -> list[dict[str, Any]]:
        return copy.deepcopy([optimizer.state_dict() for optimizer in self._optimizers])

    def load_state(self, state: list[dict[str, Any]]) -> None:
        for optimizer, own in zip(self._optimizers, copy.deepcopy(state), strict=True):
            optimizer.load_state_dict(own)
