from __future__ import annotations

import codecs
import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from prlc.data.cifar10 import BINARY, MEAN, PYTHON, STD, Form, load_cifar10, load_pickle
from prlc.data.dataset import Dataset
from prlc.errors import DataError, DownloadError

RECORDS = 4
SMALL_BINARY = replace(BINARY, records=RECORDS, files=dict.fromkeys(BINARY.files))
SMALL_PYTHON = replace(PYTHON, records=RECORDS, files=dict.fromkeys(PYTHON.files))
SMALL = (SMALL_BINARY, SMALL_PYTHON)

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, RECORDS, 3072), dtype=np.uint8)
LABELS = RNG.integers(0, 10, (6, RECORDS), dtype=np.uint8)


class _Python2Pickler(pickle._Pickler):
    """Writes strings as Python 2 did, which is how the published files were made."""

    dispatch: ClassVar[dict[type, Callable[..., None]]] = dict(pickle._Pickler.dispatch)

    def _save_python2(self, value: str | bytes) -> None:
        raw = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[str] = dispatch[bytes] = _save_python2


def pickled_by_python2(value: object) -> bytes:
    buffer = io.BytesIO()
    _Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"numpy._core", b"numpy.core")


def pickled_by_python3(value: object) -> bytes:
    return pickle.dumps(value, protocol=2)


def write_binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, labels in zip(BINARY.files, IMAGES, LABELS, strict=True):
        rows = np.concatenate([labels[:, None], images], axis=1)
        (folder / name).write_bytes(rows.tobytes())


