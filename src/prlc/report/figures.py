"""Static figures of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from prlc.errors import ConfigError, RunError
from prlc.report.axes import AXES, MEASURES, scaled, suits_log
from prlc.report.series import Chart, Run, Series
from prlc.report.style import Style, styles
from prlc.training import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = ["AXES", "draw_charts", "plot_runs", "save_figure"]

_USUAL_AXES = ("step", "pulls_per_worker", "simulated_seconds")


def plot_runs(
    results: Sequence[Result], path: Path | str | None = None, title: str | None = None
) -> Figure:
    """Training loss against steps, pulls per worker and simulated time, a panel each."""
    series = tuple(Series(run.label, (run,)) for run in map(Run.of, results))
    figure = draw_charts([Chart("", series)], _USUAL_AXES, title=title)
    if path is not None:
        _save(figure, Path(path))
    return figure


def draw_charts(
    charts: Sequence[Chart],
    axes: Sequence[str] = _USUAL_AXES,
    *,
    y: str = "train_loss",
    title: str | None = None,
) -> Figure:
    """A row of panels per chart, a column per x axis; a curve per series.

    A curve is the mean over the seeds, in a band from the lowest to the highest.
    """
    unknown = [name for name in axes if name not in AXES]
    if unknown or not charts or not axes:
        raise ConfigError(
            f"A figure needs a chart and an axis out of {', '.join(AXES)}; got "
            f"{len(charts)} charts and {', '.join(axes) or 'no axes'}."
        )
    from matplotlib.figure import Figure

    look = styles(charts)
    alike = len({tuple(series.label for series in chart.series) for chart in charts}) == 1
    explained = charts[:1] if alike else charts
    width = 4.5 * len(axes)
    height = 0.4 + 3.6 * len(charts) + sum(0.25 * _lines(chart, width) for chart in explained)
    figure = Figure(figsize=(width, height), layout="constrained")
    rows = figure.subfigures(len(charts), 1, squeeze=False)[:, 0]
    for row, chart in zip(rows, charts, strict=True):
        _draw_row(row, chart, axes, y, look)
    for row, chart in zip(rows, explained, strict=False):
        (figure if alike else row).legend(
            *row.axes[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=math.ceil(len(chart.series) / _lines(chart, width)),
            handlelength=3.2,
            frameon=False,
        )
    if title:
        figure.suptitle(_plain(title), fontsize=13)
    return figure


def save_figure(figure: Figure, stem: Path) -> None:
    """Write stem.png and stem.svg; the same figure gives the same files."""
    for ending in (".png", ".svg"):
        _save(figure, stem.with_name(stem.name + ending))


def _save(figure: Figure, path: Path) -> None:
    import matplotlib

    undated = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "prlc"}):
            figure.savefig(path, dpi=140, metadata=undated)
    except OSError as error:
        raise RunError(
            f"The figure {path} cannot be written: {error.strerror}. Choose another place."
        ) from None


def _lines(chart: Chart, width: float) -> int:
    """How many lines a legend takes, at so many inches for a letter and for a sample."""
    labels = [series.label for series in chart.series]
    beside = max(1, int(width / (0.085 * max(map(len, labels)) + 0.75)))
    lines = math.ceil(len(labels) / beside)
    return 1 if sum(0.085 * len(label) + 0.75 for label in labels) < width else lines


def _draw_row(
    row: SubFigure, chart: Chart, axes: Sequence[str], y: str, look: Mapping[str, Style]
) -> None:
    panels = row.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, column in zip(panels, axes, strict=True):
        bands = [series.band(column, y) for series in chart.series]
        size, label = scaled(column, max(float(band["x"].max()) for band in bands))
        for series, band in zip(chart.series, bands, strict=True):
            _draw_curve(panel, series, band.assign(x=band["x"] / size), look[series.label])
        if y == "test_accuracy":
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        elif suits_log(chart, y):
            _use_log(panel)
        panel.grid(alpha=0.3, which="both")
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.02)
        panel.set_xlabel(label)
    panels[0].set_ylabel(MEASURES[y])
    if chart.title:
        row.suptitle(_plain(chart.title), fontsize=11)


def _draw_curve(panel: Axes, series: Series, band: pd.DataFrame, style: Style) -> None:
    if len(series.runs) > 1:
        panel.fill_between(
            band["x"], band["low"], band["high"], color=style.colour, alpha=0.15, linewidth=0
        )
    panel.plot(
        band["x"],
        band["y"],
        label=_plain(series.label),
        color=style.colour,
        linestyle=style.line,
        linewidth=style.width,
        marker=style.marker,
        markevery=(min(3 + 2 * style.number, len(band) - 1), 16),  # apart: curves may coincide
        markersize=5,
    )


def _use_log(panel: Axes) -> None:
    """A logarithmic axis with plain numbers on it: 1, 0.5, 0.2, 0.1, as far as there is room."""
    low, high = panel.get_ylim()
    if low > 0 and high < 4 * low:
        return  # a straight axis shows the same, and has numbers on it
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    digits = "12357" if high < 10 * low else "125" if high < 1000 * low else "1"
    for set_formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        set_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in digits else "")


def _plain(text: str) -> str:
    """Words, not mathematics."""
    return text.replace("$", r"\$")
