"""Runs and writes the table "Data that differ" of docs/methods.md.

    python docs/plots/data_that_differ.py DATA [FOLDER]

Logistic regression on CIFAR-10, which the folder DATA holds; 20 workers whose labels differ
(Dirichlet 0.1), each method at its own best of five step sizes. FOLDER keeps the runs; those that
are there already are not computed again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pandas as pd
from torch.nn import functional as F

import prlc

PAGE = Path(__file__).resolve().parents[1] / "methods.md"
STEPS = 2250
STEP_SIZES = (0.01, 0.02, 0.03, 0.05, 0.1)
METHODS = (
    "nsgd",
    "local-sgd:10",
    "fedprox:10",
    "scaffold:10",
    "stc:0.04",
    "ef21-p:up=topk,0.03:down=topk,0.03",
    "stc:0.01",
)
START, END = "<!-- data that differ -->\n", "<!-- end -->\n"


def final(method: str, lr: float, data: prlc.Dataset, folder: Path) -> tuple[float, float, int]:
    """Loss and accuracy in the end, and all bytes sent; of a run that diverges, infinity."""
    model = prlc.models.build("logistic", data.sample_shape, data.num_classes, seed=0)
    name = f"{method}-{lr:g}".replace(":", "-").replace(",", "-").replace("=", "")
    place = folder / name
    try:
        result = prlc.train(
            model,
            F.cross_entropy,
            data,
            method=method,
            lr=lr,
            schedule="cosine",
            steps=STEPS,
            partition="dirichlet:0.1",
            network=None,
            folder=place,
            resume=place.exists(),
        )
    except prlc.DivergedError:
        return float("inf"), 0.0, 0
    found = result.summary
    sent = int(found["bytes_up"] + found["bytes_down"])
    return float(found["train_loss"]), float(found["test_accuracy"]), sent


def main(source: str, folder: Path) -> None:
    data = prlc.data.load("cifar10", source)
    rows = []
    for method in METHODS:
        tried = {lr: final(method, lr, data, folder) for lr in STEP_SIZES}
        best = min(STEP_SIZES, key=lambda lr: tried[lr][0])
        rows.append((method, best, *tried[best]))
        print(*rows[-1])
    table = pd.DataFrame(rows, columns=["method", "lr", "loss", "accuracy", "sent"])
    baseline = table.iloc[0]
    lines = ["| method | best step size | training loss | of NSGD's | accuracy | bytes |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for row in table.itertuples():
        share = "1" if row.Index == 0 else f"1/{baseline.sent / row.sent:.0f}"
        lines.append(
            f"| `{row.method}` | {row.lr:g} | {row.loss:.4f} | {row.loss / baseline.loss:.3f} | "
            f"{row.accuracy:.1%} | {share} |"
        )
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else temporary))
