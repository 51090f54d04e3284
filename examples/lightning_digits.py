"""A Lightning module, trained by several processes: three lines more (marked 1 to 3).

torchrun --nproc-per-node 4 examples/lightning_digits.py
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import prlc
from prlc.integrations.lightning import TeamCallback


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.net.append(nn.Linear(64, 10))
        self.right = 0.0

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        del index
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        del index
        self.right = float((self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]


def main() -> None:
    team = prlc.join("prlc:0.1", hides_torchrun=True)  # 1
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train = DataLoader(torch.utils.data.Subset(data, range(1500)), batch_size=10, shuffle=True)
    test = DataLoader(torch.utils.data.Subset(data, range(1500, 1797)), batch_size=297)
    torch.manual_seed(0)
    model = Digits()
    trainer = lightning.Trainer(
        max_epochs=int(os.environ.get("EPOCHS", "8")),
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[TeamCallback(team)],  # 2
    )
    trainer.fit(model, team.shard(train), test)  # 3
    if team.worker == 0:
        trainer.validate(model, test, verbose=False)
        print(f"{team.num_workers} workers: test accuracy {model.right:.1%}")


if __name__ == "__main__":
    main()
