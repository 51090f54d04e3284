"""Scripts of one's own, checked by hand. docs/own-script.md names these tests."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import forks
from prlc.methods import PR, PRLC, Scheduled, Timetable, parse_method

from .launch import made_once
from .team_cases import LR, STEPS, seed_of, target

Found = dict[str, Any]


def by_hand(
    method: Scheduled,
    start: torch.Tensor,
    workers: int,
    steps: int = STEPS,
    targets: list[torch.Tensor] | None = None,
    ends: bool = True,
) -> torch.Tensor:
    """What the server's model should be in the end, or while it goes on."""
    targets = targets or [target(i) for i in range(workers)]
    w, own = start.clone(), [start.clone() for _ in range(workers)]
    unsent = [torch.zeros_like(start) for _ in range(workers)]
    timetable = Timetable(method, workers, seed=5)
    for step in range(steps):
        updates = [-LR * (own[i] - targets[i]) for i in range(workers)]
        unsent = [a + b for a, b in zip(unsent, updates, strict=True)]
        if timetable[step].is_push or (
            ends and step == steps - 1
        ):  # what is left of a round goes as well
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
    found = [torch.load(folder / f"{rank}.pt") for rank in ranks]
    assert "undisturbed" in found[0], said
    return layout, folder, found


def first_weights() -> torch.Tensor:
    """Those of rank 0, which all processes start from."""
    torch.manual_seed(0)
    return torch.randn(3, dtype=torch.float64)


def test_all_workers_end_with_the_same_model(found: tuple[str, Path, list[Found]]) -> None:
    first, *others = found[2]
    kept = [name for name, value in first.items() if isinstance(value, torch.Tensor)]
    assert len(kept) > 15
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in kept)
        for name in ("frozen", "unfrozen"):
            assert all(torch.equal(first[name][key], other[name][key]) for key in first[name])


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
    targets = torch.stack([target(i) for i in range(3)])
    goal = targets.mean(0)
    assert torch.isfinite(found[2][0]["lag-ps"]).all()
    # Who is slow, on a busy machine, ends alone and draws the model to its own target, not beyond.
    farthest = float((targets - goal).norm(dim=1).max())
    assert float((found[2][0]["asgd"] - goal).norm()) < farthest


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


def starts_of(case: str, count: int = 1) -> list[torch.Tensor]:
    """The first weights of rank 0."""
    torch.manual_seed(seed_of(case))
    return [torch.randn(3, dtype=torch.float64) for _ in range(count)]


def mean_target(*workers: int) -> torch.Tensor:
    return torch.stack([target(i) for i in workers]).mean(0)


def test_a_worker_without_batches_leaves_the_mean_to_the_others(
    found: tuple[str, Path, list[Found]],
) -> None:
    (w,) = starts_of("uneven")
    for step in range(STEPS + 4):
        here = [worker for worker in range(3) if step < STEPS + 2 * worker]
        w = w - LR * (w - mean_target(*here))
    torch.testing.assert_close(found[2][0]["uneven"], w, rtol=0, atol=1e-12)


def test_two_trainings_of_one_team_and_the_rest_of_every_round(
    found: tuple[str, Path, list[Found]],
) -> None:
    starts = starts_of("two trainings", 2)
    for start, model in zip(starts, found[2][0]["two trainings"], strict=True):
        w = start
        for begin in range(0, 16, 4):
            moved: list[torch.Tensor] = []
            for worker in range(3):
                own = w
                steps = min(begin + 4, 10 + 3 * worker) - begin
                for _ in range(max(steps, 0)):
                    own = own - LR * (own - target(worker))
                moved += [own - w] * (steps > 0)
            w = w + torch.stack(moved).mean(0)
        torch.testing.assert_close(model, w, rtol=0, atol=1e-12)


def test_early_stop_by_agreement(found: tuple[str, Path, list[Found]]) -> None:
    assert [int(each["early stop"]) for each in found[2]] == [7, 7, 7]


def test_two_models_with_an_optimizer_each(found: tuple[str, Path, list[Found]]) -> None:
    starts, goal = starts_of("two models", 2), mean_target(0, 1, 2)
    for row, start, lr in zip(found[2][0]["two models"], starts, (LR, 2 * LR), strict=True):
        torch.testing.assert_close(row, goal + (1 - lr) ** STEPS * (start - goal))


