"""Threads beside the main one: waiting for peers, half of a rank that has two roles."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from prlc.errors import PrlcError

T = TypeVar("T")


class BackgroundThread(threading.Thread):
    """A thread that does not keep a failed process alive."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, daemon=True, name=name)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do work that may never return, such as asking a store; raises TimeoutError then."""
    ended: list[T | BaseException] = []

    def run() -> None:
        try:
            ended.append(work())
        except BaseException as error:
            ended.append(error)

    thread = BackgroundThread(run, "within")
    thread.start()
    thread.join(seconds)
    if not ended:
        raise TimeoutError
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


@atexit.register
def _exit_at_once() -> None:
    """Exit without tearing down the interpreter under a waiting thread.

    Only after a failure is a thread still waiting here. If its peer ended at the same time, the
    thread would wake up in a half-destroyed interpreter, which then aborts.
    """
    if any(isinstance(thread, BackgroundThread) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def run_in_background(work: Callable[[], None], name: str) -> threading.Thread:
    """Run one role of a rank that is both worker and server. If it fails, the process exits.

    Otherwise the other role would wait forever, and torchrun only notices processes.
    """

    def guarded() -> None:
        try:
            work()
        except PrlcError as error:
            rank = dist.get_rank()
            print(f"error (rank {rank}): {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_code)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    thread = BackgroundThread(guarded, name)
    thread.start()
    return thread
