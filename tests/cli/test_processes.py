"""Real processes that are killed and interrupted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

import forks

SETTINGS = [
    *("--method", "prlc:0.3", "--optimizer", "momentum", "--lr", "0.02", "--steps", "2000"),
    *("--eval-every", "100", "--checkpoint-every", "50", "--chunk", "20", "--threads", "1"),
]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., forks.Process]]:
    """Starts `prlc train`; what it says goes to said.txt."""
    with (tmp_path / "said.txt").open("w") as said:
        yield lambda *arguments: forks.start("prlc.cli", "train", *arguments, output=said.fileno())


def wait_for_new_checkpoint(run: Path, process: forks.Process | subprocess.Popen[str]) -> None:
    """Until the running process has written a checkpoint of its own."""
    file = run / "checkpoint.pt"
    before = file.stat().st_mtime_ns if file.exists() else 0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended before it could be stopped"
        if file.exists() and file.stat().st_mtime_ns > before:
            return
        time.sleep(0.005)
    raise AssertionError("no checkpoint within two minutes")


def assert_same_run(run: Path, undisturbed: Path) -> None:
    ours, theirs = (torch.load(f / "model.pt", weights_only=True) for f in (run, undisturbed))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    pd.testing.assert_frame_equal(
        pd.read_csv(run / "metrics.csv"), pd.read_csv(undisturbed / "metrics.csv"), check_exact=True
    )
    summaries = [json.loads((f / "summary.json").read_text()) for f in (run, undisturbed)]
    for summary in summaries:
        del summary["wall_seconds"], summary["digest"]
    assert summaries[0] == summaries[1]


def test_killed_five_times_a_run_ends_as_if_left_alone(
    start: Callable[..., forks.Process], tmp_path: Path
) -> None:
    undisturbed, run, said = tmp_path / "undisturbed", tmp_path / "killed", tmp_path / "said.txt"
    assert start(*SETTINGS, "--out", undisturbed).wait(200) == 0, said.read_text()
    moments = random.Random(7)
    for attempt in range(5):
        process = start("--resume", run) if attempt else start(*SETTINGS, "--out", run)
        wait_for_new_checkpoint(run, process)
        time.sleep(moments.uniform(0.0, 0.1))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert start("--resume", run).wait(200) == 0, said.read_text()
    assert_same_run(run, undisturbed)


def test_interrupted_a_run_says_how_to_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "prlc", "train", *SETTINGS, "--out", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_new_checkpoint(run, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert f"prlc train --resume {run}" in said.replace("\n", " ")
