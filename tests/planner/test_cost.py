"""The time and the bottleneck of a step, on networks where both are known."""

from __future__ import annotations

from typing import Any

import pytest
from torch.nn import functional as F

import prlc
from prlc.data import Dataset, load_digits
from prlc.engines.simulator.execution import Execution
from prlc.methods import PRLC
from prlc.models import build
from prlc.network import PRESETS, Network
from prlc.planner import RESOURCES, StepClock, Work, make_trials, price

P = 4
WORK = Work(P, bytes_up=1000.0, bytes_down=1000.0, step_seconds=1e-3)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits().take(200, seed=0)


@pytest.mark.parametrize("ratio", [1.0, 0.3])
@pytest.mark.parametrize(
    ("network", "work", "bottleneck"),
    [
        (Network(), WORK, "compute"),
        (Network(server_up=1e5), WORK, "uplink"),
        (Network(worker_up=1e4), WORK, "uplink"),
        (Network(server_down=2e4), WORK, "downlink"),
        (Network(worker_down=1e4), WORK, "downlink"),
        (Network(latency=0.05), WORK, "latency"),
        (Network(server_up=1e5, server_down=1e5, half_duplex=True),
         Work(P, 10_000.0, 10.0, 1e-3), "uplink"),
        (Network(server_up=1e5, server_down=1e5, half_duplex=True),
         Work(P, 10.0, 10_000.0, 1e-3), "downlink"),
    ],
)  # fmt: skip
def test_the_slow_resource_is_named(
    network: Network, work: Work, bottleneck: str, ratio: float
) -> None:
    found = price(network, work, PRLC(ratio))
    assert found.bottleneck == bottleneck
    assert found.saved(bottleneck) > 0.5
    assert max(RESOURCES, key=found.saved) == bottleneck
    assert all(0 <= found.saved(name) <= 1 for name in RESOURCES)


def test_a_step_of_nsgd_is_the_sum_of_its_parts() -> None:
    network = Network(server_up=1e6, server_down=1e6, latency=0.01)
    found = price(network, WORK, PRLC(1.0))
    transfer = P * 1000 / 1e6
    # The last step has no pull to wait for.
    assert found.seconds_per_step == pytest.approx(1e-3 + 2 * transfer + 0.02, rel=1e-3)
    assert found.if_free["latency"] == pytest.approx(1e-3 + 2 * transfer, rel=1e-2)
    assert found.if_free["compute"] == pytest.approx(2 * transfer + 0.02, rel=1e-2)


def test_resources_that_hide_each_other_still_get_a_name() -> None:
    """Pushes under way while the next step is computed: neither alone shortens anything."""
    work = Work(1, bytes_up=1000.0, bytes_down=0.0, step_seconds=1e-2)
    found = price(Network(worker_up=1.02e5), work, PRLC(1e-9))
    assert max(found.saved(name) for name in RESOURCES) < 0.05
    assert found.bottleneck == "compute"


def test_a_step_may_be_free() -> None:
    found = price(Network(), Work(P, 0.0, 0.0, 0.0), PRLC(0.5))
    assert found.seconds_per_step == 0
    assert found.saved("latency") == 0


@pytest.mark.parametrize("run_ahead", [True, False])
@pytest.mark.parametrize("method", [PRLC(1.0), PRLC(0.2), PRLC(1.0, every=3)])
def test_the_clock_agrees_with_a_run(digits: Dataset, method: PRLC, run_ahead: bool) -> None:
    network = Network.of(PRESETS["mobile"], run_ahead=run_ahead)
    model = build("logistic", digits.sample_shape, digits.num_classes, 0)
    settings: dict[str, Any] = {
        "workers": 5,
        "batch_size": 4,
        "seed": 3,
        "execution": Execution(5, 1),
    }
    run = prlc.train(
        model, F.cross_entropy, digits, method=method, steps=30, network=network,
        eval_every=6, **settings,
    )  # fmt: skip
    job = make_trials(model, F.cross_entropy, digits, **settings).job
    clock = StepClock(network, Work.of(job, network), method, seed=3)
    times = [clock.seconds(step) for step in run.metrics["step"]]
    assert times == run.metrics["simulated_seconds"].tolist()


def test_steps_that_fit_into_a_time() -> None:
    clock = StepClock(Network(latency=0.5), WORK, PRLC(1.0), 0)
    assert clock.seconds(0) == 0
    assert clock.seconds(2.5) == pytest.approx((clock.seconds(2) + clock.seconds(3)) / 2)
    assert clock.steps_within(clock.seconds(7), most=100) == 7
    assert clock.steps_within(clock.seconds(7) * 0.999, most=100) == 6
    assert clock.steps_within(1e9, most=12) == 12
    assert clock.steps_within(0.0, most=12) == 0
