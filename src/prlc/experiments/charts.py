"""The paper's figures, drawn from our runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prlc.experiments.claims import ClaimVerdict
from prlc.experiments.curves import TIMED, Curves
from prlc.experiments.settings import DUPLEX, Figure, paper
from prlc.methods import parse_method
from prlc.report import (
    MEASURES,
    Chart,
    draw_charts,
    save_figure,
    scaled,
    styles,
    suits_log,
    write_page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

__all__ = ["charts_of", "draw_figure", "write_figure_page"]

_Y = "train_loss"


def charts_of(figure: Figure, curves: Curves) -> list[Chart]:
    """The figure's charts: one per clock, or one if it shows no time."""
    title, note = _title(figure, curves)
    if not figure.clocks:
        return [Chart(title, tuple(curves.series[m] for m in figure.methods), note)]
    return [
        Chart(f"{title}, {DUPLEX[clock]}", tuple(curves.timed[clock, who] for who in TIMED), note)
        for clock in figure.clocks
    ]


def draw_figure(figure: Figure, curves: Sequence[Curves], out: Path) -> list[Path]:
    """Draw one static figure per problem; returns the PNG files."""
    drawn = []
    for problem in dict.fromkeys(each.problem for each in curves):
        own = [each for each in curves if each.problem == problem]
        charts = [chart for each in own for chart in charts_of(figure, each)]
        stem = out / f"{figure.name}-{problem.name}"
        title = f"{figure.title}: {problem.title}, {problem.scale} scale"
        if len(figure.axes) > 1:
            drawing = draw_charts(charts, figure.axes, title=title)
        else:
            share = bool(figure.clocks)  # only the clock differs within a row
            drawing = _draw_side_by_side(charts, 2, figure.axes[0], title, share=share)
        save_figure(drawing, stem)
        drawn.append(stem.with_name(f"{stem.name}.png"))
    return drawn


def write_figure_page(
    figure: Figure,
    curves: Sequence[Curves],
    verdicts: Sequence[ClaimVerdict],
    out: Path,
    lead: str,
    command: str,
) -> Path:
    """Write an interactive page of the figure and its verdicts."""
    path = out / f"{figure.name}.html"
    number = figure.name.removeprefix("fig")
    write_page(
        path,
        f"Figure {number} of the paper, redrawn: {figure.title.lower()}",
        [chart for each in curves for chart in charts_of(figure, each)],
        lead=lead,
        verdicts=[verdict for verdict in verdicts if verdict.figure == figure.name],
        command=command,
        x=figure.axes[0],
    )
    return path


def _title(figure: Figure, curves: Curves) -> tuple[str, str]:
    """A chart's title, and a note on the step sizes if they differ between methods."""
    model = curves.problem.title
    if not curves.tuned:
        return f"{model}, step size {paper().lr:g} as in the paper", ""
    own = {method: curves.step_sizes[method] for method in figure.methods}
    if len(set(own.values())) == 1:
        return f"{model}, step size {next(iter(own.values())):g} as tuned", ""
    listed = ", ".join(f"{parse_method(m).label} {lr:g}" for m, lr in own.items())
    short = ", ".join(f"{lr:g}" for lr in own.values())
    return f"{model}, tuned step sizes {short}", f"Step sizes: {listed}."


# -- Charts side by side, for figures with a single x axis -----------------------------------------


def _draw_side_by_side(
    charts: Sequence[Chart], columns: int, x: str, title: str, *, share: bool
) -> Drawing:
    """A grid of charts that all show the same curves; `share` gives each row common axes."""
    from matplotlib.figure import Figure as Drawing

    rows = len(charts) // columns
    drawing = Drawing(figsize=(4.5 * columns, 3.6 * rows + 0.7), layout="constrained")
    shared: Literal["row", "none"] = "row" if share else "none"
    panels = drawing.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    for chart, panel in zip(charts, panels.flat, strict=True):
        _draw(panel, chart, x, max(_longest(c, x) for c in charts))
    for panel in panels[:, 0]:
        panel.set_ylabel(MEASURES[_Y])
    drawing.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(charts[0].series),
        frameon=False,
    )
    drawing.suptitle(title, fontsize=13)
    return drawing


def _draw(panel: Axes, chart: Chart, x: str, longest: float) -> None:
    size, label = scaled(x, longest)
    look = styles([chart])
    for series in chart.series:
        band, style = series.band(x, _Y), look[series.label]
        at = band["x"] / size
        if len(series.runs) > 1:
            panel.fill_between(
                at, band["low"], band["high"], color=style.colour, alpha=0.15, linewidth=0
            )
        panel.plot(
            at,
            band["y"],
            label=series.label,
            color=style.colour,
            linestyle=style.line,
            linewidth=style.width,
            marker=style.marker,
            markevery=(min(3 + 2 * style.number, len(band) - 1), 16),  # apart: curves may coincide
            markersize=5,
        )
    if suits_log(chart, _Y):
        _use_log(panel)
    panel.set_title(chart.title, fontsize=10)
    panel.set_xlabel(label)
    panel.grid(alpha=0.3, which="both")
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.02)


def _use_log(panel: Axes) -> None:
    """Use a logarithmic axis with plain numbers, unless the losses span too little."""
    low, high = panel.get_ylim()
    if low > 0 and high < 4 * low:
        return
    panel.set_yscale("log")
    for set_formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        set_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "1235" else "")


def _longest(chart: Chart, x: str) -> float:
    return max(float(series.band(x, _Y)["x"].max()) for series in chart.series)
