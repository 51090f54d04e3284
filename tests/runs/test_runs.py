"""Run folders: whole files, damaged files, full disks."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

import prlc
from prlc.engines import Execution
from prlc.errors import CheckpointError, RunError
from prlc.runs.folder import RunFolder, fresh_folder, seal

EXECUTION = Execution(chunk=4, threads=1)


def train(folder: Path, **settings: object) -> prlc.Result:
    data = prlc.data.load_digits()
    model = prlc.models.build("logistic", data.sample_shape, data.num_classes, 0)
    fixed = {
        "workers": 4,
        "steps": 40,
        "checkpoint_every": 5,
        "execution": EXECUTION,
        "folder": folder,
    }
    return prlc.train(model, F.cross_entropy, data, **{**fixed, **settings})  # type: ignore[arg-type]


def write_sealed(content: object, file: Path) -> None:
    """A file with a right digest, whatever is in it."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    file.write_bytes(buffer.getvalue() + seal(buffer.getvalue()))


def test_metrics_are_a_table_that_pandas_reads(tmp_path: Path) -> None:
    result = train(tmp_path / "r", eval_every=10)
    table = RunFolder.open(tmp_path / "r").metrics()
    assert table["step"].tolist() == [0, 10, 20, 30, 40]
    assert table["train_loss"].tolist() == result.metrics["train_loss"].tolist()


def test_a_finished_run_is_read_again_not_trained_again(tmp_path: Path) -> None:
    first = train(tmp_path / "r")
    again = train(tmp_path / "r", resume=True)
    assert again.summary == first.summary
    pd.testing.assert_frame_equal(again.metrics, first.metrics)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path / "r")
    with pytest.raises(CheckpointError, match=r"batch_size = 10, but now it is 7"):
        train(tmp_path / "r", resume=True, batch_size=7)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        RunFolder.open(tmp_path)


def test_files_that_are_not_json_are_named(tmp_path: Path) -> None:
    train(tmp_path / "r")
    (tmp_path / "r" / "config.json").write_text("{")
    with pytest.raises(RunError, match=r"config\.json is damaged"):
        train(tmp_path / "r", resume=True)


@pytest.mark.parametrize("other", [1, 99])
def test_a_checkpoint_of_another_format_is_refused(other: int, tmp_path: Path) -> None:
    train(tmp_path / "r")
    file = tmp_path / "r" / "checkpoint.pt"
    write_sealed({**torch.load(file, weights_only=True), "format": other}, file)
    (tmp_path / "r" / "checkpoint.previous.pt").unlink()
    (tmp_path / "r" / "summary.json").unlink()
    with pytest.raises(CheckpointError, match=f"has format {other}, but .* reads format 3"):
        train(tmp_path / "r", resume=True)


def test_a_run_of_an_earlier_version_is_refused_as_such(tmp_path: Path) -> None:
    """Its config.json has no digest, and may have settings where now the method's text is."""
    train(tmp_path / "r")
    file = tmp_path / "r" / "config.json"
    config = json.loads(file.read_text())
    config["method"] = {"name": "prlc", "pull_ratio": 0.1, "every": 1}
    del config["format"], config["digest"]
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"earlier version of prlc: `prlc report` shows it"):
        train(tmp_path / "r", resume=True)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    train(tmp_path / "r")

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "trapped"),)

    write_sealed({"format": 3, "metrics": Trap()}, tmp_path / "r" / "checkpoint.pt")
    (tmp_path / "r" / "checkpoint.previous.pt").unlink()
    (tmp_path / "r" / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        train(tmp_path / "r", resume=True)
    assert not (tmp_path / "trapped").exists()


def test_folders_are_numbered(tmp_path: Path) -> None:
    with fresh_folder(tmp_path, "a") as first, fresh_folder(tmp_path, "a") as second:
        assert [first.name, second.name] == ["0001-a", "0002-a"]
        (second / "something").touch()
    (tmp_path / "0007-b").mkdir()
    with fresh_folder(tmp_path, "a") as third:
        assert third.name == "0008-a"
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["0002-a", "0007-b"]


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    def again(progress: prlc.Progress) -> None:
        if progress.step == 7:
            with pytest.raises(RunError, match="Another process is writing"):
                train(tmp_path / "r", resume=True)

    train(tmp_path / "r", on_progress=again)


def test_checkpoints_do_not_wait_for_evaluations(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(
            tmp_path / "r",
            eval_every=40,
            checkpoint_every=None,
            on_progress=lambda progress: None if progress.step < 30 else 1 // 0,
        )
    state = torch.load(tmp_path / "r" / "checkpoint.pt", weights_only=True)
    assert state["engine"]["steps_done"] == 30


def test_a_file_that_may_not_grow_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(progress: prlc.Progress) -> None:
        if progress.step == 12:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))

    try:
        with pytest.raises(RunError, match="larger than allowed"):
            train(tmp_path / "r", on_progress=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resumed, undisturbed = train(tmp_path / "r", resume=True), train(tmp_path / "s")
    assert resumed.metrics.equals(undisturbed.metrics)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_the_run_and_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "filler"

    def fill(progress: prlc.Progress) -> None:
        if progress.step == 12:
            filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))

    with pytest.raises(RunError, match="the disk is full"):
        train(small_disk / "r", method="prlc", on_progress=fill)
    filler.unlink()
    resumed = train(small_disk / "r", method="prlc", resume=True)
    undisturbed = train(tmp_path / "r", method="prlc")
    for a, b in zip(resumed.model.parameters(), undisturbed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.metrics.equals(undisturbed.metrics)
