"""An ordinary PyTorch training loop that changed in five places (marked 1 to 5).

    torchrun --nproc-per-node 4 examples/torchrun_own_loop.py

Every process trains on its own part of the data; they pull the common model at a tenth of the
steps. With `--checkpoint FOLDER` the run survives the death of any process:

    torchrun --nproc-per-node 4 --max-restarts 3 examples/torchrun_own_loop.py --checkpoint runs/own
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import prlc  # 1


def batches(samples: TensorDataset) -> Iterator[list[Tensor]]:
    """One shuffled pass after another."""
    while True:
        yield from DataLoader(samples, batch_size=10, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", default="prlc:0.1")
    parser.add_argument("--layout", default="sharded", choices=["sharded", "server"])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--checkpoint", help="folder to go on from when started again")
    asked = parser.parse_args()

    team = prlc.join(asked.method, layout=asked.layout, folder=asked.checkpoint)  # 2

    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32) / 16
    targets = torch.tensor(labels)
    held_out = inputs[-297:], targets[-297:]
    mine = slice(team.worker, 1500, team.num_workers)  # 3: a worker's own part of the data

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with team.wrap(model, optimizer) as worker:  # 4
        samples = TensorDataset(inputs[mine], targets[mine])
        for x, y in islice(batches(samples), asked.steps - worker.steps_done):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            worker.step()  # 5: instead of optimizer.step()

    if team.worker == 0:
        with torch.no_grad():
            right = (model(held_out[0]).argmax(1) == held_out[1]).float().mean()
        print(f"{asked.method}, {team.num_workers} workers: test accuracy {right:.1%}")


if __name__ == "__main__":
    main()
