"""`prlc reproduce beyond`: from the frozen settings to the verdicts, and how each is judged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prlc.data import DATASETS
from prlc.engines import Simulator
from prlc.errors import ConfigError
from prlc.experiments.beyond.plans import Planning
from prlc.experiments.beyond.reached import Race, Reached
from prlc.experiments.beyond.settings import BASELINE, SCALES, Row, beyond
from prlc.experiments.beyond.trials import Trial, raced, rows_of, timings_of, trials_of, tuning_of
from prlc.experiments.beyond.verdicts import judge
from prlc.experiments.specs import Workspace
from prlc.experiments.sweep import Tuned
from prlc.methods import METHODS, parse_method, recommended
from prlc.models import MODELS
from prlc.report import MEASURES, Outcome

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
        for row in beyond().rows_of(problem):
            tuning = tuning_of(problem, row)
            factor = tuning[0].lr / problem.grid[0]
            assert [trial.lr for trial in tuning] == [factor * lr for lr in problem.grid]
            assert factor == 1 or row.method == "demo", "a sign's step has another size"
            assert {trial.steps for trial in tuning} == {problem.tuning_steps}
            assert not row.length or row.serves or row.method == BASELINE


def test_who_ends_at_nsgds_loss_trains_as_long_as_nsgd(tmp_path: Path) -> None:
    problem = replace(SMOKE, plan_trials=0, tuning_steps=SMOKE.steps)
    losses = {row.method: 1.0 + 0.1 * (row.method == "diloco") for row in beyond().rows}
    tuned = [Tuned("digits", method, 0.1, ((0.1, loss),)) for method, loss in losses.items()]
    rows = {row.method: row for row in rows_of(problem, tuned, Workspace(tmp_path))}
    assert rows["stc"].steps_on(problem) == rows[BASELINE].steps_on(problem) == problem.steps
    assert rows["diloco"].steps_on(problem) == 2 * problem.steps
    assert {row.lr for row in rows.values()} == {0.1}
    shorter = replace(problem, tuning_steps=problem.steps // 2)
    rows = {row.method: row for row in rows_of(shorter, tuned, Workspace(tmp_path))}
    assert rows["stc"].steps_on(shorter) == 2 * rows[BASELINE].steps_on(shorter)


def test_who_then_misses_it_on_a_seed_trains_twice_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = replace(SMOKE, plan_trials=0, tuning_steps=SMOKE.steps)
    tuned = [Tuned("digits", row.method, 0.1, ((0.1, 1.0),)) for row in beyond().rows]
    missed = {("stc", 0): 0.8, ("diloco", 1): 1.5}  # NSGD ends at 0.5, then at 1
    monkeypatch.setattr(
        Trial,
        "load",
        lambda self, _: run([2.0, missed.get((self.row.method, self.seed), [0.5, 1.0][self.seed])]),
    )
    rows = {row.method: row for row in raced(problem, 2, tuned, Workspace(tmp_path))}
    assert {method for method, row in rows.items() if row.length == 2.0} == {"stc", "diloco"}
    assert {row.length for row in raced(problem, 1, tuned, Workspace(tmp_path))} == {1.0, 2.0}


@pytest.mark.parametrize(("end", "steps"), [(0.5, 70), (0.8, 120)])
def test_a_plan_that_misses_it_trains_twice_as_long_as_nsgd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: float, steps: int
) -> None:
    write_plan(tmp_path, {"method": "whisper:10", "lr": 0.1, "steps": 70})
    tuned = [Tuned("digits", row.method, 0.1, ((0.1, 1.0),)) for row in beyond().rows]
    monkeypatch.setattr(Trial, "load", lambda self, _: run([2.0, end if self.row.planned else 0.5]))
    *_, plan = raced(SMOKE, 1, tuned, Workspace(tmp_path))
    assert (plan.name, plan.steps_on(SMOKE)) == ("plan", steps)


def test_a_plan_has_a_length_of_its_own(tmp_path: Path) -> None:
    file = write_plan(tmp_path, {"method": "whisper:10", "lr": 0.1, "steps": 70})
    row = Planning(SMOKE).load(Workspace(tmp_path))
    assert (row.name, row.serves, row.lr) == ("plan", ("bytes",), 0.1)
    assert {trial.steps for trial in trials_of(SMOKE, row, 2)} == {70}
    Planning(SMOKE).make(Workspace(tmp_path))  # it is there: nothing is planned again
    assert json.loads(file.read_text())["trials"] == 8


def write_plan(out: Path, found: dict[str, Any]) -> Path:
    file = out / Planning(SMOKE).name
    file.parent.mkdir()
    file.write_text(json.dumps({"optimizer_at": "workers", "trials": 8} | found))
    return file


def test_names_of_trials_and_timings_are_unique() -> None:
    for scale in SCALES:
        names = []
        for problem in beyond().problems(scale, "all"):
            for row in beyond().rows_of(problem):
                names += [trial.name for trial in trials_of(problem, row, 3)]
                names += [trial.name for trial in tuning_of(problem, row)]
                names += [timing.name for timing in timings_of(problem, row)]
        assert len(names) == len(set(names))


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
    return Reached(row, series(), {}, (loss,), (steps,), (steps,), (size,), clocks)


def test_settings_have_claims_of_their_own() -> None:
    own = reached(recommended(), 100, 21.1, 1.0, 3.0)
    few = replace(own, row=replace(own.row, serves=("bytes",), steps=100), bytes=(1.0,))
    other = replace(own, row=replace(own.row, method="whisper:2", serves=("bytes",)))
    soon = dict.fromkeys(own.seconds, (1.0,))
    by_hand = replace(own.row, method="whisper:1", serves=("paper", "wan"))
    fast = replace(own, row=by_hand, seconds=soon)
    found = verdicts(own, other, few, fast, reached("diloco", 100, 20.0))
    for key in ("bytes", "rivals"):
        assert (found[key, ""], found[f"setting-{key}", ""]) == (Outcome.FAILS, Outcome.HOLDS)
    assert found["time", ", wan"] is Outcome.FAILS
    assert found["setting-time", ", wan"] is Outcome.HOLDS
    assert ("setting-time", ", mobile") not in found


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


@pytest.mark.parametrize(("size", "outcome"), [(20.9, Outcome.HOLDS), (21.1, Outcome.FAILS)])
def test_the_best_rival_has_to_be_matched(size: float, outcome: Outcome) -> None:
    rivals = (reached("diloco", 100, 20.0), reached("stc", 100, 30.0))
    assert verdicts(reached(recommended(), 100, size), *rivals)["rivals", ""] is outcome


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
    assert [row["method"] for row in record["results"]] == [*rows, "plan"]
    plan = record["results"][-1]["setting"]
    assert (plan["for"], plan["planned"]) == (["bytes"], True)
    for row in record["results"]:
        assert 0 < row["trained"] <= 2 * SMOKE.steps
    assert f"The plan: {plan['method']}" in " ".join(said.split())
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
        (("--scale", "smoke", "--model", ""), "no problem '' here"),
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
