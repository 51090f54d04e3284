"""Text by characters: any text file, and tiny Shakespeare (Karpathy, 2015: 1.1 MB of his plays).

A sample is a stretch of `context` characters, its targets are the characters that follow each of
them. As in nanoGPT, a character's number is its place among the sorted characters of the text, and
the last tenth of the text is held out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prlc.data.dataset import Dataset
from prlc.data.files import Progress, cache_dir, fetch, locate, read_bytes
from prlc.errors import ConfigError, DataError

__all__ = ["load_shakespeare", "load_text"]

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
MD5 = "6fb458f1232090904fb40fe944165e91"

_FILES = ("tinyshakespeare.txt", "input.txt")
_TRAIN_SHARE = 0.9


def load_shakespeare(
    data_dir: Path | str | None = None,
    *,
    progress: Progress | None = None,
    context: int = 64,
    stride: int | None = None,
    _published: tuple[str, str] = (URL, MD5),
) -> Dataset:
    """15,685 training and 1,742 test stretches of 64 characters, out of 65 that occur.

    Read from tinyshakespeare.txt or input.txt in `data_dir`, else in the folder PRLC_DATA_DIR
    names, else in the cache, else downloaded into it (1.1 MB).
    """
    path = locate("tiny Shakespeare", _search, lambda: _cached(*_published, progress), data_dir)
    return load_text(path, context, stride, name="shakespeare")


def load_text(
    path: Path | str, context: int = 64, stride: int | None = None, *, name: str | None = None
) -> Dataset:
    """A data set from a text file in UTF-8; inputs and targets are int64 (N, context).

    stride: how many characters after one another training samples begin. None: `context`, so that
        an epoch is one pass over the text; 1: at every character, as nanoGPT draws them.
    """
    stride = context if stride is None else stride
    if context < 1 or stride < 1:
        raise ConfigError(
            f"context and stride must be at least 1 character; got {context} and {stride}."
        )
    path = Path(path).expanduser()
    content = read_bytes(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} must be a text in UTF-8, but its byte {error.start} is not; convert it."
        ) from error
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet, numbers = np.unique(points, return_inverse=True)
    split = int(_TRAIN_SHARE * len(numbers))
    if min(split, len(numbers) - split) <= context:
        raise DataError(
            f"{path} must have more than {context} characters in its last tenth, which is held "
            f"out; it has {len(numbers)} in all: take a longer text or a shorter context."
        )
    characters = torch.from_numpy(numbers.astype(np.int64))
    return Dataset(
        name or path.stem,
        *_stretches(characters[:split], context, stride),
        *_stretches(characters[split:], context, context),
        num_classes=len(alphabet),
    )


def _stretches(characters: Tensor, context: int, stride: int) -> tuple[Tensor, Tensor]:
    """Views (N, context) of the text, and of the text one character later."""
    inputs, targets = characters[:-1], characters[1:]
    return inputs.unfold(0, context, stride), targets.unfold(0, context, stride)


def _search(folder: Path) -> Path | None:
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def _cached(url: str, md5: str, progress: Progress | None) -> Path:
    return fetch(url, cache_dir() / _FILES[0], md5, progress=progress)
