"""What travels of a script's models: the parameters that train and the buffers that change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from prlc.errors import ConfigError

Names = list[str]


@dataclass(frozen=True)
class _Place:
    """One module's tensors that travel, by name: a script may put others in their place."""

    module: nn.Module
    parameter_names: Names
    buffer_names: Names

    def parameters(self, recurse: bool = False) -> Iterator[nn.Parameter]:
        del recurse
        return (_found(self.module._parameters, name) for name in self.parameter_names)

    def buffers(self, recurse: bool = False) -> Iterator[Tensor]:
        del recurse
        return (_found(self.module._buffers, name) for name in self.buffer_names)


def _found(tensors: Mapping[str, Any], name: str) -> Any:
    tensor = tensors.get(name)
    if tensor is None:
        raise ConfigError(
            f"{name!r} has been taken out of the model during training. Change a model before "
            "team.train, or leave its block first."
        )
    return tensor


class Selection(nn.Module):
    """Some tensors of several models, as a module that engines can pack."""

    def __init__(self, models: Sequence[nn.Module], names: Collection[str]) -> None:
        super().__init__()
        chosen, seen = set(names), set[int]()
        self.__dict__["places"] = places = list[_Place]()
        self.__dict__["paths"] = paths = dict[str, nn.Module]()
        for prefix, module in nn.ModuleList(models).named_modules():
            kept: list[Names] = []
            for tensors in (module._parameters, module._buffers):
                kept.append([])
                for name, tensor in tensors.items():
                    if tensor is not None and f"{prefix}.{name}" in chosen:
                        if id(tensor) not in seen:
                            kept[-1].append(name)
                        seen.add(id(tensor))
            if any(kept):
                places.append(_Place(module, *kept))
                paths[prefix] = module

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        del remove_duplicate
        return iter(self.__dict__["places"])

    def is_of(self, models: Models) -> bool:
        """Whether the modules are still in their places."""
        now = dict(models.all.named_modules())
        return all(now.get(path) is module for path, module in self.__dict__["paths"].items())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        del recurse
        return (p for place in self.__dict__["places"] for p in place.parameters())

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        del recurse
        return (b for place in self.__dict__["places"] for b in place.buffers())


class Models:
    """A script's models and optimizers: what of them trains, and what has changed since."""

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.models, self.optimizers = list(models), list(optimizers)
        self.all = nn.ModuleList(models)
        self._check()

    def _check(self) -> None:
        for name, tensor in self.all.named_parameters():
            if isinstance(tensor, nn.UninitializedParameter):
                raise ConfigError(
                    f"The shape of the parameter {name} is not known yet: call the model once, "
                    "before its optimizer is made."
                )
        own = {id(p) for p in self.all.parameters()}
        for optimizer in self.optimizers:
            given = [p for group in optimizer.param_groups for p in group["params"]]
            foreign = sum(id(p) not in own for p in given)
            if foreign:
                raise ConfigError(
                    f"{type(optimizer).__name__} has {foreign} of {len(given)} parameters that "
                    "belong to no model given to team.train. Make the optimizer from the "
                    "parameters of that model, or give all models: team.train([a, b], ...)."
                )
        if not self.trained():
            raise ConfigError(
                "None of the optimizers' parameters requires a gradient, so nothing would train."
            )

    def check_replaced(self, trained: Collection[str]) -> None:
        """Refuse parameters that `trained`, but were replaced by others that no optimizer has."""
        parameters, now = dict(self.all.named_parameters()), self.trained()
        own = {id(p) for p in parameters.values()}
        if all(id(p) in own for p in self._given()):
            return
        for name in trained:
            if name in parameters and parameters[name].requires_grad and name not in now:
                raise ConfigError(
                    f"The parameter {name} has been replaced by another, which no optimizer steps "
                    "(load_state_dict(assign=True) does that). Add it to the optimizer "
                    "(add_param_group), or leave assign out."
                )

    def form(self) -> dict[str, str]:
        """What must be the same on all ranks for models to become copies of one another."""
        named = [*self.all.named_parameters(), *self.all.named_buffers()]
        return {name: f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for name, t in named}

    def _given(self) -> Iterator[nn.Parameter]:
        """The optimizers' parameters."""
        return (p for o in self.optimizers for group in o.param_groups for p in group["params"])

    def trained(self) -> Names:
        """The parameters that an optimizer changes."""
        given = {id(p) for p in self._given()}
        return [
            name for name, p in self.all.named_parameters() if p.requires_grad and id(p) in given
        ]

    def buffers(self) -> dict[str, Tensor]:
        """The floating-point buffers."""
        return {n: b for n, b in self.all.named_buffers() if b.is_floating_point()}

    def marks(self) -> dict[str, tuple[int, int]]:
        """Numbers that differ once a buffer has been written to or replaced."""
        return {name: (id(b), b._version) for name, b in self.buffers().items()}

    def scheduled(self) -> bool:
        """Whether a scheduler sets the learning rate of an optimizer."""
        return any(hasattr(o.step, "_wrapped_by_lr_sched") for o in self.optimizers)

    def describe(self) -> str:
        """The optimizers' settings, which must be the same on all ranks."""
        said = []
        for optimizer in self.optimizers:
            groups = [
                {
                    name: value
                    for name, value in group.items()
                    if isinstance(value, bool | int | float | str | tuple | None)
                }
                | {"parameters": sum(p.numel() for p in group["params"])}
                for group in optimizer.param_groups
            ]
            said.append(f"{type(optimizer).__name__} {groups}")
        return "; ".join(said)
