"""Scripts of one's own, in real processes: main is told LAYOUT WORKERS FOLDER [frozen|ranks].

Most cases train w in R^3 on ||w - c||^2 / 2 with a c for each worker, so that all can be computed
by hand. They run one after another in the same processes; every rank writes what it found.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import prlc

from .run_cases import keep_store

LR = 0.1
STEPS = 12
Spoil = Callable[[int, nn.Module], None]


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, dtype=torch.float64))  # another one in each process

    def forward(self, worker: int) -> torch.Tensor:
        return (self.w * self.w / 2 - self.w * target(worker)).sum()  # but for a constant


def seed_of(case: str) -> int:
    return 10 * zlib.crc32(case.encode())


def target(worker: int) -> torch.Tensor:
    return torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) * (worker + 1)


def loss_of(model: Point, worker: int) -> torch.Tensor:
    loss: torch.Tensor = model(worker)
    return loss


def train(team: prlc.Team, steps: int = STEPS, spoil: Spoil | None = None) -> torch.Tensor:
    """As a user would write it; a server takes no steps."""
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR)
    with team.train(model, optimizer) as run:
        while team.worker >= 0 and not run.over and run.steps_done < steps:
            optimizer.zero_grad()
            loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
            if spoil is not None:
                spoil(run.steps_done, model)
            optimizer.step()
    return model.w.detach()


def nan_in_worker_1(team: prlc.Team) -> Spoil:
    def spoil(step: int, model: nn.Module) -> None:
        if team.worker == 1 and step == 3:
            (parameter,) = model.parameters()
            parameter.grad = torch.full_like(parameter, torch.nan)

    return spoil


# -- what real scripts do -------------------------------------------------------------------------


def early_stop(team: prlc.Team) -> torch.Tensor:
    """Worker 1 loses its patience after seven steps, and all stop."""
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR)
    with team.train(model, optimizer) as run:
        while team.worker >= 0:
            optimizer.zero_grad()
            loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if team.any(team.worker == 1 and run.steps_done == 7):
                break
    return torch.tensor(run.steps_done)


def two_models(team: prlc.Team) -> torch.Tensor:
    """Two optimizers take turns; as in a GAN, the first steps while the second's graph waits."""
    first, second = Point(), Point()
    one, two = SGD(first.parameters(), lr=LR), SGD(second.parameters(), lr=2 * LR)
    with team.train([first, second], [one, two]):
        for _ in range(STEPS if team.worker >= 0 else 0):
            one.zero_grad()
            two.zero_grad()
            waiting = loss_of(second, team.worker)
            loss_of(first, team.worker).backward()  # type: ignore[no-untyped-call]
            one.step()
            waiting.backward()  # type: ignore[no-untyped-call]
            two.step()
    return torch.stack([first.w, second.w]).detach()


