"""What a team costs a script: CPU time and memory of a step, over plain `optimizer.step()`.

    python benchmarks/own_script.py [--quick]

Every contestant runs by itself: two processes on loopback, a model of ten million parameters and
batches of one sample, so that the steps themselves cost next to nothing. CPU time is that of all
threads of a process, servers' included; memory is what a process has resident after its steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import prlc

WORKERS = 2
LAYERS, WIDTH = 10, 1000  # ten million parameters
METHODS = ("nsgd", "prlc:0.1", "local-sgd:10")
LOCAL_SGD = "accelerate LocalSGD, 10"
_LONGEST = 180  # seconds of a contestant; accelerate's sometimes does not end
Step = Callable[[], Any]


@contextmanager
def plain(model: nn.Module, optimizer: SGD) -> Iterator[tuple[nn.Module, Step]]:
    yield model, optimizer.step


@contextmanager
def ddp(model: nn.Module, optimizer: SGD) -> Iterator[tuple[nn.Module, Step]]:
    dist.init_process_group("gloo")
    yield DistributedDataParallel(model), optimizer.step
    dist.destroy_process_group()


@contextmanager
def local_sgd(model: nn.Module, optimizer: SGD) -> Iterator[tuple[nn.Module, Step]]:
    from accelerate import Accelerator  # type: ignore[import-not-found,unused-ignore]
    from accelerate.local_sgd import LocalSGD  # type: ignore[import-not-found,unused-ignore]

    accelerator = Accelerator(cpu=True)
    prepared, stepper = accelerator.prepare(model, optimizer)
    with LocalSGD(accelerator=accelerator, model=prepared, local_sgd_steps=10) as local:

        def step() -> None:
            stepper.step()
            local.step()

        yield prepared, step
    dist.destroy_process_group()


@contextmanager
def team(method: str, model: nn.Module, optimizer: SGD) -> Iterator[tuple[nn.Module, Step]]:
    with prlc.join(method).train(model, optimizer):
        yield model, optimizer.step


def perform(name: str, steps: int, layers: int) -> dict[str, float]:
    """Take steps; CPU milliseconds a step and megabytes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(int(os.environ["RANK"]))
    known: dict[str, Any] = {"plain": plain, "DDP": ddp, LOCAL_SGD: local_sgd}
    made = known[name](model, optimizer) if name in known else team(name, model, optimizer)
    with made as (module, step):
        for number in range(2 * steps):
            if number == steps:  # the first half is full of firsts
                start = time.process_time()
            optimizer.zero_grad(set_to_none=False)
            module(torch.randn(1, WIDTH)).square().mean().backward()
            step()
        spent = (time.process_time() - start) / steps
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"cpu": 1e3 * spent, "memory": pages * os.sysconf("SC_PAGESIZE") / 1e6}


def run(name: str, steps: int, layers: int) -> dict[str, float] | None:
    """Rank 0's measurements in a run of its own; None if it does not end."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        starter = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        asked = ["--contestant", name, "--steps", str(steps), "--layers", str(layers)]
        command = [*starter, f"--nproc-per-node={WORKERS}", __file__, *asked]
        alone = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        try:
            subprocess.run(
                [*command, "--results", str(results)], env=alone, check=True, timeout=_LONGEST
            )
        except subprocess.TimeoutExpired:
            return None
        found: dict[str, float] = json.loads(results.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=LAYERS)
    for hidden in ("--contestant", "--results"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contestant:
        measured = perform(asked.contestant, asked.steps, asked.layers)
        if os.environ["RANK"] == "0":
            Path(asked.results).write_text(json.dumps(measured))
        return
    steps, layers = (2, 1) if asked.quick else (asked.steps, asked.layers)
    names = ["plain", "DDP", *METHODS]
    if find_spec("accelerate"):
        names.insert(2, LOCAL_SGD)
    table = Table(
        title=f"A step of {layers * WIDTH**2 / 1e6:.0f} M parameters, {WORKERS} workers, loopback",
        box=SIMPLE_HEAD,
    )
    for column in ("", "CPU per step", "over plain", "resident", "over plain"):
        table.add_column(column, justify="right" if column else "left")
    base = None
    for name in names:
        found = run(name, steps, layers)
        if found is None:
            table.add_row(name, "did not end")
            continue
        base = base or found
        table.add_row(
            name,
            f"{found['cpu']:.1f} ms",
            f"{found['cpu'] - base['cpu']:+.1f} ms",
            f"{found['memory']:.0f} MB",
            f"{found['memory'] - base['memory']:+.0f} MB",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
