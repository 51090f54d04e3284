"""The contents of a page, read as text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import prlc
from prlc.errors import ConfigError, RunError
from prlc.report import Chart, Outcome, Run, Verdict, write_page

from .builders import make_run, make_series

NASTY = '</script><script>alert("x")</script> & <!--'


def _page(path: Path, *series: Any, **given: Any) -> str:
    """The page without Plotly's script."""
    write_page(path / "page.html", "Title", [Chart("chart", series)], **given)
    text = (path / "page.html").read_text(encoding="utf-8")
    return re.sub(r"<script>/\*\*\n\* plotly.*?</script>", "", text, flags=re.DOTALL)


def _data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_curves_are_in_the_data(tmp_path: Path) -> None:
    series = make_series(make_run(loss=1.0), make_run(seed=1, loss=2.0))
    page = _page(tmp_path, series, make_series(make_run("nsgd")))
    first, second = _data(page)["charts"][0]["curves"]
    assert first["label"] == "PRLC r=0.1"
    assert (first["seeds"], second["seeds"]) == (2, 1)
    assert first["x"]["step"] == [0, 10, 20, 30, 40, 50]
    assert first["y"]["train_loss"]["y"][:2] == [1.5, 0.75]
    assert first["y"]["train_loss"]["high"][:2] == [2.0, 1.0]
    assert (
        second["notes"][1]
        == "step 10, epoch 0.5<br>10.0 pulls per worker<br>8 MB up and down<br>1 min simulated"
    )


def test_what_was_not_measured_is_not_offered(tmp_path: Path) -> None:
    page = _page(tmp_path, make_series(make_run(accuracy=False)))
    assert list(_data(page)["measures"]) == ["train_loss", "test_loss"]
    assert 'value="test_accuracy"' not in page


def test_without_a_clock_no_time_is_offered(tmp_path: Path) -> None:
    page = _page(tmp_path, make_series(make_run(clock=False)))
    assert "simulated_seconds" not in _data(page)["axes"]
    assert 'value="simulated_seconds"' not in page
    assert _data(page)["charts"][0]["curves"][0]["notes"][1].endswith("MB up and down")
    mixed = _page(tmp_path, make_series(make_run(clock=False)), make_series(make_run("nsgd")))
    assert "simulated_seconds" in _data(mixed)["axes"]


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    run = make_run()
    run.metrics.loc[[1, 2], "train_loss"] = [float("nan"), float("inf")]
    (curve,) = _data(_page(tmp_path, make_series(run)))["charts"][0]["curves"]
    assert curve["y"]["train_loss"]["y"][:4] == [1.0, None, None, 0.125]


def test_nothing_that_is_given_becomes_markup(tmp_path: Path) -> None:
    config = {"method": {"name": NASTY}, NASTY: NASTY}
    run = make_run(label=NASTY, config=config)
    verdict = Verdict(NASTY, NASTY, NASTY, NASTY, Outcome.HOLDS)
    chart = Chart(NASTY, (make_series(run),), NASTY)
    write_page(tmp_path / "p.html", NASTY, [chart], lead=NASTY, verdicts=[verdict], command=NASTY)
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert text.count("</script>") == 3
    assert text.count("&lt;script&gt;alert") > 8
    assert _data(text)["charts"][0]["curves"][0]["label"] == NASTY


def test_the_table_shows_means_ranges_and_the_best(tmp_path: Path) -> None:
    seeds = make_series(make_run(loss=1.0), make_run(seed=1, loss=2.0))
    page = _page(tmp_path, seeds, make_series(make_run("nsgd", loss=3.2)))
    assert '<td data-value="0.046875"><strong>0.0469</strong><small>0.0312 – 0.0625</small>' in page
    assert '<td data-value="0.1">0.1000</td>' in page
    assert '<td data-value="2">0, 1</td>' in page


def test_an_unfinished_run_is_marked_and_never_the_best(tmp_path: Path) -> None:
    early = make_series(make_run("pr:0.1", finished=False, rows=3, loss=0.001))
    page = _page(tmp_path, early, make_series(make_run()), make_series(make_run("nsgd", loss=2.0)))
    assert "PR r=0.1<small>unfinished, at step 20</small>" in page
    assert '<td data-value="0.00025">0.0003</td>' in page
    assert "<strong>0.0312</strong>" in page


def test_settings_are_said_once_and_then_what_differs(tmp_path: Path) -> None:
    page = _page(tmp_path, make_series(make_run(lr=0.1)), make_series(make_run("nsgd", lr=0.05)))
    assert page.count("<dt>network.latency</dt><dd>35 ms</dd>") == 1
    assert "<dt>network.worker_up</dt><dd>unlimited</dd>" in page
    assert "method <b>nsgd</b>, schedule.lr <b>0.05</b>" in page
    assert "<dt>schedule.lr</dt>" not in page


def test_folders_are_named_as_seen_from_the_page(tmp_path: Path) -> None:
    inside, outside = (
        Run(run.label, run.config, run.metrics, run.summary, folder)
        for run, folder in (
            (make_run(), tmp_path / "runs" / "a"),
            (make_run("nsgd"), tmp_path.parent / "elsewhere"),
        )
    )
    page = _page(tmp_path, make_series(inside), make_series(outside))
    assert "<td>runs/a</td>" in page
    assert "<td>elsewhere</td>" in page
    assert str(tmp_path) not in page


def test_outcomes_are_told_by_sign_and_words(tmp_path: Path) -> None:
    given = [Verdict("fig1", "claim", "setting", "measured", outcome) for outcome in Outcome]
    page = _page(tmp_path, make_series(make_run()), verdicts=given)
    for sign, words in (("✓", "holds"), ("◐", "holds in part"), ("✗", "does not hold")):
        assert f'<span aria-hidden="true">{sign}</span> {words}</span>' in page


def test_the_command_or_that_there_is_none(tmp_path: Path) -> None:
    with_one = _page(tmp_path, make_series(make_run()), command="prlc compare --net 'a b'")
    assert "<code>prlc compare --net &#x27;a b&#x27;</code>" in with_one
    assert "made by a Python program" in _page(tmp_path, make_series(make_run()))


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    assert _page(tmp_path, make_series(make_run())) == _page(tmp_path, make_series(make_run()))


def test_what_cannot_be_a_page_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs curves"):
        write_page(tmp_path / "p.html", "t", [Chart("empty", ())])
    with pytest.raises(ConfigError, match="an axis out of step"):
        _page(tmp_path, make_series(make_run()), x="steps")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        _page(tmp_path / "file", make_series(make_run()))


def test_a_comparison_from_python_writes_a_page(tmp_path: Path) -> None:
    comparison = prlc.compare(
        torch.nn.Linear(4, 2),
        F.cross_entropy,
        (torch.rand(20, 4), torch.arange(20) % 2),
        methods=["nsgd", "prlc:0.5"],
        workers=2,
        steps=3,
        execution=prlc.Execution(2, 1),
    )
    comparison.page(tmp_path / "c.html", "Mine")
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<h1>Mine</h1>" in text
    assert [c["label"] for c in _data(text)["charts"][0]["curves"]] == ["NSGD", "PRLC r=0.5"]