def write_python(
    folder: Path, pickled: Callable[[object], bytes] = pickled_by_python2, **changes: object
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, images, labels in zip(PYTHON.files, IMAGES, LABELS, strict=True):
        batch = {"batch_label": name, "labels": labels.tolist(), "data": images}
        (folder / name).write_bytes(pickled(batch | changes))


def write_archive(form: Form, folder: Path, source: Path) -> bytes:
    with tarfile.open(folder / form.archive, "w:gz") as tar:
        # In no helpful order, with something else that is published beside the images.
        for name in sorted(form.files, reverse=True):
            tar.add(source / name, f"{form.folder}/{name}")
        tar.addfile(tarfile.TarInfo(f"{form.folder}/readme.html"))
    return (folder / form.archive).read_bytes()


def assert_is_small_cifar(data: Dataset) -> None:
    assert data.test_inputs is not None
    assert data.test_targets is not None
    assert data.name == "cifar10"
    assert data.num_classes == 10
    pixels = torch.from_numpy(IMAGES.reshape(6 * RECORDS, 3, 32, 32)) / 255
    expected = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(torch.cat([data.train_inputs, data.test_inputs]), expected)
    labels = torch.cat([data.train_targets, data.test_targets])
    assert labels.dtype == torch.int64
    assert labels.tolist() == LABELS.flatten().tolist()
    assert data.num_train == 5 * RECORDS


@pytest.fixture(autouse=True)
def nothing_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data folder is named and the cache is empty; returns the cache."""
    monkeypatch.delenv("PRLC_DATA_DIR", raising=False)
    monkeypatch.setenv("PRLC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("inner", [True, False])
def test_the_binary_form(tmp_path: Path, inner: bool) -> None:
    folder = tmp_path / BINARY.folder
    write_binary(folder)
    assert_is_small_cifar(load_cifar10(folder if inner else tmp_path, _forms=SMALL))


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("pickled", [pickled_by_python2, pickled_by_python3])
def test_the_python_form(tmp_path: Path, pickled: Callable[[object], bytes], inner: bool) -> None:
    folder = tmp_path / PYTHON.folder
    write_python(folder, pickled)
    assert_is_small_cifar(load_cifar10(str(folder if inner else tmp_path), _forms=SMALL))


@pytest.mark.parametrize(("form", "write"), [(BINARY, write_binary), (PYTHON, write_python)])
def test_an_archive(tmp_path: Path, form: Form, write: Callable[[Path], None]) -> None:
    write(tmp_path / "unpacked")
    folder = tmp_path / "data"
    folder.mkdir()
    write_archive(form, folder, tmp_path / "unpacked")
    assert_is_small_cifar(load_cifar10(folder, _forms=SMALL))
    assert [path.name for path in folder.iterdir()] == [form.archive]


def test_the_environment_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binary(tmp_path / "here")
    monkeypatch.setenv("PRLC_DATA_DIR", str(tmp_path / "here"))
    assert_is_small_cifar(load_cifar10(_forms=SMALL))
    monkeypatch.setenv("PRLC_DATA_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"PRLC_DATA_DIR=.*nowhere does not exist"):
        load_cifar10(_forms=SMALL)


def test_the_cache_is_looked_into(
    nothing_at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_binary(nothing_at_home / BINARY.folder)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("PRLC_DATA_DIR", str(tmp_path / "other"))  # holds other data sets
    assert_is_small_cifar(load_cifar10(_forms=SMALL))


def test_download_once_and_again_when_damaged(
    nothing_at_home: Path,
    tmp_path: Path,
    serve: Callable[[Path], AbstractContextManager[tuple[str, list[str]]]],
) -> None:
    write_binary(tmp_path / "unpacked")
    site = tmp_path / "site"
    site.mkdir()
    archive = write_archive(BINARY, site, tmp_path / "unpacked")
    with serve(site) as (url, requests):
        form = replace(
            SMALL_BINARY,
            url=url + BINARY.archive,
            archive_md5=hashlib.md5(archive).hexdigest(),
        )
        seen: list[int] = []
        for _ in range(2):
            data = load_cifar10(_forms=(form,), progress=lambda done, _: seen.append(done))
            assert_is_small_cifar(data)
        assert requests == [BINARY.archive]
        assert seen[-1] == len(archive)
        (nothing_at_home / BINARY.archive).write_bytes(archive[:-1])
        assert_is_small_cifar(load_cifar10(_forms=(form,)))
        assert requests == [BINARY.archive] * 2
    (nothing_at_home / BINARY.archive).unlink()
    with pytest.raises(DownloadError, match="--data-dir"):
        load_cifar10(_forms=(form,))


def test_a_folder_without_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no CIFAR-10"):
        load_cifar10(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load_cifar10(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is not a folder"):
        load_cifar10(tmp_path / "file")


def test_a_missing_file(tmp_path: Path) -> None:
    write_binary(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin cannot be read \(No such file"):
        load_cifar10(tmp_path, _forms=SMALL)


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "expected 12,292 bytes, got 12,291 bytes"),
        (lambda raw: raw + b"\0", "expected 12,292 bytes, got 12,293 bytes"),
        (lambda _: b"", "an empty file"),
        (lambda raw: b"\x0a" + raw[1:], r"labels from 0 to 9, got labels from \d to 10"),
        (lambda raw: b"\xff" + raw[1:], r"labels from 0 to 9, got labels from \d to 255"),
    ],
)
def test_a_damaged_binary_file(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    write_binary(tmp_path)
    damage(tmp_path / "data_batch_2.bin", change)
    with pytest.raises(DataError, match=rf"data_batch_2\.bin is damaged: .*{message}; delete it"):
        load_cifar10(tmp_path, _forms=SMALL)


def test_a_checksum_that_differs(tmp_path: Path) -> None:
    write_binary(tmp_path)
    sums = {name: hashlib.md5((tmp_path / name).read_bytes()).hexdigest() for name in BINARY.files}
    form = replace(SMALL_BINARY, files=sums)
    assert_is_small_cifar(load_cifar10(tmp_path, _forms=(form,)))
    damage(tmp_path / "test_batch.bin", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(DataError, match=rf"test_batch\.bin .*MD5 {sums['test_batch.bin']}, got"):
        load_cifar10(tmp_path, _forms=(form,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": IMAGES[0][:3]}, r"'data' array of uint8 \(4, 3072\), got uint8 \(3, 3072\)"),
        ({"data": IMAGES[0].astype(np.int16)}, r"got int16 \(4, 3072\)"),
        ({"data": "pixels"}, "got none"),
        ({"labels": [1, 2, 3]}, "4 integer 'labels'"),
        ({"labels": [1, 2, 3, "4"]}, "4 integer 'labels'"),
        ({"labels": [1, 2, 3, 10]}, "got labels from 1 to 10"),
        ({"labels": [1, 2, 3, -1]}, "got labels from -1 to 3"),
    ],
)
def test_a_damaged_batch(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_python(tmp_path, **changes)
    with pytest.raises(DataError, match=rf"data_batch_1 is damaged: .*{message}"):
        load_cifar10(tmp_path, _forms=SMALL)


def test_a_truncated_pickle(tmp_path: Path) -> None:
    write_python(tmp_path)
    damage(tmp_path / "data_batch_1", lambda raw: raw[: len(raw) // 2])
    with pytest.raises(DataError, match="data_batch_1 is damaged"):
        load_cifar10(tmp_path, _forms=SMALL)


class _Malicious:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def test_a_malicious_pickle_is_refused(tmp_path: Path) -> None:
    write_python(tmp_path)
    trace = tmp_path / "trace"
    attack = pickle.dumps({"data": _Malicious(os.mkdir, str(trace))}, protocol=2)
    (tmp_path / "data_batch_1").write_bytes(attack)
    with pytest.raises(DataError, match=r"it asks for \w+\.mkdir"):
        load_cifar10(tmp_path, _forms=SMALL)
    assert not trace.exists()


@pytest.mark.parametrize("function", [eval, getattr, np.load, np.frombuffer])
def test_only_the_needed_names_are_admitted(function: Callable[..., object]) -> None:
    with pytest.raises(pickle.UnpicklingError, match="it asks for"):
        load_pickle(pickle.dumps(_Malicious(function, "1"), protocol=2))


def test_only_the_needed_encoding_is_admitted() -> None:
    with pytest.raises(pickle.UnpicklingError, match="'rot13' does not belong"):
        load_pickle(pickle.dumps(_Malicious(codecs.encode, "1", "rot13"), protocol=2))


def test_a_truncated_archive(tmp_path: Path) -> None:
    write_binary(tmp_path / "unpacked")
    folder = tmp_path / "data"
    folder.mkdir()
    whole = write_archive(BINARY, folder, tmp_path / "unpacked")
    for keep in (0, 5, len(whole) // 2):
        (folder / BINARY.archive).write_bytes(whole[:keep])
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is damaged"):
            load_cifar10(folder, _forms=SMALL)


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / BINARY.archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("photo.jpg"))
        directory = tarfile.TarInfo(f"{BINARY.folder}/test_batch.bin")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
    with pytest.raises(DataError, match=r"expected the files .*/test_batch\.bin in it"):
        load_cifar10(tmp_path)


@pytest.mark.cifar
def test_the_published_files(published: Callable[[str], str]) -> None:
    data = load_cifar10(published("data_batch_1*"))
    assert data.test_inputs is not None
    assert data.test_targets is not None
    assert data.train_inputs.shape == (50_000, 3, 32, 32)
    assert data.test_inputs.shape == (10_000, 3, 32, 32)
    assert data.train_targets.bincount().tolist() == [5_000] * 10
    assert data.test_targets.bincount().tolist() == [1_000] * 10
    torch.testing.assert_close(
        data.train_inputs.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(
        data.train_inputs.flatten(2).transpose(0, 1).flatten(1).std(dim=1),
        torch.ones(3),
        atol=1e-3,
        rtol=0,
    )