class Masked(nn.Module):
    """Frozen weights, a constant mask that is not finite, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 50)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(50)
        self.head = nn.Linear(50, 3)
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.triu(torch.full((40, 40), -torch.inf), 1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.norm(self.frozen(x)))


def only_what_trains(team: prlc.Team, unfreeze: int | None = None) -> dict[str, torch.Tensor]:
    """What travelled, counted where it leaves; perhaps with more of it from a step on."""
    model = Masked()
    optimizer = Adam(model.parameters(), lr=0.01)
    with team.train(model, optimizer) as run:
        for step in range(STEPS if team.worker >= 0 else 0):
            model.frozen.requires_grad_(unfreeze is not None and step >= unfreeze)
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + team.worker))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        packed = getattr(run, "_selection", None)
        numbers = sum(t.numel() for t in [*packed.parameters(), *packed.buffers()]) if packed else 0
    found = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
    return {**found, "numbers": torch.tensor(numbers)}


def clamped(team: prlc.Team, make: Callable[..., torch.optim.Optimizer]) -> torch.Tensor:
    """Weights changed beside the optimizer, as for a Lipschitz bound."""
    model = Point()
    model.w.data.fill_(5.0)
    optimizer = make(model.parameters(), lr=0.01)
    with team.train(model, optimizer):
        for _ in range(40 if team.worker >= 0 else 0):
            optimizer.zero_grad()
            loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            model.w.data.clamp_(-0.5, 0.5)
    return model.w.detach()


def overflow(team: prlc.Team) -> torch.Tensor:
    """A scaler that leaves out a step on one worker."""
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with team.train(model, optimizer, also=[scaler]):
        for step in range(STEPS if team.worker >= 0 else 0):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, team.worker)).backward()  # type: ignore[no-untyped-call]
            if team.worker == 1 and step == 3:
                model.w.grad.fill_(torch.inf)  # type: ignore[union-attr]
            scaler.step(optimizer)
            scaler.update()
            if team.any(False):  # all of them are at the same step
                break
    return model.w.detach()


def closures_and_hooks(team: prlc.Team) -> tuple[torch.Tensor, int]:
    model, fired = Point(), []
    optimizer = SGD(model.parameters(), lr=LR)
    optimizer.register_step_post_hook(lambda *_: fired.append(1))

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, team.worker)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    with team.train(model, optimizer):
        for _ in range(STEPS if team.worker >= 0 else 0):
            optimizer.step(closure)
    return model.w.detach(), len(fired)


def global_models(team: prlc.Team) -> list[torch.Tensor]:
    """The common model as each worker sees it, between the steps and at the end."""
    model, seen = Point(), []
    optimizer = SGD(model.parameters(), lr=LR)
    with team.train(model, optimizer) as run:
        for step in range(STEPS if team.worker >= 0 else 0):
            optimizer.zero_grad()
            loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % 4 == 3:
                own = model.w.detach().clone()
                with run.global_model():
                    seen.append(model.w.detach().clone())
                assert torch.equal(own, model.w)
                assert not team.any(False)  # nobody waits for a model meanwhile
        if team.worker < 0:
            with run.global_model():  # for a server, the final model
                seen = [model.w.detach().clone()]
    return [*seen, model.w.detach()]


def refusals(team: prlc.Team, scaffold: prlc.Team) -> dict[str, str]:
    """What a sentence stops before anything is trained; all ranks hear it."""
    said = {}

    def refused(name: str, begin: Callable[[], Any]) -> None:
        try:
            begin()
        except prlc.ConfigError as error:
            said[name] = str(error)

    point, other = Point(), Point()
    refused("momentum", lambda: scaffold.train(other, SGD([other.w], LR, momentum=0.9)))
    refused("another model", lambda: team.train(point, SGD(other.parameters(), lr=LR)))
    refused("nothing trains", lambda: team.train(point.requires_grad_(False), SGD([point.w], LR)))
    refused("swapped", lambda: team.train(SGD([other.w], LR), other))  # type: ignore[arg-type]
    refused("not an optimizer", lambda: team.train(other, other))  # type: ignore[arg-type]
    refused("lbfgs", lambda: team.train(other, torch.optim.LBFGS([other.w])))
    lazy = nn.LazyLinear(2)
    refused("lazy", lambda: team.train(lazy, SGD(lazy.parameters(), LR)))
    shared = team.shard(DataLoader(TensorDataset(torch.arange(9))))
    refused("shared twice", lambda: team.shard(shared))
    refused("also", lambda: team.train(other, SGD([other.w], LR), also=[object()]))
    inside = DistributedDataParallel(Point())
    refused("ddp", lambda: team.train(inside, SGD(inside.parameters(), lr=LR)))
    sharded = Point()
    sharded.w._local_tensor = sharded.w  # type: ignore[attr-defined]  # as a DTensor has it
    refused("sharded", lambda: team.train(sharded, SGD(sharded.parameters(), lr=LR)))
    data = TensorDataset(torch.arange(9))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=9, rank=0)
    if team.worker >= 0:
        refused("sampler", lambda: team.shard(DataLoader(data, sampler=sampler)))
    return said


def refused_here(begin: Callable[[], Any]) -> str:
    try:
        begin()
    except prlc.PrlcError as error:
        return str(error)
    return ""


def other_forms(team: prlc.Team) -> str:
    """Worker 1's model has a buffer that the others' have not."""
    model = Point()
    if team.worker == 1:
        model.register_buffer("extra", torch.zeros(2))
    return refused_here(lambda: team.train(model, SGD(model.parameters(), LR)))


def replaced_tensors(team: prlc.Team) -> str:
    """The model gets other parameters, which its optimizer does not have."""
    model = Point()
    optimizer = SGD(model.parameters(), LR)

    def train() -> None:
        with team.train(model, optimizer):
            for step in range(4):
                if step == 2:
                    model.load_state_dict(Point().state_dict(), assign=True)
                loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    return refused_here(train)


def step_in_global(team: prlc.Team) -> str:
    model = Point()
    optimizer = SGD(model.parameters(), LR)

    def train() -> None:
        with team.train(model, optimizer) as run:
            optimizer.step()
            with run.global_model():
                optimizer.step()

    return refused_here(train)


class Held(nn.Module):
    """A model with a part that may be replaced, or frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.rest = Point(), Point()

    def forward(self, worker: int) -> torch.Tensor:
        return loss_of(self.part, worker) + loss_of(self.rest, worker)


