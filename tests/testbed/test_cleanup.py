"""Whatever happens to a testbed, nothing is left behind and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forks
from prlc import errors
from prlc.testbed import Testbed as Bed
from prlc.testbed import clean, cleanup, machine

from .helpers import left_of, on_a_real_machine, runs

pytestmark = on_a_real_machine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate records, so that tests running beside this one do not clean up for it."""
    monkeypatch.setattr("prlc.testbed.cleanup.RECORDS", tmp_path)
    return tmp_path


@pytest.fixture
def owner(folder: Path) -> Iterator[tuple[forks.Process, str]]:
    """Another process with a testbed, and the testbed's name."""
    name = f"t{os.getpid()}"
    reading, writing = os.pipe()
    process = forks.start("testbed.owner", folder, name, output=writing, errors=2)
    os.close(writing)
    with open(reading) as said:  # noqa: PTH123 (a descriptor)
        assert said.readline() == "there\n"
        yield process, name
        process.kill()
        process.wait()
    clean()
    assert left_of(name) == []


def sleeping_in(name: str) -> int:
    """The process that the owner started, once it has entered its namespace."""
    while not (pids := machine.processes_in(f"prlc-{name}-w01")):
        time.sleep(0.01)
    return pids[0]


def test_all_exists_inside_and_is_gone_after(folder: Path) -> None:
    with Bed(workers=2) as bed:
        name = bed.topology.name
        assert len(left_of(name)) == 4
        assert [record.name for record in cleanup.read_records()] == [name]
    assert left_of(name) == []
    assert list(folder.iterdir()) == []
    bed.close()  # closing twice does no harm


def test_all_is_gone_after_an_exception(folder: Path) -> None:
    bed = Bed(workers=2)

    def fail() -> None:
        with bed:
            bed.start({"w00": ["sleep", "600"]}, logs=folder / "logs")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert left_of(bed.topology.name) == []


def test_all_is_gone_if_it_cannot_be_created(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prlc.testbed.wiring.drop_packets", lambda _: ["nonsense"])
    bed = Bed(workers=2)
    with pytest.raises(errors.TestbedError, match=r"`tc .*` failed: .*--check"):
        bed.__enter__()
    assert left_of(bed.topology.name) == []
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_a_name_is_taken_only_once() -> None:
    with Bed(workers=1) as bed:
        again = Bed(workers=1, name=bed.topology.name)
        with pytest.raises(errors.TestbedError, match=r"already a testbed called "), again:
            pass
        assert len(left_of(bed.topology.name)) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_owner_removes_it(
    owner: tuple[forks.Process, str], number: signal.Signals
) -> None:
    process, name = owner
    sleeper = sleeping_in(name)
    process.send_signal(number)
    process.wait(timeout=30)
    assert left_of(name) == []
    assert cleanup.read_records() == []
    assert not runs(sleeper)


def test_after_sigkill_cleaning_removes_it_and_only_it(
    owner: tuple[forks.Process, str],
) -> None:
    process, name = owner
    sleeper = sleeping_in(name)
    kept = clean()
    assert [record.name for record in kept.in_use] == [name]
    assert len(left_of(name)) == 4, "cleaning took away a testbed in use"
    process.kill()
    process.wait()
    assert len(left_of(name)) == 4
    assert sleeping_in(name) == sleeper
    stranger, nameless = f"{name}-mine", f"prlc-{name}x-server"
    for foreign in (stranger, nameless):
        machine.run(["ip", "netns", "add", foreign])
    try:
        done = clean()
        assert done.removed == (name,)
        assert nameless in done.unknown
        assert {stranger, nameless} <= set(machine.namespaces())
    finally:
        for foreign in (stranger, nameless):
            machine.run(["ip", "netns", "delete", foreign])
    assert left_of(name) == []
    assert not runs(sleeper)
    assert clean().removed == ()


def test_what_has_not_reached_a_namespace_yet_ends_too(owner: tuple[forks.Process, str]) -> None:
    """As torchrun's forking process: it imports torch before it enters any."""
    process, name = owner
    process.kill()
    process.wait()
    helper = subprocess.Popen(["sleep", "600"], env=machine.marked(name), start_new_session=True)
    try:
        assert clean().removed == (name,)
        assert helper.wait(timeout=10) == -signal.SIGKILL
    finally:
        helper.kill()


def test_all_that_runs_on_a_testbed_is_marked(folder: Path) -> None:
    with Bed(workers=1) as bed:
        started = bed.start({"w00": ["sleep", "600"]}, logs=folder / "logs")
        assert started["w00"].process.pid in machine.processes_marked(bed.topology.name)
        assert "PRLC_TESTBED" not in os.environ


def test_a_process_that_is_starting_a_program_is_marked_too() -> None:
    for _ in range(60):  # of which ten would be missed
        command = ["sh", "-c", 'exec sh -c "exec sleep 600"']
        process = subprocess.Popen(command, env=machine.marked("starting"))
        try:
            assert all(process.pid in machine.processes_marked("starting") for _ in range(3))
        finally:
            process.kill()
            process.wait()


def test_a_process_with_the_number_of_the_owner_is_not_the_owner(folder: Path) -> None:
    record = cleanup.claim("abc")
    assert record.owner_lives
    assert not cleanup.Record("abc", record.pid, record.started - 1).owner_lives
    record.remove()
    assert list(folder.iterdir()) == []