def two_by_hand(method: Scheduled, starts: list[torch.Tensor]) -> torch.Tensor:
    """What becomes of two models whose optimizers take turns.

    A pull at the step of one optimizer concerns both models; the other's gradient is that of the
    model before.
    """
    common = torch.stack(starts)
    own = [common.clone() for _ in range(3)]
    unsent = [torch.zeros_like(common) for _ in range(3)]
    timetable = Timetable(method, 3, seed=5)
    gradients = [common.clone() for _ in range(3)]
    for step in range(2 * STEPS):
        turn, now = timetable[step], step % 2
        for i in range(3):
            if now == 0:
                gradients[i] = own[i] - target(i)
            update = torch.zeros_like(common)
            update[now] = -LR * (1 + now) * gradients[i][now]
            own[i] = own[i] + update
            unsent[i] += update
        if turn.is_push or step == 2 * STEPS - 1:
            common = common + torch.stack(unsent).mean(0)
            unsent = [torch.zeros_like(common) for _ in range(3)]
        own = [common.clone() if turn.pulls[i] else own[i] for i in range(3)]
    return common


@pytest.mark.parametrize("name", ["prlc:0.5", "local-sgd:4"])
def test_two_models_are_exchanged_while_a_backward_pass_waits(
    name: str, found: tuple[str, Path, list[Found]]
) -> None:
    method = parse_method(name)
    assert isinstance(method, Scheduled)
    case = "two models, prlc" if name == "prlc:0.5" else "two models, local"
    expected = two_by_hand(method, starts_of(case, 2))
    torch.testing.assert_close(found[2][0][case], expected, rtol=0, atol=1e-12)


