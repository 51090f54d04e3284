"""The paper's cluster on one machine: a network namespace for the server and for each worker.

    with Testbed(workers=20, bandwidth=100e6, half_duplex=True) as bed:
        processes = bed.start({"server": [...], "w00": [...]}, logs="logs")
        processes.wait()

It needs root on Linux with `ip` and `tc`; `survey()` says what is missing. Inside the `with` there
are namespaces called prlc-NAME-..., and after it none. What a killed process leaves behind,
`clean()` removes.
"""

from prlc.testbed import torchrun
from prlc.testbed.check import survey
from prlc.testbed.launch import Processes, Started
from prlc.testbed.network import Testbed
from prlc.testbed.removal import Cleaned, clean
from prlc.testbed.topology import INTERFACE, Node, Topology

__all__ = [
    "INTERFACE",
    "Cleaned",
    "Node",
    "Processes",
    "Started",
    "Testbed",
    "Topology",
    "clean",
    "survey",
    "torchrun",
]
