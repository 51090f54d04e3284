"""The built-in data set: scikit-learn's handwritten digits, there without a network."""

from __future__ import annotations

import numpy as np
import torch

from prlc.data.base import Dataset
from prlc.draws import Purpose, bits

__all__ = ["load_digits"]

_NUM_TEST = 297
_SPLIT_SEED = 0  # part of the data set: the split is the same in every run, whatever its seed


def load_digits() -> Dataset:
    """1,797 grey images of 8x8 pixels in ten classes: 1,500 to train on, 297 to test on.

    Pixels (0 to 16) are divided by 16, then shifted and scaled by the mean and the standard
    deviation of all training pixels. The split is fixed and stratified: each class has its share
    of the test set to within one image. The source does not tell the writers apart, so a writer
    may be on both sides.
    """
    # Imported here because it costs a second that other data sets need not pay.
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
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
