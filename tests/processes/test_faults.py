"""Processes that are killed and started again: the run ends as if it had been left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import prlc

from .launch import Ended, asked_for, kill_group, launch, some_slow
from .problems import outcome, problem, settings
from .run_cases import Case

OWN = Path(__file__).parents[2] / "examples" / "own_method.py"
COMMAND = [
    *("train", "--engine", "distributed", "--workers", "2", "--method", "prlc:0.3"),
    *("--optimizer", "momentum", "--lr", "0.02", "--steps", "500", "--eval-every", "50"),
    *("--checkpoint-every", "20", "--net", "step_seconds=5ms"),
]
#: Killed at step 33, some time after the checkpoint of step 30.
KILLED: dict[str, dict[str, Any]] = {
    "prlc, sharded": {"layout": "sharded", "method": "prlc:0.3"},
    "momentum on both sides": {
        "method": "pr:0.3",
        "optimizer": "momentum",
        "server_optimizer": "nesterov",
        "lr": 0.02,
    },
    "within a period": {"method": "local-sgd:8", "steps": 64, "eval_every": 16},
    "within a period, sharded": {"layout": "sharded", "method": "prlc:0.5:every=4"},
    "lag-ps": {"method": "lag-ps"},
    "lag-ps, sharded": {"layout": "sharded", "method": "lag-ps"},
    "lag-wk": {"method": "lag-wk", "optimizer": "adamw", "lr": 0.01},
    "laq, sharded": {"layout": "sharded", "method": "laq:2:longest=5:up=grid,3,chunk=16"},
    "cmfl": {"method": "cmfl:0.55"},
    "rule 9, inside a delay": {"method": "prlc:0.4:delay=7:up=topk,0.1:down=int8"},
    "rule 9, sharded": {
        "layout": "sharded",
        "method": "prlc:0.4:every=2:delay=5:blocks=2:up=int4:meanwhile=gc",
    },
    "shared state": {"method": "pr:0.3:down=topk,0.2,state=shared:meanwhile=snr"},
    "gathered, sharded": {"layout": "sharded", "method": "sparseloco:4"},
    "a method from a user's file": {"method": f"{OWN}:OwnMethod:0.3:setting=2:delay=2"},
}
ASGD = {
    "asgd": {"method": "asgd"},
    "asgd, sharded": {"method": "asgd", "layout": "sharded"},
    "ssp": {"method": "ssp:1"},
    "ssp, sharded": {"method": "ssp:0", "layout": "sharded"},
}

SLOW = {
    "within a period",
    "lag-ps",
    "shared state",
    "gathered, sharded",
    "asgd, sharded",
    "ssp",
    "cmfl",
}


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ended]:
    command, names = [*COMMAND, "--out", "run", "--json"], asked_for(request)
    cases = [Case(name="undisturbed", workers=2, command=command, again=True)]
    for name, given in (KILLED | ASGD).items():
        if name not in names:
            continue
        told = {**given, "checkpoint_every": 6, "folder": f"run-{name}"}
        layout = told.pop("layout", "server")
        # A worker of LAG-PS may not be asked at that step.
        lag = given["method"] == "lag-ps"
        who = {"server": 2 if layout == "sharded" else 0} if lag else {"worker": 2}
        trouble = {"what": "die", "step": 33, **who}
        cases.append(Case(name=name, layout=layout, settings=told, trouble=trouble, starts=2))
    return launch(cases, "faults-cases", tmp_path_factory, at_once=2)


@pytest.mark.parametrize("name", some_slow(KILLED, SLOW))
def test_killed_once_it_ends_as_the_reference(ended: dict[str, Ended], name: str) -> None:
    run = ended[name]
    assert [*run.codes[0].values()].count(-signal.SIGKILL) == 1
    assert set(run.codes[0].values()) == {-signal.SIGKILL, 1}, run.everything()
    given = {k: v for k, v in KILLED[name].items() if k != "layout"}
    ours = run.of_rank()
    theirs = outcome(prlc.train(*problem("bn"), engine="reference", **settings(given, 4)))
    for key, tensor in theirs["tensors"].items():
        assert float((ours["tensors"][key] - tensor).abs().max()) < 1e-10, key
    table = pd.DataFrame(ours["metrics"]).drop(columns="wall_seconds")
    counted = ["step", "pulls_per_worker", "pushes_per_worker", "bytes_up", "bytes_down"]
    other = pd.DataFrame(theirs["metrics"])
    pd.testing.assert_frame_equal(table[counted], other[counted], check_exact=True)
    pd.testing.assert_frame_equal(table, other, rtol=1e-9, atol=1e-12)
    on_disk = pd.read_csv(run.run / "metrics.csv").drop(columns="wall_seconds")
    pd.testing.assert_frame_equal(on_disk, table)


@pytest.mark.parametrize("name", some_slow(ASGD, SLOW))
def test_killed_once_asgd_takes_all_its_steps(ended: dict[str, Ended], name: str) -> None:
    run = ended[name]
    assert -signal.SIGKILL in run.codes[0].values(), run.everything()
    ours = run.of_rank()
    assert ours["metrics"]["step"] == [0, 20, 40, 60]
    if name.startswith("asgd"):
        assert ours["summary"]["pulls_per_worker"] == 60
    else:  # all ask once more after the restart; some may wait at the end
        assert 60 <= ours["summary"]["pulls_per_worker"] <= 61
    assert 60 < ours["summary"]["pushes_per_worker"] <= 61
    assert ours["metrics"]["train_loss"][-1] < 0.6 * ours["metrics"]["train_loss"][0]
    assert len(pd.read_csv(run.run / "metrics.csv")) == 4


def test_a_finished_run_started_again_says_the_same(ended: dict[str, Ended]) -> None:
    run = ended["undisturbed"]
    assert [set(codes.values()) for codes in run.codes] == [{0}, {0}], run.everything()
    first, again = (json.loads(run.said(0, start)) for start in (0, 1))
    assert first == again
    assert first["steps"] == 500
    assert all(run.said(rank, start) == "" for rank in (1, 2) for start in (0, 1))


class Torchrun:
    """A run under a torchrun that starts it again when a process is lost."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._log = run.with_suffix(".log").open("a")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "3", "--max-restarts", "5", "-m", "prlc", *COMMAND),
                *("--emulate-compute", "--out", str(run)),
            ],
            stdout=self._log,
            stderr=self._log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def ranks(self) -> dict[int, int]:
        """The process id of every rank there is."""
        pid, found = self.process.pid, {}
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in map(int, children):
            if alive(child) and (rank := environment(child).get("RANK")) is not None:
                found[int(rank)] = child
        return found

    def kill(self, rank: int) -> None:
        """Kill a rank after a checkpoint, and wait until all are others."""
        before = self.ranks()
        os.kill(before[rank], signal.SIGKILL)
        wait_until(lambda: len({*self.ranks().values()} - {*before.values()}) == 3)
        wait_until(lambda: not any(map(alive, before.values())))

    def wait_for_new_checkpoint(self) -> None:
        file = self.run / "checkpoint.pt"
        before = file.stat().st_mtime_ns if file.exists() else 0

        def is_there() -> bool:
            assert self.process.poll() is None, self.said()
            return file.exists() and file.stat().st_mtime_ns > before

        wait_until(is_there)

    def said(self) -> str:
        return self.run.with_suffix(".log").read_text()

    def end(self) -> None:
        """Leave nothing behind."""
        left = self.ranks().values() if self.process.poll() is None else []
        kill_group(self.process)
        for pid in left:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self._log.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def environment(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:  # gone, or somebody else's
        return {}
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def wait_until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.01)


