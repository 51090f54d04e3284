"""Tables, figures and pages of runs."""

from prlc.report.figures import (
    AXES,
    MEASURES,
    draw_charts,
    plot_runs,
    save_figure,
    scaled,
    styles,
    suits_log,
)
from prlc.report.grouping import describe, group
from prlc.report.page import write_page
from prlc.report.series import Chart, Outcome, Run, Series, Verdict, read_runs
from prlc.report.tables import (
    COLUMNS,
    Winner,
    describe_winners,
    rich_series_table,
    rich_table,
    rows,
    series_rows,
    share,
    table,
    winners,
)

__all__ = [
    "AXES",
    "COLUMNS",
    "MEASURES",
    "Chart",
    "Outcome",
    "Run",
    "Series",
    "Verdict",
    "Winner",
    "describe",
    "describe_winners",
    "draw_charts",
    "group",
    "plot_runs",
    "read_runs",
    "rich_series_table",
    "rich_table",
    "rows",
    "save_figure",
    "scaled",
    "series_rows",
    "share",
    "styles",
    "suits_log",
    "table",
    "winners",
    "write_page",
]
