"""Train one model on many workers that rarely wait for one another.

result = prlc.train(model, loss, data, method=prlc.PRLC(pull_ratio=0.1))
"""

from prlc import constants, data, models, planner, theory
from prlc.api import Comparison, compare, train
from prlc.data import IID, Dataset, Dirichlet, Shards
from prlc.engines import Loss, Plan
from prlc.engines.distributed import Cluster
from prlc.engines.distributed.team import Team, TeamWorker, join
from prlc.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    DownloadError,
    PeerError,
    PrlcError,
    RunError,
)
from prlc.methods import ASGD, LAGPS, LAGWK, METHODS, NSGD, PR, PRLC, LocalSGD, Method
from prlc.network import Network
from prlc.schedules import Constant, Cosine, StepDecay
from prlc.training import Progress, Result

__all__ = [
    "ASGD",
    "IID",
    "LAGPS",
    "LAGWK",
    "METHODS",
    "NSGD",
    "PR",
    "PRLC",
    "CheckpointError",
    "Cluster",
    "Comparison",
    "ConfigError",
    "Constant",
    "Cosine",
    "DataError",
    "Dataset",
    "Dirichlet",
    "DivergedError",
    "DownloadError",
    "LocalSGD",
    "Loss",
    "Method",
    "Network",
    "PeerError",
    "Plan",
    "PrlcError",
    "Progress",
    "Result",
    "RunError",
    "Shards",
    "StepDecay",
    "Team",
    "TeamWorker",
    "compare",
    "constants",
    "data",
    "join",
    "models",
    "planner",
    "theory",
    "train",
]

__version__ = "0.1.0"
