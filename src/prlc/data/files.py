"""What the loaders of published files share: finding, checking and normalising."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc.errors import DataError

__all__ = ["check_md5", "damaged", "locate", "md5_of", "new_md5", "normalised", "read_bytes"]

Found = TypeVar("Found")


def locate(
    what: str,
    search: Callable[[Path], Found | None],
    cached: Callable[[], Found],
    data_dir: Path | str | None,
) -> Found:
    """The files in `data_dir`; without one, in the folder PRLC_DATA_DIR names, else `cached()`.

    A folder that was named but is not there is an error, not a reason to download.
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
    """The content of a file that must be there."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); complete the folder with the published "
            "files, or leave --data-dir out to download them."
        ) from error


def damaged(where: Path | str, expected: str, came: str) -> DataError:
    """The error for a file that is not what was published."""
    return DataError(
        f"{where} is damaged: expected {expected}, got {came}; delete it and get the published "
        "file again."
    )


def new_md5() -> hashlib._Hash:
    """An MD5 state: guards against damage, as the publishers do; no protection from attack."""
    return hashlib.md5(usedforsecurity=False)


def md5_of(path: Path) -> str:
    """The checksum of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, new_md5).hexdigest()


def check_md5(where: Path | str, content: bytes, md5: str | None) -> None:
    """Refuse content whose checksum is not `md5` (None: unknown, anything passes)."""
    state = new_md5()
    state.update(content)
    if md5 is not None and state.hexdigest() != md5:
        raise damaged(where, f"content with MD5 {md5}", f"MD5 {state.hexdigest()}")


def normalised(
    pixels: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """Bytes of shape (N, C, H, W) as floats: to [0, 1], then (x - mean) / std per channel."""
    images = torch.from_numpy(pixels.astype(np.float32)).div_(255.0)
    per_channel = (1, -1, 1, 1)
    return images.sub_(torch.tensor(mean).view(per_channel)).div_(
        torch.tensor(std).view(per_channel)
    )
