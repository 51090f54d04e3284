"""torchrun dies, or freezes: nobody outlives it, nobody waits for it in silence."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from prlc.engines.processes.connection import _meet
from prlc.errors import PeerError
from prlc.launcher import has_launcher

from .launch import kill_group
from .test_faults import alive, environment, wait_until

TRAIN = [
    *("-m", "prlc", "train", "--engine", "distributed"),
    *("--steps", "100000", "--checkpoint-every", "20"),
]

_MARK = "STARTED_BY_TEST"


def processes() -> list[str]:
    return [file.name for file in Path("/proc").iterdir() if file.name.isdigit()]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ranks_of(agent: int) -> dict[int, int]:
    """The process of every rank that a torchrun has started."""
    try:
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    except OSError:  # it has ended
        return {}
    found = {environment(int(pid)).get("RANK"): int(pid) for pid in children}
    return {int(rank): pid for rank, pid in found.items() if rank is not None and alive(pid)}


@contextmanager
def torchrun(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A torchrun that leaves nothing behind."""
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words],
            stdout=output,
            stderr=output,
            env=os.environ | {"OMP_NUM_THREADS": "1", _MARK: str(log)},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        left = [pid for pid in map(int, processes()) if environment(pid).get(_MARK) == str(log)]
        kill_group(process)
        for pid in left:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "first", ["prlc", pytest.param("torch", marks=pytest.mark.slow)], ids="imports {} first".format
)
def test_torchrun_killed_while_its_ranks_import_leaves_none(tmp_path: Path, first: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import {first}\nimport prlc\nprlc.join('nsgd')\n")
    fixed = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    with torchrun(tmp_path / "log", "--nproc-per-node", "3", *fixed, str(script)) as agent:
        wait_until(lambda: len(ranks_of(agent.pid)) == 3)
        ranks = ranks_of(agent.pid)
        agent.kill()
        agent.wait()
        wait_until(lambda: not any(map(alive, ranks.values())), seconds=30.0)


def test_who_has_no_launcher_is_an_orphan(tmp_path: Path) -> None:
    parents = {7: 5, 5: 3, 3: 1, 1: 0}
    for pid, parent in parents.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (name)) S {parent} 0")
        (tmp_path / str(pid) / "maps").write_text("7f00 r-xp /lib/libc.so.6\n")
    assert has_launcher(7, tmp_path)  # nothing can be seen there, not even of oneself
    (tmp_path / "self").symlink_to(tmp_path / "7")
    assert not has_launcher(7, tmp_path)
    (tmp_path / "5" / "maps").write_text("7f00 r-xp /site/torch/lib/libtorch_cpu.so\n")
    assert has_launcher(7, tmp_path)  # perhaps through a shell
    assert not has_launcher(3, tmp_path)
    assert not has_launcher(99, tmp_path)  # somebody else's


def test_a_rank_is_taken_by_one_process_alone() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = {"addresses": [], "word": "first", "settings": {}}
    assert _meet(store, 0, 1, own, 5.0) == [own]
    with pytest.raises(PeerError, match="Another process already takes part as rank 0"):
        _meet(store, 0, 1, {**own, "word": "of an earlier start"}, 5.0)


def test_who_does_not_come_is_named() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = {"addresses": [], "word": "word", "settings": {}}
    with pytest.raises(PeerError, match="Rank 1 has not come within 0 s"):
        _meet(store, 0, 2, own, 0.0)
    store.set("refused", '[1, "There is no data."]')
    with pytest.raises(PeerError, match=r"Rank 1 does not take part.*There is no data"):
        _meet(store, 0, 2, {**own, "word": "word"}, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["server", "sharded"])
def test_the_store_and_its_host_freeze_and_everybody_ends(tmp_path: Path, layout: str) -> None:
    """Two nodes as in docs/deployment.md; the first one's torchrun and rank 0 are stopped."""
    timeout, workers = 15.0, 4 if layout == "sharded" else 3
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    words = ["--nnodes", "2", "--nproc-per-node", "2", *meet, "--rdzv-id", "frozen", *TRAIN]
    words += ["--layout", layout, "--workers", str(workers), "--peer-timeout", f"{timeout:g}s"]
    words += ["--method", "prlc:0.5", "--out", str(tmp_path / "run")]
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    with torchrun(logs[0], *words) as one, torchrun(logs[1], *words) as two:
        agents = [one, two]
        wait_until(lambda: sum(len(ranks_of(agent.pid)) for agent in agents) == 4)
        ranks = {r: pid for agent in agents for r, pid in ranks_of(agent.pid).items()}
        store = int(environment(ranks[3])["MASTER_PORT"])
        wait_until((tmp_path / "run" / "checkpoint.pt").exists)
        time.sleep(2.0)
        keeper = next(agent for agent in agents if listens(agent.pid, store))
        frozen = [keeper.pid, ranks[0]]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        others = [pid for rank, pid in ranks.items() if rank != 0]
        try:
            wait_until(lambda: not any(map(alive, others)), seconds=timeout + 30.0)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGKILL)
    said = "".join(log.read_text() for log in logs)
    assert "Traceback (most recent call last)" not in re.sub(r"(?s)\[rank.*", "", said), said
    errors = [line for line in said.splitlines() if "error (rank " in line]
    assert errors, said  # torchrun itself may have ended the others of its node
    assert all("rank 0 (" in line.partition("):")[2] for line in errors), said


def listens(pid: int, port: int) -> bool:
    """Whether a process has a listening socket on the port."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    links = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(file.readlink()))
        except OSError:
            continue
    return not inodes.isdisjoint(links)
