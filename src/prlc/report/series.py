"""Runs as reports see them: finished or not, alone or several seeds together."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from prlc.errors import ConfigError, RunError
from prlc.methods import create
from prlc.runs import RunFolder
from prlc.training import Result

_NEEDED = (
    "step",
    "epoch",
    "train_loss",
    "pulls_per_worker",
    "bytes_up",
    "bytes_down",
    "simulated_seconds",
)


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
        method = result.method
        config: dict[str, Any] = {"method": {"name": method.name, **method.options()}}
        config |= {key: result.summary[key] for key in ("steps", "seed", "engine")}
        if result.folder:
            config = RunFolder.open(result.folder).config()
        label = str(result.summary["method"])
        return cls(label, config, result.metrics, result.summary, result.folder)

    @classmethod
    def read(cls, folder: Path | str) -> Run:
        """A run on disk, finished or not; refuses one of which nothing can be shown."""
        on_disk = RunFolder.open(folder)
        config = on_disk.config()
        method = config.get("method")
        if not (isinstance(method, dict) and isinstance(method.get("name"), str)):
            raise RunError(
                f"{on_disk.path / 'config.json'} does not describe a run of prlc: it names no "
                "method. Name a folder that `prlc train` or `prlc compare` wrote."
            )
        summary = on_disk.summary() if on_disk.finished else None
        label = str(summary["method"]) if summary and "method" in summary else _label(method)
        return cls(label, config, _read_metrics(on_disk.path), summary, on_disk.path)

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def seed(self) -> Any:
        return self.figure("seed")

    def column(self, name: str) -> pd.Series[float]:
        """A column of the metrics; `bytes` is those up and down together."""
        if name == "bytes":
            return self.metrics["bytes_up"] + self.metrics["bytes_down"]
        return self.metrics[name]

    def figure(self, name: str) -> Any:
        """What the summary says, or would say if the run had ended at its last row."""
        if self.summary is not None:
            return self.summary.get(name)
        last = self.metrics.iloc[-1]
        steps = int(last["step"])
        if name == "pull_fraction":
            return float(last["pulls_per_worker"]) / steps if steps else None
        known = {"method": self.label, "steps": steps, "seed": self.config.get("seed")}
        if name in known:
            return known[name]
        value = last.get(name)
        return None if value is None or pd.isna(value) else float(value)


@dataclass(frozen=True)
class Series:
    """One curve: the runs of one method under one setting, a run per seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    def band(self, x: str, y: str) -> pd.DataFrame:
        """Columns x, y (means over the seeds), low and high (of y), a row per evaluation.

        Rows of the same step belong together. Where a seed has no row or no number, the others
        speak for it.
        """
        xs, ys = self._beside(x), self._beside(y)
        columns = {"x": xs.mean(axis=1), "y": ys.mean(axis=1), "low": ys.min(axis=1)}
        return pd.DataFrame({**columns, "high": ys.max(axis=1)}).reset_index(drop=True)

    def has(self, y: str) -> bool:
        """Whether any run measured it."""
        return any(y in run.metrics and run.metrics[y].notna().any() for run in self.runs)

    def figures(self, name: str) -> list[float]:
        """What each run ended with, where it is known."""
        values = (run.figure(name) for run in self.runs)
        return [value for value in values if isinstance(value, int | float)]

    def _beside(self, name: str) -> pd.DataFrame:
        """A column of every run, side by side, by step."""
        return pd.concat(
            [run.column(name).set_axis(run.column("step")) for run in self.runs], axis=1
        )


@dataclass(frozen=True)
class Chart:
    """Curves that belong together."""

    title: str
    series: tuple[Series, ...]
    note: str = ""


def _label(method: Mapping[str, Any]) -> str:
    """What the method calls itself; its name where this version does not know it."""
    name, *options = method
    try:
        return create(method[name], **{option: method[option] for option in options}).label
    except (ConfigError, TypeError):
        return str(method["name"])


def _read_metrics(folder: Path) -> pd.DataFrame:
    """The whole rows of metrics.csv: one that was being written when the run was killed is not."""
    file = folder / "metrics.csv"
    try:
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        table = pd.read_csv(io.StringIO("".join(whole))) if len(whole) > 1 else pd.DataFrame()
        table = pd.DataFrame({name: pd.to_numeric(table[name]) for name in table})
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise RunError(
            f"{file} is damaged: it should be a table of numbers. Resume the run, which puts it "
            "back to the last checkpoint, or leave the run out."
        ) from None
    if table.empty:
        raise RunError(
            f"{folder} has nothing to show yet: its metrics.csv holds no complete row. Resume the "
            "run, or leave it out."
        )
    missing = [name for name in _NEEDED if name not in table]
    if missing:
        raise RunError(
            f"{file} lacks the column {missing[0]}, so it is not one that prlc wrote. Name a "
            "folder that `prlc train` or `prlc compare` wrote."
        )
    return table
