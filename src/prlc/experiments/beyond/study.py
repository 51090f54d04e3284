"""`study`: make the runs, judge the claims, draw the curves, and record the results."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prlc.data import Progress
from prlc.experiments.beyond.reached import Race, load_race, record_row
from prlc.experiments.beyond.settings import Problem, beyond
from prlc.experiments.beyond.trials import make_trials
from prlc.experiments.beyond.verdicts import judge
from prlc.experiments.claims import ClaimVerdict
from prlc.experiments.curves import final_loss
from prlc.experiments.pool import Pool
from prlc.experiments.reproduction import (
    check_positive,
    open_workspace,
    tuning_csv,
    tuning_row,
    verdict_row,
)
from prlc.experiments.sweep import OnWork, Tuned
from prlc.methods import recommended
from prlc.report import MEASURES, Chart, save_figure, scaled, styles, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Study", "study"]

_LEGEND_WIDTH = 50  # letters


@dataclass(frozen=True)
class Study:
    """The results."""

    problems: list[str]
    """What was trained, a sentence each."""
    races: list[Race]
    verdicts: list[ClaimVerdict]
    tuned: list[Tuned]
    record: dict[str, Any]
    files: list[Path]


def study(
    scale: str = "quick",
    *,
    out: Path | str,
    problem: str = "all",
    seeds: int | None = None,
    jobs: int = 1,
    data_dir: Path | None = None,
    device: str = "cpu",
    command: str = "prlc reproduce beyond",
    on_work: OnWork | None = None,
    on_download: Progress | None = None,
) -> Study:
    """Race every method to NSGD's loss on the problems of a scale, and judge the claims.

    Finished runs in `out` are reused and interrupted ones resumed. `seeds` is the number of runs
    per curve (default: each problem's own), `jobs` the number of processes.
    """
    chosen = beyond().problems(scale, problem)
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        check_positive(name, 1 if value is None else value)
    counts = {each: each.seeds if seeds is None else seeds for each in chosen}
    names = [each.data for each in chosen]
    workspace = open_workspace(Path(out), data_dir, device, names, on_download)
    with Pool(jobs if device == "cpu" else 1) as pool:
        tuned = make_trials(counts, workspace, pool, on_work)
    races = [load_race(each, count, tuned, workspace) for each, count in counts.items()]
    verdicts = [verdict for race in races for verdict in judge(race)]
    trained = [each.describe(count) for each, count in counts.items()]
    record = make_record(scale, races, tuned, verdicts)
    files = [file for race in races for file in _draw(race, workspace.out)]
    files += [workspace.out / name for name in ("beyond.html", "beyond.json", "tuning.csv")]
    _write_page(files[-3], races, verdicts, " ".join(trained), command)
    files[-2].write_text(json.dumps(record, indent=1) + "\n")
    files[-1].write_text(tuning_csv(tuned))
    return Study(trained, races, verdicts, tuned, record, files)


def make_record(
    scale: str, races: Sequence[Race], tuned: Sequence[Tuned], verdicts: Sequence[ClaimVerdict]
) -> dict[str, Any]:
    """The content of beyond.json."""
    return {
        "scale": scale,
        "recommended": recommended(),
        "problems": [_problem_row(race) for race in races],
        "clocks": {name: network.describe() for name, network in beyond().networks.items()},
        "limits": asdict(beyond().limits),
        "tuning": [tuning_row(each) for each in tuned],
        "results": [record_row(race, each) for race in races for each in race.reached.values()],
        "verdicts": [verdict_row(each) for each in verdicts],
    }


def _problem_row(race: Race) -> dict[str, Any]:
    seeds = len(race.baseline.steps)
    fastest = {k: v if math.isfinite(v) else None for k, v in race.fastest.items()}
    return {**asdict(race.problem), "seeds": seeds, "computing_alone": fastest}


# -- figures ---------------------------------------------------------------------------------------


def _draw(race: Race, out: Path) -> list[Path]:
    """Loss against bytes, and against time on every clock."""
    from matplotlib.figure import Figure

    problem, clocks = race.problem, list(beyond().networks)
    panels = [("bytes", "", [each.series for each in race.reached.values()])]
    panels += [
        (
            "simulated_seconds",
            clock,
            [e.timed[clock] for e in race.reached.values() if clock in e.timed],
        )
        for clock in clocks
    ]
    columns = 3
    rows = math.ceil((len(panels) + 1) / columns)  # the last place is the legend's
    figure = Figure(figsize=(4.6 * columns, 3.7 * rows), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    chart = Chart(problem.title, tuple(panels[0][2]))
    look = styles([chart])
    for place, (x, clock, curves) in zip(places, panels, strict=False):
        _draw_panel(place, x, clock, Chart(problem.title, tuple(curves)), problem, look)
    for place in places[len(panels) :]:
        place.axis("off")
    lines, labels = places[0].get_legend_handles_labels()
    labels = [textwrap.fill(label, _LEGEND_WIDTH) for label in labels]
    places[-1].legend(lines, labels, loc="center", fontsize=8, handlelength=3.2, frameon=False)
    figure.suptitle(f"{problem.title}: the way to NSGD's loss, {problem.scale} scale", fontsize=13)
    stem = out / f"beyond-{problem.name}"
    save_figure(figure, stem)
    return [stem.with_name(f"{stem.name}.png")]


def _draw_panel(
    panel: Axes, x: str, clock: str, chart: Chart, problem: Problem, look: dict[str, Any]
) -> None:
    """A curve per method, NSGD's first; a thin line is the loss to get to."""
    bands = [series.band(x, problem.measure).iloc[1:] for series in chart.series]
    size, label = scaled(x, max(float(band["x"].max()) for band in bands))
    for series, band in zip(chart.series, bands, strict=True):
        style = look[series.label]
        at = band["x"] / size
        panel.plot(
            at,
            band["y"],
            label=series.label,
            color=style.colour,
            linestyle=style.line,
            linewidth=style.width,
            marker=style.marker,
            markevery=(min(3 + 2 * style.number, max(0, len(band) - 1)), 16),
            markersize=4,
        )
    finals = [final_loss(run, problem.measure) for run in chart.series[0].runs]
    panel.axhline((1 + problem.close) * math.fsum(finals) / len(finals), color="0.5", linewidth=0.8)
    panel.set_xscale("log")
    best = min(float(band["y"].min()) for band in bands)
    start = float(chart.series[0].band(x, problem.measure)["y"].iloc[0])
    panel.set_ylim(best - 0.05 * (start - best), start + 0.1 * (start - best))
    panel.set_title(clock, fontsize=10)
    panel.set_xlabel(label)
    panel.set_ylabel(MEASURES[problem.measure])
    panel.grid(alpha=0.3, which="both")
    panel.spines[["top", "right"]].set_visible(False)


def _write_page(
    path: Path, races: Sequence[Race], verdicts: Sequence[ClaimVerdict], lead: str, command: str
) -> None:
    clock = next(iter(beyond().networks))
    charts = [
        Chart(
            race.problem.title,
            tuple(each.timed.get(clock, each.series) for each in race.reached.values()),
            f"Times are on the clock {clock!r}.",
        )
        for race in races
    ]
    title = "Beyond the paper: the way to NSGD's loss"
    write_page(path, title, charts, lead=lead, verdicts=verdicts, command=command, x="bytes")