def replaced_part(team: prlc.Team) -> dict[str, torch.Tensor]:
    """Half way the part is another one, on each worker its own."""
    model = Held()
    optimizer = SGD(model.parameters(), lr=LR)
    other = Point()
    start = other.w.detach().clone()
    with team.train(model, optimizer):
        for step in range(STEPS if team.worker >= 0 else 0):
            if step == STEPS // 2:
                model.part = other
                optimizer.add_param_group({"params": other.parameters()})
            optimizer.zero_grad()
            model(team.worker).backward()
            optimizer.step()
    return {"start": start, "part": other.w.detach(), "rest": model.rest.w.detach()}


def changed_as_it_unfreezes(team: prlc.Team) -> torch.Tensor:
    model = Held()
    model.rest.requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=1e-9)
    with team.train(model, optimizer):
        for step in range(STEPS if team.worker >= 0 else 0):
            if step == STEPS // 2:
                model.part.w.data.fill_(9.0)
                model.rest.requires_grad_(True)
            optimizer.zero_grad()
            model(team.worker).backward()
            optimizer.step()
    return model.part.w.detach()


def uneven_votes(team: prlc.Team) -> torch.Tensor:
    """Workers with unequal numbers of batches ask one another at every step, within rounds too."""
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR)
    with team.train(model, optimizer):
        for _ in range(4 + 3 * team.worker if team.worker >= 0 else 0):
            optimizer.zero_grad()
            loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if team.any(False):
                break
    return model.w.detach()


def trainings_with_checkpoints(layout: str, folder: Path | None) -> dict[str, Any]:
    """Where two trainings of a script that keeps checkpoints begin, and begin again."""
    found: dict[str, Any] = {}
    for name in ("first", "again"):
        team = prlc.join("nsgd", layout=layout, folder=folder, checkpoint_every=4)
        for number in range(2):
            model = Point()
            run = team.train(model, SGD(model.parameters(), lr=LR))
            found[f"{name} {number}"] = run.steps_done if team.worker >= 0 else 0
            while team.worker >= 0 and run.steps_done < 6:
                loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
                run._models.optimizers[0].step()  # type: ignore[attr-defined]
            run.finish()
    return found


def differing_rates(team: prlc.Team) -> str:
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR * (1 + (team.worker == 1)))
    loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
    try:
        with team.train(model, optimizer):
            optimizer.step()
    except prlc.ConfigError as error:
        return str(error)
    return ""


