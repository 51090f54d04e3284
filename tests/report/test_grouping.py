"""From runs to charts: seeds in one curve, labels that tell curves apart."""

from __future__ import annotations

from pathlib import Path

from prlc.report import describe, group, read_runs
from prlc.report.grouping import tell_apart

from .builders import make_run, write_run


def _labels(*runs: object) -> list[list[str]]:
    return [[series.label for series in chart.series] for chart in group(list(runs))]  # type: ignore[arg-type]


def test_seeds_become_one_curve() -> None:
    (chart,) = group([make_run(seed=seed) for seed in range(3)] + [make_run("nsgd")])
    assert [(s.label, [run.seed for run in s.runs]) for s in chart.series] == [
        ("PRLC r=0.1", [0, 1, 2]),
        ("NSGD", [0]),
    ]


def test_what_differs_is_added_to_equal_labels() -> None:
    runs = [make_run(lr=0.1), make_run(lr=0.05), make_run("nsgd")]
    assert _labels(*runs) == [["PRLC r=0.1, lr 0.1", "PRLC r=0.1, lr 0.05", "NSGD"]]


def test_no_more_is_added_than_tells_apart() -> None:
    slow = {"network": {"latency": 0.5, "worker_up": 1e6}}
    assert _labels(make_run(), make_run(config=slow)) == [
        ["PRLC r=0.1, latency 35 ms", "PRLC r=0.1, latency 500 ms"]
    ]
    two = [make_run(lr=lr, config={"workers": n}) for lr in (0.1, 0.2) for n in (4, 8)]
    assert _labels(*two)[0][:2] == [
        "PRLC r=0.1, workers 4, lr 0.1",
        "PRLC r=0.1, workers 8, lr 0.1",
    ]
    assert len({*_labels(*two)[0]}) == 4


def test_other_problems_get_a_chart_of_their_own() -> None:
    other = make_run(config={"data": {"name": "cifar10", "samples": 50_000}})
    charts = group([make_run(), other, make_run(seed=1)])
    assert [chart.title for chart in charts] == [
        "Sequential of 650 parameters on digits, 4 workers, lr 0.1",
        "Sequential of 650 parameters on cifar10, 4 workers, lr 0.1",
    ]
    assert len(charts[0].series[0].runs) == 2


def test_titles_use_the_name_that_was_typed_where_all_share_it() -> None:
    typed = make_run(config={"command": {"model": "logistic"}})
    assert describe([typed, typed]) == "logistic on digits, 4 workers, lr 0.1"
    assert describe([typed, make_run(lr=0.3)]) == "digits, 4 workers"


def test_an_unfinished_seed_is_not_averaged_with_finished_ones() -> None:
    runs = [make_run(), make_run(seed=1), make_run(seed=2, finished=False)]
    assert _labels(*runs) == [["PRLC r=0.1", "PRLC r=0.1, unfinished"]]


def test_unfinished_seeds_are_told_apart(tmp_path: Path) -> None:
    for seed in (3, 4):
        write_run(tmp_path / str(seed), make_run(seed=seed, finished=False))
    runs, _ = read_runs([tmp_path])
    assert _labels(*runs) == [["PRLC r=0.1, unfinished, seed 3", "PRLC r=0.1, unfinished, seed 4"]]


def test_the_second_run_of_a_seed_is_no_second_seed(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_run(tmp_path / name, make_run(seed=seed))
    (chart,) = group(read_runs([tmp_path])[0])
    assert [(s.label, len(s.runs)) for s in chart.series] == [
        ("PRLC r=0.1", 2),
        (f"PRLC r=0.1, in {tmp_path / 'b'}", 1),
    ]


def test_labels_that_differ_already_stay() -> None:
    assert tell_apart([("a", {"x": 1}), ("b", {"x": 2})]) == ["a", "b"]


def test_runs_of_before_share_a_curve_with_those_of_now(tmp_path: Path) -> None:
    settings = {"name": "prlc", "pull_ratio": 0.1, "every": 1}
    write_run(tmp_path / "old", make_run(config={"method": settings}))
    write_run(tmp_path / "new", make_run(seed=1))
    (chart,) = group(read_runs([tmp_path])[0])
    assert [(s.label, sorted(run.seed for run in s.runs)) for s in chart.series] == [
        ("PRLC r=0.1", [0, 1])
    ]
