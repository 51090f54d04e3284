"""Runs to report, without training: in memory and on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from prlc.methods import parse_method
from prlc.report import Run, Series


def make_run(
    method: str = "prlc:0.1",
    *,
    seed: int = 0,
    lr: float = 0.1,
    rows: int = 6,
    loss: float = 1.0,
    finished: bool = True,
    accuracy: bool = True,
    clock: bool = True,
    label: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Run:
    """Rows at every tenth step; the loss halves each time, beginning with `loss`."""
    made = parse_method(method)
    ratio = made.options().get("pull_ratio", 1.0)
    metrics = pd.DataFrame(
        [
            {
                "step": 10 * i,
                "epoch": 0.5 * i,
                "lr": lr,
                "train_loss": loss * 0.5**i,
                "test_loss": 1.1 * loss * 0.5**i,
                "test_accuracy": 1 - 0.5 ** (i + 1) if accuracy else float("nan"),
                "pulls_per_worker": 10.0 * i * ratio + seed,
                "pushes_per_worker": 10.0 * i,
                "bytes_up": 4_000_000 * i,
                "bytes_down": int(4_000_000 * i * ratio),
                "simulated_seconds": 60.0 * i if clock else float("nan"),
            }
            for i in range(rows)
        ]
    )
    last = metrics.iloc[-1]
    summary = {
        "method": label or made.label,
        **{name: float(last[name]) for name in ("train_loss", "test_loss", "pulls_per_worker")},
        "test_accuracy": float(last["test_accuracy"]) if accuracy else None,
        "pull_fraction": float(last["pulls_per_worker"]) / max(1, int(last["step"])),
        "pushes_per_worker": float(last["pushes_per_worker"]),
        "bytes_up": int(last["bytes_up"]),
        "bytes_down": int(last["bytes_down"]),
        "simulated_seconds": float(last["simulated_seconds"]) if clock else None,
        "steps": int(last["step"]),
        "seed": seed,
        "torch": "2.0",
        "python": "3.11",
    }
    settings = {
        "method": str(made),
        "workers": 4,
        "schedule": {"name": "constant", "lr": lr},
        "network": {"latency": 0.035, "worker_up": "inf"},
        "seed": seed,
        "model": {"class": "Sequential", "parameters": 650},
        "loss": "cross_entropy",
        "data": {"name": "digits", "samples": 1500},
        **(config or {}),
    }
    return Run(label or made.label, settings, metrics, summary if finished else None)


def make_series(*runs: Run, label: str | None = None) -> Series:
    return Series(label or runs[0].label, runs)


def write_run(folder: Path, run: Run) -> Path:
    """The run as `prlc train` leaves it, but for checkpoints and model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(run.config))
    run.metrics.to_csv(folder / "metrics.csv", index=False)
    if run.summary is not None:
        (folder / "summary.json").write_text(json.dumps(run.summary))
    return folder
