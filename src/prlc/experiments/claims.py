"""The paper's claims, each as a function from curves to a finding.

The limits were fixed before the runs at the paper's scale were made. Where a claim cannot be
judged, because something diverged or a loss was never reached, it does not hold, and the finding
says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from prlc.experiments.measures import (
    CLOSE,
    Ratio,
    diverged,
    final_losses,
    first_reached,
    mean_loss,
    ratio,
)
from prlc.report import Outcome, Series

__all__ = ["CLAIMS", "LIMITS", "Finding"]

#: What the paper says, in its order.
CLAIMS = {
    "slower-start": "PRLC (r=0.4) is slower than NSGD in the first stage",
    "same-floor": "PRLC (r=0.4) reaches NSGD's loss floor once the step size has decayed",
    "half-the-pulls": "PRLC (r=0.4) needs about half of NSGD's pulls at convergence",
    "lag-saves-nothing": "LAG-PS saves no pulls under stochastic gradients",
    "gap-shrinks": "the gap between pull ratios is large at first and shrinks with the step size",
    "compensation": "PR is far worse than PRLC at r=0.01",
    "time-of-asgd": "PRLC (r=0.4) takes about 0.71 of ASGD's time",
}

SLOWER = 1 + CLOSE  # mean loss of the first stage over NSGD's; less is called equal everywhere here
FLOOR, NEAR_FLOOR = 1 + CLOSE, 1.05  # final loss over NSGD's: the same; the same to the eye, nearly
HALF = (0.35, 0.65)  # "approximate 0.5": rounds to a half rather than to a quarter or to three
SAVES_PULLS = 0.9  # from here on "about half" is not even in the right direction
NO_SAVING, LITTLE_SAVING = 0.95, 0.8  # pulls over NSGD's: "no reduction at all"; hardly any
LARGE_GAP = 0.05  # of NSGD's loss: five times what counts as equal
SHRUNK = 0.5  # "reduces significantly": to half of it or less
FAR_WORSE, WORSE = 1.1, 1.02  # final loss over PRLC's: "significantly"; visibly
TIME = (0.64, 0.78)  # 0.71, give or take a tenth of it: the paper rounds both times
FASTER = 0.95  # up to here PRLC is at least clearly faster, if by another factor

#: The limits, for the record that goes with every verdict.
LIMITS: dict[str, float | tuple[float, float]] = {
    "close": CLOSE,
    "slower": SLOWER,
    "floor": FLOOR,
    "near_floor": NEAR_FLOOR,
    "half": HALF,
    "saves_pulls": SAVES_PULLS,
    "no_saving": NO_SAVING,
    "little_saving": LITTLE_SAVING,
    "large_gap": LARGE_GAP,
    "shrunk": SHRUNK,
    "far_worse": FAR_WORSE,
    "worse": WORSE,
    "time": TIME,
    "faster": FASTER,
}


@dataclass(frozen=True)
class Finding:
    """What was measured, and what it means for the claim."""

    measured: str
    outcome: Outcome
    short: str = "not reached"
    """The figure that decides, for a table with little room."""
    numbers: dict[str, float] = field(default_factory=dict)


def slower_start(nsgd: Series, prlc: Series, stage: float) -> Finding:
    """By the mean training loss over the first stage: the height of the curve."""
    if broken := _broken(nsgd, prlc):
        return broken
    losses = [[mean_loss(run, 0, stage) for run in each.runs] for each in (prlc, nsgd)]
    quotient = ratio(*losses)
    if quotient is None:
        return _unjudged("the first stage has no evaluations")
    outcome = _graded(quotient.mean, holds=SLOWER, in_part=1.0)
    text = f"mean loss of the first stage {quotient} times NSGD's"
    return Finding(text, outcome, f"{quotient.mean:.2f}", _numbers("loss_ratio", quotient))


def same_floor(nsgd: Series, prlc: Series) -> Finding:
    """By the final training loss; lower than NSGD's is fine too."""
    if broken := _broken(nsgd, prlc):
        return broken
    quotient = ratio(final_losses(prlc), final_losses(nsgd))
    if quotient is None:
        return _unjudged("NSGD's final loss is zero")
    outcome = _graded(-quotient.mean, holds=-FLOOR, in_part=-NEAR_FLOOR)
    text = f"final loss {_mean(prlc):.4f} against NSGD's {_mean(nsgd):.4f}"
    return Finding(text, outcome, f"{quotient.mean:.2f}", _numbers("loss_ratio", quotient))


