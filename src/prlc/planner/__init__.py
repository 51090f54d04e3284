"""Which member of the family to train with on a network, and what that costs."""

from prlc.planner.cost import GOALS, Cost, Price
from prlc.planner.family import FAMILY, Line
from prlc.planner.recommend import EVAL_SAMPLES, Plan, plan
from prlc.planner.search import Choice, SearchProgress
from prlc.planner.trials import Candidate, Trials

__all__ = [
    "EVAL_SAMPLES",
    "FAMILY",
    "GOALS",
    "Candidate",
    "Choice",
    "Cost",
    "Line",
    "Plan",
    "Price",
    "SearchProgress",
    "Trials",
    "plan",
]
