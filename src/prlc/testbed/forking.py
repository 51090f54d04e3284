"""The process that starts torchrun's agents on all nodes: it loads torch once, then forks.

Loading torch takes seconds of a core. With an agent and a process on each of 21 nodes, that is most
of the time until a run begins; forked agents halve it.

Reads jobs as JSON, prints "NODE PID" for each agent, then "NODE STATUS" as each ends, and ends with
the last. It is a module of its own since it is run, not imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from torch.distributed.run import main as torchrun  # the slow part

from prlc.testbed.agents import Job

_NAMESPACES = Path("/var/run/netns")  # where `ip netns` keeps them
_NETWORK = 0x40000000  # CLONE_NEWNET


def main() -> None:
    agents = {}
    for job in (Job(**given) for given in json.load(sys.stdin)):
        pid = os.fork()
        if pid == 0:
            _become(job)
        agents[pid] = job.node
        print(job.node, pid, flush=True)
    while agents:
        pid, status = os.wait()
        print(agents.pop(pid), os.waitstatus_to_exitcode(status), flush=True)


def _become(job: Job) -> NoReturn:
    """Turn this process into an agent on its node."""
    code: object = 1
    try:
        os.setsid()
        with Path(job.log).open("wb") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        with (_NAMESPACES / job.namespace).open("rb") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _NETWORK) != 0:
                raise OSError(ctypes.get_errno(), "the namespace cannot be entered")
        torchrun(list(job.arguments))
        code = 0
    except SystemExit as ending:
        code = ending.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # whoever listened is gone
        main()
