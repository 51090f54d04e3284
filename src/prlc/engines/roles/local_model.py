"""A worker's model: turns gradients into an update by the user's optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from prlc.engines.job import staying, travelling
from prlc.engines.roles.notes import Kind
from prlc.engines.roles.packing import Packing, Vector, is_finite


class LocalModel:
    """A worker's model and, as a flat vector, its `values` after the last step.

    A parameter's update is the optimizer's step; a buffer's is the change that the forward pass
    made. For plain SGD the update is computed as -lr times the gradient, which avoids the rounding
    of a difference.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        packing: Packing,
        *,
        gives_gradients: bool = False,
    ) -> None:
        """`gives_gradients`: an update is minus the gradient; the optimizer steps on the server."""
        self.model, self.optimizer, self._packing = model, optimizer, packing
        self._gives_gradients = gives_gradients
        self.values = packing.zeros()
        packing.pack(_detached(model), self.values)

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def update(self, into: Vector) -> Kind:
        """Write the update for the current gradients, or return why it is unusable.

        An unusable update is written as zeros, and the model goes back to `values`.
        """
        plain = self._gives_gradients or _is_plain_sgd(self.model, self.optimizer)
        kind = Kind.UPDATE
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
        """Zero the update and restore the model from `values`, also if its shapes changed."""
        for flat in update:
            flat.zero_()
        if not self._packing.fits(_detached(self.model)):
            before = zip(self._packing.tensors(self.values), self._packing.own_dtypes, strict=True)
            for tensor, (value, dtype) in zip(travelling(self.model), before, strict=True):
                tensor.data = value.to(tensor.device, dtype, copy=True)
                tensor.grad = None
        self.show()

    def _write_update(self, into: Vector, plain: bool) -> None:
        updates, before = self._packing.tensors(into), self._packing.tensors(self.values)
        changed = list(zip(updates, _detached(self.model), before, strict=True))
        if plain:
            parameters = list(self.model.parameters())
            for update, parameter in zip(updates, parameters, strict=False):  # buffers follow
                if parameter.grad is None:
                    update.zero_()
                else:
                    gradient = parameter.grad.detach().to_dense().to(update)
                    torch.mul(gradient, -1.0 if self._gives_gradients else -self.lr, out=update)
            del changed[: len(parameters)]
        else:
            self.optimizer.step()
        for update, now, then in changed:
            # If values are more precise than the model, the model started from rounded ones.
            start = then if now.dtype == then.dtype else then.to(now.dtype).to(then.dtype)
            torch.sub(now.to(update), start, out=update)

    def read_gradients(self, into: Tensor) -> None:
        """Copy the gradients into a flat vector; parameters without one are skipped."""
        for view, parameter in self._with_views(into):
            if parameter.grad is not None:
                view.copy_(parameter.grad.to_dense())

    def write_gradients(self, values: Tensor) -> None:
        """Overwrite existing gradients from a flat vector."""
        for view, parameter in self._with_views(values):
            if parameter.grad is not None:
                parameter.grad = view.to(parameter, copy=True)

    def _with_views(self, vector: Tensor) -> list[tuple[Tensor, nn.Parameter]]:
        views = self._packing.tensors([vector])
        return list(zip(views, self.model.parameters(), strict=False))

    def _has_finite_gradients(self) -> bool:
        """Checked before an optimizer takes them into its state."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return is_finite([gradient.detach().to_dense() for gradient in gradients])

    @torch.no_grad()
    def move(self, update: Vector, share: float) -> None:
        """Set the model to `values` plus a share of an update."""
        if share:
            for flat, change in zip(self.values, update, strict=True):
                flat.add_(change, alpha=share)
        self.show()

    @torch.no_grad()
    def show(self) -> None:
        """Copy `values` into the model."""
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
    """Whether each step is -lr times the gradient, for all trained parameters."""
    groups = optimizer.param_groups
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    given = {id(p) for group in groups for p in group["params"]}
    return (
        type(optimizer) is SGD
        and trained <= given
        and len({group["lr"] for group in groups}) == 1
        and not any(g["momentum"] or g["weight_decay"] or g["maximize"] for g in groups)
    )
