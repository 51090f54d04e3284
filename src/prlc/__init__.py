"""Train one model on many workers that rarely wait for one another.

result = prlc.train(model, loss, data, method=prlc.PRLC(pull_ratio=0.1))
"""

from prlc import launcher as _launcher  # noqa: F401 (first: an orphan imports nothing else)

# isort: split
from prlc import data, encodings, models, planner, theory
from prlc.api import Comparison, compare, train
from prlc.data import IID, Contiguous, Dataset, Dirichlet, Shards
from prlc.encodings import Encoding
from prlc.engines import Execution, Loss
from prlc.engines.processes import Cluster
from prlc.engines.processes.team import Team, join
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
from prlc.methods import (
    ASGD,
    CMFL,
    EF21P,
    LAGPS,
    LAGWK,
    LAQ,
    METHODS,
    NSGD,
    PR,
    PRLC,
    QSGD,
    SSP,
    CoCoDSGD,
    Compensation,
    DiLoCo,
    FedProx,
    LocalSGD,
    Method,
    PipeSGD,
    Scheduled,
    SparseLoCo,
    TernGrad,
    TopKSGD,
    Whisper,
)
from prlc.network import Network
from prlc.optim.schedules import Constant, Cosine, StepDecay
from prlc.planner import plan
from prlc.runs.training import Progress, Result
from prlc.theory import measure as constants

__all__ = [
    "ASGD",
    "CMFL",
    "EF21P",
    "IID",
    "LAGPS",
    "LAGWK",
    "LAQ",
    "METHODS",
    "NSGD",
    "PR",
    "PRLC",
    "QSGD",
    "SSP",
    "CheckpointError",
    "Cluster",
    "CoCoDSGD",
    "Comparison",
    "Compensation",
    "ConfigError",
    "Constant",
    "Contiguous",
    "Cosine",
    "DataError",
    "Dataset",
    "DiLoCo",
    "Dirichlet",
    "DivergedError",
    "DownloadError",
    "Encoding",
    "Execution",
    "FedProx",
    "LocalSGD",
    "Loss",
    "Method",
    "Network",
    "PeerError",
    "PipeSGD",
    "PrlcError",
    "Progress",
    "Result",
    "RunError",
    "Scheduled",
    "Shards",
    "SparseLoCo",
    "StepDecay",
    "Team",
    "TernGrad",
    "TopKSGD",
    "Whisper",
    "compare",
    "constants",
    "data",
    "encodings",
    "join",
    "models",
    "plan",
    "planner",
    "theory",
    "train",
]

__version__ = "0.1.0"
