"""Three lines in a script of one's own, checked by hand."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import forks
from prlc.methods import PR, PRLC, Scheduled, Timetable, parse_method

from .launch import made_once
from .team_cases import LR, STEPS, target

Found = dict[str, Any]


def by_hand(
    method: Scheduled, start: torch.Tensor, workers: int, steps: int = STEPS
) -> torch.Tensor:
    """What the server's model should be in the end."""
    w, own = start.clone(), [start.clone() for _ in range(workers)]
    unsent = [torch.zeros_like(start) for _ in range(workers)]
    timetable = Timetable(method, workers, seed=5)
    for step in range(steps):
        updates = [-LR * (own[i] - target(i)) for i in range(workers)]
        unsent = [a + b for a, b in zip(unsent, updates, strict=True)]
        if timetable[step].is_push or step == steps - 1:  # what is left of a round goes as well
            w = w + torch.stack(unsent).mean(0)
            unsent = [torch.zeros_like(start) for _ in range(workers)]
        pulls = timetable[step].pulls
        for i in range(workers):
            own[i] = w.clone() if pulls[i] else own[i] + (method.gain or 0.0) * updates[i]
    return w


@pytest.fixture(scope="module", params=[("sharded", 3), ("server", 3)], ids=lambda p: p[0])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[Found]]:
    layout, workers = request.param

    def make(folder: Path) -> None:
        process = forks.start("processes.team_cases", layout, str(workers), folder, output=2)
        try:
            process.wait(timeout=200)
        finally:
            process.kill_all()

    folder = made_once(f"team-{layout}", make, tmp_path_factory)
    ranks = range(1, 4) if layout == "server" else range(3)
    said = {f.name: f.read_text() for f in sorted(folder.glob("*.txt"))}
    missing = [rank for rank in ranks if not (folder / f"{rank}.pt").exists()]
    assert not missing, said
    return layout, folder, [torch.load(folder / f"{rank}.pt") for rank in ranks]


def first_weights() -> torch.Tensor:
    """Those of rank 0, which all processes start from."""
    torch.manual_seed(0)
    return torch.randn(3, dtype=torch.float64)


def test_all_workers_end_with_the_same_model(found: tuple[str, Path, list[Found]]) -> None:
    first, *others = found[2]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_nsgd_is_gradient_descent_on_the_mean(found: tuple[str, Path, list[Found]]) -> None:
    goal = torch.stack([target(i) for i in range(3)]).mean(0)
    expected = goal + (1 - LR) ** STEPS * (first_weights() - goal)
    torch.testing.assert_close(found[2][0]["nsgd"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", ["pr:0.5", "prlc:0.3", "prlc:0.5:every=3"])
def test_pulls_and_compensation_are_those_of_the_method(
    text: str, found: tuple[str, Path, list[Found]]
) -> None:
    method = parse_method(text)
    assert isinstance(method, PR | PRLC)
    after = {"pr:0.5": 1, "prlc:0.3": 2, "prlc:0.5:every=3": 3}[text]
    torch.manual_seed(0)
    start = [torch.randn(3, dtype=torch.float64) for _ in range(after + 1)][-1]
    expected = by_hand(method, start, 3)
    torch.testing.assert_close(found[2][0][text], expected, rtol=0, atol=1e-12)


def test_lag_ends_by_itself_and_asgd_lets_each_take_its_own_number_of_steps(
    found: tuple[str, Path, list[Found]],
) -> None:
    goal = torch.stack([target(i) for i in range(3)]).mean(0)
    assert torch.isfinite(found[2][0]["lag-ps"]).all()
    assert float((found[2][0]["asgd"] - goal).norm()) < 1.0


def test_a_skipped_update_leaves_the_mean_to_the_others(
    found: tuple[str, Path, list[Found]],
) -> None:
    torch.manual_seed(0)
    w = [torch.randn(3, dtype=torch.float64) for _ in range(7)][-1]
    for step in range(STEPS):
        workers = [0, 2] if step == 3 else [0, 1, 2]
        w = w - LR * (w - torch.stack([target(i) for i in workers]).mean(0))
    torch.testing.assert_close(found[2][0]["skip"], w, rtol=0, atol=1e-12)


def test_a_checkpoint_is_made_at_a_push_and_gone_on_from(
    found: tuple[str, Path, list[Found]],
) -> None:
    _, folder, (first, *_) = found
    assert torch.isfinite(first["checkpoint after the last push"]).all()
    assert first["steps taken again"].tolist() == [*range(16, 24)]
    assert torch.load(folder / "kept" / "checkpoint.pt")["steps_done"] == 24
    torch.manual_seed(0)
    start = [torch.randn(3, dtype=torch.float64) for _ in range(8)][-1]
    method = parse_method("local-sgd:8")
    assert isinstance(method, Scheduled)
    expected = by_hand(method, start, 3, steps=24)
    torch.testing.assert_close(first["started again"], expected, rtol=0, atol=1e-12)


def test_unequal_numbers_of_steps_are_refused(found: tuple[str, Path, list[Found]]) -> None:
    layout, folder, _ = found
    said = "".join(file.read_text() for file in sorted(folder.glob("?.txt")))
    assert "Worker 0 stopped after 12 steps while others go on." in said
    codes = [int(code) for code in (folder / "codes.txt").read_text().split()]
    assert 0 not in codes, (layout, codes)
    assert -signal.SIGKILL not in codes, (layout, codes)
