"""The paper's four figures, redrawn from our own runs, and a verdict on each of its claims.

The settings are frozen in the TOML files beside this one.
"""

from prlc.experiments.reproduction import Reproduction, reproduce
from prlc.experiments.settings import FIGURES, SCALES

__all__ = ["FIGURES", "SCALES", "Reproduction", "reproduce"]
