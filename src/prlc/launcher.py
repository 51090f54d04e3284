"""A process that torchrun started ends with it, at any moment of its life.

Otherwise a process whose torchrun was killed would live on, and might join the next start. This
module is imported first and imports nothing large: most of the time before a run is spent in
`import torch`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal to get when the parent dies
_CHECK_INTERVAL = 0.5  # seconds


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def end_with_launcher() -> None:
    """From now on this process ends within a second of its parent; at once if that is gone."""
    parent = os.getppid()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library without prctl
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or not has_launcher(parent):
        os._exit(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_CHECK_INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="launcher watch").start()


def has_launcher(parent: int, proc: Path = Path("/proc")) -> bool:
    """Whether an ancestor has torch loaded, as torchrun has.

    An orphan's new parent (init, or what stands for it) has not, or is not ours to look into. Where
    nothing can be seen of any process, yes.
    """
    if not (proc / "self" / "maps").exists():
        return True
    while parent > 0:
        with suppress(OSError):
            if "libtorch" in (proc / str(parent) / "maps").read_text():
                return True
        try:
            status = (proc / str(parent) / "stat").read_text()
        except OSError:
            return False
        parent = int(status.rpartition(")")[2].split()[1])
    return False


if started_by_torchrun():
    end_with_launcher()
