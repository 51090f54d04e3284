"""The frozen settings of the paper's experiments, as the TOML files beside this one hold them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from prlc.errors import ConfigError
from prlc.network import Network

__all__ = ["FIGURES", "SCALES", "ClockOnly", "Figure", "Shared", "Task", "figure", "shared"]

FIGURES = ("fig1", "fig2", "fig3", "fig4")
SCALES = ("smoke", "quick", "paper")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, data and a schedule: what every method of a figure is run on."""

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
        """What is trained, as tables and figures call it."""
        return {"logistic": "LR", "resnet8": "ResNet-8", "resnet18": "ResNet-18"}[self.model]

    def describe(self, seeds: int) -> str:
        """What is trained on what and for how long, in a sentence: nobody may take it for more."""
        small = f", images shrunk {self.shrink} times" if self.shrink > 1 else ""
        return (
            f"{self.title} at {self.scale} scale: {self.samples:,} samples of {self.data}{small}; "
            f"{self.workers} workers, batch {self.batch_size}; "
            f"{self.stages * self.stage:g} epochs, "
            f"the step size times {shared().decay:g} every {self.stage:g}; "
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
    """One figure of the paper: its curves, its axes, and the claims that it is drawn for."""

    name: str
    title: str
    methods: tuple[str, ...]
    axes: tuple[str, ...]
    claims: tuple[str, ...]
    clocks: tuple[str, ...] = ()
    """The networks that time is measured on: keys of `Shared.networks`; none if it is not."""


@dataclass(frozen=True)
class Shared:
    """What the figures have in common."""

    lr: float
    decay: float
    tuning_seed: int
    networks: Mapping[str, Network]
    """By name; the first is the one that every run is clocked on."""
    tasks: Mapping[str, str]
    clock_only: ClockOnly

    def task(self, name: str, scale: str) -> Task:
        """A task at a scale."""
        if scale not in SCALES:
            raise ConfigError(f"There is no scale {scale!r}. Choose one of: {', '.join(SCALES)}.")
        if name not in self.tasks:
            raise ConfigError(
                f"There is no model {name!r} here. Choose one of: {', '.join(self.tasks)}, both."
            )
        content = dict(_read("shared")["scales"][scale][name])
        return Task(name=name, scale=scale, grid=tuple(content.pop("grid")), **content)


@cache
def shared() -> Shared:
    """The settings that the figures share."""
    content, timed = _read("shared"), _read("fig4")
    settings = dict(content["network"])
    base = Network.of(settings.pop("preset"), **settings)
    only = dict(timed["clock_only"])
    shape = tuple(only.pop("sample_shape"))
    return Shared(
        content["lr"],
        content["decay"],
        content["tuning_seed"],
        {name: Network.of(base, **changes) for name, changes in timed["clocks"].items()},
        content["tasks"],
        ClockOnly(sample_shape=shape, **only),
    )


@cache
def figure(name: str) -> Figure:
    """One of the paper's figures."""
    if name not in FIGURES:
        raise ConfigError(
            f"There is no figure {name!r}. Choose one of: {', '.join(FIGURES)}, or all."
        )
    content = _read(name)
    lists = {key: tuple(content[key]) for key in ("methods", "axes", "claims")}
    return Figure(name, content["title"], **lists, clocks=tuple(content.get("clocks", ())))


def methods_of(figures: Sequence[Figure]) -> tuple[str, ...]:
    """Every method of the figures, once."""
    return tuple(dict.fromkeys(method for each in figures for method in each.methods))


@cache
def _read(name: str) -> dict[str, Any]:
    file = resources.files("prlc.experiments").joinpath(f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))
