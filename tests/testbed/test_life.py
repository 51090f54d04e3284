"""Whatever happens to a testbed, nothing is left behind, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prlc import errors
from prlc.testbed import Testbed as Bed
from prlc.testbed import clean, records, shell

from .machine import left_of, on_a_real_machine, runs

pytestmark = on_a_real_machine

OWNER = """
import sys, time
from pathlib import Path
from prlc.testbed import Testbed, records
records.FOLDER = Path(sys.argv[1])
with Testbed(workers=2, name=sys.argv[2]) as bed:
    bed.start({"w01": ["sleep", "600"]}, logs=sys.argv[1])
    print("there", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of the test's own, so that tests beside it do not clean up for it."""
    monkeypatch.setattr("prlc.testbed.records.FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def owner(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process with a testbed, and the testbed's name."""
    name = f"t{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), name], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    yield process, name
    process.kill()
    process.communicate()
    clean()
    assert left_of(name) == []


def sleeping_in(name: str) -> int:
    """The process that the owner started, once it has entered its namespace."""
    while not (pids := shell.processes_in(f"prlc-{name}-w01")):
        time.sleep(0.01)
    return pids[0]


def test_all_is_there_inside_and_gone_after(folder: Path) -> None:
    with Bed(workers=2) as bed:
        name = bed.topology.name
        assert len(left_of(name)) == 4
        assert [record.name for record in records.records()] == [name]
    assert left_of(name) == []
    assert list(folder.iterdir()) == []
    bed.close()  # once more does no harm


def test_all_is_gone_after_an_exception(folder: Path) -> None:
    bed = Bed(workers=2)

    def fail() -> None:
        with bed:
            bed.start({"w00": ["sleep", "600"]}, logs=folder / "logs")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert left_of(bed.topology.name) == []


def test_all_is_gone_if_it_cannot_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prlc.testbed.limits.loss", lambda _: ["nonsense"])
    bed = Bed(workers=2)
    with pytest.raises(errors.TestbedError, match=r"`tc .*` failed: .*--check"):
        bed.__enter__()
    assert left_of(bed.topology.name) == []
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_a_name_is_taken_only_once() -> None:
    with Bed(workers=1) as bed:
        again = Bed(workers=1, name=bed.topology.name)
        with pytest.raises(errors.TestbedError, match=r"called .* already"), again:
            pass
        assert len(left_of(bed.topology.name)) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_owner_removes_it(
    owner: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    process, name = owner
    sleeper = sleeping_in(name)
    process.send_signal(number)
    process.wait(timeout=30)
    assert left_of(name) == []
    assert records.records() == []
    assert not runs(sleeper)


def test_after_sigkill_cleaning_removes_it_and_only_it(
    owner: tuple[subprocess.Popen[str], str],
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
        shell.run(["ip", "netns", "add", foreign])
    try:
        done = clean()
        assert done.removed == (name,)
        assert nameless in done.unknown
        assert {stranger, nameless} <= set(shell.namespaces())
    finally:
        for foreign in (stranger, nameless):
            shell.run(["ip", "netns", "delete", foreign])
    assert left_of(name) == []
    assert not runs(sleeper)
    assert clean().removed == ()


def test_a_process_with_the_number_of_the_owner_is_not_the_owner(folder: Path) -> None:
    record = records.claim("abc")
    assert record.owner_lives
    assert not records.Record("abc", record.pid, record.started - 1).owner_lives
    record.remove()
    assert list(folder.iterdir()) == []
