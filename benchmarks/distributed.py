"""How fast the engine in real processes is, as ratios of what takes turns in the same processes.

    python benchmarks/distributed.py                    # all tables, about eight minutes
    python benchmarks/distributed.py --only loopback    # one of them
    python benchmarks/distributed.py --quick            # a smoke run

loopback   The server layout against raw gloo: the same messages between the same processes, with
           nothing done to them; and against the same with the arithmetic of the method, written by
           hand without any check. The model is one tensor with a gradient that is always there, so
           nobody computes.
link       The same, where the server's link has a limit; and what the link counted.
fast-link  The same on a link ten times as fast.
training   PRLC and NSGD against DistributedDataParallel: same model, same batches, four workers.

The last three need the testbed: root on Linux with `ip` and `tc`.

On the testbed, the link between the server's node and all others has a limit and no other has.
DistributedDataParallel does without a server. So that it has a limit to meet, one of its four
workers is on the server's node, and so is one of the four in the sharded layout. Both spread their
traffic evenly, so one slow link of four slows them down as four would.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from prlc.engines.processes import Layout, RunSettings
from prlc.engines.processes.connection import Connection, payload_groups
from prlc.engines.processes.peer import Peer
from prlc.engines.processes.wire import Wire
from prlc.engines.roles.local_model import LocalModel
from prlc.methods import NSGD, PRLC, Scheduled, Timetable
from prlc.models import build
from prlc.testbed import Testbed, check_machine, torchrun

METHODS: dict[str, Scheduled] = {"NSGD": NSGD(), "PRLC r=0.1": PRLC(0.1)}
LR, BATCH, INPUTS, CLASSES = 1e-3, 10, 3072, 10
WINDOW, TIMEOUT, LIMIT = RunSettings.window, 300.0, 1800.0
PUSH, PULL = 1, 2  # tags of raw messages
WHAT_WAS_COMPARED = (
    "Only the link of the server's node has a limit. DDP and the sharded layout have one of their "
    "four workers there, so their traffic meets it as it would meet a limit on every link; in the "
    "server layout the server is there, and four workers are elsewhere. 'link' is what it carried "
    "in a step, in models: a ring of four passes on 1.5 each way, a server takes all 4 updates."
)


@dataclass(frozen=True)
class Stage:
    """What one set of processes measures. The number of steps is that of a round."""

    what: str
    workers: int
    num_parameters: int
    rounds: int
    steps: int
    bandwidth: float | None = None
    testbed: str | None = None
    """Its name; None on loopback."""


@dataclass
class Measured:
    """What became of one contestant, a number for each round."""

    steps: int
    seconds: list[float]
    models: list[int]
    """How many updates and models travelled, as far as rank 0 knows."""
    link: list[tuple[int, int]]
    """Bytes that the server's node received and sent, with headers."""

    def rate(self, one: float = 1.0) -> list[float]:
        """How many messages a second, each being worth `one`."""
        return [one * n / t for n, t in zip(self.models, self.seconds, strict=True)]

    def speed(self) -> list[float]:
        """Steps a second."""
        return [self.steps / t for t in self.seconds]


# -- in each of the processes ---------------------------------------------------------------------


class Contestant(Protocol):
    """One process's part of something that is measured."""

    def take(self, steps: int) -> int:
        """So many steps; rank 0 returns how many updates and models travelled."""
        ...


class OneTensor(nn.Module):
    """A model of one tensor with a gradient that is always there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.weight.grad = torch.full((size,), 1e-3)


class Engine:
    """A method in this package's engine."""

    def __init__(
        self,
        method: Scheduled,
        layout: Layout,
        steps: int,
        model: nn.Module,
        compute: Callable[[nn.Module], object],
    ) -> None:
        ranks = list(range(layout.num_ranks))
        rank, (control, sums) = dist.get_rank(), [dist.new_group(ranks) for _ in range(2)]
        payload = payload_groups(layout, lambda: dist.new_group(ranks), in_order=False)
        self.peer: Peer | None = None
        self._model, self._compute, self._step = model, compute, 0
        if rank in ranks:
            wire = Wire(rank, TIMEOUT, layout.names(), payload, control)
            connection = Connection(layout, wire, torch.device("cpu"), leaves=False, shards=sums)
            settings = RunSettings(method, len(layout.workers), steps=steps)
            self.peer = Peer(
                connection,
                settings,
                model,
                lambda packing: LocalModel(model, SGD(model.parameters(), lr=LR), packing),
            )
            self.peer.begin(0)

    def take(self, steps: int) -> int:
        if self.peer is None:
            return 0
        working = threading.Thread(target=self._work, args=(steps,))
        working.start()
        travelled = 0
        if self.peer.server is not None:
            for _ in range(steps):
                report = self.peer.serve(self._step)
                assert report is not None
                travelled += int(report.pushes.sum() + report.pulls.sum())
                self._step += 1
        working.join()
        return travelled

    def _work(self, steps: int) -> None:
        assert self.peer is not None
        if self.peer.worker is not None:
            for _ in range(steps):
                self._compute(self._model)
                self.peer.worker.step()


