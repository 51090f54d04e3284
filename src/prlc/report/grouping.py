"""From runs to charts: settings compared, seeds joined into curves, curves labelled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from prlc.network.units import format_bandwidth, format_seconds, format_speed
from prlc.report.series import Chart, Run, Series

#: A run's configuration under dotted names: `network.latency`.
Settings = dict[str, Any]

_MISSING = object()


# ---- charts, curves and their labels -------------------------------------------------------------


def group(runs: Sequence[Run]) -> list[Chart]:
    """A chart per problem, a curve per setting; runs that differ only in the seed share one."""
    problems: dict[Hashable, list[Run]] = {}
    for run in runs:
        problem = [run.config.get(key) for key in ("data", "model", "loss")]
        problems.setdefault(json.dumps(problem), []).append(run)
    return [Chart(describe(each), tuple(_series(each))) for each in problems.values()]


def describe(runs: Sequence[Run]) -> str:
    """A title: the model, data, workers and learning rate that the runs share."""
    shared, _ = split(runs)
    models = {_model(run) for run in runs}
    model = models.pop() if len(models) == 1 else None
    words = [" on ".join(str(word) for word in (model, shared.get("data.name")) if word)]
    if "workers" in shared:
        words.append(f"{shared['workers']} workers")
    if "schedule.lr" in shared:
        words.append(f"lr {shared['schedule.lr']:g}")
    return ", ".join(filter(None, words)) or "Runs"


def _model(run: Run) -> str | None:
    """The name typed on the command line, or the class and size of a model from Python."""
    command, settings = run.config.get("command"), flatten(run.config)
    if isinstance(command, Mapping) and command.get("model"):
        return str(command["model"])
    if "model.class" not in settings:
        return None
    return f"{settings['model.class']} of {settings.get('model.parameters', 0):,} parameters"


def _series(runs: Sequence[Run]) -> list[Series]:
    """Curves with distinct labels; runs that differ only in the seed share one.

    An unfinished run is a curve of its own, since a mean over ever fewer seeds would jump. So is
    a repeated run of a seed: it is not another sample.
    """
    groups: dict[tuple[Hashable, int], list[Run]] = {}
    times: Counter[Hashable] = Counter()
    for run in runs:
        settings = flatten(run.config)
        seed = settings.pop("seed", None)
        alone = None if run.finished else str(run.folder)
        same = (run.label, json.dumps(settings, sort_keys=True, default=str), alone)
        times[same, seed] += 1
        groups.setdefault((same, times[same, seed]), []).append(run)
    curves = [_labelled(members[0], repeat=time > 1) for (_, time), members in groups.items()]
    members = zip(tell_apart(curves), groups.values(), strict=True)
    return [Series(label, tuple(each)) for label, each in members]


def _labelled(run: Run, *, repeat: bool) -> tuple[str, Settings]:
    """A curve's label, and the settings that may be added to it."""
    settings = flatten(run.config)
    seed = settings.pop("seed", None)
    if not run.finished:
        return f"{run.label}, unfinished", {**settings, "seed": seed, "in": str(run.folder)}
    return run.label, {**settings, "in": str(run.folder) if repeat else None}


def tell_apart(curves: Sequence[tuple[str, Settings]]) -> list[str]:
    """Distinct labels: adds to equal ones the fewest settings that distinguish them."""
    labels = [label for label, _ in curves]
    for label in {each for each in labels if labels.count(each) > 1}:
        alike = [number for number, each in enumerate(labels) if each == label]
        settings = [curves[number][1] for number in alike]
        longer = [label] * len(alike)
        for name in differing(settings):
            more = [
                f"{before}, {setting_label(name, own[name])}"
                if own.get(name) is not None
                else before
                for before, own in zip(longer, settings, strict=True)
            ]
            if len({*more}) > len({*longer}):
                longer = more
        for number, each in zip(alike, longer, strict=True):
            labels[number] = each
    return labels


# ---- settings ------------------------------------------------------------------------------------


def flatten(config: Mapping[str, Any], prefix: str = "") -> Settings:
    """Nested settings under dotted names, without the command line."""
    settings: Settings = {}
    for key, value in config.items():
        if key == "command" and not prefix:
            continue
        if isinstance(value, Mapping):
            settings |= flatten(value, f"{prefix}{key}.")
        else:
            settings[prefix + key] = value
    return settings


def split(runs: Sequence[Run]) -> tuple[Settings, list[Settings]]:
    """The settings that all runs share, and the remaining ones of each run."""
    each_run = [flatten(run.config) for run in runs]
    differ = set(differing(each_run))
    shared = {key: value for key, value in each_run[0].items() if key not in differ}
    return shared, [{k: v for k, v in each.items() if k in differ} for each in each_run]


def differing(several: Sequence[Settings]) -> list[str]:
    """The names of settings that are not equal everywhere, in order of appearance."""
    names = dict.fromkeys(name for settings in several for name in settings)
    first = several[0]
    return [
        name
        for name in names
        if any(each.get(name, _MISSING) != first.get(name, _MISSING) for each in several)
    ]


def format_setting(name: str, value: Any) -> str:
    """A setting's value as people read it."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(format_setting(name, each) for each in value)
    if value == "inf" and name in _UNITS:
        return "unlimited"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _UNITS[name](value) if name in _UNITS else _number(value)
    return str(value)


def setting_label(name: str, value: Any) -> str:
    """A setting as part of a label: `lr 0.05`."""
    parts = name.split(".")
    noun = parts[0] if parts[-1] in ("name", "class") else parts[-1]
    return f"{noun.replace('_', ' ')} {format_setting(name, value)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:g}"


_UNITS: dict[str, Callable[[float], str]] = {
    **{f"network.{end}": format_bandwidth for end in ("server_up", "server_down")},
    **{f"network.{end}": format_bandwidth for end in ("worker_up", "worker_down")},
    **{f"network.{time}": format_seconds for time in ("latency", "step_seconds")},
    "network.compute_speed": format_speed,
}
