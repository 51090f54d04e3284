"""All workers of a job in one process, as stacked tensors.

engine.py       the three families of methods; the short way of plain parts
parts.py        the general way: any choice of parts
workers.py      stacked models, batches, gradients
gradients.py    losses and gradients of many workers in one call (vmap)
tracing.py      the same, traced and simplified
optimizers.py   any torch optimizer over the stack
lazy_memory.py  what LAG remembers
stack.py        memory order of the stack
execution.py    how many workers at once, on how many threads
"""

from prlc.engines.simulator.engine import Simulator, SimulatorRuntime
from prlc.engines.simulator.execution import Execution

__all__ = ["Execution", "Simulator", "SimulatorRuntime"]
