"""Methods run on a testbed, their times set beside what the network clock says of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch.nn import functional as F

from prlc.api import slug
from prlc.config import Config
from prlc.data import load
from prlc.engines.distributed import Cluster
from prlc.engines.distributed.scheduled import ScheduledKeeper
from prlc.errors import RunError
from prlc.jobs import make_job
from prlc.methods import Lazy, parse_method
from prlc.models import build
from prlc.network import Network
from prlc.runs import RunFolder
from prlc.testbed import torchrun
from prlc.testbed.network import Testbed
from prlc.timeline import replay


@dataclass(frozen=True)
class Task:
    """What every method trains on the testbed."""

    model: str = "mlp"
    data: str = "digits"
    data_dir: Path | None = None
    batch_size: int = 10
    lr: float = 0.05
    steps: int = 20
    seed: int = 0
    window: int = Cluster.window

    def options(self) -> list[str]:
        """As `prlc train` takes them."""
        given = {f"--{k.replace('_', '-')}": v for k, v in asdict(self).items() if v is not None}
        return [word for option, value in given.items() for word in (option, str(value))]


@dataclass(frozen=True)
class Trial:
    """How long a method took, and how long the clock says it takes."""

    method: str
    steps: int
    measured_seconds: float
    predicted_seconds: float | None
    """None for LAG: whom it asks depends on what is learnt."""
    compute_seconds: float
    """What a worker computed in a step, on average; the prediction takes it as given."""
    bytes_up: int
    bytes_down: int


def run_trial(bed: Testbed, method: str, task: Task, folder: Path, max_restarts: int = 0) -> Trial:
    """Train by one method on the testbed, to the end."""
    own = (folder / slug(method)).absolute()
    if (own / "config.json").exists():
        raise RunError(f"{own} already holds a run. Choose another folder.")
    command = [
        *(sys.executable, "-m", "prlc", "train", "--engine", "distributed", "--method", method),
        *("--workers", str(len(bed.workers)), *task.options(), "--record-timeline"),
        *("--eval-every", str(task.steps), "--eval-samples", "200", "--out", str(own)),
        *("--checkpoint-every", str(task.steps)),  # none: it would travel over the same links
    ]
    torchrun.start(bed, command, logs=own / "logs", max_restarts=max_restarts).wait()
    run = RunFolder.open(own)
    last, summary = run.metrics().iloc[-1], run.summary()
    times = _compute_times(own / "timeline.csv")
    return Trial(
        method=parse_method(method).label,
        steps=task.steps,
        measured_seconds=float(last["wall_seconds"]),
        predicted_seconds=predict(bed, method, task, times),
        compute_seconds=float(times.mean()),
        bytes_up=int(summary["bytes_up"]),
        bytes_down=int(summary["bytes_down"]),
    )


def predict(bed: Testbed, method: str, task: Task, compute: Sequence[float] | Any) -> float | None:
    """What the network clock says, for steps that take as long to compute as they did."""
    chosen = parse_method(method)
    if isinstance(chosen, Lazy):
        return None
    limits = bed.topology
    network = Network(
        server_up=limits.bandwidth,
        server_down=limits.bandwidth,
        half_duplex=limits.half_duplex,
        latency=limits.latency,
        step_seconds=float(np.mean(compute)),
        spread=float(np.std(compute) / np.mean(compute)),
        window=task.window + ScheduledKeeper.depth,  # so many more arrive in the server's buffers
    )
    data = load(task.data, task.data_dir)
    config = Config(
        method=chosen,
        workers=len(bed.workers),
        batch_size=task.batch_size,
        steps=task.steps,
        seed=task.seed,
        network=network,
    )
    model = build(task.model, data.sample_shape, data.num_classes, task.seed)
    job = make_job(model, F.cross_entropy, data, config)
    return replay(job, network, [task.steps])[0]


def _compute_times(file: Path) -> Any:
    """The seconds of every worker's every step but the first, which is full of firsts."""
    recorded = pd.read_csv(file)
    steps = recorded[(recorded["what"] == "compute") & (recorded["step"] > 0)]
    return (steps["end"] - steps["start"]).to_numpy()
