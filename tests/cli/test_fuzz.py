"""Command lines with values at the edge: each is a sentence or correct work, never a traceback."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Prlc = Callable[..., tuple[int, str, str]]

WHOLE = ["1", "2", "0", "-1", "1e12", str(2**31), str(2**63 - 1), str(2**63), "1" + "0" * 23, "x"]
REAL = ["0.1", "1", "0", "-1", "1e-320", "1e-300", "1e308", "1e309", "nan", "inf", "-inf", "", "x"]
NAMES = ["[/bold]", "[red]", "a" * 300, "\x1b[31m", "\x07", "\n", "é", " ", "..", "{}", "%s", "\\["]
TIMES = ["35ms", "1e308", "1e308h", "1e-320", "0", "-1s", "nan", "inf", "ms", ""]
RATES = ["10MB/s", "1e-320", "1e308", "1e308GB/s", "0", "inf", "nan", "-1", ""]
VALUES: dict[str, list[str]] = {
    "--batch-size": WHOLE,
    "--workers": WHOLE,
    "--eval-every": WHOLE,
    "--eval-samples": WHOLE,
    "--checkpoint-every": WHOLE,
    "--every": WHOLE,
    "--seed": WHOLE,
    "--window": WHOLE,
    "--threads": ["1", "0", "-1", "100000", str(2**63), "x"],
    "--epochs": [*REAL, "1e18"],
    "--lr": REAL,
    "--pull-ratio": REAL,
    "--length-bound": REAL,
    "--peer-timeout": TIMES,
    "--device": ["cpu", "meta", "cuda:99", "cpu:7", *NAMES],
    "--partition": [*NAMES, *(f"dirichlet:{x}" for x in REAL), *(f"shards:{x}" for x in WHOLE)],
    "--schedule": [
        *NAMES,
        "cosine",
        *(f"step:{x}:0.5" for x in REAL),
        *(f"step:1:{x}" for x in REAL),
    ],
    "--model": ["logistic", *NAMES],
    "--data": ["digits", *NAMES],
    "--network": ["lan", "none", *NAMES],
    "--optimizer": ["momentum", *NAMES],
    "--layout": ["sharded", *NAMES],
    "--engine": ["reference", *NAMES],
    "--net": [
        *(f"server_up={x}" for x in RATES),
        *(f"worker_down={x}" for x in RATES),
        *(f"latency={x}" for x in TIMES),
        *(f"step_seconds={x}" for x in TIMES),
        *(f"spread={x}" for x in REAL),
        *(f"stragglers={x}" for x in REAL),
        *(f"window={x}" for x in WHOLE),
        *NAMES,
    ],
    "--method": [
        *NAMES,
        *(f"prlc:{x}" for x in REAL),
        *(f"local-sgd:every={x}" for x in WHOLE),
        *(f"prlc:0.5:every=2:delay={x}" for x in WHOLE),
        *(f"prlc:0.5:blocks={x}" for x in WHOLE),
        *(f"nsgd:up=topk,{x}" for x in REAL),
        *(f"local-sgd:2:sample={x}" for x in REAL),
        *(f"lag-ps:window={x}" for x in WHOLE),
        *(f"fedprox:2:mu={x}" for x in REAL),
    ],
}
#: What the issue tracker has seen to hang, to crash or to be printed wrongly.
SEEN = [
    ["--batch-size", "1000000000000"],
    ["--batch-size", str(2**63 - 1)],
    ["--method", "prlc:0.1:every=100000000000000000000"],
    ["--epochs", "1e18"],
    ["--epochs", "1e300"],
    ["--steps", "100000000000000000000000"],
    ["--net", "server_up=1e-320"],
    ["--net", "step_seconds=1e308"],
    ["--device", "meta"],
    ["--threads", "100000"],
    ["--method", "a" * 300],
    ["--model", "[/bold]"],
]

lines = st.dictionaries(
    st.sampled_from(sorted(VALUES)), st.integers(0, 10**6), min_size=1, max_size=3
)
numbers = itertools.count()


def words_of(drawn: dict[str, int]) -> list[str]:
    return [w for o, n in drawn.items() for w in (o, VALUES[o][n % len(VALUES[o])])]


def run_line(prlc: Prlc, folder: Path, words: list[str]) -> tuple[int, str]:
    fixed = [] if {"--steps", "--epochs"} & {*words} else ["--steps", "3"]
    fixed += ["--chunk", "4", *([] if "--threads" in words else ["--threads", "1"])]
    fixed += [] if "--workers" in words else ["--workers", "4"]
    code, _, said = prlc("train", *words, *fixed, "--out", folder)
    assert code in (0, 1, 2), (words, said)
    assert "Traceback" not in said
    assert "\x1b[31m" not in said
    if code == 0:  # and then it is whole
        assert json.loads((folder / "summary.json").read_text())["steps"] >= 1
    return code, said


def fuzz(prlc: Prlc, tmp_path: Path, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @given(lines)
    def each(drawn: dict[str, int]) -> None:
        run_line(prlc, tmp_path / f"{next(numbers)}", words_of(drawn))

    each()


def test_some_lines(prlc: Prlc, tmp_path: Path) -> None:
    fuzz(prlc, tmp_path, 40)


@pytest.mark.slow
def test_many_lines(prlc: Prlc, tmp_path: Path) -> None:
    fuzz(prlc, tmp_path, 300)


@pytest.mark.parametrize("words", SEEN, ids=lambda words: " ".join(words)[:40])
def test_what_was_seen_gets_a_sentence(prlc: Prlc, tmp_path: Path, words: list[str]) -> None:
    code, said = run_line(prlc, tmp_path / "run", words)
    assert (code, "error: " in said) == (2, True)


@pytest.mark.parametrize("name", ["[/bold]", "a\x1b[31mb", "two\nlines", "%s{}"])
def test_a_folder_may_be_called_anything(prlc: Prlc, tmp_path: Path, name: str) -> None:
    code, said = run_line(prlc, tmp_path / name, [])
    assert (code, "error" in said) == (0, False)


def test_but_not_at_any_length(prlc: Prlc, tmp_path: Path) -> None:
    code, said = run_line(prlc, tmp_path / ("x" * 300), [])
    assert (code, "the name is too long" in said.replace("\n", " ")) == (2, True)
