"""Running cases in real processes, and reading what became of them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import forks

from .run_cases import Case


@dataclass(frozen=True)
class Ended:
    """What became of a case."""

    case: Case
    folder: Path
    codes: list[dict[str, int | str]]
    """Of every start: how each rank ended."""

    def said(self, rank: int, start: int = -1) -> str:
        """What a rank printed."""
        return (self.folder / f"{start % len(self.codes)}-{rank}.txt").read_text()

    def everything(self) -> str:
        """What all ranks printed in all starts, for a failing test to show."""
        files = sorted(self.folder.glob("*-*.txt"))
        return "\n".join([f"{self.case.name}: {self.codes}"] + [f.read_text() for f in files])

    def of_rank(self, rank: int = 0) -> dict[str, Any]:
        """What came out, as `outcome` says; the run must have gone well."""
        assert set(self.codes[-1].values()) == {0}, self.everything()
        found: dict[str, Any] = torch.load(self.folder / f"outcome-{rank}.pt", weights_only=True)
        return found

    @property
    def run(self) -> Path:
        """The folder of the run itself."""
        named: str = self.case.settings["folder"]
        return self.folder.parent / named

    def of_all(self) -> list[dict[str, Any]]:
        return [self.of_rank(rank) for rank in range(self.case.world)]


def some_slow(names: Iterable[str], slow: set[str]) -> list[Any]:
    """Names to parametrize with, those in `slow` so marked."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in slow else n for n in names]


def asked_for(request: pytest.FixtureRequest) -> set[str]:
    """The `name`s of the tests selected in this file: the only cases that need to run."""
    items = [item for item in request.session.items if item.path == request.path]
    given = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return {params["name"] for params in given if "name" in params}


def launch(
    cases: list[Case], name: str, tmp_path_factory: pytest.TempPathFactory, at_once: int = 1
) -> dict[str, Ended]:
    """Run cases, once for all of pytest's processes."""

    def make(folder: Path) -> None:
        described = {"at_once": at_once, "cases": [dataclasses.asdict(case) for case in cases]}
        (folder / "cases.json").write_text(json.dumps(described))
        _run(folder)

    folder = made_once(name, make, tmp_path_factory)
    codes = json.loads((folder / "codes.json").read_text())
    return {case.name: Ended(case, folder / case.name, codes[case.name]) for case in cases}


def made_once(
    name: str, make: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder that `make` fills, once for all the processes that pytest spreads tests over."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    folder.mkdir(exist_ok=True)
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


def _run(folder: Path) -> None:
    with (folder / "said.txt").open("w+") as said:
        process = forks.start("processes.run_cases", folder, output=said.fileno())
        try:
            process.wait(timeout=280)
        finally:
            process.kill_all()
        said.seek(0)
        assert process.returncode == 0, said.read()


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a group, and all in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
