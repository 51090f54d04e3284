"""The advice for people: a table, sentences and a plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from prlc.planner.advice import Advice, Row
from prlc.planner.cost import RESOURCES
from prlc.planner.trials import MAX_TIME
from prlc.units import format_bytes, format_seconds, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MIN_SHARE = 0.05  # of a step's time: smaller savings are not mentioned
# Okabe and Ito's colours, as in all plots; the dashes distinguish the lines in grey.
_LINES = {
    "compute": ("#009E73", ":"),
    "uplink": ("#D55E00", "--"),
    "downlink": ("#0072B2", "-."),
    "latency": ("#CC79A7", (0, (3, 1, 1, 1, 1, 1))),
}


def rich_table(advice: Advice, title: str | None = None) -> Table:
    """A row per pull ratio; the recommended one is bold."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False
    )
    reach = "loss" if advice.effort else "bound"
    headings = (
        "pull\nratio", "step\nsize", f"steps\nto {reach}", "pulls/\nworker", "bytes\nup",
        "bytes\ndown", "time of\na step", f"time to\n{reach}", "against\nNSGD", "limited\nby",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in advice.rows:
        cells = (
            "NSGD" if row is advice.nsgd else f"{row.pull_ratio:g}",
            f"{row.lr:.3g}" if row.lr >= 0.01 else f"{row.lr:.2g}",
            _or_dash(row.steps, "{:,}".format),
            _or_dash(row.pulls_per_worker, "{:,.0f}".format),
            _or_dash(row.bytes_up, format_bytes),
            _or_dash(row.bytes_down, format_bytes),
            format_seconds(row.price.seconds_per_step),
            _or_dash(row.seconds, format_seconds),
            _or_dash(row.against_nsgd, "{:.2f}".format),
            row.price.bottleneck,
        )
        table.add_row(*cells, style="bold" if row is advice.recommended else None)
    return table


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value)


def sentences(advice: Advice) -> list[str]:
    """The plan in words: the recommendation, its cost, the bottleneck, and the basis."""
    said = [_recommendation(advice), _expectation(advice), _bottleneck(advice), _basis(advice)]
    missed = [row for row in advice.rows if row.steps is None]
    if missed and advice.effort:
        ratios = ", ".join(f"{row.pull_ratio:g} ({row.lowest_loss:.3g})" for row in missed)
        said.append(
            f"Target not reached within {MAX_TIME:g} times NSGD's time (lowest loss): {ratios}."
        )
    return [*said, _theory(advice), _constants(advice), *advice.notes]


def _recommendation(advice: Advice) -> str:
    row = advice.recommended
    if row is advice.nsgd:
        return (
            f"Recommended: NSGD (pull ratio 1) with step size {row.lr:.3g}. No lower pull ratio "
            "considered makes up for its extra steps on this network."
        )
    return f"Recommended: PRLC with pull ratio {row.pull_ratio:g} and step size {row.lr:.3g}."


def _expectation(advice: Advice) -> str:
    row, nsgd = advice.recommended, advice.nsgd
    if advice.effort is None:
        aim = f"the bound that NSGD has after {advice.nsgd_steps:,} steps"
    elif advice.target_given:
        aim = f"training loss {advice.target_loss:.4g}"
    else:
        aim = (
            f"training loss {advice.target_loss:.4g} (NSGD's lowest within "
            f"{advice.nsgd_steps:,} steps, at its best step size)"
        )
    if row.steps is None or row.pulls_per_worker is None or row.bytes is None:
        return f"Nothing considered reaches {aim}."
    parts = [
        (f"{row.pulls_per_worker:,.0f} pulls per worker", row.pulls_per_worker,
         nsgd.pulls_per_worker),
        (f"{format_bytes(row.bytes)} of traffic", row.bytes, nsgd.bytes),
        (f"{format_seconds(row.seconds or 0.0)} of simulated time", row.seconds, nsgd.seconds),
    ]  # fmt: skip
    against = [
        text + (f" ({own / base:.2f} of NSGD's)" if row is not nsgd and own and base else "")
        for text, own, base in parts
    ]
    return f"Expected: {aim} after {row.steps:,} steps, {', '.join(against)}."


def _bottleneck(advice: Advice) -> str:
    row = advice.recommended
    price = row.price
    ranked = sorted(RESOURCES, key=price.saved, reverse=True)
    shares = [
        f"{price.saved(name):.0%} less with {_FREE[name]}"
        for name in ranked
        if price.saved(name) >= _MIN_SHARE
    ]
    listed = "; ".join(shares) or "no single resource would shorten it much, since others hide it"
    takes = f"A step takes {format_seconds(price.seconds_per_step)}: {listed}."
    return f"Bottleneck: {price.bottleneck}. {takes} {_remedy(advice, row)}"


_FREE = {
    "compute": "infinitely fast workers",
    "uplink": "a free uplink",
    "downlink": "a free downlink",
    "latency": "no latency",
}


def _remedy(advice: Advice, row: Row) -> str:
    if row.price.bottleneck == "compute":
        return "Faster workers or smaller batches would help; fewer pulls would not."
    if row.price.bottleneck == "uplink":
        return "Smaller or rarer pushes would help; fewer pulls hardly would."
    if row.price.bottleneck == "downlink":
        return "Fewer pulls shorten the step, as far as the loss permits."
    pulling = 1 - (1 - row.pull_ratio) ** advice.workers
    aligned = format_seconds(advice.aligned_step_seconds)
    return (
        f"Some worker pulls at {pulling:.0%} of the steps, which takes a round trip. If all "
        "workers pushed and pulled together every tenth step (--every 10), a step would take "
        f"{aligned} by the clock; this was not tried."
    )


