"""A machine that lacks something is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from prlc import errors
from prlc.testbed import Testbed as Bed
from prlc.testbed import Topology, check_machine, machine


def refusal(topology: Topology | None) -> str:
    with pytest.raises(errors.TestbedError) as raised:
        machine.require(topology)
    return str(raised.value)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "plan9")
    assert refusal(Topology("abc")).startswith("The testbed needs Linux ")


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert refusal(Topology("abc")).endswith("missing here: run it as root.")
    assert "root" in refusal(None)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("tool", ["ip", "tc", "unshare"])
def test_a_missing_tool_is_named(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in {"ip", "tc", "unshare"} - {tool}:
        (tmp_path / other).write_text("#!/bin/sh\n")
        (tmp_path / other).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal(Topology("abc")).startswith(f"The testbed needs {tool} for ")


@pytest.mark.usefixtures("as_root")
def test_latency_and_loss_are_refused_where_the_kernel_has_no_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("ip", "tc"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    refusing = tmp_path / "unshare"  # a kernel with neither netem nor bpf
    refusing.write_text(
        "#!/bin/sh\nwhile read line; do case $line in *netem*|*bpf*) exit 1;; esac; done\n"
    )
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    machine.require(Topology("abc"))
    assert "leave the latency at 0" in refusal(Topology("abc", latency=0.005))
    assert "leave the loss at 0" in refusal(Topology("abc", loss=0.005))
    answers = {need.name: met for need, met in check_machine()}
    assert answers["htb"] is True
    assert answers["netem"] is False


def test_what_cannot_be_tried_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    answers = {need.name: met for need, met in check_machine()}
    assert answers["root"] is False
    assert answers["htb"] is None


def test_a_refused_testbed_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prlc.testbed.cleanup.RECORDS", tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(errors.TestbedError), Bed(workers=1):
        pass
    assert list(tmp_path.iterdir()) == []
