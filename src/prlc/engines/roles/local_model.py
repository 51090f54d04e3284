"""A worker's model: from gradients, or from a step that a script has taken, to an update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prlc.engines.job import staying, travelling
from prlc.engines.roles.notes import Kind
from prlc.engines.roles.packing import Packing, Vector, is_finite
from prlc.engines.roles.selection import Models
from prlc.errors import CheckpointError
from prlc.methods import Method, Scheduled
from prlc.optim.optimizers import is_plain_sgd


class LocalModel:
    """A worker's model and, as a flat vector, its `values` after the last step.

    A parameter's update is the optimizer's step; a buffer's is the change that the forward pass
    made. For plain SGD the update is computed as -lr times the gradient, which avoids the rounding
    of a difference.
    """

    keeps_rounds = False
    """Whether `values` may stay as they are in steps without a push."""
    gives_values = False
    """Whether an update may be written in place of `values`, if a pull replaces them."""

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
        for flat in update if update is not self.values else ():
            flat.zero_()
        if not self._packing.fits(_detached(self.model)):
            before = zip(self._packing.tensors(self.values), self._packing.own_dtypes, strict=True)
            for tensor, (value, dtype) in zip(travelling(self.model), before, strict=True):
                tensor.data = value.to(tensor.device, dtype, copy=True)
                tensor.grad = None
        self.show()

    def _write_update(self, into: Vector, plain: bool) -> None:
        changed = self._pairs(into)
        if plain:
            updates = [update for update, _, _ in changed]
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
        self._write_changes(changed)

    def _pairs(self, into: Vector) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each tensor: its update, its value now, its value before."""
        updates, before = self._packing.tensors(into), self._packing.tensors(self.values)
        return list(zip(updates, _detached(self.model), before, strict=True))

    @staticmethod
    def _write_changes(changed: list[tuple[Tensor, Tensor, Tensor]]) -> None:
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
            "staying": [tensor.clone() for tensor in self._staying()],
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        for flat, saved in zip(self.values, state["values"], strict=True):
            flat.copy_(saved)
        for tensor, saved in zip(self._staying(), state["staying"], strict=True):
            tensor.copy_(saved)
        self._load_optimizers(state["optimizer"])
        self.show()

    def _staying(self) -> list[Tensor]:
        return staying(self.model)

    def _load_optimizers(self, states: Any) -> None:
        self.optimizer.load_state_dict(states)


