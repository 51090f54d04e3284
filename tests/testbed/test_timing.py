"""Methods timed on a real testbed, beside the network clock."""

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
from prlc.testbed.timing import TimingSettings, predict_seconds

from .helpers import on_a_real_machine


def test_the_clock_is_asked_about_the_same_limits_and_compute_times() -> None:
    bed = Bed(workers=4, bandwidth=1e6, half_duplex=True)
    settings = TimingSettings(steps=10)
    size = sum(p.numel() * 4 for p in build(settings.model, (1, 8, 8), 10, 0).parameters())
    nsgd = predict_seconds(bed, "nsgd", settings, [0.02, 0.02])
    assert nsgd == pytest.approx(10 * (0.02 + 2 * 4 * size / 1e6), rel=0.1)
    prlc_half = predict_seconds(bed, "prlc:0.01", settings, [0.02, 0.02])
    assert prlc_half is not None
    assert nsgd is not None
    assert prlc_half < 0.7 * nsgd
    assert predict_seconds(bed, "lag-ps", settings, [0.02, 0.02]) is None


@on_a_real_machine
def test_a_timed_run_equals_that_of_the_simulator(
    prlc: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = prlc(
        *("testbed", "-w", "1", "--bandwidth", "20MB/s", "-m", "prlc:0.5", "--steps", "8"),
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
    settings, data = TimingSettings(), load("digits")
    model = build(settings.model, data.sample_shape, data.num_classes, settings.seed)
    return prlc.train(
        *(model, F.cross_entropy, data),
        method="prlc:0.5",
        workers=1,
        steps=steps,
        lr=settings.lr,
        schedule="step",
        batch_size=settings.batch_size,
    )
