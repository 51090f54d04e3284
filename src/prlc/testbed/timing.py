"""How long methods take on a testbed, beside what the network clock predicts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from prlc.api import slug
from prlc.data import load
from prlc.engines.processes import Cluster
from prlc.engines.processes.scheduled import ScheduledServer
from prlc.errors import RunError
from prlc.methods import Lazy, Method, Scheduled, parse_method
from prlc.models import build, cross_entropy
from prlc.network import Network
from prlc.runs.config import Config
from prlc.runs.folder import RunFolder
from prlc.runs.jobs import make_job
from prlc.testbed import torchrun
from prlc.testbed.testbed import Testbed

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class TimingSettings:
    """What every method trains on the testbed, and for how many steps."""

    model: str = "mlp"
    data: str = "digits"
    data_dir: Path | None = None
    batch_size: int = 10
    lr: float = 0.05
    steps: int = 20
    seed: int = 0
    window: int = Cluster.window

    def options(self) -> list[str]:
        """The settings as options of `prlc train`."""
        given = {f"--{k.replace('_', '-')}": v for k, v in asdict(self).items() if v is not None}
        return [word for option, value in given.items() for word in (option, str(value))]


@dataclass(frozen=True)
class Timing:
    """How long a method took, and how long the clock says it takes."""

    method: str
    steps: int
    measured_seconds: float
    predicted_seconds: float | None
    """None for a lazy method: who pushes depends on the gradients."""
    compute_seconds: float
    """Mean compute time of a worker's step; the prediction takes it as given."""
    waiting: float
    """The share of their time that workers waited: for a model, for room to push, for a turn."""
    bytes_up: int
    bytes_down: int


def time_method(
    bed: Testbed, method: str, settings: TimingSettings, folder: Path, max_restarts: int = 0
) -> Timing:
    """Train by one method on the testbed; the run goes to a subfolder of `folder`."""
    own = (folder / slug(method)).absolute()
    if (own / "config.json").exists():
        raise RunError(f"{own} already holds a run. Choose another folder.")
    command = [
        *(sys.executable, "-m", "prlc", "train", "--engine", "distributed", "--method", method),
        *("--workers", str(len(bed.workers)), *settings.options(), "--record-timeline"),
        *("--eval-every", str(settings.steps), "--eval-samples", "200", "--out", str(own)),
        *("--checkpoint-every", str(settings.steps)),  # none: it would use the same links
    ]
    torchrun.start(bed, command, logs=own / "logs", max_restarts=max_restarts).wait()
    run = RunFolder.open(own)
    last, summary = run.metrics().iloc[-1], run.summary()
    recorded = pd.read_csv(own / "timeline.csv")
    times = _compute_times(recorded)
    return Timing(
        method=parse_method(method).label,
        steps=settings.steps,
        measured_seconds=float(last["wall_seconds"]),
        predicted_seconds=predict_seconds(bed, method, settings, times),
        compute_seconds=float(times.mean()),
        waiting=_waiting(recorded),
        bytes_up=int(summary["bytes_up"]),
        bytes_down=int(summary["bytes_down"]),
    )


def predict_seconds(
    bed: Testbed, method: str, settings: TimingSettings, compute: Sequence[float] | Seconds
) -> float | None:
    """What the network clock says, given the measured seconds of each step's `compute`."""
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
        window=_window(chosen, settings.window),
    )
    data = load(settings.data, settings.data_dir)
    config = Config(
        method=chosen,
        workers=len(bed.workers),
        batch_size=settings.batch_size,
        steps=settings.steps,
        seed=settings.seed,
        network=network,
    )
    model = build(settings.model, data.sample_shape, data.num_classes, settings.seed)
    job = make_job(model, cross_entropy, data, config)
    return job.timeline(network).replay([settings.steps])[0]


def _window(method: Method, pushes: int) -> int:
    """How many steps a worker may be ahead, from how many pushes may be in flight."""
    every, delay = (method.every, method.delay) if isinstance(method, Scheduled) else (1, 0)
    return (
        max(pushes, -(-delay // every)) + ScheduledServer.depth
    ) * every  # `depth` at the server


def _compute_times(recorded: pd.DataFrame) -> Seconds:
    """Seconds of each worker's steps, without the first, which includes warming up."""
    steps = recorded[(recorded["what"] == "compute") & (recorded["step"] > 0)]
    return (steps["end"] - steps["start"]).to_numpy(np.float64)


def _waiting(recorded: pd.DataFrame) -> float:
    """The share of all workers' time in which they did not compute, after the first step."""
    later = recorded[recorded["step"] > 0]
    whole = later.groupby("rank").agg(start=("start", "min"), end=("end", "max"))
    waits = later[later["what"] != "compute"]
    waited = float((waits["end"] - waits["start"]).sum())
    return waited / float((whole["end"] - whole["start"]).sum())
