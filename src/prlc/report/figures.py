"""Static figures of runs, and what they share with the page: axes, units and line styles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from prlc.errors import ConfigError, RunError
from prlc.network.units import format_bytes, time_unit
from prlc.report.series import Chart, Run, Series
from prlc.runs.training import Result

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# ---- axes ----------------------------------------------------------------------------------------

#: The x axes on offer: a run's column, and its name on the axis.
AXES = {
    "step": "steps",
    "epoch": "epochs",
    "pulls_per_worker": "pulls per worker",
    "bytes": "traffic up and down",
    "simulated_seconds": "simulated time",
}

#: The y axes on offer: a run's column, and its name on the axis.
MEASURES = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
}

_DEFAULT_AXES = ("step", "bytes", "simulated_seconds")
_UNLIKE = 20.0  # from the first curve to end to the last; on a linear axis the first would vanish


def known_axes(charts: Sequence[Chart], axes: Iterable[str]) -> list[str]:
    """Those of `axes` that any run has: without a network there is no simulated time."""
    runs = [run for chart in charts for series in chart.series for run in series.runs]
    return [name for name in axes if any(run.column(name).notna().any() for run in runs)]


def scaled(column: str, largest: float) -> tuple[float, str]:
    """The size of a readable unit for values up to `largest`, and the axis label with it."""
    if column == "simulated_seconds":
        size, unit = time_unit(largest)
    elif column == "bytes":
        unit = format_bytes(largest / 2).split()[1]  # 1.2 GB is an axis of 1,200 MB
        size = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    else:
        return 1.0, AXES[column]
    return size, f"{AXES[column]} ({unit})"


def suits_log(chart: Chart, y: str) -> bool:
    """Whether to draw `y` on a logarithmic axis: losses, if all are positive."""
    if y == "test_accuracy":
        return False
    columns = [run.column(y) for series in chart.series for run in series.runs]
    return all((column.dropna() > 0).all() for column in columns)


# ---- line styles: distinct in colour, and without colour by dash and marker ----------------------

# Okabe and Ito's colours for colour-blind readers, on a light and on a dark page.
_COLOURS = (
    ("#000000", "#f4f4f4"),
    ("#D55E00", "#F0813A"),
    ("#0072B2", "#4DA3DB"),
    ("#009E73", "#2BBF94"),
    ("#CC79A7", "#DB93BC"),
    ("#E69F00", "#F0B53C"),
    ("#56B4E9", "#9AD3F5"),
    ("#777777", "#9A9A9A"),
)
# For matplotlib, and for the page; so are the markers.
_DASHES: tuple[tuple[Any, str], ...] = (
    ("-", "solid"),
    ("--", "8px,4px"),
    ("-", "solid"),
    (":", "2px,3px"),
    ("-.", "9px,3px,2px,3px"),
    ((0, (6, 1.5)), "14px,3px"),
    ((0, (3, 1, 1, 1, 1, 1)), "7px,3px,2px,3px,2px,3px"),
    ((0, (1, 2)), "2px,5px"),
)
_MARKERS = (
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("v", "triangle-down"),
    ("D", "diamond"),
    ("P", "cross"),
    ("X", "x"),
    ("*", "star"),
)


@dataclass(frozen=True)
class Style:
    """The look of curve `number`, in a static figure and on the page."""

    number: int

    @property
    def colour(self) -> str:
        return _COLOURS[self.number % len(_COLOURS)][0]

    @property
    def colour_on_dark(self) -> str:
        return _COLOURS[self.number % len(_COLOURS)][1]

    @property
    def line(self) -> Any:
        return self._dash[0]

    @property
    def dash(self) -> str:
        return self._dash[1]

    @property
    def marker(self) -> str:
        return self._mark[0]

    @property
    def symbol(self) -> str:
        return self._mark[1]

    @property
    def width(self) -> float:
        return 2.6 if self.number == 0 else 1.7  # the baseline shows under curves that cover it

    @property
    def _mark(self) -> tuple[str, str]:
        # When the colours repeat, each gets another marker ...
        return _MARKERS[(self.number + 4 * (self.number // len(_COLOURS))) % len(_MARKERS)]

    @property
    def _dash(self) -> tuple[Any, str]:
        # ... and another dash.
        return _DASHES[(self.number + self.number // len(_COLOURS)) % len(_DASHES)]


def styles(charts: Sequence[Chart]) -> dict[str, Style]:
    """A style per label, the same in all charts."""
    labels = dict.fromkeys(series.label for chart in charts for series in chart.series)
    return {label: Style(number) for number, label in enumerate(labels)}


# ---- figures -------------------------------------------------------------------------------------


def plot_runs(
    results: Sequence[Result], path: Path | str | None = None, title: str | None = None
) -> Figure:
    """Training loss against steps, traffic and simulated time; saved if a path is given."""
    series = tuple(Series(run.label, (run,)) for run in map(Run.of, results))
    figure = draw_charts([Chart("", series)], title=title)
    if path is not None:
        _save(figure, Path(path))
    return figure


def draw_charts(
    charts: Sequence[Chart],
    axes: Sequence[str] = _DEFAULT_AXES,
    *,
    y: str = "train_loss",
    title: str | None = None,
) -> Figure:
    """A row of panels per chart, a column per x axis that any run has, a curve per series.

    A curve is the mean over the seeds, in a band from the lowest to the highest.
    """
    unknown = [name for name in axes if name not in AXES]
    if unknown or not charts or not axes:
        raise ConfigError(
            f"A figure needs a chart and an axis out of {', '.join(AXES)}; got "
            f"{len(charts)} charts and {', '.join(axes) or 'no axes'}."
        )
    from matplotlib.figure import Figure

    axes = known_axes(charts, axes)
    look = styles(charts)
    alike = len({tuple(series.label for series in chart.series) for chart in charts}) == 1
    with_legend = charts[:1] if alike else charts
    width = 4.5 * len(axes)
    height = 0.4 + 3.6 * len(charts) + sum(0.25 * _legend_lines(c, width) for c in with_legend)
    figure = Figure(figsize=(width, height), layout="constrained")
    rows = figure.subfigures(len(charts), 1, squeeze=False)[:, 0]
    for row, chart in zip(rows, charts, strict=True):
        _draw_row(row, chart, axes, y, look)
    for row, chart in zip(rows, with_legend, strict=False):
        (figure if alike else row).legend(
            *row.axes[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=math.ceil(len(chart.series) / _legend_lines(chart, width)),
            handlelength=3.2,
            frameon=False,
        )
    if title:
        figure.suptitle(_plain(title), fontsize=13)
    return figure


def save_figure(figure: Figure, stem: Path) -> None:
    """Write stem.png and stem.svg; equal figures give equal files."""
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


def _legend_lines(chart: Chart, width: float) -> int:
    """How many lines the legend needs on `width` inches."""
    labels = [series.label for series in chart.series]
    widths = [0.085 * len(label) + 0.75 for label in labels]  # inches: the letters, the sample
    if sum(widths) < width:
        return 1
    return math.ceil(len(labels) / max(1, int(width / max(widths))))


def _draw_row(
    row: SubFigure, chart: Chart, axes: Sequence[str], y: str, look: Mapping[str, Style]
) -> None:
    panels = row.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, column in zip(panels, axes, strict=True):
        bands = [series.band(column, y) for series in chart.series]
        size, label = scaled(column, float(pd.concat(band["x"] for band in bands).max()))
        for series, band in zip(chart.series, bands, strict=True):
            _draw_curve(panel, series, band.assign(x=band["x"] / size), look[series.label])
        ends = [float(band["x"].max()) for band in bands]
        if max(ends) > _UNLIKE * min(ends) > 0:
            panel.set_xscale("log", nonpositive="mask")
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
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
        markevery=(min(3 + 2 * style.number, len(band) - 1), 16),  # staggered: curves may coincide
        markersize=5,
    )


def _use_log(panel: Axes) -> None:
    """A logarithmic axis labelled with plain numbers (1, 0.5, 0.2, 0.1), as space permits."""
    low, high = panel.get_ylim()
    if low > 0 and high < 4 * low:
        return  # a linear axis looks the same, and has more numbers on it
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    digits = "12357" if high < 10 * low else "125" if high < 1000 * low else "1"
    for set_formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        set_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in digits else "")


def _plain(text: str) -> str:
    """Text in which matplotlib sees no mathematics."""
    return text.replace("$", r"\$")
