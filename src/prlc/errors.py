"""Everything that can go wrong for a user, as one small tree.

PrlcError
├── ConfigError          a setting is outside what it may be (also a ValueError)
├── DataError            a data set is missing, damaged or does not fit
│   └── DownloadError    it could not be fetched
├── RunError             a run folder cannot be read or written
│   └── CheckpointError  a checkpoint is damaged or belongs to another run
├── PeerError            another process of the run hangs or has died
├── TestbedError         the testbed cannot be made, or what ran on it failed
└── DivergedError        a loss, an update or the model stopped being finite

Each message says what was expected, what came, and what to do. The command line prints the
message alone and exits with status 2 (1 for a run that diverged or lost a process); it never shows
a traceback.
"""

from __future__ import annotations


class PrlcError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 2


class ConfigError(PrlcError, ValueError):
    """A setting is outside what it may be."""


class DataError(PrlcError):
    """A data set is missing, damaged or does not fit the request."""


class DownloadError(DataError):
    """A data set could not be fetched."""


class RunError(PrlcError):
    """A run folder cannot be read or written."""


class CheckpointError(RunError):
    """A checkpoint is damaged or belongs to another run."""


class PeerError(PrlcError):
    """Another process of the run hangs or has died. Names its rank."""

    exit_code = 1

    def __init__(self, rank: int, message: str) -> None:
        self.rank = rank
        super().__init__(message)


class TestbedError(PrlcError):
    """The testbed cannot be made, or what ran on it failed."""


class DivergedError(PrlcError):
    """A loss, an update or the model stopped being finite. Names the worker and the step."""

    exit_code = 1

    def __init__(
        self, worker: int, step: int, what: str = "loss", message: str | None = None
    ) -> None:
        self.worker = worker
        self.step = step
        advice = (
            "Lower the learning rate (or raise the pull ratio) and start again."
            if step > 0
            else "Nothing was learnt yet: look for values that are not finite in data and model."
        )
        usual = f"The {what} of worker {worker} is not finite at step {step}. {advice}"
        super().__init__(message or usual)
