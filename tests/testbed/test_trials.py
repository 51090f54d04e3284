"""Methods tried on a real testbed, beside the network clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import prlc
from prlc.data import load
from prlc.models import build
from prlc.testbed import Testbed as Bed
from prlc.testbed.trials import Task, predict

from .machine import on_a_real_machine


def test_the_clock_is_asked_about_the_same_limits_and_compute_times() -> None:
    bed = Bed(workers=4, bandwidth=1e6, half_duplex=True)
    task = Task(steps=10)
    size = sum(p.numel() * 4 for p in build(task.model, (1, 8, 8), 10, 0).parameters())
    nsgd = predict(bed, "nsgd", task, [0.02, 0.02])
    assert nsgd == pytest.approx(10 * (0.02 + 2 * 4 * size / 1e6), rel=0.1)
    prlc_half = predict(bed, "prlc:0.01", task, [0.02, 0.02])
    assert prlc_half is not None
    assert nsgd is not None
    assert prlc_half < 0.7 * nsgd
    assert predict(bed, "lag-ps", task, [0.02, 0.02]) is None


@on_a_real_machine
def test_a_method_is_tried_and_its_run_is_that_of_the_simulator(
    prlc: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = prlc(
        *("testbed", "-w", "2", "--bandwidth", "20MB/s", "-m", "prlc:0.5", "--steps", "8"),
        *("--out", tmp_path, "--json"),
    )
    assert code == 0, err
    (trial,) = json.loads(out)["trials"]
    simulated = simulate(steps=8)
    assert trial["bytes_up"] == simulated.summary["bytes_up"]
    assert trial["bytes_down"] == simulated.summary["bytes_down"]
    assert trial["measured_seconds"] > 0
    assert trial["predicted_seconds"] > 0
    trained = torch.load(tmp_path / "prlc-0.5" / "model.pt", weights_only=True)
    for name, tensor in simulated.model.state_dict().items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-4, atol=1e-6)


def simulate(steps: int) -> prlc.Result:
    task, data = Task(), load("digits")
    model = build(task.model, data.sample_shape, data.num_classes, task.seed)
    return prlc.train(
        *(model, F.cross_entropy, data),
        method="prlc:0.5",
        workers=2,
        steps=steps,
        lr=task.lr,
        schedule="step",
        batch_size=task.batch_size,
    )
