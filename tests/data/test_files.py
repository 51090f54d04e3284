from __future__ import annotations

import hashlib
import http.server
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pytest

from prlc.data.files import cache_dir, fetch
from prlc.errors import DownloadError

CONTENT = bytes(range(256)) * 4096  # 1 MiB: several chunks
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass(frozen=True)
class Site:
    url: str
    requests: list[str]


@pytest.fixture
def site(
    tmp_path: Path, serve: Callable[[Path], AbstractContextManager[tuple[str, list[str]]]]
) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "good").write_bytes(CONTENT)
    (folder / "good.short").write_bytes(CONTENT)
    with serve(folder) as (url, requests):
        yield Site(url, requests)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "deep" / "file"


def assert_nothing_left(target: Path) -> None:
    assert not target.parent.exists() or list(target.parent.iterdir()) == []


def test_a_file_arrives_whole_and_alone(site: Site, target: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    returned = fetch(
        site.url + "good", target, MD5, progress=lambda done, total: seen.append((done, total))
    )
    assert returned == target
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert len(seen) > 1


def test_a_good_file_is_not_fetched_again(site: Site, target: Path) -> None:
    fetch(site.url + "good", target, MD5)
    fetch(site.url + "good", target, MD5)
    assert site.requests == ["good"]


def test_a_bad_file_is_fetched_anew(site: Site, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    fetch(site.url + "good", target, MD5)
    assert target.read_bytes() == CONTENT


def test_a_missing_file(site: Site, target: Path) -> None:
    with pytest.raises(DownloadError, match=r"answered 404 File not found.*--data-dir"):
        fetch(site.url + "absent", target, MD5)
    assert_nothing_left(target)


def test_a_wrong_checksum(site: Site, target: Path) -> None:
    with pytest.raises(DownloadError, match=rf"expected MD5 {'0' * 32}, got {MD5}.*--data-dir"):
        fetch(site.url + "good", target, "0" * 32)
    assert_nothing_left(target)


def test_a_wrong_checksum_leaves_an_older_file_alone(site: Site, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(b"older")
    with pytest.raises(DownloadError):
        fetch(site.url + "good", target, "0" * 32)
    assert target.read_bytes() == b"older"


def test_a_connection_that_ends_early(site: Site, target: Path) -> None:
    message = f"ended after {len(CONTENT)} of {len(CONTENT) + 1} bytes"
    with pytest.raises(DownloadError, match=message):
        fetch(site.url + "good.short", target, MD5)
    assert_nothing_left(target)


def test_nobody_answers(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = unused.getsockname()[1]
        with pytest.raises(DownloadError, match=r"refused.*--data-dir"):
            fetch(f"http://127.0.0.1:{port}/file", target, MD5)
    assert_nothing_left(target)


def test_a_server_that_stays_silent(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(DownloadError, match="timed out"):
            fetch(f"http://127.0.0.1:{port}/file", target, MD5, timeout=0.1)
    assert_nothing_left(target)


def test_an_address_that_is_none(target: Path) -> None:
    with pytest.raises(DownloadError, match="unknown url type"):
        fetch("nonsense", target, MD5)


def test_a_folder_that_cannot_be(site: Site, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DownloadError, match=r"--data-dir"):
        fetch(site.url + "good", tmp_path / "taken" / "file", MD5)


def test_a_disk_that_is_full(site: Site, target: Path) -> None:
    """A limit on file size fails as a full disk does; it is another process's, not the tests'."""
    pytest.importorskip("resource")
    code = f"""
import resource
from pathlib import Path
from prlc.data.files import fetch
from prlc.errors import DownloadError
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(CONTENT) // 2}, resource.RLIM_INFINITY))
try:
    fetch({site.url + "good"!r}, Path({str(target)!r}), {MD5!r})
except DownloadError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"File too large.*--data-dir", run.stdout), run.stderr
    assert_nothing_left(target)


def test_an_interrupted_download_leaves_nothing(site: Site, target: Path) -> None:
    def interrupt(done: int, _: int | None) -> None:
        raise KeyboardInterrupt(f"after {done} bytes")

    with pytest.raises(KeyboardInterrupt):
        fetch(site.url + "good", target, MD5, progress=interrupt)
    assert_nothing_left(target)


def test_an_answer_that_is_not_http(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Garbage(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"what?\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test output quiet."""

    with http.server.HTTPServer(("127.0.0.1", 0), Garbage) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(DownloadError, match="what"):
            fetch(f"http://127.0.0.1:{server.server_port}/file", target, MD5)
        thread.join()


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRLC_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("PRLC_CACHE")
    assert cache_dir() == platformdirs.user_cache_path("prlc")


def test_a_download_without_end_is_broken_off(
    site: Site, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prlc.data.files._LARGEST", len(CONTENT) - 1)
    with pytest.raises(DownloadError, match="it is longer than 1,048,575 bytes"):
        fetch(site.url + "good", target, MD5)
    assert_nothing_left(target)