def test_under_torchrun_a_run_survives_the_loss_of_its_server(
    tmp_path: Path, ended: dict[str, Ended]
) -> None:
    started = Torchrun(tmp_path / "run")
    try:
        started.wait_for_new_checkpoint()
        started.kill(0)
        assert started.process.wait(timeout=200) == 0, started.said()
    finally:
        started.end()
    assert_same_run(started.run, ended["undisturbed"].folder.parent / "run")


@pytest.mark.slow
def test_under_torchrun_a_run_survives_the_loss_of_anything(
    tmp_path: Path, ended: dict[str, Ended]
) -> None:
    run = tmp_path / "run"
    started = Torchrun(run)
    try:
        for who in ("worker", "server", "worker"):
            started.wait_for_new_checkpoint()
            started.kill(0 if who == "server" else random.Random(7).choice([1, 2]))
        started.wait_for_new_checkpoint()
        ranks = started.ranks().values()
        assert len(ranks) == 3
        started.process.kill()  # torchrun itself: its processes see that they are alone
        started.process.wait()
        wait_until(lambda: not any(map(alive, ranks)), seconds=15.0)
    finally:
        started.end()
    assert not (run / "summary.json").exists(), "it was over before it could be killed"
    newest = bytearray((run / "checkpoint.pt").read_bytes())
    newest[len(newest) // 2] ^= 1  # and a bit of its newest checkpoint
    (run / "checkpoint.pt").write_bytes(newest)
    started = Torchrun(run)
    try:
        assert started.process.wait(timeout=200) == 0, started.said()
    finally:
        started.end()
    assert (run / "checkpoint.damaged.pt").exists()
    assert "goes on from checkpoint.previous.pt" in " ".join(started.said().split())
    assert_same_run(run, ended["undisturbed"].folder.parent / "run")


def assert_same_run(run: Path, undisturbed: Path) -> None:
    ours, theirs = (torch.load(f / "model.pt", weights_only=True) for f in (run, undisturbed))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    table, other = (
        pd.read_csv(f / "metrics.csv").drop(columns="wall_seconds") for f in (run, undisturbed)
    )
    pd.testing.assert_frame_equal(table, other, check_exact=True)
    summaries = [json.loads((f / "summary.json").read_text()) for f in (run, undisturbed)]
    for summary in summaries:
        del summary["wall_seconds"], summary["digest"], summary["run"]
        summary.pop("payload_sent")  # since the last start
    assert summaries[0] == summaries[1]
