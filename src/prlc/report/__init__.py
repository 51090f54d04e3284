"""Tables, figures and pages of runs."""

from prlc.report.axes import AXES
from prlc.report.figures import draw_charts, plot_runs, save_figure
from prlc.report.grouping import describe, group, read_runs
from prlc.report.page import write_page
from prlc.report.series import Chart, Run, Series
from prlc.report.tables import COLUMNS, rich_series_table, rich_table, rows, series_rows, table
from prlc.report.verdicts import Outcome, Verdict

__all__ = [
    "AXES",
    "COLUMNS",
    "Chart",
    "Outcome",
    "Run",
    "Series",
    "Verdict",
    "describe",
    "draw_charts",
    "group",
    "plot_runs",
    "read_runs",
    "rich_series_table",
    "rich_table",
    "rows",
    "save_figure",
    "series_rows",
    "table",
    "write_page",
]
