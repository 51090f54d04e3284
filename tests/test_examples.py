"""The examples and benchmarks run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
EXAMPLES = sorted((PROJECT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "PRLC" in run.stdout
    assert (tmp_path / "comparison.png").exists()


def test_the_benchmark_prints_its_tables() -> None:
    command = [sys.executable, str(PROJECT / "benchmarks" / "simulator.py"), "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for row in ("general simulator", "hand-written bmm loop", "plain loop", "per worker-step"):
        assert row in run.stdout
