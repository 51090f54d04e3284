"""How the simulator computes: all workers at once or one by one, and on how many threads.

Stacking speeds up small models and slows down wide convolutions on a CPU. Which applies depends on
model and machine, so it is measured once and remembered: in the run, so that a resumed run repeats
it bit for bit, and in the cache folder, so that the next run on this machine does too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from prlc.data import cache_dir
from prlc.engines.job import Job, all_tensors, fixed_seed, travelling
from prlc.engines.simulator.gradients import Gradients
from prlc.errors import ConfigError
from prlc.network.traffic import payload_bytes

_CHUNK_BYTES = 16 * 2**20  # of gradients and inputs at once: more no longer fits a CPU's cache
_MOST_THREADS = 64  # more only where there are cores for them
_CLEARLY = 0.9  # an execution must save a tenth to be preferred to a simpler one,
_WORTH_THREADS = 0.75  # and a quarter if it takes more threads: they wait by spinning


@dataclass(frozen=True)
class Execution:
    """`chunk` workers at a time (1: one by one) on `threads` threads."""

    chunk: int
    threads: int

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 1 for n in (self.chunk, self.threads)):
            raise ConfigError(
                "An execution needs at least one worker at a time and one thread, but has "
                f"{self.chunk!r} and {self.threads!r}."
            )

        most = max(_MOST_THREADS, 4 * (os.cpu_count() or 1))
        if self.threads > most:
            raise ConfigError(
                f"An execution has {most} threads at most here, but {self.threads:,} were asked "
                "for: take about as many as there are cores."
            )

    @property
    def vectorise(self) -> bool:
        return self.chunk > 1


def largest_chunk(num_workers: int, bytes_per_worker: int, room: int = _CHUNK_BYTES) -> int:
    """As many workers as fit into `room` bytes, in chunks of nearly equal size."""
    fit = max(1, min(num_workers, room // max(1, bytes_per_worker)))
    chunks = -(-num_workers // fit)
    return -(-num_workers // chunks)


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Make torch compute on `count` threads inside the block."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_execution(job: Job, *, remember: bool = True) -> Execution:
    """The fastest execution for this model, batch size and machine: remembered, or measured."""
    key = _signature(job)
    known = _read_known() if remember else {}
    with contextlib.suppress(KeyError, TypeError, ConfigError):  # not there, or damaged
        return Execution(**known[key])
    with fixed_seed(job, 0):  # dropout draws; the caller's numbers stay as they were
        found = _measure(job)
    if remember:
        _write_known({**_read_known(), key: asdict(found)})
    return found


def _measure(job: Job) -> Execution:
    """Time the sensible executions; prefer the simpler of near equals."""
    P, b = job.num_workers, job.batch_size
    shape = job.data.sample_shape
    sample = b * math.prod(shape) * job.data.train_inputs.element_size()
    room = _CHUNK_BYTES
    if job.device.type == "cuda":  # activations take several times as much as gradients
        room = torch.cuda.mem_get_info(job.device)[0] // 8
    chunk = largest_chunk(P, payload_bytes(travelling(job.model)) + sample, room)
    cores = _cores()
    counts = [1] if cores == 1 or job.device.type != "cpu" else [1, min(cores, 8)]
    best, best_seconds = Execution(1, 1), math.inf
    for rows in dict.fromkeys((chunk, 1)):
        gradients = Gradients(job, vectorise=rows > 1)
        tensors = [t.detach().expand(rows, *t.shape).clone() for t in all_tensors(job.model)]
        inputs = job.data.train_inputs[: rows * b].to(job.device)
        targets = job.data.train_targets[: rows * b].to(job.device)
        repeats = -(-rows * b // len(inputs))
        inputs = torch.cat([inputs] * repeats)[: rows * b].reshape(rows, b, *inputs.shape[1:])
        targets = torch.cat([targets] * repeats)[: rows * b].reshape(rows, b, *targets.shape[1:])
        for count in counts:
            with use_threads(count):
                seconds = _seconds_per_call(gradients, tensors, inputs, targets) / rows
            worth = _CLEARLY if count <= best.threads else _WORTH_THREADS
            if seconds < best_seconds * worth or best_seconds == math.inf:
                best, best_seconds = Execution(rows, count), seconds
    return best


def _cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _seconds_per_call(
    gradients: Gradients, tensors: list[Tensor], inputs: Tensor, targets: Tensor
) -> float:
    gradients(tensors, inputs, targets)  # traces, and warms up
    best, spent, calls = math.inf, 0.0, 0
    while calls < 2 or (spent < 0.1 and calls < 50):
        start = time.perf_counter()
        losses, _ = gradients(tensors, inputs, targets)
        float(losses.sum())  # waits for a GPU
        taken = time.perf_counter() - start
        best, spent, calls = min(best, taken), spent + taken, calls + 1
    return best


# -- what is remembered -------------------------------------------------------------------------


def _signature(job: Job) -> str:
    """What the choice depends on: the machine, torch, the computation and its sizes."""
    tensors = [(tuple(t.shape), str(t.dtype)) for t in all_tensors(job.model)]
    parts = [
        platform.machine(),
        platform.processor(),
        _cores(),
        torch.__version__,
        str(job.device),
        str(job.model),
        str(job.loss).split(" at ")[0],
        tensors,
        job.data.sample_shape,
        job.batch_size,
        job.num_workers,
    ]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:32]


def _known_file() -> Path:
    return cache_dir() / "executions.json"


def _read_known() -> dict[str, dict[str, int]]:
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(_known_file().read_text())
        if isinstance(known, dict):
            return known
    return {}


def _write_known(known: dict[str, dict[str, int]]) -> None:
    # A cache that cannot be written costs a measurement next time, nothing else.
    with contextlib.suppress(OSError):
        file = _known_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(known, indent=1))
        fresh.replace(file)
