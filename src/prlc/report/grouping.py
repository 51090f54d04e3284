"""From folders to charts: finding runs, putting seeds together, telling curves apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

from prlc.errors import RunError
from prlc.methods import METHODS
from prlc.report.series import Chart, Run, Series
from prlc.report.settings import Settings, differing, flat, split, word

# Any of these makes a folder a run, though perhaps a half-written one.
_TRACES = ("config.json", ".config.json.writing", "metrics.csv", "checkpoint.pt", "summary.json")


def find_runs(path: Path) -> list[Path]:
    """The run folder that `path` is, or those below it: a comparison's, a sweep's."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise RunError(f"{path} {what}. Name a run's folder, or a folder that holds some.")
    if any((path / name).exists() for name in _TRACES):
        return [path]
    found = {file.parent for file in path.rglob("*") if file.name in _TRACES}
    if not found:
        raise RunError(f"{path} holds no run, nor does any folder in it. Name one that does.")
    return sorted(found)


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders, each once, and a sentence about each that cannot be shown."""
    runs: dict[Path, Run] = {}
    bad: list[str] = []
    for path in paths:
        try:
            folders = find_runs(path)
        except RunError as error:
            bad.append(str(error))
            continue
        here: list[Run] = []
        for folder in folders:
            try:
                here.append(Run.read(folder))
            except RunError as error:
                bad.append(str(error))
        for run in sorted(here, key=_method_order):
            assert run.folder is not None
            runs.setdefault(run.folder.resolve(), run)
    return list(runs.values()), bad


def group(runs: Sequence[Run]) -> list[Chart]:
    """A chart per problem; in it a curve per setting, with its seeds together."""
    problems: dict[Hashable, list[Run]] = {}
    for run in runs:
        problem = [run.config.get(key) for key in ("data", "model", "loss")]
        problems.setdefault(json.dumps(problem), []).append(run)
    return [Chart(describe(each), tuple(_series(each))) for each in problems.values()]


def describe(runs: Sequence[Run]) -> str:
    """What these runs train, for a title: what they share."""
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
    """The name that was typed, or what is known of a model that came from Python."""
    command, settings = run.config.get("command"), flat(run.config)
    if isinstance(command, Mapping) and command.get("model"):
        return str(command["model"])
    if "model.class" not in settings:
        return None
    return f"{settings['model.class']} of {settings.get('model.parameters', 0):,} parameters"


def _method_order(run: Run) -> int:
    """NSGD first, as everything is measured by it."""
    names = list(METHODS)
    name = run.config["method"]["name"]
    return names.index(name) if name in names else len(names)


def _series(runs: Sequence[Run]) -> list[Series]:
    """Runs that differ in nothing but the seed become one; the labels tell all apart.

    A run that is not finished stays alone: a mean over ever fewer seeds would jump. So does the
    second run of a seed, which is no other measurement.
    """
    groups: dict[tuple[Hashable, int], list[Run]] = {}
    times: Counter[Hashable] = Counter()
    for run in runs:
        settings = flat(run.config)
        seed = settings.pop("seed", None)
        alone = None if run.finished else str(run.folder)
        same = (run.label, json.dumps(settings, sort_keys=True, default=str), alone)
        times[same, seed] += 1
        groups.setdefault((same, times[same, seed]), []).append(run)
    curves = [_told(members[0], again=time > 1) for (_, time), members in groups.items()]
    labelled = zip(tell_apart(curves), groups.values(), strict=True)
    return [Series(label, tuple(members)) for label, members in labelled]


def _told(run: Run, *, again: bool) -> tuple[str, Settings]:
    """A curve's label, and what may be added to it."""
    settings = flat(run.config)
    seed = settings.pop("seed", None)
    if not run.finished:
        return f"{run.label}, unfinished", {**settings, "seed": seed, "in": str(run.folder)}
    return run.label, {**settings, "in": str(run.folder) if again else None}


def tell_apart(curves: Sequence[tuple[str, Settings]]) -> list[str]:
    """Labels that are all different: to equal ones what differs is added, as little as needed."""
    labels = [label for label, _ in curves]
    for label in {each for each in labels if labels.count(each) > 1}:
        alike = [number for number, each in enumerate(labels) if each == label]
        told = [curves[number][1] for number in alike]
        longer = [label] * len(alike)
        for name in differing(told):
            more = [
                f"{before}, {word(name, own[name])}" if own.get(name) is not None else before
                for before, own in zip(longer, told, strict=True)
            ]
            if len({*more}) > len({*longer}):
                longer = more
        for number, each in zip(alike, longer, strict=True):
            labels[number] = each
    return labels