class RawGloo:
    """The messages of a method in the server layout, with nothing done to them."""

    def __init__(self, method: Scheduled, num_workers: int, steps: int, size: int) -> None:
        self._num_workers, self._steps, self._step = num_workers, steps, 0
        self._timetable = Timetable(method, num_workers, 0, steps)
        self._group, self._rank = dist.new_group(), dist.get_rank()
        self._values = torch.zeros(size)
        self._buffers = [torch.zeros(size) for _ in range(max(WINDOW, num_workers))]
        self._sending: list[dist.Work | None] = []
        self._coming: dict[int, dist.Work | None] = {}
        if self._rank == 0:
            for worker in range(num_workers):
                self._expect(worker)

    def take(self, steps: int) -> int:
        travelled = 0
        for _ in range(steps):
            pulls = self._timetable[self._step].pulls
            travelled += self._num_workers + int(pulls.sum())
            self._step += 1
            if self._rank == 0:
                self._serve(np.flatnonzero(pulls).tolist())
            else:
                self._work(bool(pulls[self._rank - 1]))
        while self._sending:
            _wait(self._sending.pop())
        return travelled

    def _serve(self, pullers: list[int]) -> None:
        for worker in range(self._num_workers):
            _wait(self._coming[worker])
            self._arrived(worker)
            if worker not in pullers:
                self._expect(worker)
        for worker in pullers:
            self._sending.append(dist.isend(self._values, worker + 1, self._group, PULL))
            self._expect(worker)

    def _expect(self, worker: int) -> None:
        if self._step < self._steps:
            buffer = self._buffers[worker]
            self._coming[worker] = dist.irecv(buffer, worker + 1, self._group, PUSH)

    def _work(self, pull: bool) -> None:
        if len(self._sending) == WINDOW:
            _wait(self._sending.pop(0))
        buffer = self._buffers[self._step % WINDOW]
        self._leaves(buffer)
        self._sending.append(dist.isend(buffer, 0, self._group, PUSH))
        if pull:
            _wait(dist.irecv(self._values, 0, self._group, PULL))
        else:
            self._stays(buffer)

    def _leaves(self, update: Tensor) -> None:
        """A worker is about to push from this buffer."""

    def _stays(self, update: Tensor) -> None:
        """A worker does not pull."""

    def _arrived(self, worker: int) -> None:
        """The server has a worker's push."""


class ByHand(RawGloo):
    """The same with the arithmetic of the method, and nothing else: no check, no record."""

    def __init__(self, method: Scheduled, num_workers: int, steps: int, size: int) -> None:
        super().__init__(method, num_workers, steps, size)
        self._gradient, self._total = torch.full((size,), 1e-3), torch.zeros(size)

    def _leaves(self, update: Tensor) -> None:
        torch.mul(self._gradient, -LR, out=update)

    def _stays(self, update: Tensor) -> None:
        self._values.add_(update)

    def _arrived(self, worker: int) -> None:
        if worker == 0:
            self._total.copy_(self._buffers[0])
            return
        self._total.add_(self._buffers[worker])
        if worker == self._num_workers - 1:
            while self._sending:  # nobody is still taking the model that changes now
                _wait(self._sending.pop())
            self._values.add_(self._total, alpha=1 / self._num_workers)


class DataParallel:
    """DistributedDataParallel among the first ranks."""

    def __init__(
        self, num_workers: int, model: nn.Module, compute: Callable[[nn.Module], object]
    ) -> None:
        group = dist.new_group(list(range(num_workers)))
        self._wrapped: nn.Module | None = None
        self._optimizer, self._compute = SGD(model.parameters(), lr=LR), compute
        if dist.get_rank() < num_workers:
            self._wrapped = DistributedDataParallel(
                model, process_group=group, gradient_as_bucket_view=True
            )

    def take(self, steps: int) -> int:
        if self._wrapped is not None:
            for _ in range(steps):
                self._compute(self._wrapped)
                self._optimizer.step()
        return 0


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


