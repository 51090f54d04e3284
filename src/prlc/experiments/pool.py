"""A few processes side by side, each taking the next item of work when it is free.

A process computes on one thread and keeps its data in memory. Ctrl-C reaches only the parent; it
asks the others to stop, and they finish the step they are in and write a checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch

from prlc.engines.simulator.execution import use_threads
from prlc.errors import PrlcError, RunError

__all__ = ["OnFraction", "OnItem", "Pool", "WorkItem", "stops_on_sigterm"]

OnFraction = Callable[[float], None]
"""Called with the fraction of the work done, from 0 to 1."""

_REPORT_EVERY = 0.2  # seconds


class WorkItem(Protocol):
    """Something to do. It is pickled on its way to another process, so keep it small."""

    @property
    def name(self) -> str:
        """Unique among the items of a pool."""

    def do(self, on_fraction: OnFraction) -> None:
        """Do it, and report progress now and then."""


OnItem = Callable[[WorkItem, float], None]
"""Called with an item and the fraction of it that is done; with 1 once, when it is finished."""


@dataclass(eq=False)
class _Child:
    """Another process, and the item it is busy with."""

    process: Any
    pipe: Connection
    item: WorkItem | None = None


@dataclass
class Pool:
    """Runs work items in `jobs` processes; in this very process if `jobs` is 1."""

    jobs: int
    _children: list[_Child] = field(default_factory=list)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            if error is not None and child.process.is_alive():
                child.process.terminate()  # a training run then writes a checkpoint
            child.pipe.close()
        for child in self._children:
            child.process.join()
        self._children.clear()

    def run(self, items: Sequence[WorkItem], on_item: OnItem) -> None:
        """Do all items, roughly in this order; the first error ends everything."""
        if self.jobs == 1:
            for item in items:
                with use_threads(1):
                    item.do(lambda done, item=item: on_item(item, min(done, 0.999)))  # type: ignore[misc]
                on_item(item, 1.0)
            return
        left = list(reversed(items))
        while len(self._children) < min(self.jobs, len(items)):
            self._children.append(_start())
        for child in self._children:
            self._send_next(child, left)
        while busy := {c.pipe: c for c in self._children if c.item is not None}:
            for pipe in wait(list(busy)):
                child = busy[pipe]  # type: ignore[index]
                self._receive(child, on_item)
                if child.item is None:
                    self._send_next(child, left)

    @staticmethod
    def _send_next(child: _Child, left: list[WorkItem]) -> None:
        if left:
            child.item = left.pop()
            with contextlib.suppress(BrokenPipeError):  # _receive will find the pipe closed
                child.pipe.send(child.item)

    @staticmethod
    def _receive(child: _Child, on_item: OnItem) -> None:
        assert child.item is not None
        try:
            message = child.pipe.recv()  # a fraction or an exception
        except (EOFError, ConnectionResetError):
            child.process.join()
            raise RunError(
                f"The process running {child.item.name} was killed (status "
                f"{child.process.exitcode}), perhaps because memory ran out. Finished runs are "
                "kept: repeat the command, with --jobs 1 if memory is short."
            ) from None
        if isinstance(message, BaseException):
            child.item = None
            raise message
        on_item(child.item, message)
        if message == 1.0:
            child.item = None


# -- The other processes ---------------------------------------------------------------------------


def _start() -> _Child:
    """A new process that waits for work."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    # A new process inherits ignored signals: Ctrl-C must not hit it while it is still importing.
    with _handling(signal.SIGINT, signal.SIG_IGN):
        process.start()
    theirs.close()
    return _Child(process, ours)


def _serve(pipe: Connection) -> None:
    """Do the items that come through the pipe until it is closed."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C on the terminal is for the parent, which passes it on
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            item = pipe.recv()
            try:
                item.do(_reporter(pipe))
                pipe.send(1.0)
            except PrlcError as error:
                pipe.send(error)
            except Exception:
                pipe.send(RuntimeError(f"{item.name} failed:\n{traceback.format_exc()}"))


def _reporter(pipe: Connection) -> OnFraction:
    last = 0.0

    def on_fraction(done: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_EVERY:
            last = now
            pipe.send(min(done, 0.999))

    return on_fraction


# -- Signals ---------------------------------------------------------------------------------------


def stops_on_sigterm() -> AbstractContextManager[None]:
    """Treat SIGTERM like Ctrl-C, so that it too leaves checkpoints and no process behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    return _handling(signal.SIGTERM, stop)


@contextlib.contextmanager
def _handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
