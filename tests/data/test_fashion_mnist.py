from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prlc.data.dataset import Dataset
from prlc.data.fashion_mnist import MEAN, PUBLISHED, STD, IdxFile, Published, load_fashion_mnist
from prlc.errors import DataError, DownloadError

RNG = np.random.default_rng(0)
VALUES = {
    "train_images": RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8),
    "train_labels": RNG.integers(0, 10, 6, dtype=np.uint8),
    "test_images": RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8),
    "test_labels": RNG.integers(0, 10, 3, dtype=np.uint8),
}


def _small(which: str) -> IdxFile:
    file: IdxFile = getattr(PUBLISHED, which)
    shape = VALUES[which].shape
    content = replace(file, shape=shape).header + VALUES[which].tobytes()
    return IdxFile(file.name, shape, None, hashlib.md5(gzip.compress(content, mtime=0)).hexdigest())


SMALL = Published(
    _small("train_images"), _small("train_labels"), _small("test_images"), _small("test_labels")
)


def write_files(folder: Path, compressed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, values in zip(SMALL.files, VALUES.values(), strict=True):
        content = file.header + values.tobytes()
        if compressed:
            (folder / f"{file.name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / file.name).write_bytes(content)


def assert_is_small_fashion(data: Dataset) -> None:
    assert data.test_inputs is not None
    assert data.test_targets is not None
    assert data.num_classes == 10
    for inputs, targets, part in (
        (data.train_inputs, data.train_targets, "train"),
        (data.test_inputs, data.test_targets, "test"),
    ):
        pixels = torch.from_numpy(VALUES[f"{part}_images"])[:, None] / 255
        torch.testing.assert_close(inputs, (pixels - MEAN[0]) / STD[0])
        assert targets.dtype == torch.int64
        assert targets.tolist() == VALUES[f"{part}_labels"].tolist()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PRLC_DATA_DIR", raising=False)
    monkeypatch.setenv("PRLC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_header_is_the_published_one() -> None:
    header = PUBLISHED.train_images.header
    assert header.hex() == "00000803" + "0000ea60" + "0000001c" * 2


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("subfolder", [".", "FashionMNIST/raw", "fashion-mnist"])
def test_a_folder(tmp_path: Path, subfolder: str, compressed: bool) -> None:
    write_files(tmp_path / subfolder, compressed)
    assert_is_small_fashion(load_fashion_mnist(tmp_path, _published=SMALL))


def test_the_environment_names_a_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "here")
    monkeypatch.setenv("PRLC_DATA_DIR", str(tmp_path / "here"))
    assert_is_small_fashion(load_fashion_mnist(_published=SMALL))
    assert not cache.exists()


def test_download_once_and_again_when_damaged(
    cache: Path,
    tmp_path: Path,
    serve: Callable[[Path], AbstractContextManager[tuple[str, list[str]]]],
) -> None:
    write_files(tmp_path / "site")
    names = [f"{file.name}.gz" for file in SMALL.files]
    with serve(tmp_path / "site") as (site, requests):
        published = replace(SMALL, site=site)
        for _ in range(2):
            assert_is_small_fashion(load_fashion_mnist(_published=published))
        assert requests == names
        (cache / "fashion-mnist" / names[2]).write_bytes(b"half")
        assert_is_small_fashion(load_fashion_mnist(_published=published))
        assert requests == [*names, names[2]]
    (cache / "fashion-mnist" / names[0]).unlink()
    with pytest.raises(DownloadError, match="--data-dir"):
        load_fashion_mnist(_published=published)


def test_unpacked_files_in_the_cache_are_used(cache: Path) -> None:
    write_files(cache, compressed=False)
    assert_is_small_fashion(load_fashion_mnist(_published=SMALL))


def test_a_folder_without_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no Fashion-MNIST"):
        load_fashion_mnist(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz cannot be read"):
        load_fashion_mnist(tmp_path, _published=SMALL)


@pytest.mark.parametrize("keep", [0, 1, 5, 20])
def test_a_truncated_gz(tmp_path: Path, keep: int) -> None:
    write_files(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        load_fashion_mnist(tmp_path, _published=SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "expected 14 bytes of content, got 13"),
        (lambda raw: b"\1" + raw[1:], "idx header 0000080100000006, got 0100080100000006"),
        (lambda raw: raw[:-1] + b"\x0a", "labels from 0 to 9, got the label 10"),
    ],
)
def test_damaged_content(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    write_files(tmp_path, compressed=False)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=f"train-labels-idx1-ubyte is damaged: .*{message}"):
        load_fashion_mnist(tmp_path, _published=SMALL)


def test_a_checksum_that_differs(tmp_path: Path) -> None:
    write_files(tmp_path)
    images = replace(SMALL.test_images, md5="0" * 32)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz .*expected .*MD5 0000"):
        load_fashion_mnist(tmp_path, _published=replace(SMALL, test_images=images))


@pytest.mark.cifar
def test_the_published_files(published: Callable[[str], str]) -> None:
    data = load_fashion_mnist(published("train-images-idx3-ubyte*"))
    assert data.test_targets is not None
    assert data.train_inputs.shape == (60_000, 1, 28, 28)
    assert data.train_targets.bincount().tolist() == [6_000] * 10
    assert data.test_targets.bincount().tolist() == [1_000] * 10
    assert data.train_inputs.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert data.train_inputs.std().item() == pytest.approx(1.0, abs=1e-3)
