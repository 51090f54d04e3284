"""How fast the network and the workers are: the input of the simulated clock.

The model is a star: every worker has its own link to one server, whose link all of them share. A
radio cell is half duplex, and so is one bandwidth limit for both directions of an interface: what
goes out takes from what comes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prlc import draws
from prlc.draws import Purpose
from prlc.errors import ConfigError
from prlc.network.units import (
    format_bandwidth,
    format_seconds,
    format_speed,
    parse_bandwidth,
    parse_seconds,
    parse_speed,
)

__all__ = ["PRESETS", "Network"]


@dataclass(frozen=True)
class Network:
    """Bandwidths in bytes/s, times in seconds, compute speed in FLOP/s.

    `worker_up` and `worker_down` are one number for all workers, or a tuple with one per worker.
    Compute times vary with relative standard deviation `spread`; a fraction `stragglers` of the
    workers is `straggler_factor` times slower.
    """

    server_up: float = math.inf  # into the server; if half duplex, for both directions together
    server_down: float = math.inf  # out of the server
    half_duplex: bool = False
    worker_up: float | tuple[float, ...] = math.inf
    worker_down: float | tuple[float, ...] = math.inf
    latency: float = 0.0  # one way
    compute_speed: float | None = None  # of one worker
    step_seconds: float | None = None  # of one step; overrides compute_speed
    spread: float = 0.0
    stragglers: float = 0.0
    straggler_factor: float = 1.0
    run_ahead: bool = True  # False: a barrier after every step
    window: int | None = None  # most steps a worker may be ahead; None: as far as pulls allow

    def __post_init__(self) -> None:
        for name, (expected, holds) in _RULES.items():
            value = getattr(self, name)
            if not holds(value):
                raise ConfigError(f"The network's {name} should be {expected}, but is {value!r}.")
        if self.half_duplex and self.server_down != self.server_up:
            raise ConfigError(
                "A half-duplex server has one budget for both directions, so server_down should "
                f"equal server_up, but they are {format_bandwidth(self.server_down)} and "
                f"{format_bandwidth(self.server_up)}."
            )

    @classmethod
    def of(cls, value: Network | str | Mapping[str, object], **overrides: object) -> Network:
        """A network from a network, the name of a preset or a mapping, with `overrides`.

        Quantities may be text, such as `server_up="100MB/s"`. If only one direction of a
        half-duplex server is given, it holds for both.
        """
        if isinstance(value, str):
            if value not in PRESETS:
                raise ConfigError(
                    f"There is no network preset {value!r}; the presets are {', '.join(PRESETS)}."
                )
            value = PRESETS[value]
        if isinstance(value, Network):
            settings = {field.name: getattr(value, field.name) for field in fields(cls)}
            given = dict(overrides)
        elif isinstance(value, Mapping):
            settings, given = {}, {**value, **overrides}
        else:
            raise ConfigError(
                "A network should be a Network, the name of a preset or a mapping of settings, "
                f"but is {value!r}."
            )
        names = [field.name for field in fields(cls)]
        for name, setting in given.items():
            if name not in names:
                raise ConfigError(
                    f"A network has no setting {name!r}; its settings are {', '.join(names)}."
                )
            settings[name] = _read(name, setting)
        if settings.get("half_duplex") is True:
            for known, other in (("server_up", "server_down"), ("server_down", "server_up")):
                if known in given and other not in given:
                    settings[other] = settings[known]
        return cls(**settings)

    @property
    def needs_flops(self) -> bool:
        """Whether a step's compute time depends on what it computes."""
        return self.step_seconds is None

    def compute_seconds(self, flops_per_step: float) -> float:
        """Mean compute time of one step of one worker that is no straggler."""
        if self.step_seconds is not None:
            return self.step_seconds
        if self.compute_speed is None:
            raise ConfigError(
                "A step's compute time needs the network's compute_speed or step_seconds, but "
                'neither is set; give for example step_seconds="50ms".'
            )
        return flops_per_step / self.compute_speed

    def compute_times(
        self, seed: int, workers: ArrayLike, steps: ArrayLike, base: float, *, num_workers: int
    ) -> NDArray[np.float64]:
        """Compute times, in the broadcast shape of `workers` and `steps`.

        A pure function of (seed, worker, step). `base` is the mean time of a worker that is no
        straggler. `num_workers` decides which workers are stragglers.
        """
        indices = np.asarray(workers)
        slow = self.straggling(seed, num_workers)[indices]
        times = np.where(slow, base * self.straggler_factor, base)
        if self.spread > 0:
            return times * draws.lognormal(
                seed, Purpose.COMPUTE, indices, steps, spread=self.spread
            )
        return np.broadcast_to(times, np.broadcast_shapes(indices.shape, np.shape(steps))).copy()

    def straggling(self, seed: int, num_workers: int) -> NDArray[np.bool_]:
        """Flags of exactly round(stragglers * num_workers) stragglers, shape (num_workers,)."""
        return _choose(seed, num_workers, round(self.stragglers * num_workers))

    def worker_links(self, num_workers: int) -> tuple[list[float], list[float]]:
        """Upload and download bandwidth of each of `num_workers` workers."""
        return (
            self._per_worker("worker_up", self.worker_up, num_workers),
            self._per_worker("worker_down", self.worker_down, num_workers),
        )

    @staticmethod
    def _per_worker(name: str, rates: float | tuple[float, ...], num_workers: int) -> list[float]:
        if not isinstance(rates, tuple):
            return [float(rates)] * num_workers
        if len(rates) != num_workers:
            raise ConfigError(
                f"The network's {name} should have one bandwidth for each of the {num_workers} "
                f"workers, but has {len(rates)}."
            )
        return [float(rate) for rate in rates]

    def describe(self) -> str:
        """The network in one line."""
        up, down = format_bandwidth(self.server_up), format_bandwidth(self.server_down)
        if self.half_duplex:
            server = f"server {up} shared by both directions"
        else:
            server = f"server {up} each way" if up == down else f"server {up} in, {down} out"
        own_up, own_down = _range(self.worker_up), _range(self.worker_down)
        own = f"{own_up} each way" if own_up == own_down else f"{own_up} up, {own_down} down"
        parts = [server, f"workers {own}", f"latency {format_seconds(self.latency)}"]
        if self.step_seconds is not None:
            parts.append(f"{format_seconds(self.step_seconds)} a step")
        elif self.compute_speed is not None:
            parts.append(f"{format_speed(self.compute_speed)} a worker")
        if self.spread > 0:
            parts.append(f"step times ±{self.spread:.0%}")
        if self.stragglers > 0:
            parts.append(f"{self.stragglers:.0%} stragglers {self.straggler_factor:g}x slower")
        ahead = "run-ahead" if self.window is None else f"at most {self.window} steps ahead"
        return "; ".join([*parts, ahead if self.run_ahead else "barrier"])


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _above_zero(value: object) -> bool:
    return _is_number(value) and value >= _LEAST


