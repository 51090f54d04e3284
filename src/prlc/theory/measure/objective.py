"""The training loss as a function of one flat vector: values, gradients, curvature, noise.

Vectors have shape (size,), one entry per trainable parameter, and are float64 on the CPU. The
computation runs in the model's own precision on its device, one part of the samples at a time, so
memory does not grow with the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from prlc.data import Dataset
from prlc.engines import Loss
from prlc.errors import ConfigError, DataError

__all__ = ["Noise", "Objective", "Parts", "gradient_noise"]

Parts = Sequence[Tensor]
"""Indices of samples, in the parts that are computed at once."""

_ROW_ELEMENTS = 2**23  # elements of single-sample gradients held at once: 64 MB
_MOST_ROWS = 256


class Objective:
    """The mean loss over samples of `data`, in eval() mode.

    Overwrites the parameters of `model`: pass a copy.
    """

    def __init__(self, model: nn.Module, loss: Loss, data: Dataset) -> None:
        self._model = model.eval()
        self._loss = loss
        self._data = data
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ConfigError(
                "The model needs at least one parameter with requires_grad=True to be measured; "
                "it has none."
            )
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._vectorise = True
        self.size = sum(parameter.numel() for parameter in self._parameters)
        self.start = _flat(self._parameters)
        self.rounding = max(torch.finfo(p.dtype).eps for p in self._parameters)
        self.work = 0.0
        """Work done so far, in gradients of a single sample (see Cost)."""

    def indices(self, samples: NDArray[np.int64]) -> Tensor:
        """Indices of samples as a tensor on the device of the data."""
        return torch.from_numpy(samples).to(self._data.train_inputs.device)

    def losses(self, w: Tensor, parts: Parts) -> Tensor:
        """The mean loss of each part, shape (parts,)."""
        self._load(w)
        with torch.no_grad():
            losses = [self._loss_of(part).double().cpu() for part in parts]
        self.work += sum(map(len, parts)) / 3
        return torch.stack(losses)

    def gradient(self, w: Tensor, parts: Parts) -> tuple[float, Tensor]:
        """The mean loss over all parts, and its gradient of shape (size,)."""
        self._load(w)
        total, mean, gradient = _count(parts), 0.0, torch.zeros_like(w)
        for part in parts:
            loss = self._loss_of(part)
            found = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
            mean += float(loss.detach()) * len(part) / total
            gradient += _flat(found) * (len(part) / total)
        self.work += total
        return mean, gradient

    def hessian(self, w: Tensor, parts: Parts) -> Callable[[Tensor], Tensor]:
        """The map v -> H v, H the Hessian at w of the mean loss over all parts."""
        total = _count(parts)

        def product(v: Tensor) -> Tensor:
            self._load(w)
            Hv = torch.zeros_like(v)
            for part in parts:
                Hv += self._product(v, part) * (len(part) / total)
            return self.require_finite("second derivative", Hv)

        return product

    def curvatures(self, w: Tensor, v: Tensor, parts: Parts) -> Tensor:
        """v'Hv of each part, shape (parts,)."""
        self._load(w)
        return torch.stack([v @ self._product(v, part) for part in parts])

    def single_gradients(self, w: Tensor, samples: Tensor) -> Iterator[Tensor]:
        """The gradients of single samples, in order, in blocks of shape (rows, size)."""
        self._load(w)
        rows = max(1, min(_ROW_ELEMENTS // self.size, _MOST_ROWS))
        for group in torch.split(samples, rows):
            self.work += len(group)
            yield self._rows(group)

    def check(self, part: Tensor) -> None:
        """Refuse a loss that is no mean over samples, not differentiable, or not finite."""
        self._load(self.start)
        loss = self._loss_of(part)
        if loss.ndim:
            raise ConfigError(
                "The loss must be one number, the mean over the samples of a batch; got a tensor "
                f"of shape {tuple(loss.shape)}. Use reduction='mean'."
            )
        if not loss.requires_grad:
            raise ConfigError(
                "The loss must be differentiable in the model's parameters; it is not. Check that "
                "neither the model nor the loss detaches its result."
            )
        self.require_finite("loss", loss.detach())
        if len(part) < 2:
            return
        pieces = torch.split(part, -(-len(part) // 2))
        mean = sum(float(self._loss_of(p).detach()) * len(p) for p in pieces) / len(part)
        whole = float(loss.detach())
        tolerance = min(max(1e3 * self.rounding, 1e-9), 0.1)
        if abs(mean - whole) > tolerance * max(abs(mean), abs(whole)):
            raise ConfigError(
                "The loss of a batch must be the mean of the losses of its samples; it is "
                f"{whole:.6g} for {len(part)} samples, but {mean:.6g} on average over their two "
                "halves. Use reduction='mean' and no class weights."
            )

    def require_finite(self, what: str, value: Tensor) -> Tensor:
        if not bool(value.isfinite().all()):
            raise DataError(
                f"{self._data.name}: expected a finite {what} at the given model, but it is not. "
                "Check the data for missing values and the model for infinite or NaN weights."
            )
        return value

    def loss_with(self, model: nn.Module, part: Tensor) -> Tensor:
        """The loss of another model on one part."""
        inputs, targets = self._data.train_inputs[part], self._data.train_targets[part]
        # Fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            return self._loss(model(inputs), targets)

    def _loss_of(self, part: Tensor) -> Tensor:
        return self.loss_with(self._model, part)

    def _product(self, v: Tensor, part: Tensor) -> Tensor:
        self.work += 2 * len(part)
        loss = self._loss_of(part)
        first = torch.autograd.grad(
            loss, self._parameters, create_graph=True, materialize_grads=True
        )
        pairs = zip(first, self._pieces(v), strict=True)
        slope = torch.stack([(g * d).sum() for g, d in pairs]).sum()
        if not slope.requires_grad:  # the loss is linear in the parameters
            return torch.zeros_like(v)
        return _flat(torch.autograd.grad(slope, self._parameters, materialize_grads=True))

    def _rows(self, group: Tensor) -> Tensor:
        if self._vectorise and len(group) > 1:
            try:
                return self._rows_at_once(group)
            except Exception:  # not every module runs under vmap: go one by one
                self._vectorise = False
        rows = []
        for sample in torch.split(group, 1):
            loss = self._loss_of(sample)
            rows.append(_flat(torch.autograd.grad(loss, self._parameters, materialize_grads=True)))
        return torch.stack(rows)

    def _rows_at_once(self, group: Tensor) -> Tensor:
        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._loss(functional_call(self._model, parameters, (x[None],)), y[None])

        parameters = {
            name: p.detach() for name, p in zip(self._names, self._parameters, strict=True)
        }
        inputs, targets = self._data.train_inputs[group], self._data.train_targets[group]
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.simplefilter("ignore")  # a missing batching rule only costs time
            found = vmap(grad(loss), (None, 0, 0), randomness="different")(
                parameters, inputs, targets
            )
        flat = [found[name].flatten(1).double().cpu() for name in self._names]
        return torch.cat(flat, 1)

    def _load(self, w: Tensor) -> None:
        with torch.no_grad():
            for parameter, piece in zip(self._parameters, self._pieces(w), strict=True):
                parameter.copy_(piece)

    def _pieces(self, v: Tensor) -> list[Tensor]:
        pieces = torch.split(v, [parameter.numel() for parameter in self._parameters])
        return [
            piece.view(p.shape).to(p) for piece, p in zip(pieces, self._parameters, strict=True)
        ]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().cpu().flatten() for tensor in tensors])


def _count(parts: Parts) -> int:
    return sum(len(part) for part in parts)


# ---- The noise of minibatch gradients -----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Noise:
    """Variance of a minibatch gradient (the trace of its covariance), and gradient norms."""

    variance: float
    error: float
    """Standard error of the variance; 0 if every sample was used."""
    norms: NDArray[np.float64]
    """Norms of disjoint minibatch gradients, shape (batches,)."""
    ceiling: float
    """Mean of the b largest single-sample norms: no batch of these samples exceeds it."""


def gradient_noise(
    objective: Objective,
    w: Tensor,
    mean: Tensor,
    samples: Tensor,
    batch_size: int,
    num_train: int,
) -> Noise:
    """The noise at w; `samples` are in random order and `mean` is the mean of their gradients.

    Single-sample gradients tell the most per gradient computed: a batch of b says no more about
    the covariance than one sample, at b times the price. If S^2 is their variance (divisor n-1),
    a batch of b out of N without repeats has S^2/b (1 - b/N): nearly the S^2/b of independent
    draws for b much smaller than N, and no noise at all for b = N.
    """
    b, n, N = batch_size, len(samples), num_train
    squares, singles, norms = [], [], []
    total, filled = torch.zeros_like(mean), 0
    for rows in objective.single_gradients(w, samples):
        squares.append((rows - mean).square().sum(1).numpy())
        singles.append(rows.norm(dim=1).numpy())
        done = 0
        while done < len(rows):
            piece = rows[done : done + b - filled]
            total += piece.sum(0)
            filled += len(piece)
            done += len(piece)
            if filled == b:
                norms.append(float(total.norm()) / b)
                total, filled = torch.zeros_like(mean), 0
    deviations = np.concatenate(squares) * (n / max(n - 1, 1))
    scale = (1 - b / N) / b
    error = float(np.std(deviations, ddof=1)) * np.sqrt((1 - n / N) / n) if n > 1 else 0.0
    return Noise(
        variance=float(np.mean(deviations)) * scale,
        error=float(error) * scale,
        norms=np.asarray(norms),
        ceiling=float(np.sort(np.concatenate(singles))[-b:].mean()),
    )
