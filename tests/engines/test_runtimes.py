"""Training knows engines only through the registry: one that it never heard of runs as well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prlc
from prlc.engines import ENGINES, Assignment, Outcome, Reference, Runtime, find_runtime
from prlc.engines.job import Job

DATA = (torch.randn(40, 4), torch.arange(40) % 3)


class OwnEngine(Reference):
    measures_time = True

    def details(self) -> dict[str, Any]:
        return {"colour": "red"}

    def finish(self) -> None:
        self.events = [[(0, "compute", 5.0, 6.0)]]


class OwnRuntime(Runtime):
    """Notes what it is asked for."""

    multi_process = True
    asked: list[str]

    def describe(self) -> dict[str, Any]:
        return {"colour": "red"}

    def connect(self, job: Job, settings: Mapping[str, Any]) -> None:
        assert job.num_workers == 2
        assert settings["method"] == "nsgd"
        self.asked.append("connect")

    def announce(self, *, finished: bool, saves: bool = False) -> None:
        self.asked.append(f"announce {finished} {saves}")

    def engine(self, assignment: Assignment) -> OwnEngine:
        self.asked.append("engine")
        return OwnEngine(assignment.job, assignment.arrivals())

    def share(self, outcome: Outcome) -> None:
        self.asked.append(f"share {len(outcome.metrics)}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the runtime of the engine called `own` was asked for, in order."""
    OwnRuntime.asked = []
    monkeypatch.setitem(ENGINES, "own", lambda: OwnRuntime)
    return OwnRuntime.asked


def train(**settings: Any) -> prlc.Result:
    fixed = {"workers": 2, "steps": 4, "eval_every": 2, "method": "nsgd"}
    return prlc.train(nn.Linear(4, 3), F.cross_entropy, DATA, **{**fixed, **settings})


def test_a_registered_engine_is_all_that_training_needs(asked: list[str], tmp_path: Path) -> None:
    result = train(engine="own", folder=tmp_path / "run")
    assert asked == ["connect", "announce False True", "engine", "share 3"]
    assert result.summary["engine"] == "own"
    assert result.summary["colour"] == "red"
    assert result.metrics["wall_seconds"].is_monotonic_increasing
    assert json.loads((tmp_path / "run" / "config.json").read_text())["colour"] == "red"
    assert pd.read_csv(tmp_path / "run" / "timeline.csv")["end"].tolist() == [1.0]


def test_where_commands_are_repeated_a_finished_run_is_shared(
    asked: list[str], tmp_path: Path
) -> None:
    first = train(engine="own", folder=tmp_path / "run")
    asked.clear()
    again = train(engine="own", folder=tmp_path / "run")
    assert asked == ["connect", "announce True False", "share 3"]
    assert again.summary == first.summary
    with pytest.raises(prlc.ConfigError, match=r"prlc train --engine own --out DIR"):
        prlc.compare(nn.Linear(4, 3), F.cross_entropy, DATA, methods="nsgd", engine="own")


@pytest.mark.parametrize("engine", ["simulator", "reference"])
def test_in_one_process_there_is_nobody_else(engine: str, tmp_path: Path) -> None:
    kind = find_runtime(engine)
    runtime = kind(execution=None, cluster=prlc.Cluster())
    assert runtime.leads
    assert not kind.multi_process
    assert runtime.describe() == {}
    assert "wall_seconds" not in train(engine=engine, folder=tmp_path / "r").metrics
    with pytest.raises(prlc.RunError, match="already holds a run"):
        train(engine=engine, folder=tmp_path / "r")


def test_only_real_processes_repeat_their_command() -> None:
    assert [name for name in ENGINES if find_runtime(name).multi_process] == ["distributed"]


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(prlc.ConfigError, match=r"no engine 'warp'. Choose one of: simulator, "):
        find_runtime("warp")
