"""Real processes that are killed and interrupted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import torch

COMMAND = [
    *(sys.executable, "-m", "prlc", "train", "--method", "prlc:0.3", "--optimizer", "momentum"),
    *("--lr", "0.02", "--steps", "3000", "--eval-every", "100", "--checkpoint-every", "50"),
    *("--chunk", "20", "--threads", "1"),
]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [*COMMAND[:4], *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_new_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
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
        summary.pop("wall_seconds")
    assert summaries[0] == summaries[1]


def test_killed_five_times_a_run_ends_as_if_left_alone(tmp_path: Path) -> None:
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "killed"
    finished = start(*COMMAND[4:], "--out", undisturbed).communicate(timeout=200)
    assert (undisturbed / "summary.json").exists(), finished
    moments = random.Random(7)
    for attempt in range(5):
        options: list[str | Path] = ["--resume", run]
        if attempt == 0:
            options = [*COMMAND[4:], "--out", run]
        process = start(*options)
        wait_for_new_checkpoint(run, process)
        time.sleep(moments.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    _, said = start("--resume", run).communicate(timeout=200)
    assert (run / "summary.json").exists(), said
    assert_same_run(run, undisturbed)


def test_interrupted_a_run_says_how_to_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*COMMAND[4:], "--out", run)
    wait_for_new_checkpoint(run, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert f"prlc train --resume {run}" in said.replace("\n", " ")
