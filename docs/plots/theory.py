"""Redraws docs/images/theory-*.png: python docs/plots/theory.py [folder]."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prlc import theory
from prlc.theory import Constants, printed
from prlc.theory.stability import PullMethod

# Okabe and Ito's palette; every line also has its own dashes, so that grey is enough.
BLACK, BLUE, RED, GREEN, ORANGE, SKY = (
    "#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9",
)  # fmt: skip
SOLID, DASHED, DOTTED, DASHDOT = "-", "--", ":", "-."
LONG = (0, (8, 2))

# No initial gap: what is left of a bound after infinitely many steps.
SETTLED = Constants(smoothness=1.0, variance=1.0, gradient_bound=2.0, initial_gap=0.0)


def step_sizes() -> Figure:
    """Proved step sizes of PRLC and PR, printed and derived, and the exact stability limits."""
    figure, (left, right) = _panels(
        "Fewer pulls ask for a smaller step in most proofs, but on a quadratic only of PR"
    )
    r = np.geomspace(0.005, 1, 400)
    high, inner, P = r[r > 0.502], r[r < 0.995], 20

    left.plot(r, np.full_like(r, 2.0), color=BLACK, ls=LONG, label="quadratic, exact")
    left.plot(r, np.ones_like(r), color=GREEN, ls=DASHDOT, label="proved: bounded or convex")
    left.plot(
        r, theory.prlc_iid_step_limit(r), color=SKY, ls=DASHED, label="proved: IID, non-convex"
    )
    left.plot(r, theory.theorem1_step_limit(r), color=BLUE, ls=SOLID, label="Thm 1 and 5, derived")
    for workers, mark in ((1, "v"), (P, "^")):
        left.plot(
            inner, printed.theorem5_step_limit(inner, workers), color=RED, ls=DOTTED, marker=mark,
            markevery=45, ms=5, label=f"Thm 5, printed, P = {workers}",
        )  # fmt: skip
    left.set_title("PRLC", fontsize=10)
    left.set_ylabel("largest step size × L")

    for workers, mark in ((4, "s"), (P, "o"), (100, "D")):
        right.plot(
            r, theory.pr_stability_limit(r, workers), color=BLACK, ls=LONG, marker=mark, ms=4,
            markevery=50, label=f"quadratic, P = {workers}",
        )  # fmt: skip
    right.plot(r, theory.pr_step_limit(r), color=GREEN, ls=DASHDOT, label="proved, every r")
    right.plot(high, theory.theorem3_step_limit(high), color=BLUE, ls=SOLID, label="Thm 3, derived")
    right.plot(
        high[:-1], printed.theorem3_step_limit(high[:-1]), color=RED, ls=DOTTED, lw=2.2,
        label="Thm 3, printed, L = 1",
    )  # fmt: skip
    right.set_title("PR", fontsize=10)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", ylim=(1e-3, 40), xlabel="pull ratio r")
        _legend(axes)
    return figure


def bounds() -> Figure:
    """The noise part of the bounds (T -> infinity) against r, and against P."""
    figure, (left, right) = _panels(
        "More pulls lower the bound, more workers do not lower the drift of PRLC"
    )
    eta, T = 0.005, 1
    r = np.geomspace(0.02, 1, 200)
    lines = (
        (theory.theorem1_bound, "PRLC, Theorem 1", BLUE, SOLID),
        (theory.prlc_bounded_bound, "PRLC, bounded gradients", ORANGE, DASHED),
        (theory.prlc_convex_bound, "PRLC, IID and convex", GREEN, DASHDOT),
        (theory.pr_bound, "PR, every r", RED, DOTTED),
    )
    for bound, name, color, style in lines:
        left.plot(r, bound(eta, r, 20, T, SETTLED), color=color, ls=style, lw=1.8, label=name)
    left.set(xscale="log", yscale="log", xlabel="pull ratio r")
    left.set_ylabel("bound on mean |∇F|², T → ∞")
    left.set_title("P = 20 workers", fontsize=10)
    P = np.geomspace(1, 1000, 200)
    for ratio, mark in ((0.05, "o"), (0.2, "s"), (1.0, "^")):
        right.plot(
            P, theory.theorem1_bound(eta, ratio, P, T, SETTLED), color=BLUE, ls=SOLID,
            marker=mark, markevery=40, ms=5, label=f"PRLC, Thm 1, r = {ratio:g}",
        )  # fmt: skip
    right.plot(
        P, theory.prlc_convex_bound(eta, 0.05, P, T, SETTLED), color=GREEN, ls=DASHDOT,
        marker="o", markevery=(20, 40), ms=5, label="PRLC, convex, r = 0.05",
    )  # fmt: skip
    right.plot(
        P, theory.pr_bound(eta, 0.05, P, T, SETTLED), color=RED, ls=DOTTED, lw=1.8,
        marker="o", markevery=(20, 40), ms=5, label="PR, r = 0.05",
    )  # fmt: skip
    right.set(xscale="log", yscale="log", xlabel="workers P")
    right.set_title("the same step size for every P", fontsize=10)
    for axes in (left, right):
        axes.set_ylim(4e-6, 3)
        _legend(axes, columns=1 if axes is left else 2)
    return figure


def asgd() -> Figure:
    """Theorem 4 as printed, and the same two bounds at the same number of gradients."""
    figure, (left, right) = _panels(
        "Whether PRLC scales better than ASGD depends on what is counted"
    )
    eta, r, T = 0.0005, 0.4, 1
    P = np.geomspace(1, 1000, 200)
    prlc = theory.prlc_bounded_bound(eta, r, P, T, SETTLED)
    stale = theory.asgd_bound(eta, P, T, SETTLED)
    left.plot(P, prlc, color=BLUE, ls=SOLID, label=f"PRLC, bounded gradients, r = {r}")
    left.plot(P, stale, color=RED, ls=DASHED, lw=1.8, label="ASGD")
    left.set_title("as printed: a step is P gradients for PRLC, 1 for ASGD", fontsize=10)
    left.set_ylabel("bound on mean |∇F|², T → ∞")
    right.plot(P, prlc, color=BLUE, ls=SOLID, label=f"PRLC, bounded gradients, r = {r}")
    right.plot(
        P, theory.prlc_convex_bound(eta, r, P, T, SETTLED), color=GREEN, ls=DASHDOT,
        label=f"PRLC, IID and convex, r = {r}",
    )  # fmt: skip
    same = theory.asgd_equal_work_bound(eta, P, T, SETTLED)
    right.plot(P, same, color=RED, ls=DASHED, lw=1.8, label="ASGD")
    right.set_title("equal work: P gradients for both", fontsize=10)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="workers P", ylim=(3e-7, 2e-3))
        _legend(axes)
    return figure


def noise() -> Figure:
    """The exact noise floor on a quadratic, relative to SGD, from the moment recursion."""
    figure, panels = _panels(
        "Rare pulls raise the noise floor of PRLC by at most a half, that of PR without limit"
    )
    r = np.geomspace(0.005, 1, 400)
    methods: list[tuple[PullMethod, str, str]] = [("prlc", BLUE, SOLID), ("pr", RED, DASHED)]
    for axes, P in zip(panels, (4, 20), strict=True):
        for a, mark in ((0.05, "o"), (0.5, "s")):
            sgd = theory.noise_floor("prlc", a, 1.0, P)
            for method, color, style in methods:
                floor = np.asarray(theory.noise_floor(method, a, r, P)) / sgd
                axes.plot(
                    r, floor, color=color, ls=style, marker=mark, markevery=40, ms=5,
                    label=f"{method.upper()}, step size × L = {a:g}",
                )  # fmt: skip
        edge = _pr_ratio_limit(0.5, P)
        axes.axvline(edge, color=BLACK, ls=DOTTED, lw=1)
        axes.annotate(
            f"PR diverges for\nr < {edge:.3f} at 0.5/L", (edge, 300), (6, 0), fontsize=8,
            textcoords="offset points", va="center",
        )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="pull ratio r", ylim=(0.8, 1000))
        axes.set_title(f"P = {P} workers", fontsize=10)
        _legend(axes)
    panels[0].set_ylabel("noise floor / that of SGD")
    return figure


def _pr_ratio_limit(a: float, P: int) -> float:
    """The pull ratio below which PR is unstable at the step size a/L."""
    r = np.linspace(1e-4, 1, 100_000)
    return float(r[np.asarray(theory.pr_stability_limit(r, P)) > a][0])


def _panels(title: str) -> tuple[Figure, tuple[Axes, Axes]]:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.9), dpi=100, layout="constrained")
    figure.suptitle(title, fontsize=12)
    return figure, (left, right)


def _legend(axes: Axes, columns: int = 2) -> None:
    axes.grid(alpha=0.3, lw=0.5)
    axes.legend(
        fontsize=8, frameon=False, ncols=columns, handlelength=3, columnspacing=1,
        loc="upper center", bbox_to_anchor=(0.5, -0.16),
    )  # fmt: skip


FIGURES = {"step-size": step_sizes, "bound": bounds, "asgd": asgd, "noise": noise}


def main(folder: Path) -> None:
    """Write every figure into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        figure = draw()
        figure.savefig(folder / f"theory-{name}.png")
        plt.close(figure)


if __name__ == "__main__":
    default = Path(__file__).resolve().parent.parent / "images"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
