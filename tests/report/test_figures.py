"""Static figures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex

from prlc.errors import ConfigError, RunError
from prlc.report import Chart, draw_charts, save_figure, scaled, styles
from prlc.report.figures import Style

from .builders import make_run, make_series

NSGD = make_series(make_run("nsgd"))
SEEDS = make_series(make_run(), make_run(seed=1, loss=2.0))


def test_a_row_per_chart_and_a_column_per_axis() -> None:
    charts = [Chart("one", (NSGD, SEEDS)), Chart("two", (SEEDS,)), Chart("three", (NSGD,))]
    figure = draw_charts(charts, ["step", "bytes"], title="all")
    assert len(figure.subfigs) == 3
    assert [len(row.axes) for row in figure.subfigs] == [2, 2, 2]
    assert [row.get_suptitle() for row in figure.subfigs] == ["one", "two", "three"]
    assert figure.get_suptitle() == "all"


def test_a_label_has_one_colour_in_the_whole_figure() -> None:
    figure = draw_charts([Chart("", (NSGD, SEEDS)), Chart("", (SEEDS,))], ["step"])
    first, second = (row.axes[0].get_lines() for row in figure.subfigs)
    assert to_hex(first[1].get_color()) == to_hex(second[0].get_color())
    assert to_hex(first[0].get_color()) != to_hex(first[1].get_color())


def test_one_legend_if_the_rows_are_alike_and_else_one_each() -> None:
    alike = draw_charts([Chart("", (NSGD, SEEDS)), Chart("", (NSGD, SEEDS))], ["step"])
    assert [len(row.legends) for row in alike.subfigs] == [0, 0]
    assert [text.get_text() for text in alike.legends[0].get_texts()] == ["NSGD", "PRLC r=0.1"]
    apart = draw_charts([Chart("", (NSGD,)), Chart("", (NSGD, SEEDS))], ["step"])
    assert [len(row.legends) for row in apart.subfigs] == [1, 1]
    assert not apart.legends


def test_several_seeds_get_a_band_and_one_does_not() -> None:
    (panel,) = draw_charts([Chart("", (NSGD, SEEDS))], ["step"]).subfigs[0].axes
    (band,) = panel.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (1 / 32, 2.0)
    assert np.asarray(panel.get_lines()[1].get_ydata())[0] == 1.5


def test_axes_are_in_units_that_read_well() -> None:
    figure = draw_charts([Chart("", (NSGD,))], ["bytes", "simulated_seconds"])
    traffic, time = figure.subfigs[0].axes
    assert traffic.get_xlabel() == "traffic up and down (MB)"
    assert time.get_xlabel() == "simulated time (minutes)"
    ends = [np.asarray(panel.get_lines()[0].get_xdata())[-1] for panel in (traffic, time)]
    assert ends == [40.0, 5.0]


def test_axes_on_which_curves_end_far_apart_are_logarithmic() -> None:
    frugal = make_run("stc")
    short = replace(frugal, metrics=frugal.metrics.assign(bytes_up=1e3, bytes_down=1e3))
    panels = draw_charts([Chart("", (NSGD, make_series(short)))], ["step", "bytes"]).subfigs[0].axes
    assert [panel.get_xscale() for panel in panels] == ["linear", "log"]


@pytest.mark.parametrize(
    ("largest", "unit"),
    [(0, "B"), (900, "B"), (1_500, "B"), (4e3, "kB"), (5e9, "GB"), (3e13, "TB")],
)
def test_bytes_have_a_unit(largest: float, unit: str) -> None:
    assert scaled("bytes", largest)[1] == f"traffic up and down ({unit})"


def test_losses_are_logarithmic_unless_they_cannot_be() -> None:
    def scale(y: str, loss: float) -> str:
        chart = Chart("", (make_series(make_run(loss=loss)),))
        return str(draw_charts([chart], ["step"], y=y).subfigs[0].axes[0].get_yscale())

    assert scale("train_loss", 1.0) == "log"
    assert scale("train_loss", -1.0) == "linear"
    assert scale("test_accuracy", 1.0) == "linear"


def test_curves_are_told_apart_without_colour() -> None:
    looks = [Style(number) for number in range(16)]
    assert len({(look.dash, look.symbol) for look in looks}) == 16
    assert len({(str(look.line), look.marker) for look in looks}) == 16
    assert len({look.colour for look in looks[:8]}) == 8
    assert len({(look.colour, look.marker) for look in looks}) == 16
    assert len({(look.colour, look.dash) for look in looks}) == 16


def test_styles_go_by_label() -> None:
    look = styles([Chart("", (SEEDS,)), Chart("", (NSGD, SEEDS))])
    assert [(label, style.number) for label, style in look.items()] == [
        ("PRLC r=0.1", 0),
        ("NSGD", 1),
    ]


def test_files_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_figure(draw_charts([Chart("x", (NSGD, SEEDS))]), tmp_path / "new" / f"r=0.{name}")
    for ending in (".png", ".svg"):
        a, b = ((tmp_path / "new" / f"r=0.{name}{ending}").read_bytes() for name in ("a", "b"))
        assert a == b
    assert b"<dc:date>" not in (tmp_path / "new" / "r=0.a.svg").read_bytes()


def test_dollars_are_no_mathematics(tmp_path: Path) -> None:
    series = make_series(make_run(), label=r"cost $\nosuchcommand$")
    save_figure(draw_charts([Chart("$x_", (series,))], title="$1 and $2"), tmp_path / "f")
    assert (tmp_path / "f.svg").exists()


def test_what_cannot_be_drawn_or_written_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an axis out of step, epoch"):
        draw_charts([Chart("", (NSGD,))], ["steps"])
    with pytest.raises(ConfigError, match="got 0 charts"):
        draw_charts([], ["step"])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        save_figure(draw_charts([Chart("", (NSGD,))]), tmp_path / "file" / "f")


def test_the_command_line_starts_without_what_draws() -> None:
    loaded = "import sys, prlc.cli; print({'matplotlib', 'plotly'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_runs_without_a_clock_have_no_panel_for_the_time() -> None:
    untimed, timed = make_series(make_run(clock=False)), make_series(make_run("nsgd"))
    assert len(draw_charts([Chart("a", (untimed,))]).axes) == 2
    assert len(draw_charts([Chart("a", (untimed, timed))]).axes) == 3
