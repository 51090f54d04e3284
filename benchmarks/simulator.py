"""How fast the simulator is, on the paper's logistic regression: 20 workers, batch 10.

    python benchmarks/simulator.py            # all tables, about two minutes
    python benchmarks/simulator.py --quick    # a smoke run

All contestants take turns in one process on one thread, and the best round of each counts, so the
ratios mean something on a noisy machine where the times do not. The hand-written loop is what an
expert would write for this one model: gradients by formula, products into buffers made once.
`prlc.train` is the same simulator with all that a user sees: the simulated clock, traffic, and
progress drawn on a terminal; it should cost at most 5% more.

Encoded messages are measured against what they cannot do without: the step itself, and torch.topk.
The large update is encoded as a worker in a real process does it: what was left over is added, the
largest are found and packed into bytes, and what they do not say is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import prlc
from prlc.cli.progress import LiveProgress
from prlc.data import IID, Dataset
from prlc.encodings import TopK
from prlc.engines import Execution, Job, Simulator
from prlc.engines.roles.local_model import LocalModel
from prlc.engines.roles.packing import Packing
from prlc.engines.roles.scheduled import RoleSettings
from prlc.engines.roles.scheduled_worker import ScheduledWorkerRole
from prlc.engines.simulator.execution import largest_chunk
from prlc.methods import PRLC, Scheduled, Timetable, parse_method
from prlc.models import logistic_regression

INPUTS, CLASSES, BATCH, LR, RATIO = 3072, 10, 10, 0.01, 0.1
UPS = ("topk", "int8")
Step = Callable[[int], None]


def make_data(num_samples: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num_samples, INPUTS, generator=generator)
    return Dataset.from_tensors(inputs, torch.randint(0, CLASSES, (num_samples,)))


def make_job(data: Dataset, num_workers: int, method: str = f"prlc:{RATIO}") -> Job:
    return Job(
        model=logistic_regression((INPUTS,), CLASSES),
        loss=F.cross_entropy,
        data=data,
        method=parse_method(method),
        shards=IID().split(None, data.num_train, num_workers, 0),
        batch_size=BATCH,
        lr=lambda _: LR,
    )


def general(job: Job) -> Step:
    simulator = Simulator(job, execution=Execution(chunk=job.num_workers, threads=1))

    def step(_: int) -> None:
        simulator.step()

    return step


def hand_written(job: Job, batches: Tensor, pulls: list[list[int]]) -> Step:
    """PRLC for this one model, with nothing left to save."""
    P, data = job.num_workers, job.data
    W, bias = torch.zeros(P, CLASSES, INPUTS), torch.zeros(P, 1, CLASSES)
    w, server_bias = torch.zeros(CLASSES, INPUTS), torch.zeros(1, CLASSES)
    x, g = torch.empty(P * BATCH, INPUTS), torch.empty(P, CLASSES, INPUTS)
    minus_one = torch.full((P, BATCH, 1), -1.0)

    @torch.inference_mode()
    def step(t: int) -> None:
        chosen = batches[t % len(batches)]
        torch.index_select(data.train_inputs, 0, chosen, out=x)
        stacked = x.view(P, BATCH, INPUTS)
        p = torch.baddbmm(bias, stacked, W.transpose(1, 2)).softmax(-1)
        p.scatter_add_(2, data.train_targets[chosen].view(P, BATCH, 1), minus_one).div_(BATCH)
        torch.bmm(p.transpose(1, 2), stacked, out=g)
        g_bias = p.sum(1, keepdim=True)
        w.add_(g.sum(0), alpha=-LR / P)
        server_bias.add_(g_bias.sum(0), alpha=-LR / P)
        W.add_(g, alpha=-LR)
        bias.add_(g_bias, alpha=-LR)
        for i in pulls[t % len(pulls)]:
            W[i].copy_(w)
            bias[i].copy_(server_bias)

    return step


def plain_loop(job: Job, batches: Tensor, pulls: list[list[int]]) -> Step:
    """What one writes first: a module and an optimizer per worker."""
    P, data = job.num_workers, job.data
    server = logistic_regression((INPUTS,), CLASSES)
    workers = [logistic_regression((INPUTS,), CLASSES) for _ in range(P)]
    optimizers = [torch.optim.SGD(worker.parameters(), lr=LR) for worker in workers]

    def step(t: int) -> None:
        chosen = batches[t % len(batches)].view(P, BATCH)
        for i, (worker, optimizer) in enumerate(zip(workers, optimizers, strict=True)):
            optimizer.zero_grad()
            output = worker(data.train_inputs[chosen[i]])
            F.cross_entropy(output, data.train_targets[chosen[i]]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                for own, other in zip(server.parameters(), worker.parameters(), strict=True):
                    assert other.grad is not None
                    own.add_(other.grad, alpha=-LR / P)
        with torch.no_grad():
            for i in pulls[t % len(pulls)]:
                for own, other in zip(workers[i].parameters(), server.parameters(), strict=True):
                    own.copy_(other)

    return step


def big_batch(job: Job, batches: Tensor) -> Step:
    """The floor: the same samples as one batch of one model, as if nobody ever differed."""
    data = job.data
    model: nn.Module = logistic_regression((INPUTS,), CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step(t: int) -> None:
        chosen = batches[t % len(batches)]
        optimizer.zero_grad()
        output = model(data.train_inputs[chosen])
        F.cross_entropy(output, data.train_targets[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def best_seconds(contestants: dict[str, Step], rounds: int, steps: int) -> dict[str, float]:
    """Seconds per step of each, taking turns; the best round counts."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, step in contestants.items():
            start = time.perf_counter()
            for t in range(steps):
                step(t)
            best[name] = min(best[name], (time.perf_counter() - start) / steps)
    return best


