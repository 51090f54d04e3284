"""Processes on nodes: where they run, where their output goes, how they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prlc import errors
from prlc.testbed import Testbed as Bed
from prlc.testbed import machine

from .helpers import left_of, on_a_real_machine, runs

pytestmark = on_a_real_machine


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed(workers=2) as made:
        yield made
    assert left_of(made.topology.name) == []


def test_each_runs_on_its_node_with_its_environment_and_its_log(bed: Bed, tmp_path: Path) -> None:
    show = ["sh", "-c", 'echo "$WHO"; ip -4 -o address show dev net0']
    who = {node.name: {"WHO": f"I am {node.name}"} for node in bed.nodes}
    processes = bed.start({node.name: show for node in bed.nodes}, who, logs=tmp_path)
    processes.wait(timeout=20)
    assert processes.exit_codes() == {"server": 0, "w00": 0, "w01": 0}
    for node in bed.nodes:
        said = (tmp_path / f"{node.name}.log").read_text()
        assert said.startswith(f"I am {node.name}\n")
        assert node.address in said


def test_a_failure_names_the_node_and_stops_the_others(bed: Bed, tmp_path: Path) -> None:
    commands = {"server": ["sleep", "600"], "w00": ["sh", "-c", "exit 3"], "w01": ["sleep", "600"]}
    processes = bed.start(commands, logs=tmp_path)
    with pytest.raises(errors.TestbedError, match=r"failed on w00 \(exit status 3 .*w00\.log"):
        processes.wait(grace=0.2)
    assert processes.exit_codes() == {"server": -15, "w00": 3, "w01": -15}


def test_what_takes_too_long_is_stopped(bed: Bed, tmp_path: Path) -> None:
    processes = bed.start({"w00": ["sleep", "600"]}, logs=tmp_path)
    with pytest.raises(errors.TestbedError, match=r"After 0\.2 s w00 still ran"):
        processes.wait(timeout=0.2)
    assert processes.exit_codes() == {"w00": -15}


def test_what_does_not_end_when_asked_is_killed(bed: Bed, tmp_path: Path) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo deaf; while true; do sleep 0.1; done"]
    processes = bed.start({"w00": stubborn}, logs=tmp_path)
    while not processes["w00"].log.read_text():
        time.sleep(0.01)
    processes.stop(grace=0.2)
    assert processes.exit_codes() == {"w00": -9}


def test_meanwhile_is_called(bed: Bed, tmp_path: Path) -> None:
    calls: list[int] = []
    processes = bed.start({"w00": ["sleep", "0.3"]}, logs=tmp_path)
    processes.wait(meanwhile=lambda: calls.append(1))
    assert calls


def test_a_process_that_left_its_group_is_found_when_the_testbed_goes(tmp_path: Path) -> None:
    with Bed(workers=1) as bed:
        runaway = ["sh", "-c", "setsid sleep 600 & wait"]
        bed.start({"w00": runaway}, logs=tmp_path)
        while len(pids := machine.processes_in(bed.workers[0].namespace)) < 2:
            time.sleep(0.01)
    assert not any(map(runs, pids))


def test_unknown_nodes_and_closed_testbeds_are_refused(bed: Bed, tmp_path: Path) -> None:
    with pytest.raises(errors.TestbedError, match="no node 'w07'; its nodes are server and w00"):
        bed.start({"w07": ["true"]}, logs=tmp_path)
    with pytest.raises(errors.TestbedError, match="not open"):
        Bed(workers=1).start({"w00": ["true"]}, logs=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.TestbedError, match="Cannot start commands"):
        bed.start({"w00": ["true"]}, logs=tmp_path / "file")
