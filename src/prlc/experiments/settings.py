"""The paper's frozen settings: paper.toml, read into types."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from prlc.errors import ConfigError
from prlc.network import Network

__all__ = [
    "DUPLEX",
    "FIGURES",
    "SCALES",
    "ClockOnly",
    "Experiment",
    "Figure",
    "Problem",
    "methods_of",
    "paper",
    "with_tuples",
]

FIGURES = ("fig1", "fig2", "fig3", "fig4")
SCALES = ("smoke", "quick", "medium", "paper")

#: What tables and figures call the clocks.
DUPLEX = {"half": "half duplex", "full": "full duplex"}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model, its data and a schedule at one scale; paper.toml explains the fields."""

    name: str
    scale: str
    data: str
    model: str
    samples: int
    test_samples: int
    shrink: int
    workers: int
    batch_size: int
    stage: float
    stages: int
    tuning_stage: float
    grid: tuple[float, ...]
    eval_epochs: float
    eval_samples: int
    seeds: int
    chunk: int
    step_ms: float

    @property
    def title(self) -> str:
        """The model's name in tables and figures."""
        return {"logistic": "LR", "resnet8": "ResNet-8", "resnet18": "ResNet-18"}[self.model]

    def describe(self, seeds: int) -> str:
        """One sentence that leaves no doubt how small the problem is."""
        small = f", images shrunk {self.shrink} times" if self.shrink > 1 else ""
        return (
            f"{self.title} at {self.scale} scale: {self.samples:,} samples of {self.data}{small}; "
            f"{self.workers} workers, batch {self.batch_size}; "
            f"{self.stages * self.stage:g} epochs, "
            f"the step size times {paper().decay:g} every {self.stage:g}; "
            f"{seeds} seed{'s' if seeds > 1 else ''}."
        )


@dataclass(frozen=True)
class ClockOnly:
    """A model that is timed but not trained."""

    model: str
    sample_shape: tuple[int, ...]
    classes: int
    workers: int
    batch_size: int
    steps: int


@dataclass(frozen=True)
class Figure:
    """One figure: its curves, its axes, and the claims it supports."""

    name: str
    title: str
    methods: tuple[str, ...]
    axes: tuple[str, ...]
    claims: tuple[str, ...]
    clocks: tuple[str, ...] = ()
    """Keys of `Experiment.networks` to measure time on; empty if the figure shows no time."""


@dataclass(frozen=True)
class Experiment:
    """The settings in one TOML file."""

    lr: float
    decay: float
    tuning_seed: int
    networks: Mapping[str, Network]
    clock_only: ClockOnly
    figures: Mapping[str, Figure]
    scales: Mapping[str, Mapping[str, Problem]]

    @property
    def main_clock(self) -> str:
        """The key of the network that every run is timed on."""
        return next(iter(self.networks))

    def figure(self, name: str) -> Figure:
        if name not in self.figures:
            raise ConfigError(
                f"There is no figure {name!r}. Choose one of: {', '.join(self.figures)}, or all."
            )
        return self.figures[name]

    def problems(self, scale: str) -> Mapping[str, Problem]:
        """The problems of a scale, by name."""
        if scale not in self.scales:
            raise ConfigError(
                f"There is no scale {scale!r}. Choose one of: {', '.join(self.scales)}."
            )
        return self.scales[scale]

    def problem(self, name: str, scale: str) -> Problem:
        problems = self.problems(scale)
        if name not in problems:
            raise ConfigError(
                f"There is no model {name!r} at {scale} scale. Choose one of: "
                f"{', '.join(problems)}."
            )
        return problems[name]


@cache
def paper() -> Experiment:
    """The paper's own experiment."""
    return _read("paper")


def methods_of(figures: Sequence[Figure]) -> tuple[str, ...]:
    """Every method in the figures, once each."""
    return tuple(dict.fromkeys(method for figure in figures for method in figure.methods))


def _read(name: str) -> Experiment:
    file = resources.files("prlc.experiments").joinpath(f"{name}.toml")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    network = dict(content["network"])
    base = Network.of(network.pop("preset"), **network)
    return Experiment(
        lr=content["lr"],
        decay=content["decay"],
        tuning_seed=content["tuning_seed"],
        networks={name: Network.of(base, **own) for name, own in content["clocks"].items()},
        clock_only=ClockOnly(**with_tuples(content["clock_only"])),
        figures={
            name: Figure(name=name, **with_tuples(own)) for name, own in content["figures"].items()
        },
        scales={
            scale: {
                name: Problem(name=name, scale=scale, **with_tuples(own))
                for name, own in problems.items()
            }
            for scale, problems in content["scales"].items()
        },
    )


def with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """A TOML table whose lists are tuples, so that the settings made of it can be hashed."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
