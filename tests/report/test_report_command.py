"""`prlc report`, and the page that `prlc compare` writes."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from .builders import make_run, write_run

Prlc = Callable[..., tuple[int, str, str]]
QUICK = ["--steps", "6", "--workers", "2", "--chunk", "2", "--threads", "1"]


def _command(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return html.unescape(text.split("<pre tabindex")[1].split("<code>")[1].split("</code>")[0])


def test_runs_become_a_page_figures_and_a_table(prlc: Prlc, tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"prlc{seed}", make_run(seed=seed))
    write_run(tmp_path / "nsgd", make_run("nsgd"))
    code, out, said = prlc("report", tmp_path)
    assert (code, said) == (0, "")
    assert "NSGD" in out
    assert "3 runs as 2 curves: the mean over the seeds" in out
    assert f"Page: {tmp_path / 'report.html'}" in out
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "report.svg").read_bytes()
    code, _, _ = prlc("report", tmp_path)  # what is derived may be written again
    assert code == 0


def test_several_runs_are_reported_here_or_where_asked(
    prlc: Prlc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a = write_run(tmp_path / "a", make_run())
    b = write_run(tmp_path / "b", make_run("nsgd"))
    assert prlc("report", a, b)[0] == 0
    assert (tmp_path / "report.html").exists()
    assert prlc("report", a, b, "--out", "new/both.html", "--title", "Both & more")[0] == 0
    assert "<h1>Both &amp; more</h1>" in Path("new/both.html").read_text(encoding="utf-8")
    assert {file.name for file in Path("new").iterdir()} == {"both.html", "both.png", "both.svg"}


def test_a_bad_folder_is_named_and_the_rest_reported(prlc: Prlc, tmp_path: Path) -> None:
    write_run(tmp_path / "good", make_run())
    write_run(tmp_path / "half", make_run("nsgd"))
    (tmp_path / "half" / "metrics.csv").unlink()
    page = tmp_path / "page.html"
    code, out, said = prlc("report", tmp_path, tmp_path / "[none]", "--out", page)
    assert code == 1
    assert page.exists()
    assert said.count("Left out: ") == 2
    assert f"{tmp_path / 'half'} has nothing to show yet" in said
    assert f"{tmp_path / '[none]'} does not exist" in said
    assert "PRLC r=0.1" in out
    assert "NSGD" not in out.replace("NSGD's", "")


def test_an_unfinished_run_is_reported_as_such(prlc: Prlc, tmp_path: Path) -> None:
    write_run(tmp_path / "r", make_run(finished=False, rows=3))
    code, out, _ = prlc("report", tmp_path / "r")
    assert code == 0
    assert "PRLC r=0.1," in out
    assert "unfinished" in out
    assert "0.2500" in out
    assert "1 not finished" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none"], "none does not exist"),
        (["empty"], "empty holds no run"),
        (["empty/file"], "file is a file"),
        (["foreign"], "does not describe a run of prlc"),
        (["good", "--out", "page.png"], "--out names a page, such as report.html"),
        (["good", "--out", "good"], "--out names a page, such as report.html"),
        (["good", "--out", "empty/file/p.html"], "cannot be written"),
    ],
)
def test_bad_input_gets_a_sentence_and_writes_nothing(
    prlc: Prlc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "good", make_run())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "bert"}')
    before = sorted(tmp_path.rglob("*"))
    code, out, said = prlc("report", *arguments)
    assert (code, out) == (2, "")
    assert sentence in said.replace("\n", " ")
    assert "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_program_gets_json(prlc: Prlc, tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / str(seed), make_run(seed=seed, loss=1.0 + seed))
    code, out, _ = prlc("report", tmp_path, "--json")
    said = json.loads(out)
    assert code == 0
    assert said["page"] == str(tmp_path / "report.html")
    assert [Path(figure).exists() for figure in said["figures"]] == [True, True]
    (curve,) = said["curves"]
    assert (curve["method"], curve["seeds"], curve["finished"]) == ("PRLC r=0.1", [0, 1], True)
    assert curve["train_loss"] == 1.5 / 32
    assert curve["folders"] == [str(tmp_path / "0"), str(tmp_path / "1")]
    assert said["left_out"] == []


def test_compare_writes_a_page_with_the_command_that_makes_it_again(
    prlc: Prlc, tmp_path: Path
) -> None:
    asked = ["compare", "-m", "nsgd", "-m", "prlc:0.5", "--lr", "0.1", "--net", "latency=1ms"]
    code, out, _ = prlc(*asked, *QUICK, "--out", tmp_path / "a b")
    assert code == 0
    assert f"Page: {tmp_path / 'a b' / 'report.html'}" in out
    assert b"<svg" in (tmp_path / "a b" / "comparison.svg").read_bytes()
    line = _command(tmp_path / "a b" / "report.html")
    assert line.startswith("prlc compare --method nsgd --method prlc:0.5")
    assert "--lr 0.1" in line  # the default of other commands, but not of this one
    prlc(*shlex.split(line)[1:], "--out", tmp_path / "again")
    again = tmp_path / "again"
    assert (again / "comparison.csv").read_text() == (
        tmp_path / "a b" / "comparison.csv"
    ).read_text()
    assert _command(again / "report.html") == line


def test_report_says_which_commands_made_the_runs(prlc: Prlc, tmp_path: Path) -> None:
    prlc("compare", "-m", "nsgd", "-m", "pr:0.5", *QUICK, "--out", tmp_path / "c")
    prlc("train", "--schedule", "constant", *QUICK, "--out", tmp_path / "t")
    write_run(tmp_path / "p", make_run())
    assert prlc("report", tmp_path, "--title", "It's")[0] == 0
    compared, trained, python, own = sorted(
        _command(tmp_path / "report.html").splitlines(),
        key=lambda line: ["compare", "train", "#", "report"].index(line.split()[line[0] != "#"]),
    )
    assert compared.startswith("prlc compare --method nsgd --method pr:0.5")
    assert trained.startswith("prlc train")
    assert "--schedule constant" in trained  # not the default of `prlc train`
    assert trained.endswith(f"# {tmp_path / 't'}")
    assert "made by a Python program" in python
    assert shlex.split(own) == ["prlc", "report", "--title", "It's", str(tmp_path)]


def test_help_teaches(prlc: Prlc) -> None:
    code, out, _ = prlc("report", "--help")
    assert code == 0
    assert "prlc report runs/0001-compare" in " ".join(out.split())