def price_of_training(job: Job, rounds: int, steps: int) -> tuple[float, float]:
    """Seconds per step of the engine alone, and of `prlc.train`, which draws on a terminal.

    They take turns, and the best round of each counts. The start of a run and its final evaluation
    are left out; the clock of all steps, one small evaluation and the display are not.
    """
    execution = Execution(chunk=job.num_workers, threads=1)
    simulator = Simulator(job, execution=execution)

    def alone() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            simulator.step()
        return time.perf_counter() - start

    def trained() -> float:
        times = []
        with LiveProgress(console=Console(file=io.StringIO(), force_terminal=True)) as live:

            def show(progress: prlc.Progress) -> None:
                live.update("PRLC", progress)
                times.append(time.perf_counter())

            prlc.train(
                logistic_regression((INPUTS,), CLASSES),
                F.cross_entropy,
                job.data,
                method=job.method,
                workers=job.num_workers,
                batch_size=BATCH,
                steps=steps + 1,
                lr=LR,
                execution=execution,
                eval_every=steps + 1,
                eval_samples=BATCH,
                on_progress=show,
            )
        return times[-1] - times[0]

    turns = [(alone(), trained()) for _ in range(rounds)]
    return min(a for a, _ in turns) / steps, min(b for _, b in turns) / steps


def compare_speed(console: Console, samples: int, rounds: int, steps: int) -> None:
    torch.set_num_threads(1)
    P = 20
    job = make_job(make_data(samples), P)
    count = 100
    taken = job.batches().take(np.arange(P), np.zeros(P, np.int64), count)
    batches = torch.from_numpy(taken.reshape(P, count, BATCH).swapaxes(0, 1).reshape(count, -1))
    timetable = Timetable(PRLC(RATIO), P, 0)
    pulls = [timetable[step].pulling for step in range(count)]
    contestants = {
        "general simulator": general(job),
        "hand-written bmm loop": hand_written(job, batches, pulls),
        "plain loop over 20 modules": plain_loop(job, batches, pulls),
        "one big-batch step (floor)": big_batch(job, batches),
    }
    seconds = best_seconds(contestants, rounds, steps)
    ours = seconds["general simulator"]
    table = Table(title=f"PRLC, logistic regression, {P} workers, batch {BATCH}, one thread")
    for column in ("", "steps/s", "general simulator is", "limit"):
        table.add_column(column, justify="left" if not column else "right")
    for name, each in seconds.items():
        limit = "≥ 0.8" if name.startswith("hand-written") else ""
        table.add_row(name, f"{1 / each:,.0f}", f"{each / ours:.2f} times as fast", limit)
    alone, trained = price_of_training(job, rounds, 4 * steps)
    name = "prlc.train: clock, traffic, live progress"
    table.add_row(name, f"{1 / trained:,.0f}", f"{trained / alone:.2f} times as fast", "≤ 1.05")
    console.print(table)


def top_k(rows: Tensor) -> Step:
    """torch.topk over the chunks of rows (workers, numel), and nothing else."""
    encoding, sizes = TopK(), rows.abs()
    full = rows.shape[1] // encoding.chunk * encoding.chunk
    chunks = [sizes[:, :full].view(len(rows), -1, encoding.chunk), sizes[:, full:]]

    def step(_: int) -> None:
        for each in chunks:
            torch.topk(each, encoding.count(each.shape[-1]), dim=-1)

    return step


