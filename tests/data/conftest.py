"""A web server on this machine that serves a folder: what downloads are tested against."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def serve(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Path], AbstractContextManager[tuple[str, list[str]]]]:
    """Serves a folder inside `with`; gives the address and the list of files asked for so far.

    A file whose name ends in `.short` is announced one byte longer than it is.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return _serve


@contextmanager
def _serve(folder: Path) -> Iterator[tuple[str, list[str]]]:
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path.lstrip("/"))
            super().do_GET()

        def send_header(self, keyword: str, value: str) -> None:
            if keyword == "Content-Length" and self.path.endswith(".short"):
                value = str(int(value) + 1)
            super().send_header(keyword, value)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test output quiet."""

    handler = functools.partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", requests
        finally:
            server.shutdown()
            thread.join()
