"""Tables, figures and pages of runs."""

from prlc.report.figures import plot_runs
from prlc.report.series import Chart, Run, Series
from prlc.report.tables import COLUMNS, rich_table, rows, table
from prlc.report.verdicts import Outcome, Verdict

__all__ = [
    "COLUMNS",
    "Chart",
    "Outcome",
    "Run",
    "Series",
    "Verdict",
    "plot_runs",
    "rich_table",
    "rows",
    "table",
]
