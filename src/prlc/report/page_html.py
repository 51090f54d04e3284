"""The parts of a page that are plain HTML: verdicts, results, settings, the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from prlc.report.grouping import format_setting, split
from prlc.report.series import Chart, Outcome, Run, Series, Verdict
from prlc.report.tables import HEADINGS, best_of, format_value, is_best, series_rows

# A sign, and the CSS class of its colour.
_MARKS = {
    Outcome.HOLDS: ("✓", "holds"),
    Outcome.IN_PART: ("◐", "in-part"),
    Outcome.FAILS: ("✗", "fails"),
}


def choices(name: str, options: Mapping[str, str], chosen: str) -> str:
    """Radio buttons, one of them checked."""
    return "".join(
        f'<label><input type="radio" name="{name}" value="{value}"'
        f"{' checked' if value == chosen else ''}><span>{escape(words)}</span></label>"
        for value, words in options.items()
    )


def verdicts(given: Sequence[Verdict]) -> str:
    """A table of claims, measurements and outcomes."""
    rows = ""
    for verdict in given:
        sign, kind = _MARKS[verdict.outcome]
        cells = {
            "figure": verdict.figure,
            "claim": verdict.claim,
            "setting": verdict.setting,
            "measured": verdict.measured,
        }
        rows += "<tr>" + "".join(
            f'<td data-label="{name}">{escape(text)}</td>' for name, text in cells.items()
        )
        rows += (
            f'<td data-label="outcome"><span class="outcome {kind}">'
            f'<span aria-hidden="true">{sign}</span> {verdict.outcome}</span></td></tr>'
        )
    head = "".join(f"<th>{name}</th>" for name in ("figure", "claim", "setting", "measured", ""))
    return (
        '<section><h2>What holds</h2><table class="verdicts">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
    )


def chart(number: int, given: Chart, *, heading: bool) -> str:
    """An empty plot for the script to draw in, and the table of results."""
    title = f"<h2>{escape(given.title)}</h2>" if heading and given.title else ""
    note = f'<p class="note">{escape(given.note)}</p>' if given.note else ""
    return (
        f'<section class="chart">{title}{note}'
        f'<div class="legend" role="group" aria-label="Curves: press to hide or show"></div>'
        f'<div class="plot" id="plot-{number}"></div>{_results(given.series)}</section>'
    )


def _results(series: Sequence[Series]) -> str:
    """A row per curve: means over its seeds, with the range below."""
    content = series_rows(series)
    best = best_of(content)
    columns = [name for name in HEADINGS if name != "method"] + ["steps"]
    headings = {name: HEADINGS.get(name, name).replace("\n", " ") for name in ["method", *columns]}
    headings["seeds"] = "seeds" if any(len(each.runs) > 1 for each in series) else "seed"
    head = "".join(
        f'<th scope="col"><button type="button">{escape(text)}</button></th>'
        for text in headings.values()
    )
    rows = ""
    for row, each in zip(content, series, strict=True):
        status = (
            "" if row["finished"] else f"<small>unfinished, at step {row['steps']:,.0f}</small>"
        )
        rows += f'<tr><th scope="row">{escape(each.label)}{status}</th>'
        for name in columns:
            mark = row["finished"] and is_best(row[name], best.get(name))
            rows += _cell(name, row[name], each.finals(name), best=mark)
        seeds = ", ".join(map(str, row["seeds"]))
        rows += f'<td data-value="{len(row["seeds"])}">{escape(seeds)}</td>'
        rows += "</tr>"
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of results">'
        f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _cell(name: str, mean: float | None, values: Sequence[float], *, best: bool) -> str:
    value = "" if mean is None else f' data-value="{mean!r}"'
    shown = format_value(name, mean)
    low, high = (format_value(name, end(values)) if values else shown for end in (min, max))
    spread = f"<small>{low} – {high}</small>" if low != high else ""
    return f"<td{value}>{f'<strong>{shown}</strong>' if best else shown}{spread}</td>"


def settings(runs: Sequence[Run], page_folder: Path) -> str:
    """The settings that all runs share, then a row per run with its own."""
    shared, others = split(runs)
    common = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(format_setting(name, value))}</dd></div>"
        for name, value in shared.items()
    )
    rows = ""
    for run, own in zip(runs, others, strict=True):
        listed = ", ".join(
            f"{escape(name)} <b>{escape(format_setting(name, value))}</b>"
            for name, value in own.items()
        )
        rows += f'<tr><th scope="row">{escape(run.label)}</th><td>{listed}</td>'
        rows += f"<td>{escape(_relative_folder(run, page_folder))}</td></tr>"
    many = f"all {len(runs)} runs" if len(runs) > 1 else "the run"
    head = "".join(f'<th scope="col">{name}</th>' for name in ("run", "its own settings", "folder"))
    return (
        f'<details><summary>Settings of {many}</summary><dl class="shared">{common}</dl>'
        f'<div class="scroll"><table class="own"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _relative_folder(run: Run, page_folder: Path) -> str:
    """The run's folder relative to the page's, or its bare name: pages get moved."""
    if run.folder is None:
        return "not on disk"
    folder, base = run.folder.resolve(), page_folder.resolve()
    return (str(folder.relative_to(base)) if folder.is_relative_to(base) else "") or folder.name


def command(line: str) -> str:
    """The command, and a button that copies it."""
    return (
        f'<div class="command"><pre tabindex="0"><code>{escape(line)}</code></pre>'
        '<button type="button" class="copy">Copy</button></div>'
    )
