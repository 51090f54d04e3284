"""An ordinary PyTorch training loop with four lines more (marked 1 to 4).

    python examples/torchrun_own_loop.py                              # one process, as ever
    torchrun --nproc-per-node 4 examples/torchrun_own_loop.py         # four that train together

Every process trains on its own part of the data; they pull the common model at a tenth of the
steps. With `--checkpoint FOLDER` the run survives the death of any process:

    torchrun --nproc-per-node 4 --max-restarts 3 examples/torchrun_own_loop.py --checkpoint runs/own
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import prlc  # 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", default="prlc:0.1")
    parser.add_argument("--layout", default="sharded", choices=["sharded", "server"])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--checkpoint", help="folder to go on from when started again")
    asked = parser.parse_args()

    team = prlc.join(asked.method, layout=asked.layout, folder=asked.checkpoint)  # 2

    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32) / 16
    targets = torch.tensor(labels)
    held_out = inputs[-297:], targets[-297:]
    samples = TensorDataset(inputs[:1500], targets[:1500])
    loader = team.shard(DataLoader(samples, batch_size=10, shuffle=True))  # 3

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, asked.epochs)

    with team.train(model, optimizer, also=[scheduler]) as run:  # 4
        for _ in range(run.epochs_done, asked.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            scheduler.step()

    if team.worker == 0:
        with torch.no_grad():
            right = (model(held_out[0]).argmax(1) == held_out[1]).float().mean()
        print(f"{asked.method}, {team.num_workers} workers: test accuracy {right:.1%}")


if __name__ == "__main__":
    main()
