"""Train one model on many workers that talk to a server as little as possible.

result = prlc.train(model, loss, data, method=prlc.PRLC(pull_ratio=0.1))
"""

from prlc import data, models
from prlc.api import Comparison, compare, train
from prlc.data import Dataset
from prlc.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    DownloadError,
    PrlcError,
    RunError,
)
from prlc.methods import ASGD, LAGPS, LAGWK, METHODS, NSGD, PR, PRLC, LocalSGD, Method
from prlc.network import Network
from prlc.training import Progress, Result

__all__ = [
    "ASGD",
    "LAGPS",
    "LAGWK",
    "METHODS",
    "NSGD",
    "PR",
    "PRLC",
    "CheckpointError",
    "Comparison",
    "ConfigError",
    "DataError",
    "Dataset",
    "DivergedError",
    "DownloadError",
    "LocalSGD",
    "Method",
    "Network",
    "PrlcError",
    "Progress",
    "Result",
    "RunError",
    "compare",
    "data",
    "models",
    "train",
]

__version__ = "0.1.0"
