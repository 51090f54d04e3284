"""The plan for people: a table, sentences and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from prlc.network.units import format_bytes, format_seconds
from prlc.planner.prices import LONGEST, Choice
from prlc.planner.recommend import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 8  # of the table
_MIN_SHARE = 0.05  # of the time: smaller savings are not mentioned
_ORANGE, _BLUE, _GREY = "#D55E00", "#0072B2", "#777777"  # Okabe and Ito's, as in all plots


def rich_table(plan: Plan, title: str | None = None) -> Table:
    """The best step size of the best methods; the chosen one is bold."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    table.add_column("method", overflow="fold", max_width=34)
    for heading in ("step\nsize", "steps", "bytes", "of\nNSGD's", "time", "of\nNSGD's"):
        table.add_column(heading, justify="right", no_wrap=True)
    for choice in best_of_each(plan):
        cost, nsgd = choice.cost, plan.nsgd.cost
        cells = (
            choice.candidate.method.label,
            f"{choice.candidate.lr:.3g}",
            f"{choice.steps:,}" if choice.reached else f">{choice.steps:,}",
            format_bytes(cost.bytes),
            _ratio(cost.bytes, nsgd.bytes),
            format_seconds(cost.seconds),
            _ratio(cost.seconds, nsgd.seconds),
        )
        style = "bold" if choice is plan.chosen else None if choice.reached else "dim"
        table.add_row(*cells, style=style)
    return table


def best_of_each(plan: Plan) -> list[Choice]:
    """The cheapest choice of each method that reached the target; NSGD is the last."""
    found: dict[object, Choice] = {plan.chosen.candidate.method: plan.chosen}
    there = [choice for choice in plan.weighed if choice.reached and choice is not plan.nsgd]
    for choice in sorted(there, key=lambda each: each.cost.of(plan.goal)):
        found.setdefault(choice.candidate.method, choice)
    found.pop(plan.nsgd.candidate.method, None)
    return [*list(found.values())[:_ROWS], plan.nsgd]


def _ratio(cost: float, base: float) -> str:
    return f"{cost / base:.2g}" if base > 0 else "–"


def sentences(plan: Plan) -> list[str]:
    """The plan in words: the choice, its cost, the limit, what holds it back, and the basis."""
    chosen, nsgd = plan.chosen, plan.nsgd
    name, lr, cost = chosen.candidate.method.label, chosen.candidate.lr, chosen.cost
    taken = format_seconds(cost.seconds)
    if chosen is nsgd:
        first = f"Chosen for {plan.goal}: NSGD, step size {lr:.3g}. Nothing tried is cheaper."
    else:
        first = (
            f"Chosen for {plan.goal}: {name}, step size {lr:.3g}. To training loss "
            f"{plan.target_loss:.4g} it takes {chosen.steps:,} steps, {taken} "
            f"({_ratio(cost.seconds, nsgd.cost.seconds)} of NSGD's) and "
            f"{format_bytes(cost.bytes)} ({_ratio(cost.bytes, nsgd.cost.bytes)} of NSGD's)."
        )
    return [first, _limit(plan), _basis(plan)]


def _limit(plan: Plan) -> str:
    limit, seconds = plan.limit_seconds, plan.chosen.cost.seconds
    said = (
        f"The limit: NSGD's {plan.nsgd.steps:,} steps on an infinitely fast network take "
        f"{format_seconds(limit)}; the plan takes {_ratio(seconds, limit)} times that."
    )
    ranked = sorted(plan.saved_if_free, key=plan.saved_if_free.__getitem__, reverse=True)
    shares = [
        f"{plan.saved_if_free[name]:.0%} without {name}"
        for name in ranked
        if plan.saved_if_free[name] >= _MIN_SHARE
    ]
    listed = ", ".join(shares) or "little by any single thing, since others hide it"
    return f"{said} What it could save: {listed}."


def _basis(plan: Plan) -> str:
    effort, there = plan.effort, sum(choice.reached for choice in plan.weighed)
    seeds = "One seed" if plan.seeds == 1 else f"The chosen one gets there on {plan.seeds} seeds"
    return (
        f"Weighed: {effort.trials} pairs of method and step size, in the simulator "
        f"({effort.steps:,} steps, {effort.seconds:.0f} s); {there} reached the target, within "
        f"{plan.within:.1%} of NSGD's lowest loss or as given, in at most {LONGEST} times its "
        f"steps. {seeds}: differences of a few percent mean little."
    )


def plot(plan: Plan, path: Path | str | None = None, title: str | None = None) -> Figure:
    """Time against bytes of everything weighed; saved if a path is given."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.4), layout="constrained")
    axes = figure.subplots()

    def draw(choices: list[Choice], label: str, **style: object) -> None:
        seconds = [choice.cost.seconds for choice in choices]
        axes.plot([choice.cost.bytes for choice in choices], seconds, label=label, **style)  # type: ignore[arg-type]

    others = [each for each in plan.weighed if each is not plan.nsgd]
    there = [each for each in others if each.reached]
    open_ = [each for each in others if not each.reached]
    dot = {"linestyle": "none", "markersize": 6}
    draw(open_, "gave up: at the pace so far", marker="o", color=_GREY, alpha=0.35, **dot)
    draw(there, "reached the target", marker="o", color=_BLUE, **dot)
    draw([plan.nsgd], "NSGD", marker="s", color="#000000", **dot | {"markersize": 9})
    ring = {"linestyle": "none", "markersize": 15, "fillstyle": "none", "markeredgewidth": 2.4}
    draw([plan.chosen], "chosen", marker="o", color=_ORANGE, **ring)
    axes.axhline(
        plan.limit_seconds, color=_GREY, linestyle="--", linewidth=1.2, label="compute-only limit"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bytes up and down until the target")
    axes.set_ylabel("simulated seconds until the target")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.annotate(
        f"{plan.chosen.candidate.method.label}",
        (plan.chosen.cost.bytes, plan.chosen.cost.seconds),
        xytext=(12, 12),
        textcoords="offset points",
        color=_ORANGE,
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=12)
    if path is not None:
        figure.savefig(path, dpi=140)
    return figure
