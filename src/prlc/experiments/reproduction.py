"""`reproduce`: make the runs, judge the claims, draw the figures, and record the results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prlc.data import Progress, load
from prlc.errors import ConfigError, RunError
from prlc.experiments.charts import draw_figure, write_figure_page
from prlc.experiments.claims import LIMITS, ClaimVerdict, judge_all
from prlc.experiments.curves import Curves, final_losses, last_values, load_curves
from prlc.experiments.pool import Pool
from prlc.experiments.settings import FIGURES, Problem, methods_of, paper
from prlc.experiments.specs import Workspace
from prlc.experiments.sweep import OnWork, Tuned, make_runs, step_sizes_of
from prlc.report import Series
from prlc.runs.config import check_device

__all__ = ["MODELS", "Reproduction", "make_record", "reproduce"]

MODELS = ("logistic", "resnet", "both")


@dataclass(frozen=True)
class Reproduction:
    """The results."""

    problems: list[str]
    """What was trained, a sentence each."""
    verdicts: list[ClaimVerdict]
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
    """Redraw figures of the paper from our own runs, and judge its claims.

    Finished runs in `out` are reused and interrupted ones resumed. `seeds` is the number of runs
    per curve (default: the scale's own), `jobs` the number of processes; a GPU always uses one.
    """
    wanted = [paper().figure(n) for n in (FIGURES if figures == "all" else figures.split(","))]
    problems = _problems(model, scale, seeds)
    check_positive("jobs", jobs)
    names = [problem.data for problem in problems]
    workspace = open_workspace(Path(out), data_dir, device, names, on_download)
    with Pool(jobs if device == "cpu" else 1) as pool:
        tuned = make_runs(wanted, problems, workspace, pool, on_work)
    methods = methods_of(wanted)
    curves = [
        load_curves(
            wanted,
            problem,
            count,
            step_sizes_of(problem, methods, chosen),
            workspace,
            tuned=chosen is not None,
        )
        for problem, count in problems.items()
        for chosen in (None, tuned)
    ]
    verdicts = judge_all(wanted, curves)
    record = make_record(scale, [fig.name for fig in wanted], problems, curves, tuned, verdicts)
    trained = [problem.describe(count) for problem, count in problems.items()]
    files: list[Path] = []
    for figure in wanted:
        files += draw_figure(figure, curves, workspace.out)
        lead = " ".join(trained)
        files.append(write_figure_page(figure, curves, verdicts, workspace.out, lead, command))
    files += [workspace.out / "verdicts.json", workspace.out / "tuning.csv"]
    files[-2].write_text(json.dumps(record, indent=1) + "\n")
    files[-1].write_text(tuning_csv(tuned))
    return Reproduction(trained, verdicts, tuned, record, files)


def open_workspace(
    out: Path,
    data_dir: Path | None,
    device: str,
    data: Sequence[str],
    on_download: Progress | None,
) -> Workspace:
    """A folder for runs, with the data at hand."""
    check_device(device)
    for name in dict.fromkeys(data):
        load(name, data_dir, progress=on_download)  # download once, before any process asks for it
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}.") from None
    return Workspace(out, data_dir, device)


def _problems(model: str, scale: str, seeds: int | None) -> dict[Problem, int]:
    """The problems, each with its number of seeds."""
    if model not in MODELS:
        raise ConfigError(f"There is no model {model!r} here. Choose one of: {', '.join(MODELS)}.")
    if seeds is not None:
        check_positive("seeds", seeds)
    names = paper().problems(scale) if model == "both" else (model,)
    problems = [paper().problem(name, scale) for name in names]
    return {problem: problem.seeds if seeds is None else seeds for problem in problems}


def check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be a whole number, 1 or more, but is {value}.")


# -- The record: verdicts and every number behind them, as JSON ------------------------------------
# Records call a problem a task; those in docs/ keep their form.


def make_record(
    scale: str,
    figures: Sequence[str],
    problems: Mapping[Problem, int],
    curves: Sequence[Curves],
    tuned: Sequence[Tuned],
    verdicts: Sequence[ClaimVerdict],
) -> dict[str, Any]:
    """The content of verdicts.json; `problems` come with their numbers of seeds."""
    return {
        "scale": scale,
        "figures": list(figures),
        "tasks": [{**asdict(problem), "seeds": seeds} for problem, seeds in problems.items()],
        "lr": paper().lr,
        "network": {name: net.describe() for name, net in paper().networks.items()},
        "limits": asdict(LIMITS),
        "tuning": [tuning_row(each) for each in tuned],
        "results": [row for each in curves for row in _result_rows(each)],
        "times": [row for each in curves for row in _time_rows(each)],
        "verdicts": [verdict_row(each) for each in verdicts],
    }


def tuning_row(tuned: Tuned) -> dict[str, Any]:
    return {
        "task": tuned.problem,
        "method": tuned.method,
        "lr": tuned.lr,
        "at_edge": tuned.at_edge,
        "losses": [[lr, loss if math.isfinite(loss) else None] for lr, loss in tuned.losses],
    }


def _result_rows(curves: Curves) -> list[dict[str, Any]]:
    """What every method ended with."""
    return [
        {**_common(curves), "method": method, "lr": curves.step_sizes[method], **_ends(series)}
        for method, series in curves.series.items()
    ]


def _time_rows(curves: Curves) -> list[dict[str, Any]]:
    """How long the whole run took on each clock."""
    return [
        {
            **_common(curves),
            "clock": clock,
            "who": who,
            "seconds": _mean(last_values(series, "simulated_seconds")),
        }
        for (clock, who), series in curves.timed.items()
    ]


def _common(curves: Curves) -> dict[str, Any]:
    return {"task": curves.problem.name, "setting": curves.setting, "tuned": curves.tuned}


def _ends(series: Series) -> dict[str, Any]:
    losses = final_losses(series)
    finite = series.finished
    return {
        "label": series.label,
        "seeds": len(series.runs),
        "diverged": not finite,
        "train_loss": _mean(losses) if finite else None,
        "train_loss_low": min(losses) if finite else None,
        "train_loss_high": max(losses) if finite else None,
        "test_accuracy": _mean(series.finals("test_accuracy")),
        "pulls_per_worker": _mean(series.finals("pulls_per_worker")),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def verdict_row(verdict: ClaimVerdict) -> dict[str, Any]:
    return {
        "figure": verdict.figure,
        "claim": verdict.key,
        "text": verdict.claim,
        "task": verdict.problem,
        "setting": verdict.setting,
        "measured": verdict.measured,
        "outcome": str(verdict.outcome),
        "short": verdict.short,
        "numbers": verdict.numbers,
    }


def tuning_csv(tuned: Sequence[Tuned]) -> str:
    """The whole grid as a table."""
    lines = ["task,method,lr,train_loss,chosen"]
    for each in tuned:
        for lr, loss in each.losses:
            lines.append(f"{each.problem},{each.method},{lr:g},{loss!r},{int(lr == each.lr)}")
    return "\n".join(lines) + "\n"
