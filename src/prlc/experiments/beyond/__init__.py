"""Which method gets to NSGD's loss by the fewest bytes, and in the shortest time?

beyond.toml   the frozen settings: problems, methods, clocks, limits
settings.py   ... read into types
trials.py     one run, its times on every clock, and all that are needed
reached.py    what a method took to NSGD's loss
verdicts.py   claims about the recommended method, and their limits
study.py      all of it in order: runs, verdicts, figures, record
"""

from prlc.experiments.beyond.settings import SCALES
from prlc.experiments.beyond.study import Study, study

__all__ = ["SCALES", "Study", "study"]