def large_push(update: Tensor) -> Step:
    """What a worker does to push an update (numel,)."""
    method = parse_method("nsgd:up=topk,0.01,bits=4")
    assert isinstance(method, Scheduled)
    model = nn.ParameterList([torch.zeros_like(update)])
    packing = Packing(model, 1, torch.device("cpu"), method)
    local = LocalModel(model, torch.optim.SGD(model.parameters(), lr=LR), packing)
    role = ScheduledWorkerRole(local, packing, 0, RoleSettings(method, 1))
    buffer = role.new_buffer()
    role.target(buffer)[0].copy_(update)

    def step(t: int) -> None:
        role.write_push(t, buffer)

    return step


def compare_encodings(console: Console, samples: int, rounds: int, steps: int, large: int) -> None:
    torch.set_num_threads(1)
    P, data = 20, make_data(samples)
    encoded = {f"nsgd:up={up}": general(make_job(data, P, f"nsgd:up={up}")) for up in UPS}
    numel = (INPUTS + 1) * CLASSES
    seconds = best_seconds(
        {
            "plain step": general(make_job(data, P, "nsgd")),
            "topk": top_k(torch.randn(P, numel)),
            **encoded,
        },
        rounds,
        steps,
    )
    update = torch.randn(large)
    seconds |= best_seconds(
        {"large topk": top_k(update[None]), "large push": large_push(update)}, rounds, 1
    )
    plain, topk = seconds["plain step"], seconds["topk"]
    table = Table(title="Encoded messages (one thread)")
    for column in ("", "ms", "times", "what", "limit"):
        table.add_column(column, justify="right" if column in ("ms", "times") else "left")
    rows = [
        ("nsgd:up=topk", plain + topk, "plain step + torch.topk", 1.5),
        ("nsgd:up=int8", plain, "plain step", 4.0),
        ("large push", seconds["large topk"], "torch.topk", 3.0),
    ]
    for name, against, what, limit in rows:
        shown = name if name != "large push" else f"pushing {large:,} numbers: topk,0.01,bits=4"
        times = f"{seconds[name] / against:.2f}"
        table.add_row(shown, f"{1000 * seconds[name]:.1f}", times, what, f"≤ {limit}")
    console.print(table)


def measure_growth(num_workers: int, steps: int) -> None:
    """One size, in a process of its own so that its peak memory is its own. Prints numbers."""
    torch.set_num_threads(1)
    data = make_data(max(10_000, BATCH * num_workers))
    job = make_job(data, num_workers)
    stack = sum(p.numel() * p.element_size() for p in job.model.parameters()) * num_workers
    Simulator(
        make_job(make_data(100), 2), execution=Execution(2, 1)
    ).step()  # loads what torch loads once
    forget_peak()
    before = peak_memory()
    chunk = largest_chunk(num_workers, stack // num_workers + BATCH * INPUTS * 4)
    simulator = Simulator(job, execution=Execution(chunk, 1))
    simulator.step()
    forget_peak()
    start = time.perf_counter()
    for _ in range(steps):
        simulator.step()
    seconds = (time.perf_counter() - start) / steps
    print(seconds, stack, peak_memory() - before, chunk)


def forget_peak() -> None:
    """Let the peak of memory count from here on, where Linux allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def compare_growth(console: Console, sizes: list[int]) -> None:
    table = Table(title="As the number of workers grows (one thread)")
    for column in ("workers", "at a time", "per worker-step", "one stack", "memory", "in stacks"):
        table.add_column(column, justify="right")
    for size in sizes:
        command = [sys.executable, __file__, "--grow", str(size), str(max(3, 2000 // size))]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        seconds, stack, peak, chunk = (float(number) for number in answer)
        peak -= chunk * BATCH * INPUTS * 4  # the samples gathered for a chunk are data
        table.add_row(
            f"{size:,}",
            f"{chunk:.0f}",
            f"{seconds / size * 1e6:.0f} µs",
            f"{stack / 1e6:,.0f} MB",
            f"{peak / 1e6:,.0f} MB",
            f"{peak / stack:.2f}",
        )
    console.print(table)
    console.print(
        "Memory is the peak while stepping, on top of torch, the data set and the batches."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run in seconds")
    parser.add_argument("--grow", nargs=2, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grow:
        measure_growth(*arguments.grow)
        return
    console = Console()
    samples, rounds, steps = (1_000, 1, 5) if arguments.quick else (10_000, 15, 60)
    compare_speed(console, samples, rounds, steps)
    large = 100_000 if arguments.quick else 10_000_000
    compare_encodings(console, samples, 2 * rounds, steps // 3, large)
    compare_growth(console, [100] if arguments.quick else [10, 100, 1_000, 10_000])


if __name__ == "__main__":
    main()
