"""Run folders: whole files, damaged files, full disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import prlc
from prlc.engines import Plan
from prlc.errors import CheckpointError, RunError
from prlc.runs import RunFolder, fresh_folder

PLAN = Plan(chunk=4, threads=1)


def train(folder: Path, **settings: object) -> prlc.Result:
    data = prlc.data.load_digits()
    model = prlc.models.build("logistic", data.sample_shape, data.num_classes, 0)
    fixed = {"workers": 4, "steps": 40, "checkpoint_every": 5, "plan": PLAN, "folder": folder}
    return prlc.train(model, F.cross_entropy, data, **{**fixed, **settings})  # type: ignore[arg-type]


def test_metrics_are_a_table_that_pandas_reads(tmp_path: Path) -> None:
    result = train(tmp_path / "r", eval_every=10)
    table = RunFolder.open(tmp_path / "r").metrics()
    assert table["step"].tolist() == [0, 10, 20, 30, 40]
    assert table["train_loss"].tolist() == result.metrics["train_loss"].tolist()


def test_a_finished_run_is_read_again_not_trained_again(tmp_path: Path) -> None:
    first = train(tmp_path / "r")
    again = train(tmp_path / "r", resume=True)
    assert again.summary == first.summary
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
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        train(tmp_path / "r", resume=True)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "r")
    file = tmp_path / "r" / "checkpoint.pt"
    torch.save({**torch.load(file, weights_only=True), "format": 99}, file)
    with pytest.raises(CheckpointError, match="has format 99"):
        RunFolder.open(tmp_path / "r").load_checkpoint()


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    train(tmp_path / "r")

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "trapped"),)

    torch.save({"format": 1, "metrics": Trap()}, tmp_path / "r" / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        RunFolder.open(tmp_path / "r").load_checkpoint()
    assert not (tmp_path / "trapped").exists()


def test_folders_are_numbered(tmp_path: Path) -> None:
    assert fresh_folder(tmp_path, "a").name == "0001-a"
    (tmp_path / "0007-b").mkdir()
    assert fresh_folder(tmp_path, "a").name == "0008-a"


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
        train(small_disk / "r", on_progress=fill)
    filler.unlink()
    resumed = train(small_disk / "r", resume=True)
    undisturbed = train(tmp_path / "r")
    for a, b in zip(resumed.model.parameters(), undisturbed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.metrics.equals(undisturbed.metrics)
