"""Network settings, presets and compute times."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from prlc.errors import ConfigError
from prlc.network import PRESETS, Network


def test_the_paper_preset_is_the_paper() -> None:
    paper = Network.of("paper")
    assert paper.server_up == paper.server_down == 100e6
    assert paper.half_duplex
    assert paper.worker_up == paper.worker_down == math.inf
    assert paper.latency == pytest.approx(1e-4)
    assert paper.compute_seconds(40e9) == 2.0


def test_presets_in_bytes_and_seconds() -> None:
    mobile = PRESETS["mobile"]
    assert (mobile.worker_up, mobile.worker_down) == (625e3, 2.5e6)
    assert PRESETS["wan"].server_down == 125e6
    assert PRESETS["lan"].latency == pytest.approx(2e-4)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'moon'; the presets are paper, lan, wan, mobile"):
        Network.of("moon")


def test_of_takes_text_for_every_quantity() -> None:
    network = Network.of(
        {"server_up": "8Mbit/s", "server_down": "2MB/s", "worker_up": ["1kB/s", 5]},
        worker_down="inf",
        latency="5ms",
        compute_speed="1GFLOP/s",
        step_seconds="2min",
    )
    assert network == Network(
        server_up=1e6,
        server_down=2e6,
        worker_up=(1e3, 5.0),
        latency=0.005,
        compute_speed=1e9,
        step_seconds=120.0,
    )


@pytest.mark.parametrize("name", PRESETS)
def test_of_a_network_or_its_settings_is_that_network(name: str) -> None:
    network = PRESETS[name]
    assert Network.of(network) == network == Network.of(asdict(network))


def test_one_direction_of_a_half_duplex_server_speaks_for_both() -> None:
    assert Network.of("paper", server_up="50MB/s").server_down == 50e6
    assert Network.of("paper", server_down="25MB/s").server_up == 25e6
    assert Network.of("lan", server_up="50MB/s").server_down == 125e6
    full = Network.of("paper", half_duplex=False, server_up="50MB/s")
    assert (full.server_up, full.server_down) == (50e6, 100e6)


def test_overrides_of_a_half_duplex_server_must_agree() -> None:
    with pytest.raises(ConfigError, match=r"server_down should equal server_up.*2 MB/s and 1 MB/s"):
        Network.of("paper", server_up="1MB/s", server_down="2MB/s")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server_up", 0),
        ("server_down", math.nan),
        ("half_duplex", "no"),
        ("worker_up", (1.0, 0.0)),
        ("worker_down", ()),
        ("worker_down", [1.0]),
        ("latency", -1.0),
        ("latency", math.inf),
        ("compute_speed", 0.0),
        ("step_seconds", -0.1),
        ("spread", -0.1),
        ("stragglers", 1.1),
        ("straggler_factor", 0.5),
        ("run_ahead", 1),
        ("window", 0),
        ("window", 2.0),
    ],
)
def test_every_setting_is_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^The network's {name} should be .*, but is "):
        Network(**{name: value})


def test_errors_of_of_name_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"^In the network's latency: Expected a time.*'3MB'"):
        Network.of("lan", latency="3MB")
    with pytest.raises(ConfigError, match=r"no setting 'bandwith'; its settings are server_up,"):
        Network.of("lan", bandwith=3)
    with pytest.raises(ConfigError, match="should be a Network, the name of a preset or a mapping"):
        Network.of(3)  # type: ignore[arg-type]


def test_compute_seconds() -> None:
    assert Network(compute_speed=2e9).compute_seconds(1e9) == 0.5
    assert Network(compute_speed=2e9, step_seconds=3).compute_seconds(1e9) == 3
    with pytest.raises(ConfigError, match="compute_speed or step_seconds"):
        Network().compute_seconds(1e9)


def test_compute_times_without_spread_are_exact() -> None:
    times = Network().compute_times(1, np.arange(3)[:, None], np.arange(5), 0.1, num_workers=3)
    assert times.shape == (3, 5)
    assert (times == 0.1).all()


def test_compute_times_have_the_mean_and_the_spread() -> None:
    network = Network(spread=0.3)
    times = network.compute_times(1, np.arange(50)[:, None], np.arange(2000), 2.0, num_workers=50)
    assert times.mean() == pytest.approx(2.0, rel=0.01)
    assert times.std() == pytest.approx(0.6, rel=0.02)
    assert times.min() > 0


def test_compute_times_are_pure_in_seed_worker_and_step() -> None:
    network = Network.of("mobile")
    workers, steps = np.arange(20)[:, None], np.arange(30)
    table = network.compute_times(5, workers, steps, 1.0, num_workers=20)
    one = network.compute_times(5, 7, [11, 3], 1.0, num_workers=20)
    assert one.tolist() == [table[7, 11], table[7, 3]]
    assert (table != network.compute_times(6, workers, steps, 1.0, num_workers=20)).all()


@pytest.mark.parametrize(("fraction", "workers"), [(0.1, 20), (0.34, 10), (1.0, 7), (0.0, 5)])
def test_exactly_that_many_stragglers(fraction: float, workers: int) -> None:
    network = Network(stragglers=fraction, straggler_factor=4.0)
    times = network.compute_times(3, np.arange(workers), 0, 1.0, num_workers=workers)
    assert (times == 4.0).sum() == round(fraction * workers)
    assert ((times == 4.0) == network.straggling(3, workers)).all()
    assert ((times == 1.0) | (times == 4.0)).all()


def test_the_seed_chooses_the_stragglers() -> None:
    network = Network(stragglers=0.2)
    chosen = {tuple(np.flatnonzero(network.straggling(seed, 10))) for seed in range(20)}
    assert len(chosen) > 10


def test_worker_links() -> None:
    assert Network(worker_up=3).worker_links(2) == ([3.0, 3.0], [math.inf, math.inf])
    assert Network(worker_up=(1, 2)).worker_links(2)[0] == [1.0, 2.0]
    with pytest.raises(ConfigError, match=r"worker_up should have one .* 3 workers, but has 2"):
        Network(worker_up=(1, 2)).worker_links(3)


def test_describe() -> None:
    assert Network.of("paper").describe() == (
        "server 100 MB/s shared by both directions; workers unlimited each way; "
        "latency 100 us; 20 GFLOP/s a worker; run-ahead"
    )
    assert Network.of("mobile", run_ahead=False, worker_up=("1MB/s", "2MB/s")).describe() == (
        "server 125 MB/s each way; workers 1 MB/s to 2 MB/s up, 2.5 MB/s down; latency 50 ms; "
        "5 GFLOP/s a worker; step times ±30%; 10% stragglers 3x slower; barrier"
    )
    assert "2 s a step" in Network.of("lan", step_seconds=2).describe()
    assert Network.of("lan", server_up=1).describe().startswith("server 1 B/s in, 125 MB/s out;")
