"""The training loss as a function of one flat vector: values, gradients, Hessian products.

Vectors are double and on the CPU; the computation itself is in the model's own precision, on its
device, a part of the samples at a time, so that memory does not grow with the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from prlc.data import Dataset
from prlc.engines import Loss
from prlc.errors import ConfigError, DataError

Parts = Sequence[Tensor]
"""Sample numbers, in the pieces that are computed at once."""

_ROW_ELEMENTS = 2**23  # single-sample gradients held at once: 64 MB
_MOST_ROWS = 256


class Objective:
    """The mean loss over samples of `data`, in eval() mode.

    The model must be a copy of the user's: its parameters are overwritten.
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
        """Done so far, in gradients of a single sample (see Cost)."""

    def numbers(self, samples: NDArray[np.int64]) -> Tensor:
        """Sample numbers as a tensor where the data is."""
        return torch.from_numpy(samples).to(self._data.train_inputs.device)

    def losses(self, w: Tensor, parts: Parts) -> Tensor:
        """The mean loss of each part."""
        self._load(w)
        with torch.no_grad():
            losses = [self._loss_of(part).double().cpu() for part in parts]
        self.work += sum(map(len, parts)) / 3
        return torch.stack(losses)

    def gradient(self, w: Tensor, parts: Parts) -> tuple[float, Tensor]:
        """The mean loss over all parts and its gradient."""
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
        """The map v -> H v of the mean loss over all parts, at w."""
        total = _count(parts)

        def product(v: Tensor) -> Tensor:
            self._load(w)
            Hv = torch.zeros_like(v)
            for part in parts:
                Hv += self._product(v, part) * (len(part) / total)
            return self.require_finite("second derivative", Hv)

        return product

    def curvatures(self, w: Tensor, v: Tensor, parts: Parts) -> Tensor:
        """v'Hv of each part."""
        self._load(w)
        return torch.stack([v @ self._product(v, part) for part in parts])

    def single_gradients(self, w: Tensor, samples: Tensor) -> Iterator[Tensor]:
        """The gradients of single samples, some rows at a time, in the order of `samples`."""
        self._load(w)
        rows = max(1, min(_ROW_ELEMENTS // self.size, _MOST_ROWS))
        for group in torch.split(samples, rows):
            self.work += len(group)
            yield self._rows(group)

    def check(self, part: Tensor) -> None:
        """Refuse a loss that is not a mean over samples, depends on nothing, or is not finite."""
        self._load(self.start)
        loss = self._loss_of(part)
        if loss.ndim:
            raise ConfigError(
                "The loss must be one number, the mean over the samples of a batch; got a tensor "
                f"of shape {tuple(loss.shape)}. Use reduction='mean'."
            )
        if not loss.requires_grad:
            raise ConfigError(
                "The loss must depend on the model's parameters by differentiable operations; it "
                "does not. Check that neither the model nor the loss detaches its result."
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
                f"{whole:.6g} for {len(part)} samples, and {mean:.6g} on average over the two "
                "halves of them. Use reduction='mean' and no class weights."
            )

    def require_finite(self, what: str, value: Tensor) -> Tensor:
        if not bool(value.isfinite().all()):
            raise DataError(
                f"{self._data.name}: expected a finite {what} at the given model, but it is not. "
                "Check the data for missing values and the model for weights that are not finite."
            )
        return value

    def loss_with(self, model: nn.Module, part: Tensor) -> Tensor:
        """The loss of another model on one part."""
        inputs, targets = self._data.train_inputs[part], self._data.train_targets[part]
        # The fused kernels of attention have no second derivative.
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
            except Exception:  # not every module runs under vmap; it then goes one by one
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
            warnings.simplefilter("ignore")  # a missing batching rule costs time only
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
