"""The frozen settings: beyond.toml, read into types."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from prlc.api import slug
from prlc.errors import ConfigError
from prlc.experiments.settings import ClockOnly, with_tuples
from prlc.methods import Asynchronous, parse_method
from prlc.network import Network
from prlc.report import MEASURES

__all__ = ["BASELINE", "BYTES", "SCALES", "Beyond", "Limits", "Problem", "Row", "beyond"]

SCALES = ("smoke", "quick", "full")
BASELINE = "nsgd"
BYTES = "bytes"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where verdicts change. Fixed before the runs; those of a single problem are its own."""

    steps: float
    loss: float
    near_loss: float
    in_part: float
    matched: float
    time: float
    asgd: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model, its data and a length at one scale; beyond.toml explains the fields."""

    name: str
    scale: str
    title: str
    data: str
    model: str
    partition: str = "iid"
    samples: int
    test_samples: int
    shrink: int = 1
    workers: int
    batch_size: int
    optimizer: str = "sgd"
    measure: str = "train_loss"
    close: float = 0.01
    steps: int
    tuning_steps: int
    grid: tuple[float, ...]
    evaluations: int
    eval_samples: int
    seeds: int
    chunk: int
    step_ms: float
    bytes: float | None = None
    timed: bool = False
    plan_trials: int = 0
    rehearsals: int = 0
    methods: tuple[str, ...] = ()

    def describe(self, seeds: int) -> str:
        """One sentence that leaves no doubt how small the problem is."""
        small = f", images shrunk {self.shrink} times" if self.shrink > 1 else ""
        split = "" if self.partition == "iid" else f", split by {self.partition}"
        at = "" if self.optimizer == "sgd" else " (NSGD's on the server)"
        return (
            f"{self.title}: {self.samples:,} samples of {self.data}{small}{split}; {self.workers} "
            f"workers, batch {self.batch_size}, {self.optimizer}{at}, cosine schedule; NSGD takes "
            f"{self.steps:,} steps, the others up to {beyond().limits.steps:g} times as many to a "
            f"{MEASURES[self.measure]} within {self.close:.0%} of NSGD's; "
            f"{seeds} seed{'s' if seeds > 1 else ''}."
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method in the tables."""

    method: str
    rival: bool = False
    """A published method that the recommended one is measured against."""
    optimizer_at: str = "workers"
    """Where an optimizer other than SGD runs."""
    problems: tuple[str, ...] = ()
    """Where it competes; empty: everywhere."""
    clocks: tuple[str, ...] = ()
    """Which it is timed on; empty: all."""
    optimizer: str = ""
    """In place of the problem's, if its server has a rule of its own."""
    step: float = 1.0
    """Where the optimizer is SGD, its step sizes are those of the problem's grid times this."""
    serves: tuple[str, ...] = ()
    """If it is a setting of the recommended method: "bytes", or the clocks that it is for."""
    length: float = 0.0
    """How long it trains, in multiples of NSGD's steps; 0: for tuning to find."""
    lr: float = 0.0
    """Its step size, once that is found."""
    steps: int = 0
    """If it is a plan's: how long it trains."""

    @property
    def name(self) -> str:
        """In records."""
        return "plan" if self.planned else self.method

    @property
    def planned(self) -> bool:
        return self.steps > 0

    @property
    def slug(self) -> str:
        """In names of files, with a length of its own."""
        long = f"-steps-{self.steps}" if self.steps else ""
        return slug(self.method) + long + (f"-length-{self.length:g}" if self.length else "")

    def steps_on(self, problem: Problem) -> int:
        if self.steps:
            return self.steps
        return round((self.length or beyond().limits.steps) * problem.steps)

    def lengthened(self, problem: Problem) -> Row:
        """The same for as long as any may train."""
        longest = beyond().limits.steps
        if self.planned:
            return replace(self, steps=round(longest * problem.steps))
        return replace(self, length=longest)

    def step_sizes(self, problem: Problem) -> tuple[float, ...]:
        """Those that it is tried at."""
        factor = self.step if problem.optimizer == "sgd" else 1.0
        return tuple(factor * lr for lr in problem.grid)

    @property
    def label(self) -> str:
        return "plan" if self.planned else parse_method(self.method).label

    @property
    def arrives(self) -> bool:
        """Whether its result depends on the clock."""
        return isinstance(parse_method(self.method), Asynchronous)


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """The settings in one TOML file."""

    tuning_seed: int
    limits: Limits
    networks: Mapping[str, Network]
    large: ClockOnly
    rows: tuple[Row, ...]
    scales: Mapping[str, Mapping[str, Problem]] = field(repr=False)

    def problems(self, scale: str, name: str) -> list[Problem]:
        """All of a scale, or the one called `name`."""
        if scale not in self.scales:
            raise ConfigError(
                f"There is no scale {scale!r}. Choose one of: {', '.join(self.scales)}."
            )
        known = self.scales[scale]
        if name != "all" and name not in known:
            raise ConfigError(
                f"There is no problem {name!r} here. Choose one of: {', '.join(known)}, all."
            )
        return [problem for key, problem in known.items() if name in ("all", key)]

    def rows_of(self, problem: Problem) -> list[Row]:
        return [
            row
            for row in self.rows
            if (not row.problems or problem.name in row.problems)
            and (not problem.methods or row.method in problem.methods)
        ]

    def clocks_of(self, row: Row) -> tuple[str, ...]:
        return row.clocks or tuple(self.networks)


@cache
def beyond() -> Beyond:
    """The package's own file."""
    file = resources.files(__package__).joinpath("beyond.toml")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    networks = {name: dict(own) for name, own in content["clocks"].items()}
    return Beyond(
        tuning_seed=content["tuning_seed"],
        limits=Limits(**content["limits"]),
        networks={name: Network.of(own.pop("preset"), **own) for name, own in networks.items()},
        large=ClockOnly(**with_tuples(content["large"])),
        rows=tuple(Row(**with_tuples(own)) for own in content["methods"]),
        scales={
            scale: {
                name: Problem(name=name, scale=scale, **with_tuples(_whole(own, content["scales"])))
                for name, own in problems.items()
            }
            for scale, problems in content["scales"].items()
        },
    )


def _whole(own: Mapping[str, Any], scales: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a problem, with those of the one that it is like."""
    rest = {key: value for key, value in own.items() if key != "like"}
    if "like" not in own:
        return rest
    scale, name = own["like"].split(".")
    return _whole(scales[scale][name], scales) | rest
