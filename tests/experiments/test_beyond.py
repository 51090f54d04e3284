"""`prlc reproduce beyond`: from the frozen settings to the verdicts, and how each is judged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prlc.data import DATASETS
from prlc.engines import Simulator
from prlc.errors import ConfigError
from prlc.experiments.beyond.reached import Race, Reached
from prlc.experiments.beyond.settings import BASELINE, SCALES, Beyond, Row, beyond
from prlc.experiments.beyond.trials import (
    Timing,
    Trial,
    chosen_of,
    timings_of,
    trials_of,
    tuning_of,
)
from prlc.experiments.beyond.verdicts import judge
from prlc.experiments.specs import Workspace
from prlc.experiments.sweep import Tuned
from prlc.methods import METHODS, parse_method, recommended
from prlc.models import MODELS
from prlc.report import MEASURES, Outcome, Run

from .builders import run, series

Prlc = Callable[..., tuple[int, str, str]]

PROBLEMS = [problem for scale in SCALES for problem in beyond().problems(scale, "all")]
SMOKE = beyond().problems("smoke", "digits")[0]


# -- settings --------------------------------------------------------------------------------------


def test_every_problem_names_what_exists() -> None:
    for each in PROBLEMS:
        assert each.data in DATASETS
        assert each.model in MODELS
        assert each.measure in MEASURES
        assert list(each.grid) == sorted(set(each.grid))
        rows = [row.method for row in beyond().rows_of(each)]
        assert rows[:2] == [BASELINE, recommended()]


def test_rows_name_what_exists() -> None:
    names = {problem.name for problem in PROBLEMS}
    for row in beyond().rows:
        parse_method(row.method)
        assert set(row.problems) <= names
        assert set(row.clocks) <= set(beyond().networks)
    assert sum(kind.recommended for kind in METHODS.values()) == 1


def test_the_same_effort_for_all() -> None:
    for problem in PROBLEMS:
        for row in [*beyond().rows_of(problem), *beyond().choices_of(problem)]:
            tuning = tuning_of(problem, row)
            factor = tuning[0].lr / problem.grid[0]
            assert [trial.lr for trial in tuning] == [factor * lr for lr in problem.grid]
            assert factor == 1 or row.method == "demo", "a sign's step has another size"
            assert {trial.steps for trial in tuning} == {problem.tuning_steps}
            longer = 1 if row.method == BASELINE else 2
            assert {t.steps for t in trials_of(problem, row, 0.1, 2)} == {longer * problem.steps}


def test_a_choice_gets_there_in_every_rehearsal_by_the_fewest_bytes_or_soonest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If nobody gets there, it is whoever ends lowest."""
    problem, first = replace(SMOKE, rehearsals=2), beyond().tuning_seed
    names = beyond().choices["sgd"]
    tuned = [Tuned(problem.name, name, 0.1, ()) for name in ("nsgd", *names)]
    ends = {(name, seed): 2.0 for name in names for seed in (first, first + 1)}
    ends |= {("nsgd", first): 1.0, ("nsgd", first + 1): 1.2}
    sizes = dict.fromkeys(names, 50.0) | {"nsgd": 100.0}
    seconds = dict.fromkeys(names, 9.0)

    def load(trial: Trial, _: Workspace) -> Run:
        assert not trial.tuning
        name = trial.row.method
        return run([3.0, ends[name, trial.seed]], size=sizes[name])

    def load_times(timing: Timing, _: Workspace) -> dict[int, float]:
        assert timing.clock == "paper"
        return {0: 0.0, 1: seconds[timing.trial.row.method]}

    def chosen() -> dict[str, str]:
        rows = chosen_of(problem, tuned, Workspace(Path()))
        return {row.chosen_for: row.method for row in rows}

    monkeypatch.setattr(Trial, "load", load)
    monkeypatch.setattr(Timing, "load", load_times)
    ends[names[2], first] = 1.5
    assert chosen() == {"bytes": names[2], "time": names[2]}
    for number, size in ((1, 20.0), (3, 30.0), (4, 1.0)):
        ends[names[number], first], sizes[names[number]] = 0.99, size
        seconds[names[number]] = 1 / size
    ends |= {(names[1], first + 1): 1.2, (names[3], first + 1): 0.9, (names[4], first + 1): 1.21}
    assert chosen() == {"bytes": names[1], "time": names[3]}
    problem = replace(problem, timed=False)
    assert chosen() == {"bytes": names[1]}
    problem = replace(problem, rehearsals=0)
    assert chosen() == {}


def test_names_of_trials_and_timings_are_unique() -> None:
    for scale in SCALES:
        names = []
        for problem in beyond().problems(scale, "all"):
            for row in beyond().rows_of(problem):
                names += [trial.name for trial in trials_of(problem, row, 0.1, 3)]
                names += [trial.name for trial in tuning_of(problem, row)]
                names += [timing.name for timing in timings_of(problem, row)]
        assert len(names) == len(set(names))


def test_an_unlimited_network_has_the_same_workers() -> None:
    for network in beyond().networks.values():
        fast = Beyond.unlimited(network)
        assert fast.latency == 0
        assert fast.server_up == fast.server_down == fast.worker_up == fast.worker_down == math.inf
        assert (fast.compute_speed, fast.stragglers) == (network.compute_speed, network.stragglers)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no scale 'huge'. Choose one of: smoke, quick, full"):
        beyond().problems("huge", "all")
    with pytest.raises(ConfigError, match=r"no problem 'moon' here. Choose one of: digits, .* all"):
        beyond().problems("smoke", "moon")


# -- verdicts --------------------------------------------------------------------------------------