def test_only_what_trains_travels(found: tuple[str, Path, list[Found]]) -> None:
    head, norm, statistics, frozen = 50 * 3 + 3, 2 * 50, 2 * 50, 4 * 50 + 50
    for each in found[2]:
        assert int(each["frozen"]["numbers"]) == head + norm + statistics
        assert int(each["unfrozen"]["numbers"]) == head + norm + statistics + frozen
        assert torch.isneginf(each["frozen"]["mask"]).sum() == 40 * 39 // 2
    assert all(
        bool(value.isfinite().all())
        for name, value in found[2][0]["unfrozen"].items()
        if name != "mask"
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("method", ["pr:0.2", "prlc:0.2", "nsgd"])
def test_a_change_beside_the_optimizer_is_part_of_the_update(
    method: str, optimizer: str, found: tuple[str, Path, list[Found]]
) -> None:
    """It was at 5; a clamp that got lost would leave it there, one pushed twice would explode."""
    w = found[2][0][f"clamped {optimizer} {method}"]
    assert float(w.abs().max()) < 0.7
    assert float(w[0]) > 0.4


def test_a_step_that_a_scaler_leaves_out_is_an_update_of_zero(
    found: tuple[str, Path, list[Found]],
) -> None:
    (w,) = starts_of("overflow")
    for step in range(STEPS):
        there, share = ([0, 2], 2 / 3) if step == 3 else ([0, 1, 2], 1.0)
        w = w - LR * share * (w - mean_target(*there))
    torch.testing.assert_close(found[2][0]["overflow"], w, rtol=0, atol=1e-12)


def test_a_change_after_the_last_step_is_pushed_or_warned_of(
    found: tuple[str, Path, list[Found]],
) -> None:
    for worker, each in enumerate(found[2]):
        lost, said = each["changed at the end"]
        assert not (lost == 9.0).any()
        assert any(f"weights of worker {worker} were changed after its last" in x for x in said)
        kept, said = each["changed in a round"]
        assert (kept == 9.0).all()
        assert not any("were changed" in x for x in said)


def test_closures_and_step_hooks(found: tuple[str, Path, list[Found]]) -> None:
    goal = mean_target(0, 1, 2)
    expected = goal + (1 - LR) ** STEPS * (starts_of("closure")[0] - goal)
    for each in found[2]:
        model, fired = each["closure"]
        torch.testing.assert_close(model, expected, rtol=0, atol=1e-12)
        assert fired == STEPS


def test_the_global_model_at_any_time(found: tuple[str, Path, list[Found]]) -> None:
    layout, folder, workers = found
    method = parse_method("pr:0.3")
    assert isinstance(method, Scheduled)
    (start,) = starts_of("global")
    expected = [by_hand(method, start, 3, steps) for steps in (4, 8, 12, 12)]
    for each in workers:
        for seen, model in zip(each["global"], expected, strict=True):
            torch.testing.assert_close(seen, model, rtol=0, atol=1e-12)
    if layout == "server":
        for seen in torch.load(folder / "0.pt")["global"]:
            torch.testing.assert_close(seen, expected[-1], rtol=0, atol=1e-12)


def test_what_cannot_work_is_refused_in_a_sentence(found: tuple[str, Path, list[Found]]) -> None:
    for worker, each in enumerate(found[2]):
        said = each["refused"]
        assert "belong to no model given to team.train" in said["another model"]
        assert "nothing would train" in said["nothing trains"]
        assert "object is none" in said["also"]
        assert "SGD without momentum" in said["momentum"]
        assert "averages gradients over" in said["ddp"]
        assert "sharded over ranks" in said["sharded"]
        assert f"takes part 0 of 9, but this is worker {worker} of 3" in said["sampler"]
        assert "worker 1 has SGD [{'lr': 0.2" in each["rates"]
        assert "not given to team.train steps the model's parameters" in each["foreign"]

        assert "the models is a SGD" in said["swapped"]
        assert "but was given a Point" in said["not an optimizer"]
        assert "LBFGS evaluates the loss several times" in said["lbfgs"]
        assert "The shape of the parameter 0.weight is not known yet" in said["lazy"]
        assert "through team.shard already" in said["shared twice"]
        assert "0.extra is (2,) float32 on rank" in each["forms"]
        if found[0] == "sharded":
            assert "0.w has been replaced by another, which no optimizer" in each["assigned"]
            assert "was called inside run.global_model()" in each["step in global"]


def test_a_part_that_is_replaced_is_the_first_workers(
    found: tuple[str, Path, list[Found]],
) -> None:
    goal, first = mean_target(0, 1, 2), found[2][0]["replaced"]
    assert not torch.equal(first["start"], found[2][1]["replaced"]["start"])
    for each in found[2]:
        assert torch.equal(each["replaced"]["part"], first["part"])
        assert torch.equal(each["replaced"]["rest"], first["rest"])
    assert float((first["part"] - goal).norm()) < 0.9 * float((first["start"] - goal).norm())


def test_a_change_beside_the_optimizer_stays_when_what_trains_changes(
    found: tuple[str, Path, list[Found]],
) -> None:
    for each in found[2]:
        torch.testing.assert_close(each["changed and unfrozen"], torch.full((3,), 9.0).double())


def test_workers_with_unequal_batches_vote_within_rounds(
    found: tuple[str, Path, list[Found]],
) -> None:
    goal, (start,) = mean_target(0, 1, 2), starts_of("uneven votes")
    assert float((found[2][0]["uneven votes"] - goal).norm()) < float((start - goal).norm())


def test_each_training_of_a_script_has_its_own_checkpoints(
    found: tuple[str, Path, list[Found]],
) -> None:
    _, folder, workers = found
    for each in workers:
        kept = each["checkpoints"]
        assert [kept[name] for name in ("first 0", "first 1", "again 0", "again 1")] == [0, 0, 4, 4]
    assert (folder / "several" / "training-2" / "checkpoint.pt").is_file()


def test_learning_rates_that_come_apart_are_warned_of_once(
    found: tuple[str, Path, list[Found]],
) -> None:
    said = torch.load(found[1] / "0.pt")["later rates"]  # rank 0 serves in both layouts
    assert said == ["The learning rate of worker 0 is 0.1, that of worker 1 is 0.2."]


def test_the_same_data_on_two_workers_is_warned_of(found: tuple[str, Path, list[Found]]) -> None:
    first, *others = (each["same data"] for each in found[2])
    assert ["Workers 0 and 1 had the same gradient in their first step" in s for s in first] == [
        True
    ]
    assert others == [[], []]


def test_a_restarted_script_ends_with_the_same_bits(found: tuple[str, Path, list[Found]]) -> None:
    for each in found[2]:
        undisturbed, resumed = each["undisturbed"], each["resumed"]
        assert int(undisturbed.pop("begun")) == 0
        assert int(resumed.pop("begun")) == 12
        different = [n for n in undisturbed if not torch.equal(undisturbed[n], resumed[n])]
        assert not different


def test_who_lives_is_waited_for(found: tuple[str, Path, list[Found]]) -> None:
    goal = mean_target(0, 1, 2)
    expected = goal + (1 - LR) ** STEPS * (starts_of("slow but alive")[0] - goal)
    torch.testing.assert_close(found[2][0]["slow but alive"], expected, rtol=0, atol=1e-12)


def test_who_gives_no_sign_of_life_is_named(tmp_path: Path) -> None:
    process = forks.start("processes.team_cases", "sharded", "3", tmp_path, "frozen", output=2)
    try:
        assert process.wait(timeout=100) == 0
    finally:
        process.kill_all()
    said = [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 2)]
    assert all("error (rank" in each or "PeerError: " in each for each in said), said
    # The first to notice names who hangs; the other may find the first gone.
    assert any("Nothing came from rank 1 (worker 1) for 4 s" in each for each in said)
    assert any("prlc.join(peer_timeout=...)" in each for each in said)


