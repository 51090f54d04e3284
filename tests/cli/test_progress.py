"""The bars on a terminal: few draws, whatever the number of steps, and the end always shown."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable

import pytest
from rich.console import Console

from prlc import Progress
from prlc.cli.progress import LiveProgress


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


@pytest.fixture
def refresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds between two draws; at first the next one never comes."""

    def every(seconds: float) -> None:
        monkeypatch.setattr("prlc.cli.progress._REFRESH", seconds)

    every(math.inf)
    return every


def written(terminal: Console) -> str:
    file = terminal.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    file.seek(0)
    file.truncate()
    return text


def test_steps_between_two_draws_write_nothing(
    terminal: Console, refresh: Callable[[float], None]
) -> None:
    threads = threading.active_count()
    with LiveProgress(console=terminal) as live:
        live.update("PRLC", Progress(1, 1000, 2.0, 0.1))
        assert "1/1000" in written(terminal)
        for step in range(2, 500):
            live.update("PRLC", Progress(step, 1000, 2.0, 0.1))
        assert written(terminal) == ""
        refresh(0)
        live.update("PRLC", Progress(500, 1000, 0.5, 0.12))
        assert threading.active_count() == threads
        shown = written(terminal)
    assert "500/1000" in shown
    assert "batch loss 0.500,  12% of NSGD's pulls" in shown


@pytest.mark.usefixtures("refresh")
def test_the_last_step_is_drawn_at_once(terminal: Console) -> None:
    with LiveProgress(console=terminal) as live:
        live.show("work", 1, 10)
        live.show("work", 10, 10)
        assert "10/10" in written(terminal)


@pytest.mark.usefixtures("refresh")
def test_of_an_unknown_total_only_the_start_is_shown_at_once(terminal: Console) -> None:
    with LiveProgress(console=terminal) as live:
        live.show("downloading", 10, None)
        assert "10/?" in written(terminal)
        live.show("downloading", 20, None)
        assert written(terminal) == ""


def test_switched_off_it_writes_nothing(terminal: Console) -> None:
    with LiveProgress(on=False, console=terminal) as live:
        live.update("PRLC", Progress(1, 1, 2.0, 0.1))
    assert written(terminal) == ""
