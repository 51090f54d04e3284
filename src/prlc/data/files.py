"""Files of published data sets: find, read, download and check them."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc.errors import DataError, DownloadError

Found = TypeVar("Found")

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the total (None if the server does not say)."""

_CHUNK = 1 << 18  # bytes
_LARGEST = 1 << 30  # bytes of a download: several times the largest data set


# -- finding and reading --------------------------------------------------------------------------


def locate(
    what: str,
    search: Callable[[Path], Found | None],
    cached: Callable[[], Found],
    data_dir: Path | str | None,
) -> Found:
    """What `search` finds in `data_dir`, else in the folder PRLC_DATA_DIR names, else `cached()`.

    A named folder that does not exist is an error, not a reason to download.
    """
    if data_dir is not None:
        folder = _existing(data_dir, "The data folder ")
        found = search(folder)
        if found is None:
            raise DataError(
                f"{folder} holds no {what} in a published form; name the folder that holds it "
                "(or its parent), or leave --data-dir out to download it."
            )
        return found
    named = os.environ.get("PRLC_DATA_DIR")
    found = search(_existing(named, "The folder PRLC_DATA_DIR=")) if named else None
    return cached() if found is None else found


def _existing(folder: Path | str, title: str) -> Path:
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise DataError(
            f"{title}{path} {'is not a folder' if path.exists() else 'does not exist'}; "
            "name an existing folder, or none to download the data."
        )
    return path


def read_bytes(path: Path) -> bytes:
    """The content of a file that must exist."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); complete the folder with the published "
            "files, or leave --data-dir out to download them."
        ) from error


def damaged(where: Path | str, expected: str, came: str) -> DataError:
    """The error for a file that differs from what was published."""
    return DataError(
        f"{where} is damaged: expected {expected}, got {came}; delete it and get the published "
        "file again."
    )


def normalised(
    pixels: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """Bytes (N, C, H, W) as float32: scaled to [0, 1], then (x - mean) / std for each channel."""
    images = torch.from_numpy(pixels.astype(np.float32)).div_(255.0)
    per_channel = (1, -1, 1, 1)
    return images.sub_(torch.tensor(mean).view(per_channel)).div_(
        torch.tensor(std).view(per_channel)
    )


# -- downloading ----------------------------------------------------------------------------------


def cache_dir() -> Path:
    """Where downloads are kept: PRLC_CACHE, else the platform's cache folder for this user."""
    named = os.environ.get("PRLC_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("prlc")


def fetch(
    url: str, target: Path, md5: str, *, timeout: float = 30.0, progress: Progress | None = None
) -> Path:
    """Download `url` to `target`, unless `target` already has this checksum.

    The data goes to a temporary file beside the target, which is renamed once it is complete and
    checked. So the target never holds half a file, even when several processes download at once.
    `timeout` is how many seconds the server may stay silent.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        if target.is_file() and _md5_of(target) == md5:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        came = _receive(url, part, timeout, progress)
        if came != md5:
            raise _failed(url, target, f"expected MD5 {md5}, got {came}")
        part.replace(target)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed(url, target, _reason(error)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return target


def _receive(url: str, part: Path, timeout: float, progress: Progress | None) -> str:
    """Write the content of `url` to `part`, flushed to disk, and return its checksum."""
    digest, received = _new_md5(), 0
    with urllib.request.urlopen(url, timeout=timeout) as response, part.open("xb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
            if received > _LARGEST:
                raise ConnectionError(f"it is longer than {_LARGEST:,} bytes, so it is not that")
            if progress is not None:
                progress(received, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and received != total:
        raise ConnectionError(f"the connection ended after {received} of {total} bytes")
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()  # it holds the connection
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _failed(url: str, target: Path, reason: str) -> DownloadError:
    return DownloadError(
        f"Could not download {url} to {target.parent} ({reason}); try again, or put the published "
        "file into a folder yourself and name that folder with --data-dir."
    )


# -- checksums ------------------------------------------------------------------------------------


def _new_md5() -> hashlib._Hash:
    """MD5, as the publishers use it: detects damage, not attacks."""
    return hashlib.md5(usedforsecurity=False)


def _md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _new_md5).hexdigest()


def check_md5(where: Path | str, content: bytes, md5: str | None) -> None:
    """Refuse content whose checksum is not `md5` (None: not checked)."""
    state = _new_md5()
    state.update(content)
    if md5 is not None and state.hexdigest() != md5:
        raise damaged(where, f"content with MD5 {md5}", f"MD5 {state.hexdigest()}")