def _basis(advice: Advice) -> str:
    if advice.effort is None:
        return (
            "This rests on the bounded-gradient bound and the network clock, no trials: the bounds "
            "are loose and far too pessimistic about low pull ratios."
        )
    effort = advice.effort
    return (
        f"This rests on short trial runs in the simulator, not on the bounds: {effort.runs} pairs "
        "of pull ratio and step size started, and the better half of the step sizes continued at "
        "1/8, 1/4 and 1/2 of the way (successive halving); "
        f"{effort.steps:,} steps, {effort.seconds:.0f} s. "
        "One seed: differences of a few percent mean little."
    )


def _theory(advice: Advice) -> str:
    row = advice.recommended
    return (
        f"The theory, for comparison: at r = {row.pull_ratio:g} Theorem 1 admits a step size of at "
        f"most {row.limits.theorem1:.3g}, the sharper bound {row.limits.proved:.3g} = 1/L; PRLC is "
        f"stable up to {row.limits.stable:.3g} = 2/L. For the same bound in the least time, "
        f"Theorem 1 prefers r = {advice.preferred('theorem1'):g}, the sharper bound r = "
        f"{advice.preferred('bounded_gradients'):g}; both bounds are loose."
    )


def _constants(advice: Advice) -> str:
    if advice.measured is None:
        c = advice.constants
        return (
            f"Constants as given: L = {c.smoothness:.4g}, sigma^2 = {c.variance:.4g}, G = "
            f"{c.G:.4g}, gap = {c.initial_gap:.4g}."
        )
    m = advice.measured
    named = (
        ("L", m.smoothness), (f"sigma^2 (batch of {m.batch_size})", m.variance),
        ("G", m.gradient_bound), ("gap", m.initial_gap),
    )  # fmt: skip
    listed = ", ".join(
        f"{name} = {each.value:.4g} ({each.low:.4g} to {each.high:.4g})" for name, each in named
    )
    cost = f"{m.cost.gradients:,} gradients of a sample, {m.cost.seconds:.1f} s"
    return " ".join([f"Constants measured: {listed}; cost: {cost}.", *m.notes])


def plot(advice: Advice, path: Path | str | None = None, title: str | None = None) -> Figure:
    """Time to the target and time of a step against the pull ratio; saved if a path is given."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 5.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.set_ylabel(_draw_time(left, advice))
    right.set_ylabel(_draw_step(right, advice))
    ratios = [row.pull_ratio for row in advice.rows]
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
        axes.minorticks_off()
        axes.set_xlabel("pull ratio r (1 is NSGD)")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.06, y=0.12)
        axes.set_ylim(bottom=0)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize=9
        )
    if title:
        figure.suptitle(title, fontsize=12)
    if path is not None:
        figure.savefig(path, dpi=140)
    return figure


def _draw_time(axes: Axes, advice: Advice) -> str:
    reached = [row for row in advice.rows if row.seconds is not None]
    missed = [row for row in advice.rows if row.seconds is None]
    scale, unit = time_unit(max(row.seconds or 0.0 for row in reached))
    axes.plot(
        [row.pull_ratio for row in reached],
        [(row.seconds or 0.0) / scale for row in reached],
        "o-",
        color="#000000",
        label="best step size tried" if advice.effort else "the bound's best step size",
    )
    nsgd, chosen = advice.nsgd.seconds, advice.recommended
    if nsgd is not None:
        axes.axhline(nsgd / scale, color="#777777", linestyle="--", linewidth=1.2, label="NSGD")
        if missed and advice.effort:
            axes.plot(
                [row.pull_ratio for row in missed],
                [MAX_TIME * nsgd / scale] * len(missed),
                "^",
                color="#777777",
                fillstyle="none",
                label=f"not within {MAX_TIME:g}x",
            )
    if chosen.seconds is not None:
        axes.plot(
            chosen.pull_ratio,
            chosen.seconds / scale,
            "o",
            clip_on=False,
            color="#D55E00",
            markersize=13,
            fillstyle="none",
            markeredgewidth=2.2,
            label=f"recommended: r = {chosen.pull_ratio:g}",
        )
    aim = f"loss {advice.target_loss:.3g}" if advice.effort else "NSGD's bound"
    axes.set_title(f"simulated time to {aim}", fontsize=11)
    return unit


def _draw_step(axes: Axes, advice: Advice) -> str:
    ratios = [row.pull_ratio for row in advice.rows]
    scale, unit = time_unit(max(row.price.seconds_per_step for row in advice.rows))
    axes.plot(
        ratios,
        [row.price.seconds_per_step / scale for row in advice.rows],
        "o-",
        color="#000000",
        label="as it is",
    )
    for name, (colour, dashes) in _LINES.items():
        axes.plot(
            ratios,
            [row.price.if_free[name] / scale for row in advice.rows],
            color=colour,
            linestyle=dashes,
            label=f"with {_FREE[name]}",
        )
    axes.set_title("time of a step, by the network clock", fontsize=11)
    return unit
