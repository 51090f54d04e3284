"""Storms of kills: any process, at any moment, again and again; the result is the same to the bit.

PRLC_STORMS says how many; each draws a method, a layout, who is killed and when from its number.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from .launch import made_once
from .test_faults import alive, wait_until
from .test_launcher import ranks_of, torchrun

STORMS = int(os.environ.get("PRLC_STORMS", "8"))
METHODS = ["prlc:0.3", "local-sgd:4", "lag-wk", "prlc:0.4:every=2:delay=4:up=topk,0.1", "nsgd"]
LAYOUTS = ["server", "sharded"]
KILLS = 3
WORKERS = 2


def words(method: str, layout: str, run: Path) -> list[str]:
    return [
        *("train", "--engine", "distributed", "--workers", str(WORKERS), "--layout", layout),
        *("--method", method, "--optimizer", "momentum", "--lr", "0.02", "--steps", "300"),
        *("--eval-every", "100", "--checkpoint-every", "10", "--net", "step_seconds=5ms"),
        *("--emulate-compute", "--out", str(run)),
    ]


def start_of(layout: str) -> list[str]:
    ranks = WORKERS + (layout == "server")
    return ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "9", "-m", "prlc"]


def all_gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def left_alone(number: int, layout: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the method in the layout in which nobody is killed."""

    def make(folder: Path) -> None:
        command = [*start_of(layout), *words(METHODS[number], layout, folder / "run")]
        with torchrun(folder / "log", *command) as started:
            assert started.wait(timeout=280) == 0, (folder / "log").read_text()

    return made_once(f"storms-{number}-{layout}", make, tmp_path_factory) / "run"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("storm", range(STORMS))
def test_a_storm_of_kills_changes_no_bit(
    storm: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = random.Random(storm)
    number, layout = draw.randrange(len(METHODS)), draw.choice(LAYOUTS)
    run, log, kills = tmp_path / "run", tmp_path / "log", 0
    command = [*start_of(layout), *words(METHODS[number], layout, run)]
    while not (run / "summary.json").exists():
        with torchrun(log, *command) as started:
            while kills < KILLS and started.poll() is None:
                time.sleep(draw.uniform(0.0, 12.0))
                ranks = sorted(ranks_of(started.pid).values())
                if not ranks:
                    continue
                kills += 1
                if draw.random() < 0.3:  # torchrun itself, whatever its ranks are doing
                    started.kill()
                    started.wait()
                    wait_until(functools.partial(all_gone, ranks), seconds=30.0)
                else:
                    os.kill(draw.choice(ranks), signal.SIGKILL)
            code = started.wait(timeout=400)
            assert code in (0, -signal.SIGKILL), log.read_text()
    theirs = left_alone(number, layout, tmp_path_factory)
    ours, others = (torch.load(f / "model.pt", weights_only=True) for f in (run, theirs))
    assert all(torch.equal(ours[name], others[name]) for name in others)
    losses = [json.loads((f / "summary.json").read_text())["train_loss"] for f in (run, theirs)]
    assert losses[0] == losses[1]
