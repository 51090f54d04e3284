"""What curves are drawn against, what they show, and in which unit."""

from __future__ import annotations

from prlc.report.series import Chart
from prlc.units import format_bytes, time_unit

#: What a curve may be drawn against: the column of a run, and what an axis calls it.
AXES = {
    "step": "steps",
    "epoch": "epochs",
    "pulls_per_worker": "pulls per worker",
    "bytes": "traffic up and down",
    "simulated_seconds": "simulated time",
}

#: What a curve may show: the column of a run, and what an axis calls it.
MEASURES = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
}


def scaled(column: str, largest: float) -> tuple[float, str]:
    """The unit in which values up to `largest` read well: its size, and the axis's label."""
    if column == "simulated_seconds":
        size, unit = time_unit(largest)
    elif column == "bytes":
        unit = format_bytes(largest / 2).split()[1]  # 1.2 GB is an axis of 1,200 MB
        size = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    else:
        return 1.0, AXES[column]
    return size, f"{AXES[column]} ({unit})"


def suits_log(chart: Chart, y: str) -> bool:
    """Whether a logarithmic axis is the better one: for losses, if none is zero or below."""
    if y == "test_accuracy":
        return False
    columns = [run.column(y) for series in chart.series for run in series.runs]
    return all((column.dropna() > 0).all() for column in columns)
