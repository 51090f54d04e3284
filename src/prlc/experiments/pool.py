"""Work side by side: a few processes, each taking the next piece when it is done with one.

A process computes on one thread and keeps its data in memory. Ctrl-C reaches this process alone;
it asks the others to stop, which they do after the step they are in, with a checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch

from prlc.engines.plan import use_threads
from prlc.errors import PrlcError, RunError

__all__ = ["OnPiece", "Piece", "Pool", "stops_on_sigterm"]

_REPORT_EVERY = 0.2  # seconds


class Piece(Protocol):
    """Something to do, small enough to be sent to another process."""

    @property
    def name(self) -> str:
        """What it is, different for every piece."""

    def do(self, report: Callable[[float], None]) -> None:
        """Do it; report now and then which part of it is done, from 0 to 1."""


OnPiece = Callable[[Piece, float], None]
"""Called with a piece and the part of it that is done; 1 once, when it is finished."""


@dataclass(eq=False)
class _Helper:
    """Another process and what it is busy with."""

    process: Any
    pipe: Connection
    piece: Piece | None = None


@dataclass
class Pool:
    """Does pieces in `jobs` processes; with one, in this process itself."""

    jobs: int
    _helpers: list[_Helper] = field(default_factory=list)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for helper in self._helpers:
            if error is not None and helper.process.is_alive():
                helper.process.terminate()  # training answers it with a checkpoint
            helper.pipe.close()
        for helper in self._helpers:
            helper.process.join()
        self._helpers.clear()

    def run(self, pieces: Sequence[Piece], on_piece: OnPiece) -> None:
        """Do all of them, in about this order; the first error ends everything."""
        if self.jobs == 1:
            for piece in pieces:
                with use_threads(1):
                    piece.do(lambda part, piece=piece: on_piece(piece, min(part, 0.999)))  # type: ignore[misc]
                on_piece(piece, 1.0)
            return
        left = list(reversed(pieces))
        while len(self._helpers) < min(self.jobs, len(pieces)):
            self._helpers.append(_start())
        for helper in self._helpers:
            self._next(helper, left)
        while busy := {h.pipe: h for h in self._helpers if h.piece is not None}:
            for pipe in wait(list(busy)):
                helper = busy[pipe]  # type: ignore[index]
                self._hear(helper, on_piece)
                if helper.piece is None:
                    self._next(helper, left)

    @staticmethod
    def _next(helper: _Helper, left: list[Piece]) -> None:
        if left:
            helper.piece = left.pop()
            with contextlib.suppress(BrokenPipeError):  # heard of as the end of the pipe
                helper.pipe.send(helper.piece)

    @staticmethod
    def _hear(helper: _Helper, on_piece: OnPiece) -> None:
        assert helper.piece is not None
        try:
            said = helper.pipe.recv()
        except (EOFError, ConnectionResetError):
            helper.process.join()
            raise RunError(
                f"The process that made {helper.piece.name} was ended from outside (status "
                f"{helper.process.exitcode}), maybe for want of memory. What is finished is kept: "
                "repeat the command, with --jobs 1 if memory is short."
            ) from None
        if isinstance(said, BaseException):
            helper.piece = None
            raise said
        on_piece(helper.piece, said)
        if said == 1.0:
            helper.piece = None


def _start() -> _Helper:
    """A new process that waits for pieces."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    # What is ignored stays so in a new process: Ctrl-C must not hit it while it is still loading.
    with _ignored(signal.SIGINT):
        process.start()
    theirs.close()
    return _Helper(process, ours)


def _serve(pipe: Connection) -> None:
    """Do what comes through the pipe until it is closed."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C on the terminal is for the parent, which passes it on
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            piece = pipe.recv()
            try:
                piece.do(_reporter(pipe))
                pipe.send(1.0)
            except PrlcError as error:
                pipe.send(error)
            except Exception:
                pipe.send(RuntimeError(f"{piece.name} failed:\n{traceback.format_exc()}"))


def _reporter(pipe: Connection) -> Callable[[float], None]:
    said = 0.0

    def report(part: float) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= _REPORT_EVERY:
            said = now
            pipe.send(min(part, 0.999))

    return report


@contextlib.contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def stops_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that it too leaves checkpoints and no process behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