def test_who_needs_everybody_refuses_unequal_numbers_of_steps(
    found: tuple[str, Path, list[Found]],
) -> None:
    layout, folder, _ = found
    said = "".join(file.read_text() for file in sorted(folder.glob("?.txt")))
    assert "Worker 0 has no more batches at step 12 while others go on." in said
    codes = [int(code) for code in (folder / "codes.txt").read_text().split()]
    assert 0 not in codes, (layout, codes)
    assert -signal.SIGKILL not in codes, (layout, codes)


# -- workers of two ranks -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What each of four ranks found, of which two are a worker."""

    def make(folder: Path) -> None:
        process = forks.start("processes.team_cases", "sharded", "4", folder, "ranks", output=2)
        try:
            process.wait(timeout=200)
        finally:
            process.kill_all()

    folder = made_once("team-ranks", make, tmp_path_factory)
    said = {f.name: f.read_text() for f in sorted(folder.glob("*.txt"))}
    assert all((folder / f"{rank}.pt").exists() for rank in range(4)), said
    return [torch.load(folder / f"{rank}.pt") for rank in range(4)]


@pytest.mark.parametrize("text", ["nsgd", "prlc:0.3", "pr:0.5", "prlc:0.5:every=3"])
def test_ranks_of_one_worker_are_one_worker(text: str, pairs: list[Found]) -> None:
    method = parse_method(text)
    assert isinstance(method, Scheduled)
    (start,) = starts_of(text)
    targets = [mean_target(0, 1), mean_target(2, 3)]
    expected = by_hand(method, start, 2, targets=targets)
    between = by_hand(method, start, 2, steps=7, targets=targets, ends=False)
    for each in pairs:
        torch.testing.assert_close(each[text]["model"], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(each[text]["seen"], between, rtol=0, atol=1e-12)
        assert each[text]["steps"] == STEPS


def test_ranks_follow_their_leader_where_gradients_are_corrected(pairs: list[Found]) -> None:
    first, *others = (each["fedprox:4:mu=0.3"]["model"] for each in pairs)
    assert all(torch.equal(first, other) for other in others)
    goal, (start,) = mean_target(0, 1, 2, 3), starts_of("fedprox:4:mu=0.3")
    assert float((first - goal).norm()) < 0.5 * float((start - goal).norm())


def test_restarted_ranks_of_one_worker_end_with_the_same_bits(pairs: list[Found]) -> None:
    for each in pairs:
        undisturbed, resumed = each["undisturbed"], each["resumed"]
        assert (int(undisturbed.pop("begun")), int(resumed.pop("begun"))) == (0, 12)
        different = [n for n in undisturbed if not torch.equal(undisturbed[n], resumed[n])]
        assert not different


def test_ranks_of_one_worker_must_average_their_gradients(pairs: list[Found]) -> None:
    assert "The ranks 0, 1 are one worker" in pairs[0]["not parallel"]
    assert "The ranks 2, 3 are one worker" in pairs[3]["not parallel"]
