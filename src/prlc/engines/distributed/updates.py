"""From a user's model and optimizer to an update, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from prlc.engines.base import staying, travelling
from prlc.engines.distributed.packing import Packing, Vector, is_finite
from prlc.engines.distributed.wire import Kind


class OwnModel:
    """A worker's model, and beside it the flat vector of where it stood after the last step.

    The update of a parameter is what its optimizer makes of the gradient; that of a buffer is what
    the forward pass changed. For plain SGD it is -lr times the gradient, without the rounding of a
    difference.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, packing: Packing) -> None:
        self.model, self.optimizer, self._packing = model, optimizer, packing
        self.values = packing.zeros()
        packing.pack(_detached(model), self.values)

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def update(self, into: Vector) -> Kind:
        """Write the update that the gradients ask for, or say why it is not usable.

        Then zeros are written, and the model is put back to where it stood.
        """
        kind, plain = Kind.UPDATE, _is_plain_sgd(self.model, self.optimizer)
        if not self._packing.fits(_detached(self.model)):
            kind = Kind.MISSHAPEN
        elif not plain and not self._has_finite_gradients():
            kind = Kind.INFINITE
        else:
            self._write_update(into, plain)
            if not is_finite(into):
                kind = Kind.INFINITE
        if kind is not Kind.UPDATE:
            self.refuse(into)
        return kind

    @torch.no_grad()
    def refuse(self, update: Vector) -> None:
        """Make nothing of an update, and put the model back, whatever became of its shapes."""
        for flat in update:
            flat.zero_()
        if not self._packing.fits(_detached(self.model)):
            before = self._packing.tensors(self.values)
            for tensor, value in zip(travelling(self.model), before, strict=True):
                tensor.data = value.to(tensor.device, copy=True)
                tensor.grad = None
        self.show()

    def _write_update(self, into: Vector, plain: bool) -> None:
        updates, before = self._packing.tensors(into), self._packing.tensors(self.values)
        changed = list(zip(updates, _detached(self.model), before, strict=True))
        if plain:
            parameters = list(self.model.parameters())
            for update, parameter in zip(updates, parameters, strict=False):  # then come buffers
                if parameter.grad is None:
                    update.zero_()
                else:
                    gradient = parameter.grad.detach().to_dense().to(update.device)
                    torch.mul(gradient, -self.lr, out=update)
            del changed[: len(parameters)]
        else:
            self.optimizer.step()
        for update, now, then in changed:
            torch.sub(now.to(update.device), then, out=update)

    def _has_finite_gradients(self) -> bool:
        """Before an optimizer takes them into its own state."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return is_finite([gradient.detach().to_dense() for gradient in gradients])

    @torch.no_grad()
    def move(self, update: Vector, share: float) -> None:
        """From where the model stood, go by a share of an update."""
        if share:
            for flat, change in zip(self.values, update, strict=True):
                flat.add_(change, alpha=share)
        self.show()

    @torch.no_grad()
    def show(self) -> None:
        """Let the model be what the vector says."""
        self._packing.unpack(self.values, _detached(self.model))

    def state(self) -> dict[str, Any]:
        return {
            "values": [flat.clone() for flat in self.values],
            "staying": [tensor.clone() for tensor in staying(self.model)],
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        for flat, saved in zip(self.values, state["values"], strict=True):
            flat.copy_(saved)
        for tensor, saved in zip(staying(self.model), state["staying"], strict=True):
            tensor.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.show()


def _detached(model: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in travelling(model)]


def _is_plain_sgd(model: nn.Module, optimizer: Optimizer) -> bool:
    """Whether each step is -lr times the gradient, for all that is trained."""
    groups = optimizer.param_groups
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    given = {id(p) for group in groups for p in group["params"]}
    return (
        type(optimizer) is SGD
        and trained <= given
        and len({group["lr"] for group in groups}) == 1
        and not any(g["momentum"] or g["weight_decay"] or g["maximize"] for g in groups)
    )
