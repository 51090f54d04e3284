"""The paper's four figures, redrawn from our own runs, with a verdict on each of its claims.

paper.toml        the frozen settings
settings.py       ... read into types: problems, figures, networks
specs.py          one run, and its times on other clocks
pool.py           processes side by side
sweep.py          every run that the figures need, and tuning
curves.py         finished runs as curves, and numbers read off them
claims.py         the claims, their limits, and verdicts
charts.py         figures and pages
reproduction.py   all of it in order, and the record
"""

from prlc.experiments.reproduction import MODELS, Reproduction, reproduce
from prlc.experiments.settings import FIGURES, SCALES

__all__ = ["FIGURES", "MODELS", "SCALES", "Reproduction", "reproduce"]
