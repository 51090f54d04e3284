"""Small models and data, the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prlc
from prlc.models import cross_entropy, transformer

Problem = tuple[nn.Module, Any, tuple[Tensor, Tensor]]


class Mixed(nn.Module):
    """Has numbers of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.single, self.double_ = nn.Linear(12, 9), nn.Linear(9, 4).double()
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.seen: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.single(inputs.float()).tanh()
        if self.training:
            self.seen += hidden.detach().double().mean()
        output: Tensor = self.double_(hidden.double())
        return output


class Transposed(nn.Module):
    """As many tensors and numbers as `linear`, but in other shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(12, 4, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(4, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight + self.bias


def _partly_frozen() -> nn.Module:
    first = nn.Linear(12, 16).requires_grad_(False)
    return nn.Sequential(first, nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4)).double()


def _normed() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    return nn.Sequential(nn.Linear(12, 16), norm, nn.Tanh(), nn.Linear(16, 4)).double()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bn": _normed,
    "mixed": Mixed,
    "frozen": _partly_frozen,
    "linear": lambda: nn.Linear(12, 4).double(),
    "transposed": Transposed,
    "text": lambda: transformer((6,), 5, layers=1, width=8, heads=2).double(),
    "tiny": lambda: nn.Linear(1, 2, bias=False).double(),
}


def problem(kind: str, seed: int = 1) -> Problem:
    """A model and data that it can learn; `seed` is that of its first weights."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 12, generator=generator, dtype=torch.float64)
    targets = (inputs @ torch.randn(12, 4, generator=generator, dtype=torch.float64)).argmax(1)
    if kind == "tiny":
        inputs = inputs[:, :1]
        targets = (inputs[:, 0] > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODELS[kind]()
    if kind == "text":
        characters = torch.randint(5, (400, 7), generator=generator).cumsum(1) % 5
        return model, cross_entropy, (characters[:, :-1], characters[:, 1:])
    return model, F.cross_entropy, (inputs, targets)


def settings(case: dict[str, Any], workers: int) -> dict[str, Any]:
    """What `prlc.train` is given, where a case says nothing else."""
    usual = {"workers": workers, "batch_size": 10, "steps": 60, "lr": 0.2, "eval_every": 20}
    return {**usual, **case}


def outcome(result: prlc.Result) -> dict[str, Any]:
    """What came out of a run, as plain containers of tensors and numbers."""
    state = result.model.state_dict()
    return {
        "tensors": {name: t for name, t in state.items() if t.is_floating_point()},
        "counters": {name: t.tolist() for name, t in state.items() if not t.is_floating_point()},
        "summary": {k: v for k, v in result.summary.items() if k not in ("torch", "python")},
        "metrics": result.metrics.to_dict("list"),
    }
