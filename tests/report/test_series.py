"""Runs found and read on disk, and several seeds as one curve."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

import prlc
from prlc.errors import RunError
from prlc.report import Run, read_runs
from prlc.report.series import find_runs

from .builders import make_run, make_series, write_run


def test_a_band_runs_from_the_lowest_to_the_highest_seed() -> None:
    band = make_series(make_run(loss=1.0), make_run(seed=1, loss=2.0), make_run(seed=2, loss=6.0))
    first, second, *_ = band.band("step", "train_loss").to_dict("records")
    assert first == {"x": 0, "y": 3.0, "low": 1.0, "high": 6.0}
    assert second == {"x": 10, "y": 1.5, "low": 0.5, "high": 3.0}


def test_the_x_of_a_band_is_the_mean_over_the_seeds() -> None:
    series = make_series(make_run(seed=0), make_run(seed=3))
    assert series.band("pulls_per_worker", "train_loss")["x"].tolist()[:2] == [1.5, 2.5]


def test_rows_of_the_same_step_belong_together() -> None:
    short = make_run(seed=1, loss=3.0)
    later = Run(
        short.label, short.config, short.metrics.iloc[2:].reset_index(drop=True), short.summary
    )
    band = make_series(make_run(rows=4), later).band("step", "train_loss")
    assert band["x"].tolist() == [0, 10, 20, 30, 40, 50]
    assert band["y"].tolist() == [1.0, 0.5, 0.5, 0.25, 3 / 16, 3 / 32]
    assert band["low"].tolist()[2:4] == [0.25, 0.125]


def test_bytes_are_those_up_and_down() -> None:
    run = make_run("prlc:0.5")
    assert run.column("bytes").tolist()[:3] == [0, 6_000_000, 12_000_000]
    assert make_series(run).band("bytes", "train_loss")["x"].tolist()[1] == 6_000_000


def test_a_series_knows_what_was_measured() -> None:
    series = make_series(make_run(accuracy=False))
    assert series.has("test_loss")
    assert not series.has("test_accuracy")
    assert series.finals("test_accuracy") == []
    assert series.finals("steps") == [50]


def test_a_finished_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = make_run("pr:0.25", seed=7)
    run = Run.read(write_run(tmp_path / "r", written))
    assert run.label == "PR r=0.25"
    assert run.finished
    assert run.seed == 7
    assert run.config == json.loads(json.dumps(written.config))
    assert run.final("train_loss") == 1 / 32
    pd.testing.assert_frame_equal(run.metrics, written.metrics)


def test_an_unfinished_run_speaks_by_its_last_row(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path / "r", make_run("prlc:0.5", finished=False, rows=3)))
    assert not run.finished
    assert run.label == "PRLC r=0.5"
    assert run.final("train_loss") == 0.25
    assert run.final("steps") == 20
    assert run.final("pull_fraction") == 0.5
    assert run.final("seed") == 0
    assert run.final("method") == "PRLC r=0.5"
    assert run.final("wall_seconds") is None


def test_a_run_stopped_before_its_first_step_has_no_pull_fraction(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path / "r", make_run(finished=False, rows=1)))
    assert run.final("pull_fraction") is None
    assert run.final("train_loss") == 1.0


@pytest.mark.parametrize("method", ["mine:factor=2", {"name": "mine", "factor": 2}])
def test_a_method_of_another_version_goes_by_its_text(tmp_path: Path, method: object) -> None:
    config = {"method": method}
    run = Run.read(write_run(tmp_path / "r", make_run(finished=False, config=config)))
    assert run.label == run.config["method"] == "mine:factor=2"


@pytest.mark.parametrize(
    ("settings", "text", "label"),
    [
        ({"name": "prlc", "pull_ratio": 0.1, "every": 1}, "prlc", "PRLC r=0.1"),
        (
            {"name": "prlc", "pull_ratio": 0.5, "every": 4},
            "prlc:0.5:every=4",
            "PRLC r=0.5, every 4",
        ),
        ({"name": "nsgd"}, "nsgd", "NSGD"),
        ({"name": "local-sgd", "every": 5}, "local-sgd:5", "Local SGD H=5"),
        (
            {"name": "lag-ps", "xi": 2.0, "window": 10, "smoothness": None},
            "lag-ps:2",
            "LAG-PS xi=2",
        ),
    ],
)
def test_runs_of_before_that_wrote_settings_are_read_as_text(
    tmp_path: Path, settings: dict[str, object], text: str, label: str
) -> None:
    old = make_run(text, finished=False, config={"method": settings})
    run = Run.read(write_run(tmp_path / "old", old))
    assert (run.config["method"], run.label) == (text, label)
    new = Run.read(write_run(tmp_path / "new", make_run(text, seed=1, finished=False)))
    assert run.config["method"] == new.config["method"]


def test_showing_a_run_runs_no_file_that_it_names(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text("raise SystemExit('run')")
    for method in (f"{trap}:Trap:setting=2", f"prlc:0.1:up={trap},Trap,0.5"):
        config = {"method": method}
        name = method.split(":", maxsplit=1)[0].replace("/", "-")
        run = Run.read(write_run(tmp_path / name, make_run(finished=False, config=config)))
        assert run.label in ("trap.py:Trap:setting=2", "prlc:0.1:up=trap.py,Trap,0.5")


@pytest.mark.parametrize("kept", range(1, 12))
def test_a_row_cut_anywhere_is_dropped(tmp_path: Path, kept: int) -> None:
    folder = write_run(tmp_path / "r", make_run(finished=False))
    file = folder / "metrics.csv"
    *whole, last = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole) + last[: len(last) * kept // 12])
    assert Run.read(folder).metrics["step"].tolist() == [0, 10, 20, 30, 40]


def _without(name: str) -> object:
    return lambda folder: (folder / name).unlink()


def _holding(name: str, content: str) -> object:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_without("config.json"), "there is no config.json in it"),
        (_holding("config.json", '{"method": {"na'), "config.json is damaged"),
        (_holding("config.json", '{"model_type": "bert"}'), "does not describe a run of prlc"),
        (_holding("config.json", '{"method": 5}'), "does not describe a run of prlc"),
        (_without("metrics.csv"), "nothing to show yet"),
        (_holding("metrics.csv", ""), "nothing to show yet"),
        (_holding("metrics.csv", "step,epoch,train_loss\n"), "nothing to show yet"),
        (_holding("metrics.csv", "step,epoch,train_loss\n0,0.0,1."), "nothing to show yet"),
        (_holding("metrics.csv", "a,b\n1,2\n"), "lacks the column step"),
        (_holding("metrics.csv", "step,epoch\n0,zero\n"), "should be a table of numbers"),
        (_holding("metrics.csv", "step,epoch\n0,0\n1,2,3,4\n"), "should be a table of numbers"),
        (_holding("summary.json", "{"), "summary.json is damaged"),
    ],
)
def test_a_folder_of_which_nothing_can_be_shown_is_refused(
    tmp_path: Path, damage: object, sentence: str
) -> None:
    folder = write_run(tmp_path / "r", make_run())
    assert callable(damage)
    damage(folder)
    with pytest.raises(RunError, match=sentence) as refused:
        Run.read(folder)
    assert "\n" not in str(refused.value)
    assert str(folder) in str(refused.value)


def test_a_run_of_a_python_program_needs_no_folder() -> None:
    result = prlc.train(
        torch.nn.Linear(64, 10),
        F.cross_entropy,
        (torch.rand(20, 64), torch.arange(20) % 10),
        steps=2,
        workers=2,
        execution=prlc.Execution(2, 1),
    )
    run = Run.of(result)
    assert run.folder is None
    assert run.config["method"] == "whisper", "the recommended one"
    assert run.final("steps") == 2


def test_runs_are_found_below_a_folder_with_nsgd_first(tmp_path: Path) -> None:
    write_run(tmp_path / "seed0" / "asgd", make_run("asgd"))
    write_run(tmp_path / "seed0" / "nsgd", make_run("nsgd"))
    write_run(tmp_path / "seed1" / "deep" / "nsgd", make_run("nsgd", seed=1))
    runs, bad = read_runs([tmp_path])
    assert [(run.label, run.seed) for run in runs] == [("NSGD", 0), ("NSGD", 1), ("ASGD", 0)]
    assert bad == []


def test_the_order_of_the_arguments_is_kept_and_nothing_counts_twice(tmp_path: Path) -> None:
    asgd = write_run(tmp_path / "asgd", make_run("asgd"))
    write_run(tmp_path / "nsgd", make_run("nsgd"))
    runs, _ = read_runs([asgd, tmp_path, tmp_path / "." / "nsgd"])
    assert [run.label for run in runs] == ["ASGD", "NSGD"]


def test_a_bad_folder_among_good_ones_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "good", make_run())
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / ".config.json.writing").write_text("{")
    runs, bad = read_runs([tmp_path, tmp_path / "none"])
    assert len(runs) == 1
    assert [str(tmp_path / "half") in bad[0], str(tmp_path / "none") in bad[1]] == [True, True]


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, sentence in (("file", "is a file"), ("no", "does not exist"), ("", "holds no run")):
        with pytest.raises(RunError, match=sentence):
            find_runs(tmp_path / path)