def later_rates(team: prlc.Team) -> list[str]:
    """Worker 1 changes its learning rate after a step; what this rank warns of."""
    heard = Heard()
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR)
    with team.train(model, optimizer):
        for _ in range(3 * (team.worker >= 0)):
            optimizer.zero_grad()
            loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.param_groups[0]["lr"] = LR * (1 + (team.worker == 1))
    logging.getLogger("prlc").removeHandler(heard)
    return heard.said


def changed_at_the_end(team: prlc.Team, steps: int) -> tuple[torch.Tensor, list[str]]:
    """Weights that are replaced after the last step, as by who restores the best ones."""
    heard = Heard()
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR)
    with team.train(model, optimizer):
        for _ in range(steps * (team.worker >= 0)):
            optimizer.zero_grad()
            loss_of(model, team.worker).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        model.w.data.fill_(9.0)
    logging.getLogger("prlc").removeHandler(heard)
    return model.w.detach(), heard.said


def foreign_optimizer(team: prlc.Team) -> str:
    model = Point()
    given, other = SGD(model.parameters(), lr=LR), SGD(model.parameters(), lr=LR)
    run = team.train(model, given)
    said = ""
    try:
        if team.worker >= 0:
            other.step()
    except prlc.ConfigError as error:
        said = str(error)
    run.finish()
    return said


class Heard(logging.Handler):
    """What was warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        logging.getLogger("prlc").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def same_data(team: prlc.Team) -> list[str]:
    heard = Heard()
    model = Point()
    optimizer = SGD(model.parameters(), lr=LR)
    with team.train(model, optimizer):
        loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
        if team.worker >= 0:
            optimizer.step()
    logging.getLogger("prlc").removeHandler(heard)
    return heard.said


def resumable(
    layout: str, folder: Path | None, stop_after: int | None = None, ranks: int = 1
) -> dict[str, Any]:
    """Dropout, a shuffled loader of unequal parts, a scheduler by step, an averaged model."""
    if folder is None or stop_after is not None:  # a new process has another random state
        torch.manual_seed(int(os.environ["RANK"]))
    # A pass of 10, 10 and 9 batches; of seven for each rank, where two are a worker.
    size = 29 if ranks == 1 else 28
    data = TensorDataset(torch.randn(size, 5, generator=torch.Generator().manual_seed(1)))
    team = prlc.join(
        "prlc:0.4",
        layout=layout,
        folder=folder,
        checkpoint_every=4,
        seed=2,
        ranks_per_worker=ranks,
    )
    loader = team.shard(DataLoader(data, batch_size=1, shuffle=True))
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.BatchNorm1d(6))
    model.append(nn.Linear(6, 1))
    whole = DistributedDataParallel(model, process_group=team.group) if ranks > 1 else model
    optimizer = Adam(model.parameters(), lr=0.05)
    scheduler = StepLR(optimizer, 3, 0.7)
    averaged = AveragedModel(model)
    taken = 0
    run = team.train(whole, optimizer, also=[scheduler, averaged])
    begun = run.steps_done
    for _ in range(run.epochs_done, 3):
        for (x,) in loader:
            noisy = torch.cat([x, x + torch.rand(1)])
            whole(noisy).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            averaged.update_parameters(model)
            taken += 1
            if stop_after is not None and taken == stop_after:
                break
        if stop_after is not None and taken == stop_after:
            break
    run.finish()
    found = {f"averaged.{name}": t for name, t in averaged.state_dict().items()}
    found |= {"begun": torch.tensor(begun), "lr": torch.tensor(scheduler.get_last_lr())}
    return {**found, **{f"model.{name}": t for name, t in model.state_dict().items()}}


def two_trainings(team: prlc.Team) -> list[torch.Tensor]:
    """One after the other, of workers that have unequal numbers of batches."""
    return [train(team, steps=10 + 3 * team.worker) for _ in range(2)]


def slow_but_alive(layout: str) -> torch.Tensor:
    """Worker 0 evaluates for longer than a silent process would be waited for."""
    team = prlc.join("nsgd", layout=layout, peer_timeout=4.0)

    def evaluate(step: int, model: nn.Module) -> None:
        del model
        if team.worker == 0 and step == 2:
            time.sleep(6.0)

    return train(team, spoil=evaluate)


def frozen(layout: str) -> None:
    """Worker 1 stands still as if its machine did."""
    team = prlc.join("nsgd", layout=layout, peer_timeout=4.0)

    def freeze(step: int, model: nn.Module) -> None:
        del model
        if team.worker == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    train(team, spoil=freeze)


# -- workers of two ranks -------------------------------------------------------------------------


def with_two_ranks(method: str, steps: int = STEPS) -> dict[str, Any]:
    """Rank i has target i; the mean of two is their worker's."""
    team, rank = prlc.join(method, seed=5, ranks_per_worker=2), int(os.environ["RANK"])
    model, seen = Point(), []
    parallel = DistributedDataParallel(model, process_group=team.group)
    optimizer = SGD(parallel.parameters(), lr=LR)
    with team.train(parallel, optimizer) as run:
        for step in range(steps):
            optimizer.zero_grad()
            parallel(rank).backward()
            optimizer.step()
            if step == 6:
                with run.global_model():
                    seen.append(model.w.detach().clone())
            if team.any(rank == 3 and step == steps - 1):
                break
    return {"model": model.w.detach(), "seen": seen[0], "steps": run.steps_done}


