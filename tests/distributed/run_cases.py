"""Run cases one after another in real processes: python run_cases.py LAYOUT WORKERS CASES OUT.

Forks after the imports, which take longer than anything else here. CASES is a JSON list of settings
for `prlc.train`; rank 0 writes what came out to OUT.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import prlc
from prlc.engines.distributed import Cluster


def problem(kind: str = "bn") -> tuple[nn.Module, Any, Any]:
    """A small model and data, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 12, generator=generator, dtype=torch.float64)
    targets = (inputs @ torch.randn(12, 4, generator=generator, dtype=torch.float64)).argmax(1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        norm = nn.BatchNorm1d(16) if kind == "bn" else nn.Identity()
        model = nn.Sequential(nn.Linear(12, 16), norm, nn.Tanh(), nn.Linear(16, 4)).double()
    return model, F.cross_entropy, (inputs, targets)


def settings(case: dict[str, Any], workers: int) -> dict[str, Any]:
    usual = {"workers": workers, "batch_size": 10, "steps": 60, "lr": 0.2, "eval_every": 20}
    return {**usual, **case}


def outcome(result: prlc.Result) -> dict[str, Any]:
    state = result.model.state_dict()
    return {
        "tensors": {name: t for name, t in state.items() if t.is_floating_point()},
        "summary": {k: v for k, v in result.summary.items() if k not in ("torch", "python")},
        "metrics": result.metrics.to_dict("list"),
    }


def run_rank(layout: str, workers: int, cases: list[dict[str, Any]], out: Path) -> None:
    outcomes = []
    for case in cases:
        given = settings(case, workers)
        kind = given.pop("model", "bn")
        cluster = Cluster(layout=layout, peer_timeout=30.0, **given.pop("cluster", {}))
        result = prlc.train(*problem(kind), engine="distributed", cluster=cluster, **given)
        outcomes.append(outcome(result))
    if os.environ["RANK"] == "0":
        torch.save(outcomes, out)


def main() -> None:
    layout, workers, cases, out = sys.argv[1:]
    world = int(workers) + (layout == "server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = str(rank)
            torch.set_num_threads(1)
            dist.init_process_group("gloo")  # once for all cases
            run_rank(layout, int(workers), json.loads(cases), Path(out))
            sys.exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
