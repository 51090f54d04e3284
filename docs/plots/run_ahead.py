"""Records two real runs and draws docs/images/run-ahead.png and .svg.

    python docs/plots/run_ahead.py [FOLDER]

One of four workers is ten times slower. The picture shows what every worker did when. FOLDER keeps
the runs; those that are there already are drawn again.
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

IMAGES = Path(__file__).resolve().parents[1] / "images"
RUNS = {
    "nsgd": "NSGD: everybody waits for the slow one, at every step",
    "prlc:0.1": "PRLC, r = 0.1: the others compute on, until they pull or their window is full",
}
WINDOW, STEPS, SHOWN = 8, 30, 3.0  # pushes under way, steps recorded, seconds shown
WIDE = 0.35  # seconds of waiting that have room for a word

#: Dark, light with stripes and nearly white, so that grey is enough.
LOOKS = {
    "compute": ("computes a step", {"facecolor": "#0B4F8A", "edgecolor": "white"}),
    "pull": (
        "waits for the model that it pulls",
        {"facecolor": "#F3CF8E", "edgecolor": "#B9822B", "hatch": "////"},
    ),
    "push": (
        f"waits for room: {WINDOW} of its pushes are under way",
        {"facecolor": "#F4F4F4", "edgecolor": "#BBBBBB"},
    ),
}


def record(method: str, folder: Path) -> pd.DataFrame:
    """What the workers did, from a run that is there or is made now."""
    if not (folder / "timeline.csv").exists():
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "5", "-m", "prlc", "train", "--engine", "distributed"),
            *("--workers", "4", "-m", method, "--window", str(WINDOW), "--steps", str(STEPS)),
            *("--eval-every", str(STEPS), "--checkpoint-every", str(STEPS)),
            *("--record-timeline", "--emulate-compute", "--net", "step_seconds=20ms"),
            *("--net", "stragglers=0.25", "--net", "straggler_factor=10", "--out", str(folder)),
        ]
        subprocess.run(command, check=True, capture_output=True)
    events = pd.read_csv(folder / "timeline.csv")
    events["worker"] = events.pop("rank") - 1
    events["seconds"] = events["end"] - events["start"]
    return events[events["start"] < SHOWN]


def draw(axes: Axes, events: pd.DataFrame, title: str) -> None:
    computed = events[events["what"] == "compute"]
    slow = computed.groupby("worker")["seconds"].median().idxmax()
    for what, (_, look) in LOOKS.items():
        for worker, own in events[events["what"] == what].groupby("worker"):
            bars = list(zip(own["start"], own["seconds"], strict=True))
            axes.broken_barh(bars, (worker - 0.38, 0.76), linewidth=0.6, **look)
    for _, event in computed[computed["worker"] == slow].iterrows():
        if event["end"] < SHOWN:
            middle = (event["start"] + event["end"]) / 2
            _write(axes, middle, slow, str(event["step"]), color="white", weight="bold")
    for _, event in events[(events["what"] == "pull") & (events["worker"] != slow)].iterrows():
        end = min(event["end"], SHOWN)
        if end - event["start"] > WIDE:
            middle = (event["start"] + end) / 2
            _write(axes, middle, event["worker"], f"pulls after step {event['step']}", boxed=True)
    done = computed[computed["end"] <= SHOWN].groupby("worker").size()
    for worker, count in done.items():
        axes.text(SHOWN * 1.008, worker, f"{count} steps done", fontsize=9, va="center")
    names = [f"worker {n}" + ("\n10× slower" if n == slow else "") for n in done.index]
    axes.set_yticks(done.index, names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _write(axes: Axes, x: float, y: float, text: str, boxed: bool = False, **look: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if boxed else None
    axes.text(x, y, text, fontsize=8, ha="center", va="center", bbox=box, **look)


def main(folder: Path) -> None:
    """Record what is not there, and draw it."""
    figure, panels = plt.subplots(2, 1, figsize=(10, 6), sharex=True, layout="constrained")
    figure.suptitle("One worker is slow: who does not pull does not wait for it", fontsize=13)
    for axes, (method, title) in zip(panels, RUNS.items(), strict=True):
        draw(axes, record(method, folder / method.replace(":", "-")), title)
    panels[0].set_xlim(0, SHOWN)
    panels[1].set_xlabel("seconds since the first step began")
    handles = [Patch(label=name, **look) for name, look in LOOKS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(IMAGES / "run-ahead.png", dpi=130)
    figure.savefig(IMAGES / "run-ahead.svg", metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