def traffic(stage: Stage) -> dict[str, tuple[int, Contestant]]:
    """Each method's messages, raw and by the engine; with the number of steps of a round."""
    size, P = stage.num_parameters, stage.workers
    contestants: dict[str, tuple[int, Contestant]] = {}
    for name, method in METHODS.items():
        steps = stage.steps if isinstance(method, NSGD) else 2 * stage.steps  # about as many bytes
        total = 1 + stage.rounds * steps
        contestants[f"raw gloo, as {name}"] = steps, RawGloo(method, P, total, size)
        contestants[f"by hand, {name}"] = steps, ByHand(method, P, total, size)
        layout = Layout("server", 1 + P)
        contestants[name] = steps, Engine(method, layout, total, OneTensor(size), lambda _: None)
    return contestants


def training(stage: Stage) -> dict[str, tuple[int, Contestant]]:
    """DistributedDataParallel, and each method in each layout."""
    P = stage.workers
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = torch.randn(BATCH, INPUTS, generator=generator)
    targets = torch.randint(0, CLASSES, (BATCH,), generator=generator)

    def compute(model: nn.Module) -> None:
        model.zero_grad()
        loss: Tensor = F.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]

    def model() -> nn.Module:
        return build("mlp", (INPUTS,), CLASSES, 0)

    contestants: dict[str, tuple[int, Contestant]] = {}
    contestants["DDP"] = 6 * stage.steps, DataParallel(P, model(), compute)
    for layout in (Layout("sharded", P), Layout("server", 1 + P)):
        steps = stage.steps if layout.name == "server" else 6 * stage.steps
        total = 1 + stage.rounds * steps
        for name, method in METHODS.items():
            contestant = Engine(method, layout, total, model(), compute)
            contestants[f"{name}, {layout.name}"] = steps, contestant
    return contestants


def perform(stage: Stage, results: Path) -> None:
    """Let all take turns; rank 0 writes what it measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    contestants = {"traffic": traffic, "training": training}[stage.what](stage)
    measured = {name: Measured(steps, [], [], []) for name, (steps, _) in contestants.items()}
    for _, contestant in contestants.values():
        contestant.take(1)  # is full of firsts
    for _ in range(stage.rounds):
        for name, (steps, contestant) in contestants.items():
            received, sent = link_bytes(stage)
            dist.barrier()
            start = time.perf_counter()
            models = contestant.take(steps)
            dist.barrier()
            measured[name].seconds.append(time.perf_counter() - start)
            received_then, sent_then = link_bytes(stage)
            measured[name].models.append(models)
            measured[name].link.append((received_then - received, sent_then - sent))
    if dist.get_rank() == 0:
        found = {name: asdict(each) for name, each in measured.items()}
        results.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def link_bytes(stage: Stage) -> tuple[int, int]:
    """What the server's node has received and sent so far, where rank 0 can see it."""
    if stage.testbed is None or stage.bandwidth is None or dist.get_rank() != 0:
        return 0, 0
    bed = Testbed(stage.workers, stage.bandwidth, name=stage.testbed)
    return bed.interface_bytes(bed.server)


# -- in the process that shows them ---------------------------------------------------------------


def run(stage: Stage, folder: Path) -> dict[str, Measured]:
    """Start the processes of a stage, and read what they measured."""
    results = folder / "results.json"
    command = [sys.executable, __file__, "--results", str(results), "--stage"]
    command.append(json.dumps(asdict(stage)))
    if stage.bandwidth is None:
        starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        starter.append(f"--nproc-per-node={1 + stage.workers}")
        settings = {**torchrun.environment(), "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(
            [*starter, *command], env={**os.environ, **settings}, check=True, timeout=LIMIT
        )
    else:
        with Testbed(stage.workers, stage.bandwidth, name=stage.testbed) as bed:
            torchrun.start(bed, command, logs=folder / "logs").wait(LIMIT)
    return {name: Measured(**each) for name, each in json.loads(results.read_text()).items()}


