"""A model in Hugging Face's Trainer, trained by several processes: three lines more (1 to 3).

torchrun --nproc-per-node 4 examples/transformers_digits.py
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

import prlc
from prlc.integrations.transformers import TeamCallback


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(pixels)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    team = prlc.join("prlc:0.1", hides_torchrun=True)  # 1
    images, labels = load_digits(return_X_y=True)
    samples: list[dict[str, Any]] = [
        {"pixels": torch.tensor(image, dtype=torch.float32) / 16, "labels": int(label)}
        for image, label in zip(images, labels, strict=True)
    ]
    torch.manual_seed(0)
    model = Digits()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder,
                num_train_epochs=float(os.environ.get("EPOCHS", "8")),
                per_device_train_batch_size=10,
                learning_rate=1e-3,
                use_cpu=True,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=team.shard(samples[:1500]),  # 2
            callbacks=[TeamCallback(team)],  # 3
        )
        trainer.train()
    if team.worker == 0:
        held_out = samples[1500:]
        pixels = torch.stack([sample["pixels"] for sample in held_out])
        truth = torch.tensor([sample["labels"] for sample in held_out])
        right = (model.net(pixels).argmax(1) == truth).float().mean()
        print(f"{team.num_workers} workers: test accuracy {right:.1%}")


if __name__ == "__main__":
    main()
