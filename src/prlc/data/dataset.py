"""A data set: training and, optionally, test samples, as tensors in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data import Dataset as TorchDataset

from prlc.draws import Purpose, bits
from prlc.errors import ConfigError, DataError

__all__ = ["Dataset", "Pair"]

Pair = tuple[Tensor, Tensor]


# Not compared or hashed by value: comparing tensors gives no single truth value.
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training samples (N, ...) with targets (N, ...), and optionally test samples.

    `num_classes` is the number of classes for integer targets and None for real-valued ones.
    """

    name: str
    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor | None
    test_targets: Tensor | None
    num_classes: int | None

    def __post_init__(self) -> None:
        self._check_part("training", self.train_inputs, self.train_targets)
        if self.test_inputs is None and self.test_targets is None:
            return
        if self.test_inputs is None or self.test_targets is None:
            missing = "inputs" if self.test_inputs is None else "targets"
            raise DataError(
                f"{self.name}: the test {missing} are missing; give both test inputs and test "
                "targets, or neither."
            )
        self._check_part("test", self.test_inputs, self.test_targets)
        if self.test_inputs.shape[1:] != self.train_inputs.shape[1:]:
            raise DataError(
                f"{self.name}: a test sample has shape {tuple(self.test_inputs.shape[1:])} but a "
                f"training sample has {self.sample_shape}; give both the same shape."
            )

    def _check_part(self, part: str, inputs: Tensor, targets: Tensor) -> None:
        if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) == 0:
            raise DataError(
                f"{self.name}: expected at least one {part} sample along the first dimension, got "
                f"inputs of shape {tuple(inputs.shape)} and targets of shape "
                f"{tuple(targets.shape)}."
            )
        if len(inputs) != len(targets):
            raise DataError(
                f"{self.name}: expected one target for each {part} sample, got {len(inputs)} "
                f"inputs and {len(targets)} targets."
            )
        if self.num_classes is None:
            return
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= self.num_classes:
            raise DataError(
                f"{self.name}: expected {part} labels from 0 to {self.num_classes - 1}, got labels "
                f"from {low} to {high}; renumber them from 0."
            )

    @classmethod
    def from_tensors(
        cls, inputs: Tensor, targets: Tensor, test: Pair | None = None, name: str = "data"
    ) -> Dataset:
        """A data set from tensors; integer targets are labels from 0 to the largest one present."""
        test_inputs, test_targets = (None, None) if test is None else test
        if targets.is_floating_point():
            return cls(name, inputs, targets, test_inputs, test_targets, None)
        # torch's losses accept labels only as int64.
        targets = targets.long()
        test_targets = None if test_targets is None else test_targets.long()
        seen = [int(t.max()) for t in (targets, test_targets) if t is not None and t.numel()]
        return cls(name, inputs, targets, test_inputs, test_targets, max(seen, default=0) + 1)

    @classmethod
    def of(cls, data: object) -> Dataset:
        """`data` as a Dataset; it may be one of torch's, or its loader, or tuples of tensors."""
        if isinstance(data, Dataset):
            return data
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, DataLoader):
            data = data.dataset
        if isinstance(data, TorchDataset):
            data = _collected(data)
        if _is_pair(data):
            return cls.from_tensors(*data)
        if isinstance(data, tuple) and len(data) == 2 and all(_is_pair(part) for part in data):
            (inputs, targets), test = data
            return cls.from_tensors(inputs, targets, test)
        raise ConfigError(
            "Data must be a prlc Dataset, a torch Dataset of inputs and targets or its DataLoader, "
            "a tuple (inputs, targets) of tensors, or ((train_inputs, train_targets), "
            f"(test_inputs, test_targets)); got {_described(data)}."
        )

    @property
    def num_train(self) -> int:
        return len(self.train_inputs)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def has_test(self) -> bool:
        return self.test_inputs is not None

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Dataset:
        """This data on `device`; `dtype` applies to real-valued tensors, never to labels."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return replace(
            self,
            train_inputs=moved(self.train_inputs),
            train_targets=moved(self.train_targets),
            test_inputs=None if self.test_inputs is None else moved(self.test_inputs),
            test_targets=None if self.test_targets is None else moved(self.test_targets),
        )

    def take(self, n: int, seed: int) -> Dataset:
        """`n` training samples chosen by `seed`, and the whole test set: for quick runs."""
        if not 1 <= n <= self.num_train:
            raise ConfigError(
                f"{self.name}: expected to take between 1 and {self.num_train} training samples, "
                f"got {n}."
            )
        order = np.argsort(bits(seed, Purpose.EVALUATION, np.arange(self.num_train)), kind="stable")
        chosen = torch.from_numpy(np.sort(order[:n])).to(self.train_inputs.device)
        return replace(
            self,
            train_inputs=self.train_inputs[chosen],
            train_targets=self.train_targets[chosen.to(self.train_targets.device)],
        )

    def __repr__(self) -> str:
        test = 0 if self.test_inputs is None else len(self.test_inputs)
        return (
            f"Dataset({self.name!r}, {self.num_train} training and {test} test samples of shape "
            f"{self.sample_shape}, num_classes={self.num_classes})"
        )


def _collected(data: TorchDataset[Any]) -> object:
    """All samples of a data set that has a length, in its order, as tensors."""
    try:
        return tuple(default_collate([data[index] for index in range(len(data))]))  # type: ignore[arg-type]
    except Exception as error:  # whatever a data set may raise
        raise ConfigError(
            f"Data must have a length and samples of an input and a target, all of one shape; "
            f"{_described(data)} has not ({error})."
        ) from error


def _is_pair(data: object) -> TypeGuard[Pair]:
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(t, Tensor) for t in data)


def _described(data: object) -> str:
    if isinstance(data, tuple):
        return f"a tuple of ({', '.join(type(part).__name__ for part in data)})"
    return f"a {type(data).__name__}"
