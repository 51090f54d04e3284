"""`prlc reproduce` from the typed command to the verdict table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from prlc.engines import Simulator
from prlc.experiments import reproduce
from prlc.experiments.claims import CLAIMS
from prlc.experiments.settings import FIGURES

Prlc = Callable[..., tuple[int, str, str]]


def test_smoke_ends_in_a_verdict_table(
    prlc: Prlc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    common = ("--scale", "smoke", "--model", "logistic", "--jobs", 1)
    code, said, _ = prlc("reproduce", "all", *common)
    assert code == 0, said
    out = tmp_path / "runs" / "reproduce-smoke"
    words = " ".join(said.split())
    for claim in ("fig1: PRLC (r=0.4)", "fig3: PR is far worse", "ResNet-18, clock"):
        assert claim in words.replace("│", "")
    assert max(map(len, said.splitlines()[:40])) <= 100
    assert "Tuned step sizes, logistic: NSGD" in words
    assert "At the edge of the grid (0.03, 0.1)" in words
    for name in FIGURES:
        for file in (f"{name}-logistic.png", f"{name}-logistic.svg", f"{name}.html"):
            assert (out / file).stat().st_size > 0
    record = json.loads((out / "verdicts.json").read_text())
    assert {verdict["claim"] for verdict in record["verdicts"]} == set(CLAIMS)
    assert record["tasks"][0]["seeds"] == 2
    assert len((out / "tuning.csv").read_text().splitlines()) == 1 + 7 * 2
    # Once more: nothing is trained, and the numbers are the same.
    monkeypatch.setattr(Simulator, "step", lambda _: pytest.fail("a step was taken"))
    code, said, _ = prlc("reproduce", "fig1,fig3", *common, "--json")
    again = json.loads(said)
    assert code == 0
    assert again["figures"] == ["fig1", "fig3"]
    assert again["verdicts"] == [v for v in record["verdicts"] if v["figure"] in again["figures"]]


@pytest.mark.slow
def test_numbers_do_not_depend_on_jobs(tmp_path: Path) -> None:
    for jobs in (1, 2):
        reproduce("fig3", "smoke", out=tmp_path / str(jobs), model="logistic", seeds=1, jobs=jobs)
    files = sorted((tmp_path / "1").rglob("metrics.csv"))
    assert len(files) >= 9  # six for tuning, three for the figure
    for file in files:
        other = tmp_path / "2" / file.relative_to(tmp_path / "1")
        pd.testing.assert_frame_equal(pd.read_csv(file), pd.read_csv(other), check_exact=True)
    one, two = ((tmp_path / jobs / "verdicts.json").read_text() for jobs in ("1", "2"))
    assert one == two


def test_interrupted_it_says_how_to_continue_and_leaves_no_process_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "prlc", "reproduce", "fig3", "--scale", "smoke"),
            *("--model", "logistic", "--seeds", "500", "--jobs", "2", "--out", str(out)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("runs/*/*/summary.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)  # the pipes close when all processes are gone
    assert process.returncode == 130
    assert f"the runs are kept in {out}. Repeat the command to continue" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fig5",), "no figure 'fig5'. Choose one of: fig1, fig2, fig3, fig4, or all"),
        (("all", "--scale", "huge"), "no scale 'huge'. Choose one of: smoke, quick, medium"),
        (("all", "--model", "mlp"), "no model 'mlp' here. Choose one of: logistic, resnet, both"),
        (("all", "--seeds", 0), "seeds must be a whole number, 1 or more, but is 0"),
        (("all", "--jobs", 0), "jobs must be a whole number, 1 or more, but is 0"),
        (("all", "--device", "abacus"), "The device 'abacus' cannot be used here"),
    ],
)
def test_bad_input_is_one_sentence(
    prlc: Prlc,
    arguments: tuple[str | int, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = prlc("reproduce", *arguments)
    assert (code, out) == (2, "")
    assert said in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_no_data_and_no_network(
    prlc: Prlc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        del arguments, options
        raise urllib.error.URLError("no network")

    monkeypatch.delenv("PRLC_DATA_DIR", raising=False)
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    code, out, error = prlc("reproduce", "all", "--scale", "quick", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "Could not download" in error
    assert "name that folder with --data-dir" in error
    code, _, error = prlc("reproduce", "all", "--data-dir", tmp_path, "--out", tmp_path / "out")
    assert code == 2
    assert "CIFAR-10" in error
