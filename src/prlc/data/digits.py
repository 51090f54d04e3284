"""The built-in data set: scikit-learn's handwritten digits, no download needed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from prlc.data.dataset import Dataset
from prlc.draws import Purpose, bits

__all__ = ["load_digits"]

_NUM_TEST = 297
_SPLIT_SEED = 0  # part of the data set, not of a run


def load_digits() -> Dataset:
    """1,500 training and 297 test images, float32 (1, 8, 8), in ten classes.

    Pixels (0 to 16) are divided by 16 and normalised by the mean and standard deviation of all
    training pixels. The split is fixed and stratified: each class has its share of the test set to
    within one image. The source does not identify writers, so one may appear in both parts.
    """
    pixels, labels = _read()
    images = pixels.reshape(-1, 1, 8, 8) / 16.0
    # Sorted by class, at random within it; then evenly spaced picks.
    by_class = np.lexsort((bits(_SPLIT_SEED, Purpose.EVALUATION, np.arange(len(labels))), labels))
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_class[np.arange(_NUM_TEST) * len(labels) // _NUM_TEST]] = True
    mean, std = images[~is_test].mean(), images[~is_test].std()
    inputs = torch.from_numpy(((images - mean) / std).astype(np.float32))
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = torch.from_numpy(~is_test), torch.from_numpy(is_test)
    return Dataset("digits", inputs[train], targets[train], inputs[test], targets[test], 10)


def _read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Pixels (1797, 64) and labels (1797,), from scikit-learn's own file.

    Importing scikit-learn takes a second, which every process of a run would pay.
    """
    spec = find_spec("sklearn")
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    return pixels, labels.astype(np.int64)
