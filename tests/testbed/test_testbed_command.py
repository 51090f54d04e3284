"""`prlc testbed` as a person uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prlc.testbed import Testbed as Bed

from .helpers import left_of, on_a_real_machine

Prlc = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate records and runs."""
    monkeypatch.setattr("prlc.testbed.cleanup.RECORDS", tmp_path / "records")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model", "cnn", "--", "true"], "--model is for training by methods"),
        (["--json", "--", "true"], "--json is for training by methods"),
        (["--workers", "0"], "workers should be a whole number from 1 to 500, but is 0"),
        (["--bandwidth", "fast"], "Expected a bandwidth such as"),
        (["--bandwidth", "0"], "bandwidth should be a finite number"),
        (["--latency", "soon"], "Expected a time such as"),
        (["--loss", "200%"], "loss should be a fraction of at least 0 and less than 1, but is 2.0"),
        (["--loss", "much"], "Expected a fraction such as"),
        (["--loss", "1%2"], "Expected a fraction such as"),
    ],
)
def test_bad_settings_are_one_sentence(
    prlc: Prlc, folder: Path, options: list[str], sentence: str
) -> None:
    code, out, said = prlc("testbed", *options, "--", "true")
    assert code == 2
    assert out == ""
    assert sentence in said
    assert said.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_without_root_nothing_happens(
    prlc: Prlc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for arguments in (["--", "true"], ["--clean"]):
        code, _, said = prlc("testbed", *arguments)
        assert code == 2
        assert "needs root" in said
        assert said.count("\n") == 1
    code, out, _ = prlc("testbed", "--check")
    assert code == 1
    assert "run it as root" in out
    assert list((folder / "runs").iterdir()) == []


@on_a_real_machine
def test_check_says_what_the_machine_has(prlc: Prlc) -> None:
    code, out, _ = prlc("testbed", "--check")
    assert code == 0
    for part in ("root", "tc", "htb", "ifb", "netem"):
        assert part in out


@on_a_real_machine
def test_clean_says_what_it_did(prlc: Prlc, folder: Path) -> None:
    (folder / "records").mkdir()
    (folder / "records" / "testbed-gone.json").write_text(
        '{"name": "gone", "pid": 1, "started": -1}'
    )
    code, out, _ = prlc("testbed", "--clean")
    assert code == 0
    assert "Removed the testbed gone.\n" in out
    assert list((folder / "records").iterdir()) == []


@on_a_real_machine
def test_a_command_runs_on_every_node_under_torchrun(
    prlc: Prlc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = 'echo "rank $RANK of $WORLD_SIZE"'
    made: list[str] = []

    def enter(bed: Bed) -> Bed:
        made.append(bed.topology.name)
        return enter_really(bed)

    enter_really = Bed.__enter__
    monkeypatch.setattr(Bed, "__enter__", enter)
    code, out, said = prlc("testbed", "-w", "1", "--half-duplex", "--", "sh", "-c", show)
    assert code == 0, said
    assert out == "rank 0 of 2\n"
    assert "1 workers, server 100 MB/s for both directions; logs in runs/0001-testbed" in said
    assert "rank 1 of 2\n" in (folder / "runs" / "0001-testbed" / "w00.log").read_text()
    assert list((folder / "records").iterdir()) == []
    assert [left_of(name) for name in made] == [[]]