def half_the_pulls(nsgd: Series, prlc: Series) -> Finding:
    """By the pulls per worker until the loss first is within CLOSE of NSGD's final loss."""
    if broken := _broken(nsgd, prlc):
        return broken
    targets = [(1 + CLOSE) * loss for loss in final_losses(nsgd)]
    pulls = [
        [first_reached(run, "pulls_per_worker", t) for run, t in zip(s.runs, targets, strict=True)]
        for s in (prlc, nsgd)
    ]
    if math.inf in pulls[0]:
        return _unjudged(f"PRLC never comes within {CLOSE:.0%} of NSGD's final loss")
    quotient = ratio(*pulls)
    if quotient is None:
        return _unjudged("NSGD ends no lower than it began")
    outcome = Outcome.FAILS
    if HALF[0] <= quotient.mean <= HALF[1]:
        outcome = Outcome.HOLDS
    elif quotient.mean <= SAVES_PULLS:
        outcome = Outcome.IN_PART
    text = f"{quotient} of NSGD's pulls until within {CLOSE:.0%} of its final loss"
    return Finding(text, outcome, f"{quotient.mean:.2f}", _numbers("pull_ratio", quotient))


def lag_saves_nothing(nsgd: Series, lag: Series) -> Finding:
    """By the pulls per worker over the whole run."""
    if broken := _broken(nsgd, lag):
        return broken
    pulls = [
        [float(run.metrics["pulls_per_worker"].iloc[-1]) for run in s.runs] for s in (lag, nsgd)
    ]
    quotient = ratio(*pulls)
    if quotient is None:
        return _unjudged("NSGD never pulled")
    outcome = _graded(quotient.mean, holds=NO_SAVING, in_part=LITTLE_SAVING)
    text = (
        f"{quotient} of NSGD's pulls; final loss {_mean(lag):.4f} against NSGD's {_mean(nsgd):.4f}"
    )
    return Finding(text, outcome, f"{quotient.mean:.2f}", _numbers("pull_ratio", quotient))


def gap_shrinks(by_ratio: Sequence[Series], stage: float, stages: int) -> Finding:
    """By the spread of the ratios' mean losses over the second half of a stage.

    The first series is NSGD's. A single evaluation at a large step size is mostly noise, hence
    half a stage.
    """
    if broken := _broken(*by_ratio):
        return broken
    levels = [
        [
            math.fsum(mean_loss(run, (k + 0.5) * stage, (k + 1) * stage) for run in s.runs)
            / len(s.runs)
            for s in by_ratio
        ]
        for k in (0, stages - 1)
    ]
    if not all(math.isfinite(level) for each in levels for level in each):
        return _unjudged("a stage has no evaluations in its second half")
    first, last = (max(each) - min(each) for each in levels)
    large = first >= LARGE_GAP * levels[0][0]
    outcome = Outcome.FAILS
    if last < first:
        outcome = Outcome.HOLDS if large and last <= SHRUNK * first else Outcome.IN_PART
    text = (
        f"gap {first:.3f} in the first stage ({first / levels[0][0]:.0%} of NSGD's loss), "
        f"{last:.3f} in the last"
    )
    numbers = {"first_gap": first, "last_gap": last, "nsgd": levels[0][0]}
    return Finding(text, outcome, f"{first:.2f}, then {last:.2f}", numbers)


