"""All workers at once: their stacked models, their batches and their gradients."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prlc.data.batches import Indices
from prlc.engines.flat import FlatModel
from prlc.engines.job import Job, all_tensors, fixed_seed, staying, travelling
from prlc.engines.simulator.execution import Execution
from prlc.engines.simulator.gradients import Gradients
from prlc.engines.simulator.stack import Layout, stack
from prlc.errors import CheckpointError, DivergedError
from prlc.methods import Mask

_LOOKAHEAD = 64  # steps whose batches are drawn at once


@dataclass(frozen=True)
class Chunk:
    """Some neighbouring workers, and views of their models and batches."""

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


class Part(NamedTuple):
    """What some workers computed; one row each."""

    number: int | None
    """The chunk's number; None for picked workers."""
    rows: slice | Tensor
    workers: Indices
    losses: Tensor
    gradients: list[Tensor]
    changes: list[Tensor]
    """Of buffers."""


class StackedWorkers:
    """The models of all workers: one matrix per tensor of the model, with a row per worker."""

    def __init__(
        self,
        job: Job,
        execution: Execution,
        flat: FlatModel | None = None,
        like: StackedWorkers | None = None,
    ) -> None:
        """`flat`: also keep all models as one matrix, in row-major order. `like`: see Simulator."""
        self.job = job
        P, size = job.num_workers, min(execution.chunk, job.num_workers)
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
        self._functions: dict[bool, tuple[Gradients, Gradients]] = (
            {} if like is None else like._functions
        )
        if (flat is not None) not in self._functions:  # a trace holds for tensors that lie alike
            self._functions[flat is not None] = (
                Gradients(job, vectorise=execution.vectorise),
                Gradients(job, vectorise=False),
            )
        self._function, self._function_of_one = self._functions[flat is not None]
        self._form = flat
        self._copies = flat is not None and any(t.dtype != flat.dtype for t in travelling(model))
        with fixed_seed(job, 0):
            self.layouts = self._find_layouts(all_tensors(model), size)
        self.used = self._function.used
        if flat is not None:
            self.layouts = [Layout.plain(tensor) for tensor in travelling(model)]
        self.models = [
            stack(tensor, P, layout)
            for tensor, layout in zip(travelling(model), self.layouts, strict=True)
        ]
        self.flat: Tensor | None = None
        if flat is not None:
            self.flat = self._flatten(self.models)
            if not self._copies:
                n = self.num_parameters
                self.models[:n] = self._columns(self.flat)[:n]
        self.counters = [stack(b, P, Layout.of_row(b[None])) for b in staying(model)]
        self.chunks = [
            self._chunk(number, slice(start, min(start + size, P)))
            for number, start in enumerate(range(0, P, size))
        ]

    def compute(
        self, chunk: Chunk, step: int, computes: Mask | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Losses, gradients and changes of buffers of a chunk at `step`; the models stay.

        Gradients and changes have one row per worker; rows outside `computes` are undefined.
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
            taken = np.flatnonzero(computes if computes is not None else np.ones(len(losses)))
            _check_losses(losses.cpu()[taken], chunk.rows.start + taken, step)
        return losses, gradients, changes

    def compute_parts(self, computes: Mask, step: int) -> Iterator[Part]:
        """The same for the workers in `computes`, chunk by chunk."""
        if computes.all():
            for chunk in self.chunks:
                workers = np.arange(chunk.rows.start, chunk.rows.stop)
                yield Part(chunk.number, chunk.rows, workers, *self.compute(chunk, step))
            return
        chosen, size = np.flatnonzero(computes), len(self._samples) // self.job.batch_size
        for start in range(0, len(chosen), size):
            workers = chosen[start : start + size]
            rows = torch.from_numpy(workers).to(self.job.device)
            with torch.inference_mode(False):  # autograd must be able to follow the copies
                piece = self._chunk(0, slice(0, len(workers)), rows.clone())
            taken = self._batches.take(workers, np.full(len(workers), step))
            batch = torch.from_numpy(taken.reshape(-1)).to(self.job.device)
            with self._randomness(self._function, step, int(workers[0])):
                losses, gradients, changes = self._evaluate(self._function, piece, batch, None)
            _check_losses(losses, workers, step)
            for counter, after in zip(
                self.counters, piece.tensors[len(self.models) :], strict=True
            ):
                counter[rows] = after.reshape(len(workers), -1)
            yield Part(None, rows, workers, losses, gradients, changes)

    def compute_at_own_steps(
        self, workers: Mask, steps: Indices
    ) -> Iterator[tuple[slice, Mask, Tensor, list[Tensor], list[Tensor]]]:
        """The same for `workers`, each at its own entry of `steps`, piece by piece."""
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
        """Overwrite the rows of `workers` with the server's model."""
        if len(workers) == self.job.num_workers:
            for rows, tensor in zip(self.models, server, strict=True):
                rows.copy_(tensor)
        elif workers:  # indexing would go element by element; whole rows copy much faster
            targets = [rows[i] for rows in self.models for i in workers]
            sources = [tensor for tensor in server for _ in workers]
            torch._foreach_copy_(targets, sources)

    def state(self) -> dict[str, Any]:
        models = self.models if self.flat is None else [self.flat]
        return {
            "models": [rows.clone() for rows in models],
            "counters": [rows.clone() for rows in self.counters],
            "strides": [list(layout.strides) for layout in self.layouts],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        if state["strides"] != [list(layout.strides) for layout in self.layouts]:
            raise CheckpointError(
                "The checkpoint's models lie in memory in another order than this version of torch "
                "computes gradients in. Resume it with the version that wrote it."
            )
        own = [*(self.models if self.flat is None else [self.flat]), *self.counters]
        for rows, saved in zip(own, [*state["models"], *state["counters"]], strict=True):
            rows.copy_(saved)
        if self.flat is not None:
            self.sync()

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
            elif computes is not None:  # a counter advances only where something was computed
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
        """Draw the batches of several steps at once."""
        P = self.job.num_workers
        smallest = min(len(shard) for shard in self.job.shards)
        count = max(1, min(_LOOKAHEAD, smallest // self.job.batch_size))
        taken = self._batches.take(np.arange(P), np.full(P, start), count)
        by_step = taken.reshape(P, count, -1).swapaxes(0, 1).reshape(count, -1)
        sizes = [len(chunk.samples) for chunk in self.chunks]
        self._chosen = torch.split(torch.from_numpy(by_step).to(self.job.device), sizes, dim=1)
        self._lookahead = (start, count)

    def _flatten(self, models: list[Tensor]) -> Tensor:
        """Stacked models as one matrix (workers, numel)."""
        assert self._form is not None
        rows = torch.empty(
            len(models[0]), self._form.numel, dtype=self._form.dtype, device=self.job.device
        )
        for view, model in zip(self._columns(rows), models, strict=True):
            view.copy_(model.reshape(len(model), -1))
        return rows

    def _columns(self, rows: Tensor) -> list[Tensor]:
        """Such a matrix as one per tensor (workers, numel of the tensor), sharing its memory."""
        assert self._form is not None
        places = zip(self._form.starts, self._form.sizes, strict=False)
        return [rows[:, start : start + size] for start, size in places]

    def sync(self) -> None:
        """Copy the matrix into the tensors that do not share its memory.

        Buffers never do: vmap loses what BatchNorm writes into columns of a matrix.
        """
        assert self.flat is not None
        n = 0 if self._copies else self.num_parameters
        pairs = zip(self.models[n:], self._columns(self.flat)[n:], strict=True)
        for model, view in pairs:
            model.copy_(view)

    def _chunk(self, number: int, rows: slice, taken: Tensor | None = None) -> Chunk:
        """Views of neighbouring workers; or, at `rows` of the batch, copies of the `taken` ones."""
        size, b = rows.stop - rows.start, self.job.batch_size
        which: slice | Tensor = rows if taken is None else taken
        if taken is not None and self.flat is not None and not self._copies:
            n = self.num_parameters  # in memory as those that were traced
            models = self._columns(self.flat[taken])[:n] + [b[taken] for b in self.models[n:]]
        else:
            models = [model[which] for model in self.models]
        counters = zip(self.counters, staying(self.job.model), strict=True)
        tensors = [
            *(layout.view(model) for layout, model in zip(self.layouts, models, strict=True)),
            *(counter[which].view(size, *b.shape) for counter, b in counters),
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
        if self._form is not None and not self._copies:  # as they will lie in memory
            stacked[:n] = self._form.views(self._flatten(stacked[: len(self._form.sizes)]))[:n]
        some = torch.arange(rows * b, device=self.job.device) % len(self._all_inputs)
        _, gradients = self._function(
            stacked,
            self._all_inputs[some].view(rows, b, *self.job.data.sample_shape),
            self._all_targets[some].view(rows, b, *self._all_targets.shape[1:]),
        )
        floating = len(travelling(self.job.model))
        return [Layout.of_row(tensor) for tensor in [*gradients, *stacked[n:floating]]]


def _check_losses(losses: Tensor, workers: Indices, step: int) -> None:
    """Raise DivergedError for the first loss that is not finite."""
    for worker, loss in zip(workers.tolist(), losses.tolist(), strict=True):
        if not math.isfinite(loss):
            raise DivergedError(worker, step)
