"""`prlc plan` as people and programs use it, called inside this process."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from prlc.engines import Simulator

Prlc = Callable[..., tuple[int, str, str]]
QUICK = ["--steps", "16", "--workers", "4", "--chunk", "4", "--threads", "1"]
FEW = ["-m", "local-sgd:{H}", "-m", "nsgd:up=int4:down=int4"]


def test_plan_prints_a_table_words_and_a_picture(prlc: Prlc, tmp_path: Path) -> None:
    code, out, _ = prlc("plan", *QUICK, *FEW, "--network", "wan", "--out", tmp_path / "p")
    words = " ".join(out.split())
    assert code == 0
    for part in ("NSGD", "Chosen for time:", "The limit:", "Next: prlc train -m", "--workers 4"):
        assert part in words
    assert all(len(line) <= 80 for line in out.splitlines()[:6])
    assert (tmp_path / "p" / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "p" / "plan.json").read_text())["for"] == "time"


@pytest.mark.parametrize(
    "more",
    [[], ["--optimizer", "adamw", "--schedule", "cosine"], ["--eval-samples", "100"]],
)
def test_the_command_runs_as_printed(prlc: Prlc, tmp_path: Path, more: list[str]) -> None:
    code, out, _ = prlc(
        "plan", *QUICK, *FEW, *more, "--network", "wan", "--net", "latency=1ms",
        "--for", "bytes", "--json", "--out", tmp_path / "p",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert found["network"]["latency"] == 0.001
    assert found["plot"] == str(tmp_path / "p" / "plan.png")
    assert 0 < found["bytes"] < found["nsgd_bytes"]
    program, *words = shlex.split(found["command"])
    assert program == "prlc"
    assert found["method"] in words
    code, out, said = prlc(*words, "--json", "--out", tmp_path / "run")
    assert code == 0, said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["train_loss"] == pytest.approx(found["loss"])
    assert found["loss"] <= found["target_loss"]
    assert summary["simulated_seconds"] == found["seconds"]
    assert summary["bytes_up"] + summary["bytes_down"] == found["bytes"]


def test_in_the_same_folder_nothing_is_trained_again(
    prlc: Prlc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("plan", *QUICK, *FEW, "--network", "wan", "--json", "--out", tmp_path / "p")
    code, first, _ = prlc(*command)
    assert code == 0
    monkeypatch.setattr(Simulator, "step", lambda _: pytest.fail("a step was taken"))
    code, again, _ = prlc(*command)
    assert code == 0
    assert {**json.loads(again), "trials": 0} == {**json.loads(first), "trials": 0}
    code, _, said = prlc(*command, "--batch-size", 3)
    assert code == 2
    assert "its batch_size was 10, and now it is 3" in said.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--for", "money"], "must be one of time, bytes but is 'money'"),
        (["--method", "local-sgd:{G}"], "stand for H, h, long, r, up, down, fading"),
        (["--method", "asgd"], "ASGD decides online"),
        (["--method", "prlc:1.5"], "pull ratio must lie in (0, 1] but is 1.5"),
        (["--lr", "-1"], "learning rate must be a positive number but is -1"),
        (["--lr", "1e36"], "No step size tried lowered the loss"),
        (["--target-loss", "9"], "should be below"),
        (["--network", "moon"], "moon"),
        (["--network", "none"], "A plan is for a network"),
        (["--net", "latency=35parsec"], "latency"),
        (["--trials", "0"], "at least 1 trial"),
        (["--steps", "2"], "at least 8 steps"),
        (["--workers", "0"], "workers must be a whole number"),
        (["--out", "/dev/null/x", "-m", "nsgd", "--lr", "0.1"], "cannot be written"),
    ],
)
def test_bad_input_gets_one_sentence(
    prlc: Prlc, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "r")]
    quick = [] if {"--steps", "--workers"} & {*arguments} else QUICK
    code, printed, said = prlc("plan", *quick, *arguments, *out)
    assert code == 2
    assert sentence in said.replace("\n", " ")
    assert "Traceback" not in said + printed
    left = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert left <= {"trials.jsonl"}, "what was trained before it failed"
    assert left or not (tmp_path / "r").exists()
