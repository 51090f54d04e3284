"""The paper's cluster on one machine: a network namespace for the server and for each worker.

    with Testbed(workers=20, bandwidth=100e6, half_duplex=True) as bed:
        processes = bed.start({"server": [...], "w00": [...]}, logs="logs")
        processes.wait()

It needs root on Linux with `ip` and `tc`; `check_machine()` says what is missing. Inside the `with`
block there are namespaces called prlc-NAME-..., and afterwards none. `clean()` removes what a
killed process left behind.

topology.py  which nodes there are, their names, addresses and limits
wiring.py    what `ip` and `tc` are told to create them
machine.py   running these commands, and what the machine needs for it
cleanup.py   who owns which testbed, removing it, signals
testbed.py   the context manager, and processes on the nodes
torchrun.py  one program on all nodes, joined by torchrun
timing.py    how long methods take, beside the network clock's prediction
"""

from prlc.testbed import torchrun
from prlc.testbed.cleanup import Cleaned, clean
from prlc.testbed.machine import check_machine
from prlc.testbed.testbed import NodeProcess, Processes, Testbed
from prlc.testbed.topology import INTERFACE, Node, Topology

__all__ = [
    "INTERFACE",
    "Cleaned",
    "Node",
    "NodeProcess",
    "Processes",
    "Testbed",
    "Topology",
    "check_machine",
    "clean",
    "torchrun",
]
