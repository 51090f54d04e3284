"""Scripts of one's own, in real processes: main is told LAYOUT WORKERS FOLDER.

Each case trains w in R^3 on ||w - c||^2 / 2 with a c for each worker, so that all can be computed
by hand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import prlc

from .run_cases import keep_store

LR = 0.1
STEPS = 12


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, dtype=torch.float64))  # another one in each process


def target(worker: int) -> torch.Tensor:
    return torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) * (worker + 1)


def train(
    team: prlc.Team, steps: int = STEPS, spoil: Callable[[int, nn.Module], None] | None = None
) -> torch.Tensor | None:
    """As a user would write it; None from a server, whose script would end."""
    with contextlib.suppress(SystemExit):
        return train_here(team, steps, spoil)
    return None


def train_here(
    team: prlc.Team, steps: int, spoil: Callable[[int, nn.Module], None] | None
) -> torch.Tensor:
    model = Point()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with team.wrap(model, optimizer) as worker:
        goes_on = True
        while goes_on and worker.steps_done < steps:
            optimizer.zero_grad()
            loss = (model.w - target(team.worker)).square().sum() / 2
            loss.backward()  # type: ignore[no-untyped-call]
            if spoil is not None:
                spoil(worker.steps_done, model)
            goes_on = worker.step(float(loss.detach()))
    return model.w.detach()


def nan_in_worker_1(team: prlc.Team) -> Callable[[int, nn.Module], None]:
    def spoil(step: int, model: nn.Module) -> None:
        if team.worker == 1 and step == 3:
            (parameter,) = model.parameters()
            parameter.grad = torch.full_like(parameter, torch.nan)

    return spoil


def run(layout: str, folder: Path) -> None:
    """All cases one after another; every worker writes the models that it ended with."""
    found = {}
    for method in ("nsgd", "pr:0.5", "prlc:0.3", "prlc:0.5:every=3"):
        found[method] = train(prlc.join(method, layout=layout, seed=5))
    found["lag-ps"] = train(prlc.join("lag-ps", layout=layout, steps=STEPS), steps=10**6)
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
    uneven = prlc.join("nsgd", layout=layout, peer_timeout=20.0)
    train(uneven, steps=STEPS + uneven.worker)  # refused, and the last thing in this process


def main() -> None:
    layout, workers, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    world = workers + (layout == "server")
    os.environ["WORLD_SIZE"] = str(world)
    store = keep_store()
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            os.environ["RANK"] = str(rank)
            torch.manual_seed(rank)
            torch.set_num_threads(1)
            if layout == "server":  # as a script may do itself; otherwise every `join` does
                dist.init_process_group("gloo")
            with (folder / f"{rank}.txt").open("w") as said:
                os.dup2(said.fileno(), 2)
            run(layout, folder)
            os._exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.kill(store, signal.SIGKILL)
    (folder / "codes.txt").write_text(" ".join(map(str, codes)))


if __name__ == "__main__":
    main()