def show_traffic(stage: Stage, measured: dict[str, Measured]) -> Table:
    size = 4 * stage.num_parameters
    table = _table(f"Model of {size / 1e6:.0f} MB, {_described(stage)}")
    for name in METHODS:
        ours, raw = measured[name], measured[f"raw gloo, as {name}"]
        by_hand = measured[f"by hand, {name}"]
        table.add_row(f"raw gloo, as {name}", _megabytes(raw.rate(size)))
        ratio = _ratio(by_hand.rate(), raw.rate(), "of raw")
        table.add_row("  with its arithmetic", _megabytes(by_hand.rate(size)), *ratio)
        ratio = _ratio(ours.rate(), raw.rate(), "of raw")
        goal = "≥ 0.8" if stage.testbed is not None else ""  # loopback is as fast as memory
        table.add_row(f"{name}, server", _megabytes(ours.rate(size)), *ratio, goal)
        table.add_row("", "", *_ratio(ours.rate(), by_hand.rate(), "of by hand"))
        if stage.testbed is not None:
            counted = [received + sent for received, sent in ours.link]
            ratio = _ratio(counted, [n * size for n in ours.models], "of payload")
            rate = [n / t for n, t in zip(counted, ours.seconds, strict=True)]
            table.add_row("  counted by its link", _megabytes(rate), *ratio, "≤ 1.05")
    return table


def show_training(stage: Stage, measured: dict[str, Measured]) -> Table:
    size, ddp = 4 * stage.num_parameters, measured["DDP"].speed()
    table = _table(f"MLP of {size / 1e6:.1f} MB, batch {BATCH}, {_described(stage)}")
    for name, each in measured.items():
        received, sent = np.array(each.link).mean(0) / each.steps / size
        ratio = _ratio(each.speed(), ddp, "of DDP") if name != "DDP" else ("", "")
        goal = "≥ 1.5" if name == "PRLC r=0.1, sharded" else ""
        table.add_row(name, f"{statistics.median(each.speed()):.2f} steps/s", *ratio, goal)
        against_nsgd = ("", "")
        if name.startswith("PRLC"):
            nsgd = measured[name.replace("PRLC r=0.1", "NSGD")]
            against_nsgd = _ratio(each.speed(), nsgd.speed(), "of NSGD")
        table.add_row(f"  link: {received:.2f} in, {sent:.2f} out", "", *against_nsgd)
    return table


def _ratio(ours: Sequence[float], theirs: Sequence[float], whose: str) -> tuple[str, str]:
    """How many times theirs ours is: the median over the rounds, and from where to where."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} {whose}", f"{min(ratios):.2f}–{max(ratios):.2f}"


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("", no_wrap=True)
    for column in ("figure", "ratio", "rounds", "goal"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _described(stage: Stage) -> str:
    link = "loopback" if stage.bandwidth is None else f"{stage.bandwidth / 1e6:.0f} MB/s each way"
    return f"{stage.workers} workers, {link}"


def _megabytes(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates) / 1e6:,.0f} MB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument(
        "--only", choices=["loopback", "link", "fast-link", "training"], help="one table"
    )
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        perform(Stage(**json.loads(arguments.stage)), arguments.results)
        return
    console = Console()
    missing = [need for need, met in check_machine() if need.always and not met]
    for name, stage in stages(arguments.quick).items():
        if arguments.only not in (None, name):
            continue
        if stage.bandwidth is not None and missing:
            console.print(f"Left out: {name} needs {missing[0].name} ({missing[0].remedy}).")
            continue
        with tempfile.TemporaryDirectory() as folder:
            measured = run(stage, Path(folder))
        show = show_training if stage.what == "training" else show_traffic
        console.print(show(stage, measured))
        if stage.what == "training":
            console.print(WHAT_WAS_COMPARED)


def stages(quick: bool) -> dict[str, Stage]:
    size = 250_000 if quick else 11_000_000
    mlp = sum(p.numel() for p in build("mlp", (INPUTS,), CLASSES, 0).parameters())
    rounds, few, many = (1, 1, 2) if quick else (3, 4, 10)
    name = secrets.token_hex(4)
    return {
        "loopback": Stage("traffic", 2, size, 2 * rounds, many),
        "link": Stage("traffic", 2, size, rounds, few, 100e6, name),
        "fast-link": Stage("traffic", 2, size, rounds, many, 1e9, name),
        "training": Stage("training", 4, mlp, rounds, many, 10e6, name),
    }


if __name__ == "__main__":
    main()
