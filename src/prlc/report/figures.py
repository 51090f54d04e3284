"""Static figures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prlc.training import Result
from prlc.units import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too; the dashes serve in grey.
_COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777")
_DASHES = ("-", "--", "-", ":", "-.", (0, (6, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 2)))
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
_AXES = (
    ("step", "steps"),
    ("pulls_per_worker", "pulls per worker"),
    ("simulated_seconds", "simulated time"),
)


def plot_runs(
    results: Sequence[Result], path: Path | str | None = None, title: str | None = None
) -> Figure:
    """Training loss against steps, pulls per worker and simulated time, a panel each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 4.4), layout="constrained")
    panels = figure.subplots(1, len(_AXES), sharey=True)
    for axes, (column, label) in zip(panels, _AXES, strict=True):
        _draw(axes, results, column)
        axes.set_xlabel(label)
    _show_time(panels[-1], results)
    panels[0].set_ylabel("training loss")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False
    )
    if title:
        figure.suptitle(title, fontsize=12)
    if path is not None:
        figure.savefig(path, dpi=140)
    return figure


def _draw(axes: Axes, results: Sequence[Result], column: str) -> None:
    for number, result in enumerate(results):
        axes.plot(
            result.metrics[column],
            result.metrics["train_loss"],
            label=result.summary["method"],
            color=_COLOURS[number % len(_COLOURS)],
            linestyle=_DASHES[(number + number // len(_COLOURS)) % len(_DASHES)],
            linewidth=2.6 if number == 0 else 1.7,  # the baseline shows under what lies on it
            marker=_MARKERS[number % len(_MARKERS)],
            markevery=(3 + 2 * number, 16),  # apart, so that curves that coincide show
            markersize=5,
        )
    axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)


def _show_time(axes: Axes, results: Sequence[Result]) -> None:
    """Label the time axis in the unit that fits."""
    longest = max(float(result.metrics["simulated_seconds"].max()) for result in results)
    scale, unit = time_unit(longest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    axes.set_xlabel(f"simulated time ({unit})")
