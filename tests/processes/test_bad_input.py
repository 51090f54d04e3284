"""What cannot be run says so in a sentence, before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import prlc as package
from prlc.engines.processes import Cluster
from prlc.engines.roles.rule import ServerRule, Shard
from prlc.optim.optimizers import RuleSettings

from .launch import Ended, launch
from .problems import outcome, problem, settings
from .run_cases import Case

Run = Callable[..., tuple[int, str, str]]
REAL = ["train", "--engine", "distributed", "--steps", "5"]
#: What one rank is told otherwise.
OTHER: dict[str, dict[str, Any]] = {
    "method": {"method": "nsgd"},
    "seed": {"seed": 1},
    "lr": {"lr": 0.3},
    "batch size": {"batch_size": 7},
    "partition": {"partition": "dirichlet:1"},
    "optimizer": {"optimizer": "momentum"},
    "schedule": {"schedule": "cosine"},
    "server optimizer": {"server_optimizer": "nesterov"},
    "number of workers": {"workers": 3},
}


@pytest.fixture
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_torchrun")
def test_without_torchrun(prlc: Run, tmp_path: Path) -> None:
    code, _, said = prlc(*REAL, "--workers", "2", "--out", tmp_path / "run")
    assert code == 2
    assert "needs processes that torchrun started" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_server_without_workers(
    prlc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    code, _, said = prlc(*REAL, "--workers", "1", "--out", tmp_path / "run")
    assert code == 2
    assert "needs at least two processes, a server and a worker" in said


@pytest.mark.usefixtures("no_torchrun")
def test_without_a_folder(prlc: Run) -> None:
    code, _, said = prlc(*REAL, "--workers", "2")
    assert code == 2
    assert "--out" in said


@pytest.mark.usefixtures("no_torchrun")
@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--layout", "ring", "There is no layout 'ring'. Choose: server, sharded."),
        ("--on-bad-update", "pray", "There is no answer to a bad update 'pray'."),
        ("--window", "0", "The window must be a whole number of pushes, 1 or more, but is 0."),
        ("--peer-timeout", "0s", "must be a positive number of seconds but is 0.0"),
        ("--peer-timeout", "soon", "soon"),
    ],
)
def test_settings_outside_what_they_may_be(
    prlc: Run, tmp_path: Path, option: str, value: str, sentence: str
) -> None:
    code, _, said = prlc(*REAL, "--workers", "2", "--out", tmp_path / "run", option, value)
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_windows_and_timeouts_in_python() -> None:
    for bad in (True, 1.5, "4", -1):
        with pytest.raises(package.ConfigError, match="window"):
            Cluster(window=bad)  # type: ignore[arg-type]
    for never in (float("inf"), float("nan"), -1.0):
        with pytest.raises(package.ConfigError, match="counts as hung"):
            Cluster(peer_timeout=never)


def test_a_comparison_in_real_processes(prlc: Run) -> None:
    code, _, said = prlc("compare", "-m", "nsgd", "--engine", "distributed", "--steps", "2")
    assert code == 2
    assert "A comparison runs in one process" in said
    assert "Traceback" not in said


def test_checkpoints_of_a_script_every_so_many_steps() -> None:
    for bad in (0, -1, 2.5, True):
        with pytest.raises(package.ConfigError, match="steps between checkpoints"):
            package.join("nsgd", checkpoint_every=bad)  # type: ignore[arg-type]


def test_a_server_optimizer_that_needs_whole_tensors() -> None:
    shard = Shard([torch.zeros(6)], [6])
    with pytest.raises(package.ConfigError, match="Adafactor looks at tensors as a whole"):
        ServerRule(shard, RuleSettings(torch.optim.Adafactor))
    ServerRule(shard, RuleSettings(torch.optim.Adam))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    short = {"steps": 4, "eval_every": 4, "method": "prlc:0.3"}
    kept = short | {"folder": "run"}
    command = [*REAL, "--workers", "5", "--out", "none"]
    cases = [
        Case(name="workers", workers=5, processes=3, command=command, limit=60.0),
        Case(name="another model", model="linear", other_model="bn", settings=short, limit=60.0),
        Case(
            name="other shapes",
            layout="sharded",
            model="linear",
            other_model="transposed",
            settings=short,
            limit=60.0,
        ),
        *(
            Case(name=name, workers=2, other_settings=other, settings=short, limit=60.0)
            for name, other in OTHER.items()
        ),
        Case(
            name="layout",
            layout="sharded",
            workers=3,
            other_cluster={"layout": "server"},
            settings=short,
            limit=60.0,
        ),
        Case(
            name="refused",
            workers=2,
            command=[*REAL, "--workers", "2", "--out", "refused-run"],
            other_command=["--batch-size", "0"],
            limit=60.0,
        ),
        Case(name="first weights", layout="sharded", seed_by_rank=True, settings=short),
        Case(name="first weights, server", seed_by_rank=True, settings=short),
        Case(name="to be gone on with", workers=2, settings=kept),
        Case(name="other layout", layout="sharded", workers=2, settings=kept, limit=60.0),
        Case(
            name="other answer to bad updates",
            workers=2,
            settings=kept,
            cluster={"on_bad_update": "skip"},
            limit=60.0,
        ),
    ]
    return launch(cases, "bad-input-cases", tmp_path_factory, at_once=2)


def test_more_workers_than_processes(ended: dict[str, Ended]) -> None:
    run = ended["workers"]
    assert set(run.codes[0].values()) == {2}, run.everything()
    for rank in range(3):
        assert "There are 3 processes, so 2 workers in the server layout, but 5 were asked for" in (
            run.said(rank)
        )
        assert "Traceback" not in run.said(rank)


def test_who_refuses_the_settings_does_not_leave_the_others_waiting(
    ended: dict[str, Ended],
) -> None:
    run = ended["refused"]
    assert run.codes[0] == {"0": 1, "1": 1, "2": 2}, run.everything()
    for rank in (0, 1):
        assert "Rank 2 does not take part, so nobody can: batch_size must be" in run.said(rank)
        assert "Traceback" not in run.said(rank)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("another model", "same model, but rank 4 (worker 3) has 8 tensors with "),
        ("other shapes", "same model, but rank 3 (worker 3) has 2 tensors with 52 numbers of"),
        ("method", "same method, but rank 2 (worker 1) has nsgd, and rank 0 has prlc:0.3"),
        ("seed", "same seed, but rank 2 (worker 1) has 1, and rank 0 has 0"),
        ("lr", "same learning rate, but rank 2 (worker 1) has 0.3 at step 0, "),
        ("batch size", "same batch_size, but rank 2 (worker 1) has 7, and rank 0 has 10"),
        ("partition", "same partition, but rank 2 (worker 1) has dirichlet:1.0 (checksum"),
        ("optimizer", "same optimizer, but rank 2 (worker 1) has SGD(lr=1.0, momentum=0.9"),
        ("schedule", "same learning rate, but rank 2 (worker 1) has 0.2 at step 0, "),
        ("server optimizer", "same server optimizer, but rank 2 (worker 1) has SGD(lr=0.7"),
        ("number of workers", "same workers, but rank 2 has 3, and rank 0 has 2"),
        ("layout", "same layout, but rank 2 has server, and rank 0 has sharded"),
    ],
)
def test_a_rank_that_differs_is_named(ended: dict[str, Ended], name: str, sentence: str) -> None:
    run = ended[name]
    assert set(run.codes[0].values()) == {2}, run.everything()
    for rank in range(run.case.world):
        assert f"ConfigError: All processes must have the {sentence}" in run.said(rank)


@pytest.mark.parametrize("name", ["first weights", "first weights, server"])
def test_all_begin_with_the_weights_of_the_first(ended: dict[str, Ended], name: str) -> None:
    run = ended[name]
    given = settings(run.case.settings, 4)
    theirs = outcome(package.train(*problem("bn"), engine="reference", **given))
    for key, tensor in theirs["tensors"].items():
        assert float((run.of_rank()["tensors"][key] - tensor).abs().max()) < 1e-10, key


@pytest.mark.parametrize("name", ["other layout", "other answer to bad updates"])
def test_a_run_goes_on_only_as_it_was_begun(ended: dict[str, Ended], name: str) -> None:
    run = ended[name]
    assert run.codes[0]["0"] == 2, run.everything()
    assert "hung" not in run.codes[0].values()
    assert "was begun with cluster = " in run.said(0)
