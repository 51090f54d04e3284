"""Signals that end a process, turned into exceptions so that a `with` gets to clean up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

# Ctrl-C is an exception already. Not every system that imports this has all of them.
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Signals:
    """Nothing is changed outside of the main thread, or where a program has handlers of its own."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def become_exceptions(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, _exit)

    def restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """No signal ends the block: a second Ctrl-C must not leave half a testbed behind."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, *_ENDING)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    raise SystemExit(128 + number)
