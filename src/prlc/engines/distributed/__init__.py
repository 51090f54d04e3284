"""Any method in real processes, on torch.distributed; started by torchrun.

connection.py   joining the processes              terms.py    what all agree on
wire.py         messages between ranks             packing.py  a model as flat vectors
member.py       a worker                           updates.py  its model and optimizer
keeper.py       who keeps the global model, for each family of methods in
                scheduled.py, lazy.py, arrivals.py; inbox.py is what it expects and sends
node.py         one rank: keeper, worker or both   recorder.py what a worker did when
engine.py       runs a job                         team.py     for a script of one's own
background.py   threads beside the main one
"""

from prlc.engines.distributed.connection import connect
from prlc.engines.distributed.engine import Distributed
from prlc.engines.distributed.terms import Cluster, Layout, Terms

__all__ = ["Cluster", "Distributed", "Layout", "Terms", "connect"]
