"""All workers at once: their stacked models, their batches and their gradients."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.data.batches import Indices
from prlc.engines.base import Job, all_tensors, fixed_seed, staying, travelling
from prlc.engines.gradients import Gradients
from prlc.engines.plan import Plan
from prlc.engines.stack import Layout, stack
from prlc.errors import CheckpointError, DivergedError
from prlc.methods import Mask

_LOOKAHEAD = 64  # steps whose batches are drawn in one go


@dataclass(frozen=True)
class Chunk:
    """Some neighbouring workers, and views of what is theirs."""

    number: int
    rows: slice
    models: list[Tensor]
    """Their rows of the stacked matrices."""
    tensors: list[Tensor]
    """The same memory, shaped for the module; behind it the counters."""
    samples: Tensor
    """Where their inputs are gathered, a row per sample."""
    inputs: Tensor
    """The same memory, shaped for the module."""
    labels: Tensor
    """Where their targets are gathered, one per sample."""
    targets: Tensor
    """The same memory, shaped for the loss."""


class StackedWorkers:
    """The models of all workers: one matrix per tensor of the model, with a row per worker."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.job = job
        P, size = job.num_workers, min(plan.chunk, job.num_workers)
        data = job.data.to(job.device)
        self._all_inputs = data.train_inputs.reshape(data.num_train, -1)
        self._all_targets = data.train_targets
        self._samples = self._all_inputs.new_empty(size * job.batch_size, self._all_inputs.shape[1])
        self._labels = self._all_targets.new_empty(
            size * job.batch_size, *self._all_targets.shape[1:]
        )
        self._batches = job.batches()
        self._lookahead = (0, 0)
        model = copy.deepcopy(job.model).to(job.device)
        self.num_parameters = len(list(model.parameters()))
        self._function = Gradients(job, vectorise=plan.vectorise)
        self._function_of_one = Gradients(job, vectorise=False)
        with fixed_seed(job, 0):
            self.layouts = self._find_layouts(all_tensors(model), size)
        self.used = self._function.used
        self.models = [
            stack(tensor, P, layout)
            for tensor, layout in zip(travelling(model), self.layouts, strict=True)
        ]
        self.counters = [stack(b, P, Layout.of_row(b[None])) for b in staying(model)]
        self.chunks = [
            self._chunk(number, slice(start, min(start + size, P)))
            for number, start in enumerate(range(0, P, size))
        ]

    def compute(
        self, chunk: Chunk, step: int, computes: Mask | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Losses, gradients and changes of buffers of a chunk at `step`; the models stay.

        Gradients and changes are rows, one per worker. Rows outside `computes` mean nothing.
        Raises DivergedError if a loss is not finite.
        """
        first, count = self._lookahead
        if not first <= step < first + count:
            self._look_ahead(step)
            first = step
        chosen = self._chosen[chunk.number][step - first]
        with self._randomness(self._function, step, chunk.rows.start):
            losses, gradients, changes = self._evaluate(self._function, chunk, chosen, computes)
        if not math.isfinite(float(losses.sum())):
            _check_losses(losses, computes, chunk.rows.start, step)
        return losses, gradients, changes

    def compute_at_own_steps(
        self, workers: Mask, steps: Indices
    ) -> Iterator[tuple[slice, Mask, Tensor, list[Tensor], list[Tensor]]]:
        """The same for those in `workers`, each at its own entry of `steps`, piece by piece."""
        if 2 * workers.sum() >= len(workers):
            function, pieces = self._function, self.chunks
        else:  # few: the others' gradients would be computed for nothing
            function = self._function_of_one
            pieces = [self._chunk(0, slice(i, i + 1)) for i in np.flatnonzero(workers).tolist()]
        for piece in pieces:
            rows = piece.rows
            taken = self._batches.take(np.arange(rows.start, rows.stop), steps[rows])
            chosen = torch.from_numpy(taken.reshape(-1)).to(self.job.device)
            part = workers[rows]
            with self._randomness(function, int(steps.sum()), rows.start):
                yield rows, part, *self._evaluate(function, piece, chosen, part)

    def pull(self, workers: Sequence[int], server: list[Tensor]) -> None:
        """The rows of `workers` become the server's model."""
        if len(workers) == self.job.num_workers:
            for rows, tensor in zip(self.models, server, strict=True):
                rows.copy_(tensor)
        elif workers:  # indexing would go element by element; whole rows copy much faster
            targets = [rows[i] for rows in self.models for i in workers]
            sources = [tensor for tensor in server for _ in workers]
            torch._foreach_copy_(targets, sources)

    def state(self) -> dict[str, Any]:
        return {
            "models": [rows.clone() for rows in self.models],
            "counters": [rows.clone() for rows in self.counters],
            "strides": [list(layout.strides) for layout in self.layouts],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        if state["strides"] != [list(layout.strides) for layout in self.layouts]:
            raise CheckpointError(
                "The checkpoint's models lie in memory in another order than this version of torch "
                "computes gradients in. Resume it with the version that wrote it."
            )
        own = [*self.models, *self.counters]
        for rows, saved in zip(own, [*state["models"], *state["counters"]], strict=True):
            rows.copy_(saved)

    # -- how it is computed -----------------------------------------------------------------------

    def _evaluate(
        self,
        function: Gradients,
        chunk: Chunk,
        chosen: Tensor,
        computes: Mask | None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        n = self.num_parameters
        torch.index_select(self._all_inputs, 0, chosen, out=chunk.samples)
        torch.index_select(self._all_targets, 0, chosen, out=chunk.labels)
        buffers = chunk.tensors[n:]
        before = [buffer.clone() for buffer in buffers]
        losses, gradients = function(chunk.tensors, chunk.inputs, chunk.targets)
        floating = len(self.models) - n
        changes = []
        for k, (buffer, old) in enumerate(zip(buffers, before, strict=True)):
            if k < floating:
                changes.append(self.layouts[n + k].rows(buffer - old))
                buffer.copy_(old)
            elif computes is not None:  # a counter goes on only where something was computed
                idle = torch.from_numpy(~computes).to(buffer.device)
                buffer[idle] = old[idle]
        ordered = zip(self.layouts[:n], gradients, strict=True)
        return losses, [layout.rows(gradient) for layout, gradient in ordered], changes

    def _randomness(
        self, function: Gradients, step: int, first: int
    ) -> contextlib.AbstractContextManager[None]:
        """Dropout and the like draw from a stream of (seed, step, worker), whatever came before.

        For asynchronous workers the step is the number of all gradients that have arrived.
        """
        if not function.random:
            return contextlib.nullcontext()
        return fixed_seed(self.job, step, first)

    def _look_ahead(self, start: int) -> None:
        """Draw the batches of some steps in one go."""
        P = self.job.num_workers
        smallest = min(len(shard) for shard in self.job.shards)
        count = max(1, min(_LOOKAHEAD, smallest // self.job.batch_size))
        taken = self._batches.take(np.arange(P), np.full(P, start), count)
        by_step = taken.reshape(P, count, -1).swapaxes(0, 1).reshape(count, -1)
        sizes = [len(chunk.samples) for chunk in self.chunks]
        self._chosen = torch.split(torch.from_numpy(by_step).to(self.job.device), sizes, dim=1)
        self._lookahead = (start, count)

    def _chunk(self, number: int, rows: slice) -> Chunk:
        size, b = rows.stop - rows.start, self.job.batch_size
        models = [model[rows] for model in self.models]
        counters = zip(self.counters, staying(self.job.model), strict=True)
        tensors = [
            *(layout.view(model) for layout, model in zip(self.layouts, models, strict=True)),
            *(counter[rows].view(size, *b.shape) for counter, b in counters),
        ]
        samples = self._samples[: size * b]
        labels = self._labels[: size * b]
        inputs = samples.view(size, b, *self.job.data.sample_shape)
        targets = labels.view(size, b, *labels.shape[1:])
        return Chunk(number, rows, models, tensors, samples, inputs, labels, targets)

    def _find_layouts(self, tensors: list[Tensor], rows: int) -> list[Layout]:
        """The memory order in which autograd hands out gradients, found by computing some."""
        b, n = self.job.batch_size, self.num_parameters
        stacked = [t.detach().expand(rows, *t.shape).clone() for t in tensors]
        some = torch.arange(rows * b, device=self.job.device) % len(self._all_inputs)
        _, gradients = self._function(
            stacked,
            self._all_inputs[some].view(rows, b, *self.job.data.sample_shape),
            self._all_targets[some].view(rows, b, *self._all_targets.shape[1:]),
        )
        floating = len(travelling(self.job.model))
        return [Layout.of_row(tensor) for tensor in [*gradients, *stacked[n:floating]]]


def _check_losses(losses: Tensor, computes: Mask | None, first: int, step: int) -> None:
    """Name the worker whose loss is not finite, among those that count."""
    for k, loss in enumerate(losses.tolist()):
        if not math.isfinite(loss) and (computes is None or computes[k]):
            raise DivergedError(first + k, step)
