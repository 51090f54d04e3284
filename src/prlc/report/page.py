"""One self-contained interactive page of runs.

page.html, page.css and page.js are what the browser sees; this fills them in. The tables are HTML
already, so that they can be read without scripts; the script draws the curves and sorts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from prlc.errors import ConfigError, RunError
from prlc.report import page_tables
from prlc.report.axes import AXES
from prlc.report.page_data import page_data
from prlc.report.series import Chart, Run
from prlc.report.verdicts import Verdict

_BY_PYTHON = "These runs were made by a Python program, so there is no command line to repeat."


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
    """Write the page; it opens from disk and asks the network for nothing.

    lead: a paragraph under the title. command: what makes these runs again, if a command does.
    x: what the curves are drawn against at first, a key of `AXES`.
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
    from plotly.offline import get_plotlyjs  # its script is all that is needed of it

    data = page_data(charts, x)
    # Nothing in the data can end the script element that holds it.
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    runs = list({id(run): run for c in charts for s in c.series for run in s.runs}.values())
    return Template(_part("page.html")).substitute(
        title=escape(title),
        lead=f'<p class="lead">{escape(lead)}</p>' if lead else "",
        verdicts=page_tables.verdicts(verdicts) if verdicts else "",
        x_choices=page_tables.choices("x", data["axes"], x),
        y_choices=page_tables.choices("y", data["measures"], next(iter(data["measures"]))),
        charts="".join(
            page_tables.chart(number, each, heading=each.title != title)
            for number, each in enumerate(charts)
        ),
        settings=page_tables.settings(runs, path.parent),
        command=page_tables.command(command) if command else f"<p>{_BY_PYTHON}</p>",
        made_by=escape(_versions(runs)),
        css=_part("page.css"),
        plotly=get_plotlyjs(),
        data=embedded,
        script=_part("page.js"),
    )


def _part(name: str) -> str:
    return (files("prlc.report") / name).read_text(encoding="utf-8")


def _versions(runs: Sequence[Run]) -> str:
    """What the runs were made with, as far as they say so."""
    import prlc  # which imports this package

    said = [f"prlc {prlc.__version__}"]
    for key, name in (("torch", "PyTorch"), ("python", "Python")):
        used = sorted({str(run.summary[key]) for run in runs if run.summary and key in run.summary})
        said += [f"{name} {' and '.join(used)}"] if used else []
    return ", ".join(said)
