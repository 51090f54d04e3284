"""CIFAR-10: 60,000 colour images of 32x32 pixels in ten classes (Krizhevsky, 2009).

Published in two forms with the same content: raw bytes and Python pickles. Either is read, unpacked
or straight from its archive, and every file is checked against its published checksum.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
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

__all__ = ["load_cifar10"]

# Red, green and blue over all training pixels, scaled to [0, 1].
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

_SITE = "https://www.cs.toronto.edu/~kriz/"
_PIXELS = 3 * 32 * 32
_CLASSES = 10

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Pixels (records, 3072), a red, a green and a blue plane in each row; labels (records,)."""


def _decode_binary(where: str, content: bytes, records: int) -> Images:
    size = records * (1 + _PIXELS)
    if len(content) != size:
        raise damaged(where, f"{size:,} bytes", f"{len(content):,} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(records, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0].astype(np.int64)


def _decode_pickle(where: str, content: bytes, records: int) -> Images:
    try:
        batch = load_pickle(content)
    except pickle.UnpicklingError as error:
        raise damaged(where, "a pickle of plain data and arrays", f"one where {error}") from error
    # Keys are bytes as Python 2 wrote them, or text if the file was saved again since.
    entries = batch if isinstance(batch, dict) else {}
    images = entries.get(b"data", entries.get("data"))
    labels = entries.get(b"labels", entries.get("labels"))
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.shape != (records, _PIXELS)
    ):
        came = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else "none"
        raise damaged(where, f"a 'data' array of uint8 {(records, _PIXELS)}", came)
    if not isinstance(labels, list) or [type(label) for label in labels] != [int] * records:
        raise damaged(where, f"a list of {records:,} integer 'labels'", "something else")
    return images, np.asarray(labels, np.int64)


@dataclass(frozen=True)
class Form:
    """A published form: where its files are and how to check and decode them."""

    folder: str
    url: str
    archive_md5: str
    files: Mapping[str, str | None]  # name -> checksum (None: not checked); the test file is last
    decode: Callable[[str, bytes, int], Images]
    records: int = 10_000  # in every file

    @property
    def archive(self) -> str:
        return self.url.rpartition("/")[2]


BINARY = Form(
    folder="cifar-10-batches-bin",
    url=f"{_SITE}cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    files={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    decode=_decode_binary,
)
PYTHON = Form(
    folder="cifar-10-batches-py",
    url=f"{_SITE}cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    files={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    decode=_decode_pickle,
)
_FORMS = (BINARY, PYTHON)  # the first is downloaded: it needs no pickle

Found = tuple[Form, Path]
"""A form and its place: a folder of unpacked files, or the archive."""


def load_cifar10(
    data_dir: Path | str | None = None,
    *,
    progress: Progress | None = None,
    _forms: tuple[Form, ...] = _FORMS,
) -> Dataset:
    """50,000 training and 10,000 test images, float32 (3, 32, 32), normalised per channel.

    Read from `data_dir` (the folder of the files, its parent, or a folder with an archive), else
    from the folder PRLC_DATA_DIR names, else from the cache, else downloaded into it (162 MB).
    """
    form, place = locate(
        "CIFAR-10",
        lambda folder: _search(folder, _forms),
        lambda: _cached(_forms, progress),
        data_dir,
    )
    contents = _unpacked(form, place) if place.is_dir() else _archived(form, place)
    batches = {name: _decode(form, place, name, content) for name, content in contents}
    images, labels = zip(*(batches[name] for name in form.files), strict=True)
    train = np.concatenate(images[:-1]).reshape(-1, 3, 32, 32)
    test = images[-1].reshape(-1, 3, 32, 32)
    return Dataset(
        "cifar10",
        normalised(train, MEAN, STD),
        torch.from_numpy(np.concatenate(labels[:-1])),
        normalised(test, MEAN, STD),
        torch.from_numpy(labels[-1]),
        _CLASSES,
    )


def _search(folder: Path, forms: tuple[Form, ...]) -> Found | None:
    for form in forms:
        for place in (folder / form.folder, folder):
            if any((place / name).is_file() for name in form.files):
                return form, place
    for form in forms:
        if (folder / form.archive).is_file():
            return form, folder / form.archive
    return None


def _cached(forms: tuple[Form, ...], progress: Progress | None) -> Found:
    form, place = _search(cache_dir(), forms) or (forms[0], cache_dir() / forms[0].archive)
    if not place.is_dir():
        fetch(form.url, place, form.archive_md5, progress=progress)
    return form, place


def _unpacked(form: Form, folder: Path) -> Iterator[tuple[str, bytes]]:
    return ((name, read_bytes(folder / name)) for name in form.files)


def _archived(form: Form, archive: Path) -> Iterator[tuple[str, bytes]]:
    """The files of the form in one pass: seeking back in a compressed archive starts it over."""
    missing = {f"{form.folder}/{name}": name for name in form.files}
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name in missing else None
                if file is not None:
                    yield missing.pop(member.name), file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise damaged(
            archive, "a whole .tar.gz archive", f"one that breaks off ({error})"
        ) from error
    if missing:
        raise damaged(archive, f"the files {', '.join(missing)} in it", "an archive without them")


def _decode(form: Form, place: Path, name: str, content: bytes) -> Images:
    where = f"{place / name}" if place.is_dir() else f"{name} in {place}"
    if not content:
        raise damaged(where, f"{form.records:,} images", "an empty file")
    check_md5(where, content, form.files[name])
    images, labels = form.decode(where, content, form.records)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= _CLASSES:
        raise damaged(where, f"labels from 0 to {_CLASSES - 1}", f"labels from {low} to {high}")
    return images, labels


# -- pickles that are not trusted -----------------------------------------------------------------
#
# A pickle can make its reader call any function. This reader admits only the names that occur in a
# dictionary of lists, strings and NumPy arrays.


def _encode(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes in an old pickle. Other codecs (zip, bz2) could expand without end.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding!r} does not belong here")
    return text.encode("latin1")


_RECONSTRUCT: object = np.empty(0).__reduce__()[0]  # the same under any NumPy
_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 1, the published files
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # NumPy 2
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def load_pickle(content: bytes) -> object:
    """The object in `content`; UnpicklingError unless it is plain data and arrays.

    Strings that Python 2 wrote, as in the published files, come back as bytes.
    """
    try:
        return _RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged stream can fail in any opcode, with any exception
        raise pickle.UnpicklingError(f"it breaks off ({error})") from error
