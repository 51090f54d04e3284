"""A worker that does not pull does not wait for others: what the workers recorded shows it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import prlc
from prlc.methods import Timetable
from prlc.network import Network

from .launch import Ended, launch
from .problems import outcome, problem, settings
from .run_cases import Case

STEPS, WINDOW = 40, 4
NETWORK = {"step_seconds": 0.01, "stragglers": 0.25, "straggler_factor": 10.0}
SETTINGS = {"method": "prlc:0.1", "steps": STEPS, "network": NETWORK}
LAYOUTS = ["server", "sharded"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """A run of four workers, of whom one is ten times slower, in each layout."""
    cases = [
        Case(
            name=layout,
            layout=layout,
            settings=SETTINGS | {"folder": f"run-{layout}"},
            cluster={"record_timeline": True, "emulate_compute": True, "window": WINDOW},
        )
        for layout in LAYOUTS
    ]
    return launch(cases, "run-ahead-cases", tmp_path_factory, at_once=2)


def events(run: Ended) -> tuple[pd.DataFrame, int]:
    """What happened, with the worker in place of the rank; and which worker is the slow one."""
    table = pd.read_csv(run.run / "timeline.csv")
    table["worker"] = table.pop("rank") - (run.case.layout == "server")
    (slow,) = np.flatnonzero(Network.of(NETWORK).straggling(0, 4))
    return table, int(slow)


def when(table: pd.DataFrame, worker: int, what: str, edge: str) -> pd.Series[float]:
    """The moments of a worker's events, by step."""
    mine = table[(table.worker == worker) & (table.what == what)]
    return mine.set_index("step")[edge]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_those_who_pull_wait_for_a_model(ended: dict[str, Ended], layout: str) -> None:
    table, _ = events(ended[layout])
    timetable = Timetable(prlc.PRLC(0.1), 4, seed=0, steps=STEPS)
    scheduled = np.array([timetable[step].pulls for step in range(STEPS)])
    pulled = table[table.what == "pull"]
    expected = {(int(worker), int(step)) for step, worker in np.argwhere(scheduled)}
    assert set(zip(pulled.worker, pulled.step, strict=True)) == expected
    assert len(pulled) == len(expected)
    assert 0 < len(expected) < STEPS
    assert set(table.what) == {"compute", "pull", "push"}
    for worker in range(4):
        assert list(when(table, worker, "compute", "end").index) == [*range(STEPS)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_push_waits_only_when_the_window_is_full(ended: dict[str, Ended], layout: str) -> None:
    table, slow = events(ended[layout])
    theirs = when(table, slow, "compute", "end")
    for worker in {*range(4)} - {slow}:
        ours = when(table, worker, "compute", "start")
        # Before step t, push t - 1 found room, so push t - 1 - WINDOW has left. For that one of
        # the server's two buffers was free, so it was done with the push two before, and all of
        # that step.
        assert all(ours[t] >= theirs[t - 3 - WINDOW] for t in range(WINDOW + 3, STEPS))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_others_are_ahead_of_a_slow_one(ended: dict[str, Ended], layout: str) -> None:
    table, slow = events(ended[layout])
    theirs = when(table, slow, "compute", "end")
    for worker in {*range(4)} - {slow}:
        ours = when(table, worker, "compute", "end")
        ahead = [t for t in range(STEPS - 2) if ours[t + 2] < theirs[t]]
        assert len(ahead) > STEPS / 4, f"worker {worker} is two steps ahead at {ahead}"
        pulled = when(table, worker, "pull", "end")
        assert all(pulled > theirs[pulled.index]), "a model has everybody's update in it"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_the_same_run_as_one_without_a_slow_worker(
    ended: dict[str, Ended], layout: str
) -> None:
    ours = ended[layout].of_rank()
    undisturbed = SETTINGS | {"network": "paper"}
    theirs = outcome(prlc.train(*problem("bn"), engine="reference", **settings(undisturbed, 4)))
    for name, tensor in theirs["tensors"].items():
        assert float((ours["tensors"][name] - tensor).abs().max()) < 1e-10, name
