"""Running cases in real processes, and reading what became of them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from .run_cases import Case

TESTS = Path(__file__).parents[1]


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


def launch(
    cases: list[Case], name: str, tmp_path_factory: pytest.TempPathFactory, at_once: int = 1
) -> dict[str, Ended]:
    """Run cases, once for all the processes that pytest may have spread the tests over."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "codes.json").exists():
            described = {"at_once": at_once, "cases": [dataclasses.asdict(case) for case in cases]}
            (folder / "cases.json").write_text(json.dumps(described))
            _run(folder)
    codes = json.loads((folder / "codes.json").read_text())
    return {case.name: Ended(case, folder / case.name, codes[case.name]) for case in cases}


def _run(folder: Path) -> None:
    command = [sys.executable, "-m", "distributed.run_cases", str(folder)]
    with (folder / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            command, cwd=TESTS, stdout=said, stderr=said, start_new_session=True
        )
        try:
            process.wait(timeout=280)
        finally:
            kill_group(process)
        said.seek(0)
        assert process.returncode == 0, said.read()


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a group, and all in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