def compensation(prlc: Series, pr: Series) -> Finding:
    """By the final training loss."""
    if diverged(prlc):
        return _unjudged(f"{prlc.label} diverged")
    if diverged(pr):
        text = f"{pr.label} diverged, {prlc.label} ends at {_mean(prlc):.4f}"
        return Finding(text, Outcome.HOLDS, "diverged")
    quotient = ratio(final_losses(pr), final_losses(prlc))
    if quotient is None:
        return _unjudged("PRLC's final loss is zero")
    outcome = _graded(quotient.mean, holds=FAR_WORSE, in_part=WORSE)
    text = f"final loss {_mean(pr):.4f} against PRLC's {_mean(prlc):.4f}: {quotient} times"
    return Finding(text, outcome, f"{quotient.mean:.2f}", _numbers("loss_ratio", quotient))


def time_of_asgd(asgd: Series, run_ahead: Series, barrier: Series) -> Finding:
    """By the simulated time until both have reached a common loss, with and without run-ahead.

    That loss is within CLOSE of the worse of the two final ones.
    """
    if broken := _broken(asgd, run_ahead):
        return broken
    targets = [
        (1 + CLOSE) * max(pair)
        for pair in zip(final_losses(asgd), final_losses(run_ahead), strict=True)
    ]
    times = [
        [first_reached(run, "simulated_seconds", t) for run, t in zip(s.runs, targets, strict=True)]
        for s in (run_ahead, barrier, asgd)
    ]
    ends = [
        [float(run.metrics["simulated_seconds"].iloc[-1]) for run in s.runs]
        for s in (run_ahead, barrier, asgd)
    ]
    quotients = [ratio(own, times[2]) for own in times[:2]]
    epochs = [ratio(own, ends[2]) for own in ends[:2]]
    if any(quotient is None for quotient in [*quotients, *epochs]):
        return _unjudged("a common loss is reached at the very start")
    ahead, wait, ahead_end, wait_end = (q for q in [*quotients, *epochs] if q is not None)
    text = (
        f"to a common loss {ahead} of ASGD's time, with a barrier {wait}; "
        f"for the same epochs {ahead_end.mean:.2f} and {wait_end.mean:.2f}"
    )
    numbers = {
        **_numbers("run_ahead", ahead),
        **_numbers("barrier", wait),
        **_numbers("run_ahead_epochs", ahead_end),
        **_numbers("barrier_epochs", wait_end),
    }
    short = f"{ahead.mean:.2f}; for the same epochs {ahead_end.mean:.2f}"
    return Finding(text, judge_times(ahead.mean, wait.mean), short, numbers)


def judge_times(run_ahead: float, barrier: float) -> Outcome:
    """Holds if it does on both clocks, does not if it does on neither."""
    outcomes = {_judge_time(run_ahead), _judge_time(barrier)}
    return outcomes.pop() if len(outcomes) == 1 else Outcome.IN_PART


def _judge_time(quotient: float) -> Outcome:
    if TIME[0] <= quotient <= TIME[1]:
        return Outcome.HOLDS
    return Outcome.IN_PART if quotient <= FASTER else Outcome.FAILS


def _graded(value: float, *, holds: float, in_part: float) -> Outcome:
    """By two limits from above."""
    if value >= holds:
        return Outcome.HOLDS
    return Outcome.IN_PART if value >= in_part else Outcome.FAILS


def _broken(*series: Series) -> Finding | None:
    """What to say if one of them diverged."""
    names = [each.label for each in series if diverged(each)]
    return _unjudged(f"{' and '.join(names)} diverged") if names else None


def _unjudged(why: str) -> Finding:
    return Finding(why, Outcome.FAILS)


def _mean(series: Series) -> float:
    losses = final_losses(series)
    return math.fsum(losses) / len(losses)


def _numbers(name: str, quotient: Ratio) -> dict[str, float]:
    low, high = min(quotient.values), max(quotient.values)
    return {name: quotient.mean, f"{name}_low": low, f"{name}_high": high}
