"""How curves are told apart: by colour, and without colour by dash and marker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prlc.report.series import Chart

# Okabe and Ito's colours, told apart by colour-blind readers too; then the same for a dark page.
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
# As matplotlib takes them, and as a page does.
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
    """The look of one curve, in a static figure and in a page."""

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
        return _MARKERS[self.number % len(_MARKERS)][0]

    @property
    def symbol(self) -> str:
        return _MARKERS[self.number % len(_MARKERS)][1]

    @property
    def width(self) -> float:
        return 2.6 if self.number == 0 else 1.7  # the baseline shows under what lies on it

    @property
    def _dash(self) -> tuple[Any, str]:
        # The second time round, every colour gets another dash.
        return _DASHES[(self.number + self.number // len(_COLOURS)) % len(_DASHES)]


def styles(charts: Sequence[Chart]) -> dict[str, Style]:
    """A style per label, the same in every chart."""
    labels = dict.fromkeys(series.label for chart in charts for series in chart.series)
    return {label: Style(number) for number, label in enumerate(labels)}
