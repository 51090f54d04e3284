"""The paper's figures, drawn from our runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prlc.experiments.evidence import ASGD, BARRIER, RUN_AHEAD, Evidence
from prlc.experiments.judge import DUPLEX, Judged
from prlc.experiments.layout import draw_side_by_side
from prlc.experiments.settings import Figure, shared
from prlc.methods import parse_method
from prlc.report import Chart
from prlc.report.figures import draw_charts, save_figure
from prlc.report.page import write_page

__all__ = ["charts", "draw", "write_html"]


def charts(figure: Figure, evidence: Evidence) -> list[Chart]:
    """The figure's panels for one task under one setting: one, or one per clock."""
    title, note = _title(figure, evidence)
    if not figure.clocks:
        return [Chart(title, tuple(evidence.series[m] for m in figure.methods), note)]
    return [
        Chart(
            f"{title}, {DUPLEX[clock]}",
            tuple(evidence.timed[clock, who] for who in (ASGD, RUN_AHEAD, BARRIER)),
            note,
        )
        for clock in figure.clocks
    ]


def draw(figure: Figure, evidence: Sequence[Evidence], out: Path) -> list[Path]:
    """A static figure per task, with panels for every setting; gives the PNG files."""
    drawn = []
    for task in dict.fromkeys(each.task for each in evidence):
        rows = [chart for each in evidence if each.task == task for chart in charts(figure, each)]
        stem = out / f"{figure.name}-{task.name}"
        title = f"{figure.title}: {task.title}, {task.scale} scale"
        if len(figure.axes) > 1:
            drawing = draw_charts(rows, figure.axes, title=title)
        else:
            share = bool(figure.clocks)  # what differs in a row is the clock alone
            drawing = draw_side_by_side(rows, 2, figure.axes[0], title, share=share)
        save_figure(drawing, stem)
        drawn.append(stem.with_name(f"{stem.name}.png"))
    return drawn


def write_html(
    figure: Figure,
    evidence: Sequence[Evidence],
    judged: Sequence[Judged],
    out: Path,
    trained: Sequence[str],
    command: str,
) -> Path:
    """An interactive page of everything that the figure shows."""
    path = out / f"{figure.name}.html"
    number = figure.name.removeprefix("fig")
    write_page(
        path,
        f"Figure {number} of the paper, redrawn: {figure.title.lower()}",
        [chart for each in evidence for chart in charts(figure, each)],
        lead=" ".join(trained),
        verdicts=[each.verdict for each in judged if each.figure == figure.name],
        command=command,
        x=figure.axes[0],
    )
    return path


def _title(figure: Figure, evidence: Evidence) -> tuple[str, str]:
    """What a panel shows, and the step sizes where they differ between methods."""
    task = evidence.task
    if not evidence.tuned:
        return f"{task.title}, step size {shared().lr:g} as in the paper", ""
    rates = {method: evidence.rates[method] for method in figure.methods}
    if len(set(rates.values())) == 1:
        return f"{task.title}, step size {next(iter(rates.values())):g} as tuned", ""
    listed = ", ".join(f"{parse_method(m).label} {lr:g}" for m, lr in rates.items())
    short = ", ".join(f"{lr:g}" for lr in rates.values())
    return f"{task.title}, tuned step sizes {short}", f"Step sizes: {listed}."
