"""Any method in real processes, on torch.distributed; started by torchrun.

What worker and server do is in `engines/roles`; here is how their messages travel.

cluster.py       how processes are arranged, and the settings they agree on
connection.py    joining the processes; operations in which all take part
wire.py          messages between two ranks
liveness.py      who is alive: asking and answering
threads.py       threads beside the main one
worker.py        what the workers of all families share
server.py        what the servers of all families share
scheduled.py, lazy.py, asynchronous.py    when each family sends and waits
peer.py          one process: server, worker or both
engine.py        runs a job: `prlc train --engine distributed`
team.py          runs in a user's own script: `prlc.join`
"""

from prlc.engines.processes.cluster import Cluster, Layout, RunSettings

__all__ = ["Cluster", "Layout", "RunSettings"]
