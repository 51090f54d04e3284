"""What a report shows: runs, the curves and charts they make, and verdicts on claims."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pandas as pd

from prlc import text
from prlc.errors import ConfigError, RunError
from prlc.methods import METHODS, create, parse_method
from prlc.runs.folder import RunFolder
from prlc.runs.training import Result

_REQUIRED_COLUMNS = (
    "step",
    "epoch",
    "train_loss",
    "pulls_per_worker",
    "bytes_up",
    "bytes_down",
    "simulated_seconds",
)
# Any of these makes a folder a run, perhaps a half-written one.
_RUN_FILES = ("config.json", ".config.json.writing", "metrics.csv", "checkpoint.pt", "summary.json")


# ---- runs, curves, charts ------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run, finished or not; `summary` is None until it finishes."""

    label: str
    config: Mapping[str, Any]
    metrics: pd.DataFrame
    summary: Mapping[str, Any] | None
    folder: Path | None = None

    @classmethod
    def of(cls, result: Result) -> Run:
        """A run made by this program."""
        config: dict[str, Any] = {"method": str(result.method)}
        config |= {key: result.summary[key] for key in ("steps", "seed", "engine")}
        if result.folder:
            config = RunFolder.open(result.folder).config()
        label = str(result.summary["method"])
        return cls(label, config, result.metrics, result.summary, result.folder)

    @classmethod
    def read(cls, folder: Path | str) -> Run:
        """A run on disk; raises `RunError` if it has nothing to show."""
        on_disk = RunFolder.open(folder)
        config = on_disk.config()
        method = _method_text(config.get("method"))
        if method is None:
            raise RunError(
                f"{on_disk.path / 'config.json'} does not describe a run of prlc: it names no "
                "method. Name a folder that `prlc train` or `prlc compare` wrote."
            )
        summary = on_disk.summary() if on_disk.finished else None
        label = str(summary["method"]) if summary and "method" in summary else _label(method)
        config = {**config, "method": method}
        return cls(label, config, _read_metrics(on_disk), summary, on_disk.path)

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def seed(self) -> Any:
        return self.final("seed")

    def column(self, name: str) -> pd.Series[float]:
        """A column of the metrics; `bytes` is up plus down."""
        if name == "bytes":
            return self.metrics["bytes_up"] + self.metrics["bytes_down"]
        return self.metrics[name]

    def final(self, name: str) -> Any:
        """A value of the summary; of an unfinished run, what its last row gives."""
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
    """One curve: the runs of a method under the same settings, one per seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    def band(self, x: str, y: str) -> pd.DataFrame:
        """A row per evaluated step: the means of x and y over the seeds, y's low and high.

        A seed without a row or a number at a step does not count there.
        """
        xs, ys = self._by_step(x), self._by_step(y)
        columns = {"x": xs.mean(axis=1), "y": ys.mean(axis=1), "low": ys.min(axis=1)}
        return pd.DataFrame({**columns, "high": ys.max(axis=1)}).reset_index(drop=True)

    def has(self, y: str) -> bool:
        """Whether any run measured `y`."""
        return any(y in run.metrics and run.metrics[y].notna().any() for run in self.runs)

    def finals(self, name: str) -> list[float]:
        """The final value of each run that has one."""
        values = (run.final(name) for run in self.runs)
        return [value for value in values if isinstance(value, int | float)]

    def _by_step(self, name: str) -> pd.DataFrame:
        """One metric: a row per step, a column per run."""
        return pd.concat(
            [run.column(name).set_axis(run.column("step")) for run in self.runs], axis=1
        )


@dataclass(frozen=True)
class Chart:
    """Curves drawn together."""

    title: str
    series: tuple[Series, ...]
    note: str = ""


# ---- verdicts ------------------------------------------------------------------------------------


class Outcome(StrEnum):
    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"


@dataclass(frozen=True)
class Verdict:
    """A claim, and whether our runs support it."""

    figure: str
    """Where the claim is made: "fig1"."""
    claim: str
    setting: str
    """Where it was tested: "logistic, lr 0.1"."""
    measured: str
    """The measured values, in a sentence."""
    outcome: Outcome


# ---- reading runs from disk ----------------------------------------------------------------------


def find_runs(path: Path) -> list[Path]:
    """`path` itself if it is a run's folder, otherwise all run folders below it."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise RunError(f"{path} {what}. Name a run's folder, or a folder that contains runs.")
    if any((path / name).exists() for name in _RUN_FILES):
        return [path]
    found = {file.parent for file in path.rglob("*") if file.name in _RUN_FILES}
    if not found:
        raise RunError(f"{path} holds no run, and neither do its subfolders. Name one that does.")
    return sorted(found)


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders, each once, and an error message for each unreadable one."""
    runs: dict[Path, Run] = {}
    errors: list[str] = []
    for path in paths:
        try:
            folders = find_runs(path)
        except RunError as error:
            errors.append(str(error))
            continue
        here: list[Run] = []
        for folder in folders:
            try:
                here.append(Run.read(folder))
            except RunError as error:
                errors.append(str(error))
        for run in sorted(here, key=_method_order):
            assert run.folder is not None
            runs.setdefault(run.folder.resolve(), run)
    return list(runs.values()), errors


def _method_order(run: Run) -> int:
    """NSGD, the baseline, comes first."""
    names = list(METHODS)
    name, _ = text.split(run.config["method"], ":")
    return names.index(name) if name in names else len(names)


def _method_text(method: object) -> str | None:
    """The text of the method that a config.json names; earlier versions wrote its settings."""
    if isinstance(method, str):
        return method
    if not (isinstance(method, Mapping) and isinstance(method.get("name"), str)):
        return None
    settings = {key: value for key, value in method.items() if key != "name"}
    try:
        return str(create(method["name"], **settings))
    except (ConfigError, TypeError):  # of a version that had others
        words = [f"{key}={text.write_value(value)}" for key, value in settings.items()]
        return ":".join([method["name"], *words])


def _label(method: str) -> str:
    """The label of a method's text; the text where this version does not know it.

    A method of somebody's own stays text: showing a run must not run a file that it names.
    """
    if text.names_a_file(method):
        return text.without_folders(method)
    try:
        return parse_method(method).label
    except ConfigError:
        return method


def _read_metrics(run: RunFolder) -> pd.DataFrame:
    """metrics.csv without a last row that a kill cut short."""
    folder, file = run.path, run.path / "metrics.csv"
    try:
        lines = run.metrics_text().splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        table = pd.read_csv(io.StringIO("".join(whole))) if len(whole) > 1 else pd.DataFrame()
        table = pd.DataFrame({name: pd.to_numeric(table[name]) for name in table})
    except ValueError:
        raise RunError(
            f"{file} is damaged: it should be a table of numbers. Resume the run, which restores "
            "it to the last checkpoint, or leave the run out."
        ) from None
    if table.empty:
        raise RunError(
            f"{folder} has nothing to show yet: its metrics.csv has no complete row. Resume the "
            "run, or leave it out."
        )
    missing = [name for name in _REQUIRED_COLUMNS if name not in table]
    if missing:
        raise RunError(
            f"{file} lacks the column {missing[0]}, so prlc did not write it. Name a folder that "
            "`prlc train` or `prlc compare` wrote."
        )
    return table