def reached(
    method: str, steps: float, size: float, loss: float = 1.0, time: float = 1.0
) -> Reached:
    row = replace(next((r for r in beyond().rows if r.method == method), Row(method=method)))
    clocks = dict.fromkeys(beyond().clocks_of(row), (time,))
    return Reached(row, 0.1, series(), {}, (loss,), (steps,), (steps,), (size,), clocks)


def test_settings_for_bytes_and_for_time_have_claims_of_their_own() -> None:
    own = reached(recommended(), 100, 21.1, 1.0, 3.0)
    few = replace(own, row=replace(own.row, chosen_for="bytes"), bytes=(1.0,))
    soon = dict.fromkeys(own.seconds, (1.0,))
    fast = replace(own, row=replace(own.row, chosen_for="time"), seconds=soon)
    found = verdicts(own, few, fast, reached("diloco", 100, 20.0))
    for key, chosen in (("bytes", Outcome.HOLDS), ("rivals", Outcome.HOLDS)):
        assert (found[key, ""], found[f"chosen-{key}", ""]) == (Outcome.FAILS, chosen)
    assert found["time", ", wan"] is Outcome.FAILS
    assert found["chosen-time", ", wan"] is Outcome.HOLDS


def verdicts(
    own: Reached, *others: Reached, fastest: float = 1.0
) -> dict[tuple[str, str], Outcome]:
    problem = replace(SMOKE, bytes=0.01, timed=True)
    nsgd = reached(BASELINE, 100, 1000.0, time=50.0)
    all_of_them = {each.row.name: each for each in (nsgd, own, *others)}
    race = Race(problem, all_of_them, dict.fromkeys(beyond().networks, fastest))
    return {(v.key, v.setting.removeprefix("LR, digits")): v.outcome for v in judge(race)}


def test_limits_decide() -> None:
    rival = reached("diloco", 100, 20.0)
    found = verdicts(reached(recommended(), 100, 10.0, 1.01, 1.2), rival)
    assert set(found.values()) == {Outcome.HOLDS}
    found = verdicts(reached(recommended(), 100, 20.0, 1.015, 2.4), rival)
    assert found.pop(("rivals", "")) is Outcome.HOLDS, "matched"
    assert set(found.values()) == {Outcome.IN_PART}
    found = verdicts(reached(recommended(), 100, 21.1, 1.03, 2.5), rival)
    assert set(found.values()) == {Outcome.FAILS}


def test_who_never_gets_there_loses() -> None:
    lost = reached(recommended(), math.inf, math.inf, 1.5, math.inf)
    assert set(verdicts(lost, reached("diloco", 100, 20.0)).values()) == {Outcome.FAILS}
    alone = verdicts(reached(recommended(), 100, 10.0), reached("diloco", math.inf, math.inf))
    assert alone["rivals", ""] is Outcome.HOLDS


def test_asgd_is_compared_by_steps_and_a_large_models_clock() -> None:
    own = reached(recommended(), 100, 10.0)
    assert verdicts(own, reached("asgd", 100, 1000.0))["asgd", ", paper"] is Outcome.HOLDS
    assert verdicts(own, reached("asgd", 10, 1000.0))["asgd", ", paper"] is Outcome.FAILS


# -- the command -----------------------------------------------------------------------------------


def test_smoke_ends_in_tables_and_is_resumed(
    prlc: Prlc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    command = ("reproduce", "beyond", "--scale", "smoke", "--model", "digits", "--seeds", 1)
    code, said, error = prlc(*command, "--jobs", 1)
    assert code == 0, error
    out = tmp_path / "runs" / "beyond-smoke"
    for word in ("bytes NSGD's paper duplex wan mobile", "Tuned step sizes, digits", "verdicts:"):
        assert word in " ".join(said.split())
    assert "…" not in said
    for file in ("beyond-digits.png", "beyond-digits.svg", "beyond.html", "tuning.csv"):
        assert (out / file).stat().st_size > 0
    record = json.loads((out / "beyond.json").read_text())
    rows = [row.method for row in beyond().rows_of(SMOKE)]
    chosen = ["chosen-bytes", "chosen-time"]
    assert [row["method"] for row in record["results"]] == [*rows, *chosen]
    for goal, row in zip(("bytes", "time"), record["results"][-2:], strict=True):
        assert row["chosen"] in beyond().choices["sgd"]
        assert f"For {goal}: {row['chosen']}" in " ".join(said.split())
    nsgd = record["results"][0]
    assert nsgd["arrived"] == nsgd["seeds"] == 1
    assert nsgd["steps"] <= SMOKE.steps
    assert nsgd["seconds"]["wan"] > record["problems"][0]["computing_alone"]["wan"]
    # Once more: nothing is trained, and the record is the same.
    monkeypatch.setattr(Simulator, "step", lambda _: pytest.fail("a step was taken"))
    code, again, _ = prlc(*command, "--jobs", 1, "--json")
    assert code == 0
    assert json.loads(again) == record


def test_a_trial_evaluates_its_last_step() -> None:
    trial = Trial(SMOKE, beyond().rows[0], 0.1, 0)
    assert trial.evaluated[0] == 0
    assert trial.evaluated[-1] == trial.steps


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scale", "paper"), "no scale 'paper'. Choose one of: smoke, quick, full"),
        (("--scale", "smoke", "--model", "moon"), "no problem 'moon' here"),
        (("--scale", "smoke", "--seeds", 0), "seeds must be a whole number, 1 or more"),
    ],
)
def test_bad_input_is_one_sentence(
    prlc: Prlc,
    arguments: tuple[str | int, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = prlc("reproduce", "beyond", *arguments)
    assert (code, out) == (2, "")
    assert said in error
    assert list(tmp_path.iterdir()) == []
