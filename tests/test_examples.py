"""The examples and benchmarks run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "examples"


def test_comparing_an_own_model(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "compare_own_model.py")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "PRLC" in run.stdout
    assert (tmp_path / "comparison.png").exists()


@pytest.mark.parametrize(("layout", "workers"), [("sharded", 2), ("server", 1)])
def test_an_own_loop_under_torchrun(layout: str, workers: int, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(str(EXAMPLES / "torchrun_own_loop.py"), "--layout", layout, "--checkpoint", "own"),
    ]
    starts = 2 if layout == "sharded" else 1  # started again, it goes on from its checkpoint
    for _ in range(starts):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert f"{workers} workers: test accuracy" in run.stdout
        accuracy = float(run.stdout.split("accuracy ")[1].rstrip("%\n"))
        assert accuracy > 80
    assert (tmp_path / "own" / "checkpoint.pt").exists()


def test_the_benchmark_prints_its_tables() -> None:
    command = [sys.executable, str(PROJECT / "benchmarks" / "simulator.py"), "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for row in ("general simulator", "hand-written bmm loop", "plain loop", "per worker-step"):
        assert row in run.stdout
