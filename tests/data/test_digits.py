from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits as scikit_digits

from prlc.data import load_digits


def test_digits_have_the_promised_form() -> None:
    data = load_digits()
    assert data.test_inputs is not None
    assert data.test_targets is not None
    assert data.train_inputs.shape == (1500, 1, 8, 8)
    assert data.test_inputs.shape == (297, 1, 8, 8)
    assert data.train_inputs.dtype == torch.float32
    assert data.train_targets.dtype == torch.int64
    assert data.num_classes == 10
    assert data.train_inputs.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert data.train_inputs.std().item() == pytest.approx(1.0, abs=1e-3)


def test_every_image_is_on_one_side_with_its_label() -> None:
    data = load_digits()
    assert data.test_inputs is not None
    assert data.test_targets is not None
    inputs = torch.cat([data.train_inputs, data.test_inputs]).flatten(1).double()
    labels = torch.cat([data.train_targets, data.test_targets])
    scale = 16.0 / (inputs.max() - inputs.min())
    pixels = ((inputs - inputs.min()) * scale).round().int().tolist()
    ours = sorted(zip(pixels, labels.tolist(), strict=True))
    images, digits = scikit_digits(return_X_y=True)
    theirs = sorted(zip(images.astype(int).tolist(), digits.tolist(), strict=True))
    assert ours == theirs


def test_the_split_is_fixed_and_stratified() -> None:
    first, second = load_digits(), load_digits()
    assert torch.equal(first.train_inputs, second.train_inputs)
    assert first.test_targets is not None
    train, test = first.train_targets.bincount(), first.test_targets.bincount()
    assert torch.all((test - (train + test) * 297 / 1797).abs() < 1)
