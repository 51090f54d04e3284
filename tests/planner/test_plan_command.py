"""`prlc plan` as people and programs use it, called inside this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Prlc = Callable[..., tuple[int, str, str]]
QUICK = ["--steps", "16", "--workers", "4", "--chunk", "4", "--threads", "1"]
KNOWN = ["--constants", "L=3.25,sigma2=5.7,G=3.5,gap=2.1"]


def test_plan_prints_a_table_words_and_a_plot(prlc: Prlc, tmp_path: Path) -> None:
    code, out, _ = prlc("plan", *QUICK, "-r", "1", "-r", "0.2", "--out", tmp_path / "p")
    words = " ".join(out.split())
    assert code == 0
    assert "--workers 4" in words.split("Next:")[1]
    for part in ("NSGD", "Recommended:", "Bottleneck:", "Constants measured:", "prlc train -m"):
        assert part in words
    assert all(len(line) <= 80 for line in out.splitlines()[:6])
    assert (tmp_path / "p" / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "p" / "plan.json").read_text())["rests_on"] == "trials"


def test_plan_prints_one_json_object(prlc: Prlc, tmp_path: Path) -> None:
    code, out, _ = prlc(
        "plan", *QUICK, *KNOWN, "-r", "0.2", "--lr", "0.3", "--network", "wan",
        "--net", "latency=1ms", "--json", "--out", tmp_path / "p",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert found["recommended"]["pull_ratio"] == 0.2
    assert found["network"]["latency"] == 0.001
    assert found["constants"]["measured"] is False
    assert found["plot"] == str(tmp_path / "p" / "plan.png")


def test_plan_without_trials_says_so(prlc: Prlc, tmp_path: Path) -> None:
    code, out, _ = prlc("plan", *QUICK, *KNOWN, "--no-trials", "--out", tmp_path / "p")
    assert code == 0
    assert "no trials: the bounds are loose" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ratio", "0"], "pull ratio must lie in (0, 1] but is 0"),
        (["--ratio", "1.5"], "pull ratio must lie in (0, 1] but is 1.5"),
        (["--lr", "-1"], "learning rate must be a positive number but is -1"),
        (["--lr", "1e36", *KNOWN], "largest admissible step size is 0.1538 by Theorem 1"),
        (["--lr", "5", "--no-trials", *KNOWN], "use at most 0.307692"),
        (["--constants", "L=-1,sigma2=1,G=1,gap=1"], "smoothness should be above 0, but is -1"),
        (["--constants", "L=1,sigma2=-1,G=1,gap=1"], "variance should be at least 0, but is -1"),
        (["--constants", "L=1"], "sigma2, G, gap is missing"),
        (["--target-loss", "9", *KNOWN], "should be below"),
        (["--network", "moon"], "moon"),
        (["--net", "latency=35parsec"], "latency"),
        (["--steps", "2"], "at least 8 steps"),
        (["--workers", "0"], "workers must be a whole number"),
        (["--out", "/dev/null/x", *KNOWN, "-r", "1", "--lr", "0.1"], "cannot be written"),
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
    assert not (tmp_path / "r").exists()
