"""Threads that wait for other processes beside the main one."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable


class Beside(threading.Thread):
    """Runs beside the main thread, and does not keep a process from ending that has failed."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(target=work, daemon=True, name=name)


@atexit.register
def _end_at_once() -> None:
    """Do not take the interpreter down under a thread that waits.

    Only where a run has failed does one still wait. Should it wake up then, since its peer ends as
    well, the interpreter would abort.
    """
    if any(isinstance(thread, Beside) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
