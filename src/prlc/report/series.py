"""Runs as reports see them: finished or not, alone or several seeds together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from prlc.runs import RunFolder
from prlc.training import Result


@dataclass(frozen=True)
class Run:
    """What a report needs of a run; `summary` is None while it is not finished."""

    label: str
    config: Mapping[str, Any]
    metrics: pd.DataFrame
    summary: Mapping[str, Any] | None
    folder: Path | None = None

    @classmethod
    def of(cls, result: Result) -> Run:
        """A run of this program."""
        config = RunFolder.open(result.folder).config() if result.folder else {}
        label = str(result.summary["method"])
        return cls(label, config, result.metrics, result.summary, result.folder)


@dataclass(frozen=True)
class Series:
    """One curve: the runs of one method under one setting, a run per seed."""

    label: str
    runs: tuple[Run, ...]

    def band(self, x: str, y: str) -> pd.DataFrame:
        """Columns x, y (means over the seeds), low and high (of y), a row per evaluation."""
        xs = pd.concat([run.metrics[x] for run in self.runs], axis=1)
        ys = pd.concat([run.metrics[y] for run in self.runs], axis=1)
        columns = {"x": xs.mean(axis=1), "y": ys.mean(axis=1), "low": ys.min(axis=1)}
        return pd.DataFrame({**columns, "high": ys.max(axis=1)})


@dataclass(frozen=True)
class Chart:
    """Curves that belong together."""

    title: str
    series: tuple[Series, ...]
    note: str = ""
