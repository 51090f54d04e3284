"""Runs and writes the table "A gain that adapts" of docs/beyond.md.

    python docs/plots/gain_grid.py DATA FOLDER

PR holds still between pulls, PRLC takes its own update for everybody's, and `snr` the share of it
that signal and noise suggest: three methods on every cell of a grid, on CIFAR-10, which the folder
DATA holds. FOLDER keeps the runs; those that are there already are not computed again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

from generated import fill, table

from prlc.experiments.beyond.settings import Problem, Row, beyond
from prlc.experiments.beyond.trials import Trial
from prlc.experiments.curves import final_loss
from prlc.experiments.specs import Workspace

PAGE = Path(__file__).resolve().parents[1] / "beyond.md"
PROBLEMS = ("logistic", "logistic-skewed", "cnn", "cnn-skewed")
RATIOS = (0.4, 0.1, 0.01)
STEP_SIZES = (0.1, 0.01, 0.002)
METHODS = ("pr:{r}", "prlc:{r}", "prlc:{r}:meanwhile=snr")


def final(problem: Problem, method: str, lr: float, workspace: Workspace) -> float:
    """The training loss after as many steps as NSGD takes; of a run that diverges, infinity."""
    as_long = replace(problem, tuning_steps=problem.steps)
    trial = Trial(as_long, Row(method=method), lr, seed=0, tuning=True)
    trial.make(workspace)
    return final_loss(trial.load(workspace), problem.measure)


def main(workspace: Workspace) -> None:
    lines = []
    for name, lr, r in product(PROBLEMS, STEP_SIZES, RATIOS):
        (problem,) = beyond().problems("quick", name)
        losses = [final(problem, method.format(r=r), lr, workspace) for method in METHODS]
        ratio = losses[2] / min(losses[:2])
        within = "yes" if ratio <= 1.02 else "no"
        lines.append(
            [
                problem.title,
                f"{lr:g}",
                f"{r:g}",
                *map("{:.4f}".format, losses),
                f"{ratio:.3f}",
                within,
            ]
        )
        print(*lines[-1], flush=True)
    head = ["problem", "step size", "r", "PR", "PRLC", "`snr`", "of the better", "within 2%"]
    PAGE.write_text(fill(PAGE.read_text(), {"gains": table(head, lines)}))


if __name__ == "__main__":
    main(Workspace(Path(sys.argv[2]), Path(sys.argv[1]), "cpu"))