def several_ranks(folder: Path) -> None:
    """Two workers of two ranks each."""
    found: dict[str, Any] = {}
    rank = int(os.environ["RANK"])
    for method in ("nsgd", "prlc:0.3", "pr:0.5", "prlc:0.5:every=3", "fedprox:4:mu=0.3"):
        torch.manual_seed(seed_of(method) + rank)
        found[method] = with_two_ranks(method)
    resumed = folder / "resumed" if rank == 0 else None
    for name, case in {
        "undisturbed": partial(resumable, "sharded", None, ranks=2),
        "interrupted": partial(resumable, "sharded", resumed, stop_after=13, ranks=2),
        "resumed": partial(resumable, "sharded", resumed, ranks=2),
    }.items():
        torch.manual_seed(seed_of(name) + rank)
        found[name] = case()
    team = prlc.join("nsgd", ranks_per_worker=2)
    point = Point()
    try:
        team.train(point, SGD(point.parameters(), lr=LR))
    except prlc.ConfigError as error:
        found["not parallel"] = str(error)
    torch.save(found, folder / f"{rank}.pt")


def run(layout: str, folder: Path) -> None:
    """All cases one after another."""
    found: dict[str, Any] = {}
    for method in ("nsgd", "pr:0.5", "prlc:0.3", "prlc:0.5:every=3"):
        found[method] = train(prlc.join(method, layout=layout, seed=5))
    found["lag-ps"] = train(prlc.join("lag-ps", layout=layout, steps=STEPS))
    unequal = prlc.join("asgd", layout=layout)
    found["asgd"] = train(unequal, steps=60 + 5 * unequal.worker)
    skipping = prlc.join("nsgd", layout=layout, on_bad_update="skip")
    found["skip"] = train(skipping, spoil=nan_in_worker_1(skipping))
    rank = int(os.environ["RANK"])
    # Steps after the last push, with a checkpoint due among them; only the first has a folder.
    kept = folder / "kept" if rank == 0 else None
    saving = prlc.join("local-sgd:8", layout=layout, folder=kept, checkpoint_every=10)
    found["checkpoint after the last push"] = train(saving, steps=18)
    again = prlc.join("local-sgd:8", layout=layout, folder=kept, checkpoint_every=10)
    taken: list[int] = []
    found["started again"] = train(again, steps=24, spoil=lambda step, _: taken.append(step))
    found["steps taken again"] = torch.tensor(taken)
    torch.save(found, folder / f"{rank}.pt")
    join = partial(prlc.join, layout=layout)
    teams = {"prlc": join("prlc:0.3"), "nsgd": join("nsgd")}
    several = folder / "several" if rank == 0 else None
    resumed = folder / "resumed" if rank == 0 else None
    cases: dict[str, Callable[[], Any]] = {
        "uneven": lambda: train(teams["nsgd"], steps=STEPS + 2 * teams["nsgd"].worker),
        "two trainings": lambda: two_trainings(join("local-sgd:4")),
        "early stop": lambda: early_stop(teams["prlc"]),
        "two models": lambda: two_models(teams["nsgd"]),
        "two models, prlc": lambda: two_models(join("prlc:0.5", seed=5)),
        "two models, local": lambda: two_models(join("local-sgd:4")),
        "frozen": lambda: only_what_trains(teams["prlc"]),
        "unfrozen": lambda: only_what_trains(teams["prlc"], unfreeze=6),
        "overflow": lambda: overflow(teams["nsgd"]),
        "closure": lambda: closures_and_hooks(teams["nsgd"]),
        "global": lambda: global_models(join("pr:0.3", seed=5)),
        "refused": lambda: refusals(teams["nsgd"], join("scaffold:4")),
        "forms": lambda: other_forms(join("nsgd")),
        "replaced": lambda: replaced_part(teams["prlc"]),
        "changed and unfrozen": lambda: changed_as_it_unfreezes(teams["prlc"]),
        "uneven votes": lambda: uneven_votes(join("local-sgd:3")),
        "checkpoints": lambda: trainings_with_checkpoints(layout, several),
        "rates": lambda: differing_rates(join("nsgd")),
        "later rates": lambda: later_rates(teams["nsgd"]),
        "changed at the end": lambda: changed_at_the_end(teams["nsgd"], 2),
        "changed in a round": lambda: changed_at_the_end(join("local-sgd:4"), 5),
        "foreign": lambda: foreign_optimizer(teams["nsgd"]),
        "slow but alive": lambda: slow_but_alive(layout),
        "same data": lambda: same_data(teams["nsgd"]),
        "undisturbed": lambda: resumable(layout, None),
        "interrupted": lambda: resumable(layout, resumed, stop_after=13),
        "resumed": lambda: resumable(layout, resumed),
    }
    if layout == "sharded":  # what ends a worker, a server would wait for
        cases["assigned"] = lambda: replaced_tensors(join("nsgd"))
        cases["step in global"] = lambda: step_in_global(join("prlc:0.1"))
    for method in ("pr:0.2", "prlc:0.2", "nsgd"):
        for name, make in {"sgd": SGD, "adam": Adam}.items():
            cases[f"clamped {name} {method}"] = partial(clamped, join(method), make)
    for name, case in cases.items():
        torch.manual_seed(seed_of(name) + rank)
        found[name] = case()
    torch.save(found, folder / f"{rank}.pt")
    gathering = prlc.join("topk", layout=layout, peer_timeout=20.0)
    train(gathering, steps=STEPS + gathering.worker)  # refused, and the last thing here


def main() -> None:
    layout, workers, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    freezes, ranks = sys.argv[4:] == ["frozen"], sys.argv[4:] == ["ranks"]
    world = workers + (layout == "server")
    os.environ["WORLD_SIZE"] = str(world)
    store = keep_store()
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            torch.manual_seed(rank)
            torch.set_num_threads(1)
            if layout == "server":  # as a script may do itself; otherwise `join` does
                dist.init_process_group("gloo")
            with (folder / f"{rank}.txt").open("w") as said:
                os.dup2(said.fileno(), 2)
            if freezes:
                frozen(layout)
            elif ranks:
                several_ranks(folder)
            else:
                run(layout, folder)
            os._exit(0)
        children.append(child)
    if freezes:  # worker 1, whom nobody else could end
        for child in [children[0], *children[2:]]:
            os.waitpid(child, 0)
        os.kill(children[1], signal.SIGKILL)
        children = children[1:2]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.kill(store, signal.SIGKILL)
    (folder / "codes.txt").write_text(" ".join(map(str, codes)))


if __name__ == "__main__":
    main()
