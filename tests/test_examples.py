"""The examples and benchmarks run as they stand."""

from __future__ import annotations

import dataclasses
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional as F

import forks
import prlc
from prlc.methods import parse_method

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "examples"
OWN = EXAMPLES / "own_method.py"
_ENGINES = ["simulator", "reference"]


def test_comparing_an_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "compare_own_model.py"), run_name="__main__")
    assert "PRLC" in capsys.readouterr().out
    assert (tmp_path / "comparison.png").exists()


def test_an_own_method_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(OWN), run_name="__main__")
    assert "OwnMethod r=0.1, setting=2" in capsys.readouterr().out
    assert len(OWN.read_text().splitlines()) < 40


def test_an_own_method_is_the_same_on_every_engine() -> None:
    method = f"{OWN}:OwnMethod:0.3:setting=2"
    losses, traffic = zip(*(_train(method, engine=engine) for engine in _ENGINES), strict=True)
    assert losses[0] == pytest.approx(losses[1], abs=1e-10)
    assert traffic[0] == traffic[1]
    assert losses[0] != pytest.approx(_train("pr:0.3")[0], abs=1e-6), "it makes a difference"


@pytest.mark.parametrize("engine", _ENGINES)
def test_an_own_method_resumes_to_the_same_bits(engine: str, tmp_path: Path) -> None:
    def break_off(progress: prlc.Progress) -> None:
        if progress.step == 17:
            raise KeyError

    method = f"{OWN}:OwnMethod:0.3:setting=2:delay=2"
    settings: dict[str, Any] = {"engine": engine, "checkpoint_every": 5, "folder": tmp_path / "r"}
    with pytest.raises(KeyError):
        _train(method, on_progress=break_off, **settings)
    assert _train(method, resume=True, **settings) == _train(method, engine=engine)


def test_an_own_method_pickles_and_has_a_text() -> None:
    method = parse_method(f"{OWN}:OwnMethod:setting=2")
    assert pickle.loads(pickle.dumps(method)) == method == parse_method(str(method))
    assert str(method) == f"{OWN}:OwnMethod:setting=2"
    assert method.columns()["meanwhile"].endswith("own_method.py,Trend,0.3333333333333333")


def _train(method: str, **settings: Any) -> tuple[float, tuple[int, int]]:
    """The loss and the bytes up and down after 40 steps in float64."""
    data = prlc.data.load_digits()
    data = dataclasses.replace(data, train_inputs=data.train_inputs.double())
    data = dataclasses.replace(data, test_inputs=None, test_targets=None)
    model = prlc.models.build("mlp", data.sample_shape, data.num_classes, 0).double()
    fixed: dict[str, Any] = {"workers": 4, "steps": 40, "execution": prlc.Execution(3, 1)}
    result = prlc.train(model, F.cross_entropy, data, method=method, **{**fixed, **settings})
    summary = result.summary
    return summary["train_loss"], (summary["bytes_up"], summary["bytes_down"])


def in_two_processes(folder: Path, library: str, script: str, *arguments: str) -> tuple[str, str]:
    """What a script prints and complains about, without the imports of a torchrun."""
    said, errors = folder / "said", folder / "errors"
    with said.open("w") as output, errors.open("w") as complaints:
        process = forks.start(
            "processes.run_script",
            *(library, str(EXAMPLES / script), *arguments),
            output=output.fileno(),
            errors=complaints.fileno(),
        )
        try:
            assert process.wait(timeout=200) == 0, errors.read_text()
        finally:
            process.kill_all()
    return said.read_text(), errors.read_text()


def test_an_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("--epochs", "8", "--checkpoint", "own")
    said, errors = in_two_processes(tmp_path, "sklearn", "torchrun_own_loop.py", *given)
    assert_learnt(said, errors, workers=2)
    assert (tmp_path / "own" / "checkpoint.pt").exists()


@pytest.mark.slow
def test_an_own_loop_under_torchrun_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    starter = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    script = (str(EXAMPLES / "torchrun_own_loop.py"), "--layout", "server", "--checkpoint", "own")
    command = [*starter, "--nproc-per-node", "2", *script]
    for _ in range(2):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert_learnt(run.stdout, run.stderr, workers=1)
    assert (tmp_path / "own" / "checkpoint.pt").exists()


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_a_trainer_with_a_callback(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPOCHS", "6")
    assert_learnt(*in_two_processes(tmp_path, library, f"{library}_digits.py"), workers=2)


def assert_learnt(said: str, errors: str, workers: int) -> None:
    """Nothing may be wrong, or seem so."""
    assert "is the bound that" not in errors, "lengths have a bound for mistakes alone"
    accuracy = said.partition(f"{workers} workers: test accuracy ")[2].partition("%")[0]
    assert float(accuracy) > 80


def test_the_benchmark_prints_its_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(PROJECT / "benchmarks" / "simulator.py")
    monkeypatch.setattr("sys.argv", [file, "--quick"])
    monkeypatch.setenv("COLUMNS", "100")
    runpy.run_path(file, run_name="__main__")
    printed = capsys.readouterr().out
    for row in (
        "general simulator",
        "hand-written bmm loop",
        "plain loop",
        "prlc.train",
        "nsgd:up=topk",
    ):
        assert row in printed
    assert "per worker-step" in printed
