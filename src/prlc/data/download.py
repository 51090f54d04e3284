"""Fetching published files: whole and checked, or not at all."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import platformdirs

from prlc.data.files import md5_of, new_md5
from prlc.errors import DownloadError

__all__ = ["Progress", "cache_dir", "fetch"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes in all (None if the server is silent)."""

_CHUNK = 1 << 18


def cache_dir() -> Path:
    """Where downloads are kept: PRLC_CACHE, else the user's cache folder of the platform."""
    named = os.environ.get("PRLC_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("prlc")


def fetch(
    url: str, target: Path, md5: str, *, timeout: float = 30.0, progress: Progress | None = None
) -> Path:
    """Download `url` to `target` unless a file with this checksum is there already.

    The data goes to a temporary file of its own beside the target and is renamed once it is
    complete and checked: the final name never holds half a file, also when several processes
    download at once. `timeout` is how many seconds the server may stay silent.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        if target.is_file() and md5_of(target) == md5:
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
    """Write what `url` sends to `part`, safely on disk, and return its checksum."""
    digest, received = new_md5(), 0
    with urllib.request.urlopen(url, timeout=timeout) as response, part.open("xb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
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
