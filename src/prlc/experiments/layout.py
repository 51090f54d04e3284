"""Charts side by side, where each is drawn against one thing only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from prlc.report import Chart
from prlc.report.axes import MEASURES, scaled, suits_log
from prlc.report.style import styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_side_by_side"]

_Y = "train_loss"


def draw_side_by_side(
    charts: Sequence[Chart], columns: int, x: str, title: str, *, share: bool
) -> Figure:
    """So many charts to a row, all with the same curves; a row may share its axes."""
    from matplotlib.figure import Figure

    rows = len(charts) // columns
    figure = Figure(figsize=(4.5 * columns, 3.6 * rows + 0.7), layout="constrained")
    shared: Literal["row", "none"] = "row" if share else "none"
    panels = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    for chart, panel in zip(charts, panels.flat, strict=True):
        _draw(panel, chart, x, max(_longest(c, x) for c in charts))
    for panel in panels[:, 0]:
        panel.set_ylabel(MEASURES[_Y])
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(charts[0].series),
        frameon=False,
    )
    figure.suptitle(title, fontsize=13)
    return figure


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
    """A logarithmic axis where the losses span one, with plain numbers on it."""
    low, high = panel.get_ylim()
    if low > 0 and high < 4 * low:
        return
    panel.set_yscale("log")
    for set_formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        set_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "1235" else "")


def _longest(chart: Chart, x: str) -> float:
    return max(float(series.band(x, _Y)["x"].max()) for series in chart.series)
