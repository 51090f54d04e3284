"""A data set from tensors, or by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from prlc.data import DATASETS, Dataset, load
from prlc.errors import ConfigError, DataError

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 2, 1, 1, 0, 2])


def test_from_tensors_infers_classes() -> None:
    data = Dataset.from_tensors(X, Y)
    assert (data.num_train, data.sample_shape, data.num_classes) == (6, (2,), 3)
    assert not data.has_test
    assert Dataset.from_tensors(X, Y, test=(X, Y + 1)).num_classes == 4
    assert Dataset.from_tensors(X, Y.float()).num_classes is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_labels_become_int64(dtype: torch.dtype) -> None:
    data = Dataset.from_tensors(X, Y.to(dtype), test=(X, Y.to(dtype)))
    assert data.train_targets.dtype == torch.int64
    assert data.test_targets is not None
    assert data.test_targets.dtype == torch.int64


@pytest.mark.parametrize("data", [(X, Y), TensorDataset(X, Y), Dataset.from_tensors(X, Y)])
def test_of_accepts(data: object) -> None:
    dataset = Dataset.of(data)
    assert torch.equal(dataset.train_inputs, X)
    assert torch.equal(dataset.train_targets, Y)


def test_of_accepts_train_and_test_pairs() -> None:
    dataset = Dataset.of(((X, Y), (X[:2], Y[:2])))
    assert dataset.has_test
    assert dataset.test_inputs is not None
    assert len(dataset.test_inputs) == 2


@pytest.mark.parametrize(
    ("data", "came"),
    [
        (X, "a Tensor"),
        (None, "a NoneType"),
        ([X, Y], "a list"),
        ((X, Y, X), "a tuple of \\(Tensor, Tensor, Tensor\\)"),
        ((X.numpy(), Y.numpy()), "a tuple of \\(ndarray, ndarray\\)"),
        (TensorDataset(X), "a tuple of \\(Tensor\\)"),
    ],
)
def test_of_refuses_and_says_what_it_takes(data: object, came: str) -> None:
    with pytest.raises(ConfigError, match=f"torch Dataset.*got {came}"):
        Dataset.of(data)


@pytest.mark.parametrize(
    ("inputs", "targets", "test", "message"),
    [
        (X, Y[:5], None, "6 inputs and 5 targets"),
        (X[:0], Y[:0], None, "at least one training sample"),
        (torch.tensor(1.0), Y, None, "at least one training sample"),
        (X, Y, (X[:0], Y[:0]), "at least one test sample"),
        (X, Y, (X, Y[:5]), "each test sample"),
        (X, Y, (X[:, :1], Y), r"shape \(1,\) but a training sample has \(2,\)"),
        (X, Y - 1, None, "labels from -1 to 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    inputs: Tensor, targets: Tensor, test: tuple[Tensor, Tensor] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Dataset.from_tensors(inputs, targets, test)


def test_half_a_test_set_is_refused() -> None:
    with pytest.raises(DataError, match="test targets are missing"):
        Dataset("half", X, Y, X, None, 3)


def test_labels_beyond_the_classes_are_refused() -> None:
    with pytest.raises(DataError, match="from 0 to 1, got labels from 0 to 2"):
        replace(Dataset.from_tensors(X, Y), num_classes=2)


def test_to_changes_real_values_only() -> None:
    data = Dataset.from_tensors(X, Y, test=(X, Y)).to("cpu", torch.float64)
    assert data.train_inputs.dtype == torch.float64
    assert data.train_targets.dtype == torch.int64
    assert data.test_inputs is not None
    assert data.test_inputs.dtype == torch.float64
    assert Dataset.from_tensors(X, Y.float()).to("cpu", torch.float64).train_targets.dtype == (
        torch.float64
    )
    assert Dataset.from_tensors(X, Y).to("cpu").train_inputs.dtype == torch.float32


def test_take_is_a_seeded_subset_with_its_targets() -> None:
    inputs = torch.arange(100.0)[:, None]
    data = Dataset.from_tensors(inputs, torch.arange(100) % 7, test=(X[:, :1], Y))
    first, again, other = data.take(30, seed=1), data.take(30, seed=1), data.take(30, seed=2)
    assert first.num_train == 30
    assert len(set(first.train_inputs[:, 0].tolist())) == 30
    assert torch.equal(first.train_inputs[:, 0].long() % 7, first.train_targets)
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert not torch.equal(first.train_inputs, other.train_inputs)
    assert first.num_classes == 7
    assert first.has_test
    assert torch.equal(data.take(100, seed=3).train_inputs, inputs)


@pytest.mark.parametrize("n", [0, -1, 7])
def test_take_refuses_what_is_not_there(n: int) -> None:
    with pytest.raises(ConfigError, match=f"between 1 and 6 training samples, got {n}"):
        Dataset.from_tensors(X, Y).take(n, seed=0)


def test_repr_is_one_line() -> None:
    assert repr(Dataset.from_tensors(X, Y, name="six")) == (
        "Dataset('six', 6 training and 0 test samples of shape (2,), num_classes=3)"
    )


# -- by name --------------------------------------------------------------------------------------


def test_digits_need_no_folder(tmp_path: Path) -> None:
    assert load("digits").num_train == 1500
    assert load("digits", tmp_path / "nowhere").num_train == 1500


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="cifar10, shakespeare; got 'mnist'"):
        load("mnist")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_a_folder_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist"):
        load(name, tmp_path / "nowhere")
