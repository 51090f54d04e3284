"""torchrun's rendezvous across namespaces."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from prlc import errors
from prlc.testbed import INTERFACE, Topology, torchrun
from prlc.testbed import Testbed as Bed

from .helpers import on_a_real_machine, runs

# Says who it is; on the first attempt, rank 1 dies in the middle.
SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
from torch import distributed
distributed.init_process_group("gloo")
rank, died = distributed.get_rank(), Path(sys.argv[1])
total = torch.ones(1) * rank
distributed.all_reduce(total)
print("rank", rank, "sum", int(total), flush=True)
if rank == 1 and not died.exists():
    died.touch()
    os.kill(os.getpid(), signal.SIGKILL)
distributed.barrier()
distributed.destroy_process_group()
print("done", flush=True)
"""


def test_what_torchrun_is_told_on_a_node() -> None:
    topology = Topology("abc", workers=2)
    given = [
        torchrun.arguments(topology, node, ["prog", "--x"], notes=Path("/notes"), restarts=2)
        for node in topology.nodes
    ]
    for words in given:
        assert words[-3:] == ["--no-python", "prog", "--x"]
        assert {"--rdzv-endpoint=10.85.100.100:29400", "--nnodes=3", "--max-restarts=2"} < {*words}
    assert "--local-addr=10.85.100.102" in given[2]
    hosts = ["is_host=1" in " ".join(words) for words in given]
    assert hosts == [True, False, False]
    assert torchrun.environment()["GLOO_SOCKET_IFNAME"] == INTERFACE


@on_a_real_machine
def test_ranks_follow_the_nodes_also_after_a_process_was_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "died")]
    with Bed(workers=1) as bed:
        processes = torchrun.start(bed, command, logs=tmp_path / "logs", max_restarts=2)
        processes.wait(timeout=200)
        for node in bed.nodes:
            said = processes[node.name].log.read_text()
            assert said.count(f"rank {node.rank} sum 1\n") == 2, said
            assert said.count("rank ") == 2
            assert said.count("done\n") == 1


@on_a_real_machine
def test_agents_whose_parent_was_killed_are_lost_but_not_left_behind(tmp_path: Path) -> None:
    with Bed(workers=1) as bed:
        processes = torchrun.start(bed, ["sleep", "600"], logs=tmp_path)
        pid = processes["w00"].process.pid
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        with pytest.raises(errors.TestbedError, match="failed on server and w00"):
            processes.wait(timeout=60)
    assert not runs(pid)


def test_it_needs_an_open_testbed(tmp_path: Path) -> None:
    with pytest.raises(errors.TestbedError, match="not open"):
        torchrun.start(Bed(workers=1), ["true"], logs=tmp_path)
