"""Records two real runs and draws docs/images/run-ahead.png: python docs/plots/run_ahead.py.

One of four workers is ten times slower. The picture shows what every worker did when.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

IMAGES = Path(__file__).parents[1] / "images"
RUNS = {"prlc:0.1": "PRLC, r = 0.1: who does not pull computes on", "nsgd": "NSGD: all wait"}
STEPS = 40
#: Dark, middling and light, so that grey is enough.
LOOKS = {
    "compute": ("computes", {"color": "#0072B2"}),
    "pull": ("waits for the model that it pulls", {"color": "#D9A441"}),
    "push": ("waits for room: its window of pushes is full", {"color": "#e4e4e4"}),
}


def record(method: str, folder: Path) -> pd.DataFrame:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "5"),
        *("-m", "prlc", "train", "--engine", "distributed", "--workers", "4", "-m", method),
        *("--steps", str(STEPS), "--eval-every", str(STEPS), "--checkpoint-every", str(STEPS)),
        *("--record-timeline", "--emulate-compute", "--net", "step_seconds=20ms"),
        *("--net", "stragglers=0.25", "--net", "straggler_factor=10", "--out", str(folder)),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return pd.read_csv(folder / "timeline.csv")


def draw(axes: Axes, events: pd.DataFrame, title: str) -> None:
    for what, (_, look) in LOOKS.items():
        for rank, own in events[events["what"] == what].groupby("rank"):
            bars = list(zip(own["start"], (own["end"] - own["start"]).clip(lower=0), strict=True))
            axes.broken_barh(bars, (rank - 0.4, 0.8), edgecolor="white", linewidth=0.3, **look)
    computed = events[events["what"] == "compute"]
    slowest = (computed["end"] - computed["start"]).groupby(computed["rank"]).median().idxmax()
    ranks = sorted(events["rank"].unique())
    names = [f"worker {rank - 1}" + (", ten times\nslower" if rank == slowest else "")
             for rank in ranks]  # fmt: skip
    axes.set_yticks(ranks, names)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    figure, panels = plt.subplots(2, 1, figsize=(11, 5.6), sharex=True, layout="constrained")
    with tempfile.TemporaryDirectory() as folder:
        for axes, (method, title) in zip(panels, RUNS.items(), strict=True):
            draw(axes, record(method, Path(folder) / method.replace(":", "-")), title)
    panels[0].set_xlim(0, 3)
    panels[1].set_xlabel("seconds since the first step began")
    handles = [Patch(label=name, **look) for name, look in LOOKS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(IMAGES / "run-ahead.png", dpi=130)


if __name__ == "__main__":
    main()
