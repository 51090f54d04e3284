"""The same methods, in different ways of running them."""

from prlc.engines.base import Engine, Job, Loss, StepReport
from prlc.engines.plan import Plan
from prlc.engines.reference import Reference
from prlc.engines.simulator import Simulator

__all__ = ["Engine", "Job", "Loss", "Plan", "Reference", "Simulator", "StepReport"]
