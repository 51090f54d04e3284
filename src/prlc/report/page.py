"""One self-contained interactive page of runs.

page.html, page.css and page.js are the page; this module fills them in. The tables are plain HTML
and need no scripts; the script draws the curves and sorts the tables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from prlc.errors import ConfigError, RunError
from prlc.network.units import format_bytes, format_seconds
from prlc.report import page_html
from prlc.report.figures import AXES, MEASURES, Style, known_axes, scaled, styles, suits_log
from prlc.report.series import Chart, Run, Series, Verdict
from prlc.report.tables import format_value

_SHORT_AXES = {
    "step": "steps",
    "epoch": "epochs",
    "pulls_per_worker": "pulls",
    "bytes": "bytes",
    "simulated_seconds": "time",
}
_NO_COMMAND = "These runs were made by a Python program, so there is no command line to repeat."


# ---- the page ------------------------------------------------------------------------------------


def write_page(
    path: Path,
    title: str,
    charts: Sequence[Chart],
    *,
    lead: str = "",
    verdicts: Sequence[Verdict] = (),
    command: str | None = None,
    x: str = "step",
) -> None:
    """Write a page that opens from disk and makes no network requests.

    lead: a paragraph under the title.
    command: the command line that repeats these runs, if there is one.
    x: the x axis to begin with, a key of `AXES`.
    """
    if x not in AXES or not any(chart.series for chart in charts):
        raise ConfigError(
            f"A page needs curves, and an axis out of {', '.join(AXES)}; got "
            f"{len(charts)} charts and {x!r}."
        )
    page = _fill(path, title, charts, lead, verdicts, command, x)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"The page {path} cannot be written: {error.strerror}. Choose another place."
        ) from None


def _fill(
    path: Path,
    title: str,
    charts: Sequence[Chart],
    lead: str,
    verdicts: Sequence[Verdict],
    command: str | None,
    x: str,
) -> str:
    from plotly.offline import get_plotlyjs  # only its script is used

    data = _page_data(charts, x)
    # No text in the data can close the script element that holds it.
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    runs = list({id(run): run for c in charts for s in c.series for run in s.runs}.values())
    return Template(_part("page.html")).substitute(
        title=escape(title),
        lead=f'<p class="lead">{escape(lead)}</p>' if lead else "",
        verdicts=page_html.verdicts(verdicts) if verdicts else "",
        x_choices=page_html.choices("x", data["axes"], x),
        y_choices=page_html.choices("y", data["measures"], next(iter(data["measures"]))),
        charts="".join(
            page_html.chart(number, each, heading=each.title != title)
            for number, each in enumerate(charts)
        ),
        settings=page_html.settings(runs, path.parent),
        command=page_html.command(command) if command else f"<p>{_NO_COMMAND}</p>",
        made_by=escape(_versions(runs)),
        css=_part("page.css"),
        plotly=get_plotlyjs(),
        data=embedded,
        script=_part("page.js"),
    )


def _part(name: str) -> str:
    return (files("prlc.report") / name).read_text(encoding="utf-8")


def _versions(runs: Sequence[Run]) -> str:
    """The versions of prlc, PyTorch and Python, as far as the runs recorded them."""
    import prlc  # which imports this package

    versions = [f"prlc {prlc.__version__}"]
    for key, name in (("torch", "PyTorch"), ("python", "Python")):
        used = sorted({str(run.summary[key]) for run in runs if run.summary and key in run.summary})
        versions += [f"{name} {' and '.join(used)}"] if used else []
    return ", ".join(versions)


# ---- the data that page.js draws -----------------------------------------------------------------


def _page_data(charts: Sequence[Chart], x: str) -> dict[str, Any]:
    """The curves of all charts as JSON; `measures` are those that any run has."""
    look = styles(charts)
    every_series = [series for chart in charts for series in chart.series]
    measures = {y: name for y, name in MEASURES.items() if any(s.has(y) for s in every_series)}
    return {
        "x": x,
        "axes": {column: _SHORT_AXES[column] for column in known_axes(charts, AXES)},
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
        "name": escape(series.label),  # Plotly interprets tags in names
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
    """A point's position on every axis, for its tooltip."""
    seconds = row["simulated_seconds"]
    return "<br>".join(
        (
            f"step {row['step']:,.0f}, epoch {row['epoch']:.3g}",
            f"{format_value('pulls_per_worker', row['pulls_per_worker'])} pulls per worker",
            f"{format_bytes(row['bytes'])} up and down",
            *([f"{format_seconds(seconds)} simulated"] if math.isfinite(seconds) else []),
        )
    )


def _numbers(values: pd.Series[float]) -> list[float | None]:
    """Seven digits, more than a screen shows; null for values that JSON cannot hold."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]
