"""Work in other processes: done, failed, killed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from prlc.errors import ConfigError, RunError
from prlc.experiments.pool import OnFraction, Pool, WorkItem


@dataclass(frozen=True)
class Writing:
    """Writes its process id, or fails as its name says."""

    name: str
    folder: Path

    def do(self, on_fraction: OnFraction) -> None:
        on_fraction(0.5)
        if self.name == "wrong":
            raise ConfigError("a setting is wrong.")
        if self.name == "broken":
            raise ZeroDivisionError("a mistake")
        if self.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / self.name).write_text(str(os.getpid()))


def ignore(item: WorkItem, fraction: float) -> None:
    del item, fraction


def test_items_are_done_by_two_processes_and_errors_come_back(tmp_path: Path) -> None:
    items = [Writing(f"item {n}", tmp_path) for n in range(6)]
    seen: list[tuple[str, float]] = []
    with Pool(2) as pool:
        pool.run(items[:4], lambda item, done: seen.append((item.name, done)))
        pool.run(items[4:], lambda item, done: seen.append((item.name, done)))
        with pytest.raises(ConfigError, match="a setting is wrong"):
            pool.run([Writing("wrong", tmp_path)], ignore)
        with pytest.raises(
            RuntimeError, match=r"broken failed:(?s:.*)ZeroDivisionError: a mistake"
        ):
            pool.run([Writing("broken", tmp_path)], ignore)
        with pytest.raises(RunError, match=r"running killed was killed \(status -9\)"):
            pool.run([Writing("killed", tmp_path)], ignore)
    assert sorted(name for name, done in seen if done == 1) == [item.name for item in items]
    workers = {(tmp_path / item.name).read_text() for item in items}
    assert 1 <= len(workers) <= 2
    assert str(os.getpid()) not in workers


def test_one_job_runs_in_this_process(tmp_path: Path) -> None:
    with Pool(1) as pool:
        pool.run([Writing("here", tmp_path)], ignore)
    assert (tmp_path / "here").read_text() == str(os.getpid())
