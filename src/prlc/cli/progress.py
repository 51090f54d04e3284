"""Live progress on the terminal: loss, pulls against NSGD's, time left."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from prlc.cli.lines import printable
from prlc.runs.training import Progress

_REFRESH = 0.25  # seconds


class LiveProgress:
    """A bar per run; on standard error, so that standard output stays clean.

    Redrawn from the caller's thread, a few times a second: a refresh thread would compete with
    the training for the interpreter.
    """

    def __init__(self, on: bool = True, console: Console | None = None) -> None:
        """`on` is False where several processes would write over each other."""
        self._on = on
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            auto_refresh=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._drawn = 0.0

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tasks:
            self._bars.stop()

    def update(self, label: str, progress: Progress) -> None:
        """Show the progress of the run called `label`."""
        if self._is_due(label, progress.step, progress.steps):
            loss, pulls = f"{progress.loss:.3f}", f"{progress.pull_fraction:.0%}"
            state = f"batch loss {loss:>5}, {pulls:>4} of NSGD's pulls"
            self._draw(label, progress.step, progress.steps, state)

    def show(self, label: str, done: int, total: int | None, state: str = "") -> None:
        """Show the progress of the work called `label`; `total` is None if unknown."""
        if self._is_due(label, done, total):
            self._draw(label, done, total, state)

    def _is_due(self, label: str, done: int, total: int | None) -> bool:
        if not self._on:
            return False
        if label not in self._tasks or done == total:
            return True
        return time.monotonic() - self._drawn >= _REFRESH

    def _draw(self, label: str, done: int, total: int | None, state: str) -> None:
        self._bars.start()
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(f"{label:<14}", total=total, state=state)
        self._bars.update(
            self._tasks[label], completed=done, total=total, state=state, refresh=True
        )
        self._drawn = time.monotonic()


def stop(how_to_go_on: str) -> NoReturn:
    """End an interrupted command with the status that shells expect."""
    said = printable(f"Interrupted; {how_to_go_on}")
    Console(stderr=True).print(said, markup=False, soft_wrap=True, highlight=False)
    sys.exit(130)
