"""What the script of a page draws, as plain JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import pandas as pd

from prlc.report.axes import AXES, MEASURES, scaled, suits_log
from prlc.report.series import Chart, Series
from prlc.report.style import Style, styles
from prlc.report.tables import show_figure
from prlc.units import format_bytes, format_seconds

_SHORT = {
    "step": "steps",
    "epoch": "epochs",
    "pulls_per_worker": "pulls",
    "bytes": "bytes",
    "simulated_seconds": "time",
}


def page_data(charts: Sequence[Chart], x: str) -> dict[str, Any]:
    """The curves of all charts; `measures` are those that any run has."""
    look = styles(charts)
    everything = [series for chart in charts for series in chart.series]
    measures = {y: name for y, name in MEASURES.items() if any(s.has(y) for s in everything)}
    return {
        "x": x,
        "axes": _SHORT,
        "measures": measures,
        "log": {y: all(suits_log(chart, y) for chart in charts) for y in measures},
        "charts": [_chart(chart, measures, look) for chart in charts],
    }


def _chart(chart: Chart, measures: Iterable[str], look: dict[str, Style]) -> dict[str, Any]:
    curves = [_curve(series, measures, look[series.label]) for series in chart.series]
    units = {}
    for column in AXES:
        size, label = scaled(column, max(x or 0.0 for curve in curves for x in curve["x"][column]))
        units[column] = {"size": size, "label": label}
    return {"title": escape(chart.title), "units": units, "curves": curves}


def _curve(series: Series, measures: Iterable[str], style: Style) -> dict[str, Any]:
    along = pd.DataFrame({column: series.band(column, "train_loss")["x"] for column in AXES})
    bands = {y: series.band("step", y) for y in measures if series.has(y)}
    return {
        "label": series.label,
        "name": escape(series.label),  # Plotly reads tags in names
        "number": style.number,
        "colours": [style.colour, style.colour_on_dark],
        "dash": style.dash,
        "symbol": style.symbol,
        "width": style.width,
        "seeds": len(series.runs),
        "x": {column: _numbers(along[column]) for column in AXES},
        "y": {
            y: {part: _numbers(band[part]) for part in ("y", "low", "high")}
            for y, band in bands.items()
        },
        "notes": [_note(row) for row in along.to_dict("records")],
    }


def _note(row: dict[Any, Any]) -> str:
    """Where a point of a curve is, on every axis."""
    return "<br>".join(
        (
            f"step {row['step']:,.0f}, epoch {row['epoch']:.3g}",
            f"{show_figure('pulls_per_worker', row['pulls_per_worker'])} pulls per worker",
            f"{format_bytes(row['bytes'])} up and down",
            f"{format_seconds(row['simulated_seconds'])} simulated",
        )
    )


def _numbers(values: pd.Series[float]) -> list[float | None]:
    """Seven digits are more than a screen shows; what is not finite, JSON does not have."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]
