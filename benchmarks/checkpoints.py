"""What the digest of a checkpoint costs, on a model of 100 MB.

    python benchmarks/checkpoints.py

Both ways take turns in one process, and the best round of each counts. The digest should cost at
most 5% of the time of a checkpoint: torch's own checksums, which it writes but never checks, are
left out for it.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from prlc.runs.folder import RunFolder

NUMBERS = 25_000_000


def without_digest(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """The same without a digest: written beside its place, flushed, renamed."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    fresh, newest = folder / ".plain.writing", folder / "plain.pt"
    with fresh.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    if newest.exists():
        newest.replace(folder / "plain.previous.pt")
    fresh.replace(newest)


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    quick: bool = parser.parse_args().quick
    state = {"model": torch.randn(NUMBERS // (100 if quick else 1))}
    with tempfile.TemporaryDirectory() as place:
        run = RunFolder.create(Path(place) / "run", {})
        plain = checked = math.inf
        for _ in range(2 if quick else 30):
            plain = min(plain, seconds(lambda: without_digest(run.path, state)))
            checked = min(checked, seconds(lambda: run.save_checkpoint(state)))
    table = Table(title="A checkpoint of a 100 MB model", title_justify="left")
    for heading in ("without a digest", "with it", "ratio"):
        table.add_column(heading, justify="right")
    table.add_row(f"{plain:.3f} s", f"{checked:.3f} s", f"{checked / plain:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
