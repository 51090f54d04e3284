"""Pieces of work in other processes: done, failed, killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from prlc.errors import ConfigError, RunError
from prlc.experiments.pool import Piece, Pool


@dataclass(frozen=True)
class Writing:
    """Writes its process's number, or does what its name says."""

    name: str
    folder: Path

    def do(self, report: Callable[[float], None]) -> None:
        report(0.5)
        if self.name == "wrong":
            raise ConfigError("a setting is wrong.")
        if self.name == "broken":
            raise ZeroDivisionError("a mistake")
        if self.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / self.name).write_text(str(os.getpid()))


def ignore(piece: Piece, part: float) -> None:
    del piece, part


def test_pieces_are_done_by_two_processes_and_errors_come_back(tmp_path: Path) -> None:
    pieces = [Writing(f"piece {n}", tmp_path) for n in range(6)]
    seen: list[tuple[str, float]] = []
    with Pool(2) as pool:
        pool.run(pieces[:4], lambda piece, part: seen.append((piece.name, part)))
        pool.run(pieces[4:], lambda piece, part: seen.append((piece.name, part)))
        with pytest.raises(ConfigError, match="a setting is wrong"):
            pool.run([Writing("wrong", tmp_path)], ignore)
        with pytest.raises(
            RuntimeError, match=r"broken failed:(?s:.*)ZeroDivisionError: a mistake"
        ):
            pool.run([Writing("broken", tmp_path)], ignore)
        with pytest.raises(RunError, match=r"made killed was ended from outside \(status -9\)"):
            pool.run([Writing("killed", tmp_path)], ignore)
    assert sorted(name for name, part in seen if part == 1) == [piece.name for piece in pieces]
    workers = {(tmp_path / piece.name).read_text() for piece in pieces}
    assert 1 <= len(workers) <= 2
    assert str(os.getpid()) not in workers


def test_one_job_is_done_here(tmp_path: Path) -> None:
    with Pool(1) as pool:
        pool.run([Writing("here", tmp_path)], ignore)
    assert (tmp_path / "here").read_text() == str(os.getpid())