class ScriptModel(LocalModel):
    """The models of a script whose own loop steps its optimizers.

    An update is whatever has changed since the last one: by the optimizer, by the forward pass, or
    beside both. While one of several optimizers steps, the parameters of the others are left alone,
    since a backward pass through them may be pending: what has become of them is shown when their
    model is next called, or stepped.
    """

    def __init__(
        self,
        model: nn.Module,
        models: Models,
        packing: Packing,
        *,
        method: Method,
        goes_back: bool = False,
    ) -> None:
        """`model` is what travels of the models; `goes_back`: it does so if an update is bad."""
        super().__init__(model, models.optimizers[0], packing)
        self._models, self.optimizers = models, models.optimizers
        self._holds = False
        #: Whether the model moves by all of its updates and does not go back: `values` follow it.
        self._follows = False
        if isinstance(method, Scheduled):
            self._follows = not goes_back and method.trivial and method.gain == 1.0
            self.keeps_rounds = self._follows
            self.gives_values = not goes_back
            # A worker that does not move by its updates would make a change beside the optimizer
            # again at every step, and push it each time.
            always_pulls = method.trivial and method.pull_ratio == 1.0
            self._holds = method.gain == 0.0 and not always_pulls
        self._beside: Vector = []  # made beside the optimizer, part of the model, to be pushed
        self._others: set[int] = set()  # what belongs to optimizers that do not step now
        self._late: dict[int, Tensor] = {}  # by place: what the model shows instead of its value
        self.touched = False
        """Whether the models are not what the script's own steps make of them."""

    def stepped_by(self, optimizer: Optimizer | None) -> None:
        """An optimizer has stepped; None: no backward pass is pending."""
        self._others = set()
        if optimizer is not None and len(self.optimizers) > 1:
            others = [other for other in self.optimizers if other is not optimizer]
            self._others = {id(p) for other in others for p in _given_to(other)}
            stepped = {id(p) for p in _given_to(optimizer)}
            for model in self._models.models:  # a backward pass looks at running statistics, too
                if stepped.isdisjoint(map(id, model.parameters())):
                    self._others |= {id(b) for b in model.buffers()}
        self._catch_up(lambda tensor: id(tensor) not in self._others)

    def called(self, model: nn.Module) -> None:
        """A model begins a forward pass."""
        if self._late:
            own = {id(t) for t in (*model.parameters(), *model.buffers())}
            self._catch_up(lambda tensor: id(tensor) in own)

    @torch.no_grad()
    def _catch_up(self, which: Callable[[Tensor], bool]) -> None:
        tensors, values = travelling(self.model), self._packing.tensors(self.values)
        for place, shown in [*self._late.items()]:
            if which(tensors[place]):
                tensors[place].add_(values[place].to(tensors[place]) - shown)
                del self._late[place]

    @torch.no_grad()
    def show(self) -> None:
        self.touched = True
        if not self._others:
            super().show()
            return
        values = self._packing.tensors(self.values)
        for place, (tensor, value) in enumerate(zip(travelling(self.model), values, strict=True)):
            if id(tensor) not in self._others:
                tensor.copy_(value)
            elif place not in self._late and not torch.equal(tensor, value.to(tensor)):
                self._late[place] = tensor.detach().clone()

    def write_gradients(self, values: Tensor) -> None:
        self.touched = True
        super().write_gradients(values)

    @torch.no_grad()
    def adopt(self) -> None:
        """Before the optimizer's step: keep what was changed beside it, if it could get lost."""
        if not self._holds or not self._packing.fits(_detached(self.model)):
            return
        before = self._packing.tensors(self.values)
        pairs = list(zip(travelling(self.model), before, strict=True))
        count = len(list(self.model.parameters()))
        trained = [pair for i, pair in enumerate(pairs[:count]) if i not in self._late]
        if all(
            torch.equal(now.to(then.dtype), then.to(now.dtype).to(then.dtype))
            for now, then in trained
        ):
            return
        self._beside = self._packing.zeros()
        changes = self._packing.tensors(self._beside)
        for place, ((now, then), change) in enumerate(zip(pairs, changes, strict=False)):
            if place < count and place not in self._late:
                torch.sub(now.to(change), then, out=change)
                then.copy_(now)

    @torch.no_grad()
    def unsaid(self) -> list[tuple[Tensor, Tensor]]:
        """What travels, and how it has changed since the last step."""
        tensors = _detached(self.model)
        if not self._packing.fits(tensors):
            return []
        values = zip(tensors, self._packing.tensors(self.values), strict=True)
        return [
            (tensor, tensor - value.to(tensor))
            for place, (tensor, value) in enumerate(values)
            if place not in self._late
        ]

    @torch.no_grad()
    def is_as_left(self) -> bool:
        """Whether the parameters are as the last step left them."""
        tensors, values = _detached(self.model), self._packing.tensors(self.values)
        count = len(list(self.model.parameters()))
        return self._packing.fits(tensors) and all(
            torch.equal(now, value.to(now))
            for now, value in zip(tensors[:count], values, strict=False)
        )

    @torch.no_grad()
    def update(self, into: Vector) -> Kind:
        """Write what has changed since the last update, or return why it is unusable."""
        kind, in_place = Kind.UPDATE, into is self.values
        loses_values = in_place or self._follows
        if not self._packing.fits(_detached(self.model)):
            kind = Kind.MISSHAPEN
        elif loses_values and not is_finite(_detached(self.model)):
            kind = Kind.INFINITE  # seen while there are still values to go back to
        else:
            for place, (update, now, then) in enumerate(self._pairs(into)):
                self._write_changes([(update, now, then)])
                if place in self._late:
                    update.zero_()
                elif self._follows and not in_place:
                    then.copy_(now)  # both are still in the cache
            for flat, change in zip(into, self._beside, strict=True) if self._beside else ():
                flat.add_(change)
            self._beside = []
            if not loses_values and not is_finite(into):
                kind = Kind.INFINITE
        if kind is not Kind.UPDATE:
            self.refuse(into)
        return kind

    @torch.no_grad()
    def move(self, update: Vector, share: float) -> None:
        if self._follows:
            return
        if share == 1.0:  # the optimizer has already done it
            values = self._packing.tensors(self.values)
            for place, (value, now) in enumerate(zip(values, _detached(self.model), strict=True)):
                if place not in self._late:
                    value.copy_(now)
        else:
            super().move(update, share)

    def state(self) -> dict[str, Any]:
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        return super().state() | {"optimizer": optimizers, "kinds": self._kinds()}

    def load_state(self, state: dict[str, Any]) -> None:
        if state["kinds"] != self._kinds():
            raise CheckpointError(
                f"The checkpoint is of {' and '.join(state['kinds'])}, but the script gives "
                f"{' and '.join(self._kinds())}. Resume it with the same optimizers, or begin in "
                "another folder."
            )
        super().load_state(state)

    def _kinds(self) -> list[str]:
        """What the optimizers are, and of how many parameters."""
        return [f"{type(o).__name__} of {len(_given_to(o))} tensors" for o in self.optimizers]

    def _staying(self) -> list[Tensor]:
        return staying(self._models.all)

    def _load_optimizers(self, states: Any) -> None:
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)


def _given_to(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _detached(model: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in travelling(model)]


def _is_plain_sgd(model: nn.Module, optimizer: Optimizer) -> bool:
    """Whether each step is -lr times the gradient, for all trained parameters."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    given = {id(p) for p in _given_to(optimizer)}
    return trained <= given and is_plain_sgd(optimizer)
