"""All of it: make the runs, judge the claims, draw the figures, write down what was found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prlc.config import check_device
from prlc.data import Progress, load
from prlc.errors import ConfigError, RunError
from prlc.experiments import charts
from prlc.experiments.evidence import gather
from prlc.experiments.judge import Judged, in_order, judge, judge_clock_only
from prlc.experiments.making import OnWork, make_runs, rates_of
from prlc.experiments.pool import Pool
from prlc.experiments.recipes import Place
from prlc.experiments.record import make_record, write_record, write_tuning
from prlc.experiments.settings import FIGURES, Task, figure, shared
from prlc.experiments.tuning import Tuned

__all__ = ["MODELS", "Reproduction", "reproduce"]

MODELS = ("logistic", "resnet", "both")


@dataclass(frozen=True)
class Reproduction:
    """What came out."""

    tasks: list[str]
    """What was trained, a sentence each."""
    judged: list[Judged]
    tuned: list[Tuned]
    record: dict[str, Any]
    files: list[Path]


def reproduce(
    figures: str = "all",
    scale: str = "quick",
    *,
    out: Path | str,
    model: str = "both",
    seeds: int | None = None,
    jobs: int = 1,
    data_dir: Path | None = None,
    device: str = "cpu",
    command: str = "prlc reproduce",
    on_work: OnWork | None = None,
    on_download: Progress | None = None,
) -> Reproduction:
    """Redraw figures of the paper from our own runs, and say which of its claims hold.

    Runs that are in `out` already are reused, interrupted ones are gone on with. `seeds` is how
    many runs a curve has (default: as the scale says), `jobs` how many processes make them; on a
    GPU one does.
    """
    wanted = [figure(name) for name in (FIGURES if figures == "all" else (figures,))]
    tasks = _tasks(model, scale, seeds)
    _check_whole("jobs", jobs)
    check_device(device)
    place = Place(Path(out), data_dir, device)
    for name in dict.fromkeys(task.data for task in tasks):
        load(name, data_dir, progress=on_download)  # fetched once, before the others ask for it
    try:
        place.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{place.out} cannot be written: {error.strerror}.") from None
    with Pool(jobs if device == "cpu" else 1) as pool:
        tuned = make_runs(wanted, tasks, place, pool, on_work)
    evidence = [
        gather(wanted, task, count, rates_of(task, rates), place, tuned=rates is not None)
        for task, count in tasks.items()
        for rates in (None, tuned)
    ]
    judged = in_order(
        [
            *(found for each in evidence for fig in wanted for found in judge(fig, each)),
            *(found for fig in wanted if fig.clocks for found in judge_clock_only(fig)),
        ]
    )
    record = make_record(scale, [fig.name for fig in wanted], tasks, evidence, tuned, judged)
    trained = [task.describe(count) for task, count in tasks.items()]
    files: list[Path] = []
    for fig in wanted:
        files += charts.draw(fig, evidence, place.out)
        files.append(charts.write_html(fig, evidence, judged, place.out, trained, command))
    files += [place.out / "verdicts.json", place.out / "tuning.csv"]
    write_record(record, files[-2])
    write_tuning(tuned, files[-1])
    return Reproduction(trained, judged, tuned, record, files)


def _tasks(model: str, scale: str, seeds: int | None) -> dict[Task, int]:
    """The tasks, and how many seeds of each."""
    if model not in MODELS:
        raise ConfigError(f"There is no model {model!r} here. Choose one of: {', '.join(MODELS)}.")
    if seeds is not None:
        _check_whole("seeds", seeds)
    names = ("logistic", "resnet") if model == "both" else (model,)
    tasks = [shared().task(name, scale) for name in names]
    return {task: task.seeds if seeds is None else seeds for task in tasks}


def _check_whole(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be a whole number, 1 or more, but is {value}.")
