"""Data sets, and which worker owns which samples."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from prlc.data.characters import load_shakespeare, load_text
from prlc.data.cifar10 import load_cifar10
from prlc.data.dataset import Dataset
from prlc.data.digits import load_digits
from prlc.data.fashion_mnist import load_fashion_mnist
from prlc.data.files import Progress, cache_dir
from prlc.data.partition import (
    IID,
    Contiguous,
    Dirichlet,
    Partition,
    Shards,
    parse_partition,
)
from prlc.errors import ConfigError

__all__ = [
    "DATASETS",
    "IID",
    "Contiguous",
    "Dataset",
    "Dirichlet",
    "Loader",
    "Partition",
    "Progress",
    "Shards",
    "cache_dir",
    "load",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_shakespeare",
    "load_text",
    "parse_partition",
]


class Loader(Protocol):
    """Reads a data set from a folder, or downloads it."""

    def __call__(
        self, data_dir: Path | str | None = None, *, progress: Progress | None = None
    ) -> Dataset: ...


def _digits(data_dir: Path | str | None = None, *, progress: Progress | None = None) -> Dataset:
    del data_dir, progress  # built in: nothing to find or download
    return load_digits()


DATASETS: dict[str, Loader] = {
    "digits": _digits,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "shakespeare": load_shakespeare,
}


def load(
    name: str, data_dir: Path | str | None = None, *, progress: Progress | None = None
) -> Dataset:
    """The data set `name`, from `data_dir`, else PRLC_DATA_DIR, the cache or a download."""
    if name not in DATASETS:
        raise ConfigError(f"The data set must be one of {', '.join(DATASETS)}; got {name!r}.")
    return DATASETS[name](data_dir, progress=progress)
