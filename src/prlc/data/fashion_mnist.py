"""Fashion-MNIST: 70,000 grey images of 28x28 pixels in ten classes (Xiao et al., 2017).

Four files in the idx format, compressed or unpacked, each checked against its published checksum.
MNIST uses the same file names and fails that check.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from prlc.data.dataset import Dataset
from prlc.data.files import (
    Progress,
    cache_dir,
    check_md5,
    damaged,
    fetch,
    locate,
    normalised,
    read_bytes,
)

__all__ = ["load_fashion_mnist"]

# Over all training pixels, scaled to [0, 1].
MEAN = (0.2860,)
STD = (0.3530,)

_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
# The folder itself comes last: it may hold MNIST under the same names.
_SUBFOLDERS = ("FashionMNIST/raw", "fashion-mnist", ".")
_CLASSES = 10


@dataclass(frozen=True)
class IdxFile:
    """A published file and what it must hold."""

    name: str
    shape: tuple[int, ...]
    md5: str | None  # of the content (None: not checked)
    gz_md5: str  # of the compressed file, as downloaded

    @property
    def header(self) -> bytes:
        """Two zero bytes, 8 for unsigned bytes, the number of dimensions, then each dimension."""
        return bytes([0, 0, 8, len(self.shape)]) + np.asarray(self.shape, ">u4").tobytes()


@dataclass(frozen=True)
class Published:
    """The four files and the site that publishes them."""

    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile
    site: str = _SITE

    @property
    def files(self) -> tuple[IdxFile, IdxFile, IdxFile, IdxFile]:
        return self.train_images, self.train_labels, self.test_images, self.test_labels


PUBLISHED = Published(
    IdxFile(
        "train-images-idx3-ubyte",
        (60_000, 28, 28),
        md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
        gz_md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    IdxFile(
        "train-labels-idx1-ubyte",
        (60_000,),
        md5="9018921c3c673c538a1fc5bad174d6f9",
        gz_md5="25c81989df183df01b3e8a0aad5dffbe",
    ),
    IdxFile(
        "t10k-images-idx3-ubyte",
        (10_000, 28, 28),
        md5="8181f5470baa50b63fa0f6fddb340f0a",
        gz_md5="bef4ecab320f06d8554ea6380940ec79",
    ),
    IdxFile(
        "t10k-labels-idx1-ubyte",
        (10_000,),
        md5="15d484375f8d13e6eb1aabb0c3f46965",
        gz_md5="bb300cfdad3c16e7a12a480ee83cd310",
    ),
)


def load_fashion_mnist(
    data_dir: Path | str | None = None,
    *,
    progress: Progress | None = None,
    _published: Published = PUBLISHED,
) -> Dataset:
    """60,000 training and 10,000 test images, float32 (1, 28, 28), normalised.

    Read from `data_dir` (or `FashionMNIST/raw` or `fashion-mnist` in it), else from the folder
    PRLC_DATA_DIR names, else from the cache, else downloaded into it (31 MB).
    """
    folder = locate(
        "Fashion-MNIST",
        lambda folder: _search(folder, _published),
        lambda: _cached(_published, progress),
        data_dir,
    )
    train_images, train_labels, test_images, test_labels = (
        _read(file, folder) for file in _published.files
    )
    return Dataset(
        "fashion-mnist",
        normalised(train_images[:, None], MEAN, STD),
        torch.from_numpy(train_labels.astype(np.int64)),
        normalised(test_images[:, None], MEAN, STD),
        torch.from_numpy(test_labels.astype(np.int64)),
        _CLASSES,
    )


def _search(folder: Path, published: Published) -> Path | None:
    places = [folder / subfolder for subfolder in _SUBFOLDERS]
    names = [name for file in published.files for name in (file.name, f"{file.name}.gz")]
    return next((p for p in places if any((p / name).is_file() for name in names)), None)


def _cached(published: Published, progress: Progress | None) -> Path:
    folder = _search(cache_dir(), published) or cache_dir() / "fashion-mnist"
    for file in published.files:
        if not (folder / file.name).is_file():
            compressed = f"{file.name}.gz"
            fetch(published.site + compressed, folder / compressed, file.gz_md5, progress=progress)
    return folder


def _read(file: IdxFile, folder: Path) -> NDArray[np.uint8]:
    path = folder / file.name
    if path.is_file():
        content = read_bytes(path)
    else:
        path = folder / f"{file.name}.gz"
        try:
            content = gzip.decompress(read_bytes(path))
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, "a whole gzip file", f"one that breaks off ({error})") from error
    size = len(file.header) + int(np.prod(file.shape))
    if len(content) != size:
        raise damaged(path, f"{size:,} bytes of content", f"{len(content):,}")
    if not content.startswith(file.header):
        came = content[: len(file.header)].hex()
        raise damaged(path, f"the idx header {file.header.hex()}", came)
    check_md5(path, content, file.md5)
    values = np.frombuffer(content, np.uint8, offset=len(file.header)).reshape(file.shape)
    if values.ndim == 1 and values.max() >= _CLASSES:
        raise damaged(path, f"labels from 0 to {_CLASSES - 1}", f"the label {values.max()}")
    return values
