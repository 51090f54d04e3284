"""The price of a run is what the run itself reports; what limits it has a name."""

from __future__ import annotations

import dataclasses
import math

import pytest
from torch import nn
from torch.nn import functional as F

import prlc
from prlc.data import Dataset
from prlc.network import PRESETS, Network
from prlc.planner.cost import Price, infinitely_fast, saved_if_free
from prlc.runs.config import Config
from prlc.runs.jobs import make_job

METHODS = [
    "nsgd",
    "prlc:0.2",
    "local-sgd:4:up=topk,0.05:down=int8",
    "cocod-sgd:5:up=int4",
    "prlc:0.3:every=2:delay=3:blocks=2",
    "nsgd:up=int2:down=int4:schedule=staggered:pull_ratio=0.5",
]


@pytest.mark.parametrize("run_ahead", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_the_price_is_that_of_a_run(
    model: nn.Module, digits: Dataset, method: str, run_ahead: bool
) -> None:
    network = Network.of(PRESETS["mobile"], run_ahead=run_ahead)
    run = prlc.train(
        model, F.cross_entropy, digits, method=method, steps=30, network=network, eval_every=6,
        workers=5, batch_size=4, seed=3, execution=prlc.Execution(5, 1),
    )  # fmt: skip
    config = Config(
        method=prlc.methods.parse_method(method), steps=30, workers=5, batch_size=4, seed=3
    )
    price = Price(make_job(model, F.cross_entropy, digits, config), network)
    found = [price.after(int(step)) for step in run.metrics["step"]]
    assert [cost.seconds for cost in found] == run.metrics["simulated_seconds"].tolist()
    sent = run.metrics["bytes_up"] + run.metrics["bytes_down"]
    assert [cost.bytes for cost in found] == sent.tolist()


@pytest.mark.parametrize(
    ("network", "limit"),
    [
        (Network(step_seconds=1e-3), "compute"),
        (Network(step_seconds=1e-6, server_up=1e5), "bandwidth"),
        (Network(step_seconds=1e-6, worker_down=1e4), "bandwidth"),
        (Network(step_seconds=1e-6, latency=0.05), "latency"),
    ],
)
def test_what_limits_a_run(model: nn.Module, digits: Dataset, network: Network, limit: str) -> None:
    job = make_job(model, F.cross_entropy, digits, Config(steps=20, workers=3))
    saved = saved_if_free(job, network, 20)
    assert max(saved, key=saved.__getitem__) == limit
    assert saved[limit] > 0.9
    whole = Price(job, infinitely_fast(network)).after(20).seconds
    assert whole == pytest.approx(20 * (network.step_seconds or 0.0))


def test_an_infinitely_fast_network_has_the_same_workers() -> None:
    for network in map(Network.of, PRESETS):
        fast = infinitely_fast(network)
        assert fast.latency == 0
        assert fast.server_up == fast.server_down == fast.worker_up == fast.worker_down == math.inf
        assert (fast.compute_speed, fast.stragglers) == (network.compute_speed, network.stragglers)


def test_nothing_is_saved_where_nothing_takes_time(model: nn.Module, digits: Dataset) -> None:
    job = make_job(model, F.cross_entropy, digits, Config(steps=20, workers=3))
    free = dataclasses.replace(Network(), step_seconds=0.0)
    assert set(saved_if_free(job, free, 20).values()) == {0.0}
