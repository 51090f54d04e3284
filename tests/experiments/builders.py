"""Made-up curves to judge claims on."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from prlc.report import Run, Series


def run(
    losses: Sequence[float],
    *,
    pulls: float = 1.0,
    seconds: float = 1.0,
    size: float = 1.0,
    finished: bool = True,
    label: str = "x",
) -> Run:
    """One evaluation per epoch from epoch 0; pulls, seconds and bytes grow linearly."""
    count = range(len(losses))
    metrics = pd.DataFrame(
        {
            "step": list(count),
            "epoch": [float(k) for k in count],
            "train_loss": list(losses),
            "pulls_per_worker": [pulls * k for k in count],
            "simulated_seconds": [seconds * k for k in count],
            "bytes_up": [size * k for k in count],
            "bytes_down": [0.0 for _ in count],
        }
    )
    return Run(label, {}, metrics, {"method": label} if finished else None)


def series(*runs: Run, label: str = "x") -> Series:
    return Series(label, runs)
