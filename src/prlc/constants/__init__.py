"""The constants of the paper's assumptions, measured for a model, a loss and a data set.

L, sigma^2, G, Delta and mu are what the bounds of `prlc.theory` need, and what nobody knows about
their own problem. Each is estimated here with an interval and a sentence on how it came about.
"""

from __future__ import annotations

from prlc.constants.estimates import Cost, Estimate, MeasuredConstants, Point
from prlc.constants.lanczos import End, Spectrum, extreme_eigenvalues
from prlc.constants.measure import Progress, measure_constants
from prlc.constants.softmax import softmax_smoothness

__all__ = [
    "Cost",
    "End",
    "Estimate",
    "MeasuredConstants",
    "Point",
    "Progress",
    "Spectrum",
    "extreme_eigenvalues",
    "measure_constants",
    "softmax_smoothness",
]
