"""The engines: the same methods, run in different ways. `ENGINES` lists them by name."""

from __future__ import annotations

from collections.abc import Callable

from prlc.engines.base import Assignment, Cadence, Engine, Event, Outcome, Runtime, StepReport
from prlc.engines.job import Job, Loss
from prlc.engines.reference import Reference, ReferenceRuntime
from prlc.engines.simulator import Execution, Simulator, SimulatorRuntime
from prlc.errors import ConfigError

__all__ = [
    "ENGINES",
    "Assignment",
    "Cadence",
    "Engine",
    "Event",
    "Execution",
    "Job",
    "Loss",
    "Outcome",
    "Reference",
    "Runtime",
    "Simulator",
    "StepReport",
    "find_runtime",
]


def _processes() -> type[Runtime]:
    from prlc.engines.processes.engine import ProcessRuntime  # needs torch.distributed

    return ProcessRuntime


#: The runtime of each engine, by the engine's name; loaded on demand.
ENGINES: dict[str, Callable[[], type[Runtime]]] = {
    "simulator": lambda: SimulatorRuntime,
    "reference": lambda: ReferenceRuntime,
    "distributed": _processes,
}


def find_runtime(engine: str) -> type[Runtime]:
    """The runtime of the engine with that name."""
    if engine not in ENGINES:
        raise ConfigError(f"There is no engine {engine!r}. Choose one of: {', '.join(ENGINES)}.")
    return ENGINES[engine]()