def _from_zero(value: object) -> bool:
    return _is_number(value) and 0 <= value <= _MOST


def _links(value: object) -> bool:
    rates = value if isinstance(value, tuple) else (value,)
    return len(rates) > 0 and all(map(_above_zero, rates))


def _optional(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


# Beyond these a clock that adds up times in double precision would no longer move.
_LEAST, _MOST = 1e-6, 1e9
_ABOVE_ZERO = f"a number above 0 ({_LEAST:g} or more)"
_FROM_ZERO = f"a finite number, 0 or more (up to {_MOST:g})"
_LINKS = f"{_ABOVE_ZERO}, or a tuple with one such number per worker"
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "server_up": (_ABOVE_ZERO, _above_zero),
    "server_down": (_ABOVE_ZERO, _above_zero),
    "half_duplex": ("true or false", lambda value: isinstance(value, bool)),
    "worker_up": (_LINKS, _links),
    "worker_down": (_LINKS, _links),
    "latency": (_FROM_ZERO, _from_zero),
    "compute_speed": (_ABOVE_ZERO, _optional(_above_zero)),
    "step_seconds": (_FROM_ZERO, _optional(_from_zero)),
    "spread": ("a number from 0 to 10", lambda value: _from_zero(value) and value <= 10),
    "stragglers": ("a fraction from 0 to 1", lambda value: _from_zero(value) and value <= 1),
    "straggler_factor": (
        f"a finite number, 1 or more (up to {_MOST:g})",
        lambda v: _from_zero(v) and v >= 1,
    ),
    "run_ahead": ("true or false", lambda value: isinstance(value, bool)),
    "window": ("a whole number, 1 or more", _optional(lambda v: type(v) is int and 1 <= v < 2**63)),
}


def _range(rates: float | tuple[float, ...]) -> str:
    low, high = (min(rates), max(rates)) if isinstance(rates, tuple) else (rates, rates)
    if low == high:
        return format_bandwidth(low)
    return f"{format_bandwidth(low)} to {format_bandwidth(high)}"


def _read_rates(value: Any) -> float | tuple[float, ...]:
    if isinstance(value, list | tuple):
        return tuple(parse_bandwidth(rate) for rate in value)
    return parse_bandwidth(value)


_READERS: dict[str, Callable[[Any], object]] = {
    "server_up": parse_bandwidth,
    "server_down": parse_bandwidth,
    "worker_up": _read_rates,
    "worker_down": _read_rates,
    "latency": parse_seconds,
    "compute_speed": lambda value: None if value is None else parse_speed(value),
    "step_seconds": lambda value: None if value is None else parse_seconds(value),
}


def _read(name: str, value: object) -> Any:
    """The setting `name`, with text quantities turned into numbers."""
    try:
        return _READERS[name](value) if name in _READERS else value
    except ConfigError as error:
        raise ConfigError(f"In the network's {name}: {error}") from None


@lru_cache(maxsize=64)  # asked for by every worker, block by block
def _choose(seed: int, num_workers: int, count: int) -> NDArray[np.bool_]:
    order = np.argsort(draws.bits(seed, Purpose.STRAGGLER, np.arange(num_workers)), kind="stable")
    chosen = np.zeros(num_workers, np.bool_)
    chosen[order[:count]] = True
    chosen.flags.writeable = False
    return chosen


_LAN = Network.of(
    {"server_up": "1Gbit/s", "server_down": "1Gbit/s", "latency": "0.2ms"},
    worker_up="1Gbit/s",
    worker_down="1Gbit/s",
    compute_speed="50GFLOP/s",
)

PRESETS: dict[str, Network] = {
    # The paper's edge cluster: 20 virtual machines, 100 MB/s at the master. Its Figure 4 comes out
    # only if both directions share this bandwidth. The compute speed is an assumption (4 cores at
    # 2.6 GHz); the paper gives none.
    "paper": Network.of(
        {"server_up": "100MB/s", "half_duplex": True, "latency": "0.1ms"},
        compute_speed="20GFLOP/s",
    ),
    "lan": _LAN,
    "wan": Network.of(
        _LAN, worker_up="100Mbit/s", worker_down="100Mbit/s", latency="35ms", spread=0.1
    ),
    "mobile": Network.of(
        _LAN,
        worker_up="5Mbit/s",
        worker_down="20Mbit/s",
        latency="50ms",
        compute_speed="5GFLOP/s",
        spread=0.3,
        stragglers=0.1,
        straggler_factor=3.0,
    ),
}
