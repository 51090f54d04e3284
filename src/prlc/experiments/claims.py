"""The paper's claims: each a function from curves to a finding, with limits fixed beforehand.

A claim that cannot be judged, because a run diverged or never reached a loss, does not hold; its
finding says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from prlc.experiments.curves import (
    TIMED,
    Curves,
    Ratio,
    final_losses,
    first_reached,
    last_values,
    mean_loss,
    ratio,
)
from prlc.experiments.settings import DUPLEX, Figure, paper
from prlc.experiments.specs import seconds_per_step
from prlc.network.units import format_seconds
from prlc.report import Outcome, Series, Verdict

__all__ = ["CLAIMS", "LIMITS", "Claim", "ClaimVerdict", "Finding", "judge_all"]


@dataclass(frozen=True)
class Limits:
    """Where verdicts change. Fixed before the runs at the paper's scale were made."""

    #: A run reaches a loss once within this fraction of it: the width of a line in the paper's
    #: figures, and several times the difference between seeds.
    close: float = 0.01
    slower: float = 1.01  # mean loss of the first stage over NSGD's; below counts as equal
    floor: float = 1.01  # final loss over NSGD's: the same ...
    near_floor: float = 1.05  # ... or nearly the same to the eye
    half: tuple[float, float] = (0.35, 0.65)  # "approximate 0.5": nearer to 1/2 than to 1/4 or 3/4
    saves_pulls: float = 0.9  # above, "about half" does not even have the direction right
    no_saving: float = 0.95  # pulls over NSGD's: "no reduction at all" ...
    little_saving: float = 0.8  # ... or hardly any
    large_gap: float = 0.05  # of NSGD's loss: five times what counts as equal
    shrunk: float = 0.5  # "reduces significantly": to half or less
    far_worse: float = 1.1  # final loss over PRLC's: "significantly" ...
    worse: float = 1.02  # ... or visibly
    time: tuple[float, float] = (0.64, 0.78)  # 0.71 +- 10%: the paper rounds both times
    faster: float = 0.95  # up to here PRLC is clearly faster, if by another factor


LIMITS = Limits()


@dataclass(frozen=True)
class Finding:
    """What was measured, and whether the claim holds."""

    measured: str
    outcome: Outcome
    short: str = "not reached"
    """The deciding number, for a narrow table."""
    numbers: dict[str, float] = field(default_factory=dict)


# -- One function per claim ------------------------------------------------------------------------


def slower_start(nsgd: Series, prlc: Series, stage: float) -> Finding:
    """Compares the mean training loss over the first stage: the height of the curve."""
    if broken := _broken(nsgd, prlc):
        return broken
    quotient = ratio(*([mean_loss(run, 0, stage) for run in s.runs] for s in (prlc, nsgd)))
    if quotient is None:
        return _unjudged("the first stage has no evaluations")
    outcome = _graded(quotient.mean, holds=LIMITS.slower, in_part=1.0)
    text = f"mean loss of the first stage {quotient} times NSGD's"
    return _ratio_finding(text, outcome, "loss_ratio", quotient)


def same_floor(nsgd: Series, prlc: Series) -> Finding:
    """Compares the final training loss; lower than NSGD's is fine too."""
    if broken := _broken(nsgd, prlc):
        return broken
    quotient = ratio(final_losses(prlc), final_losses(nsgd))
    if quotient is None:
        return _unjudged("NSGD's final loss is zero")
    outcome = _graded(-quotient.mean, holds=-LIMITS.floor, in_part=-LIMITS.near_floor)
    text = f"final loss {_mean(prlc):.4f} against NSGD's {_mean(nsgd):.4f}"
    return _ratio_finding(text, outcome, "loss_ratio", quotient)


def half_the_pulls(nsgd: Series, prlc: Series) -> Finding:
    """Compares the pulls per worker until the loss is close to NSGD's final loss."""
    if broken := _broken(nsgd, prlc):
        return broken
    targets = [(1 + LIMITS.close) * loss for loss in final_losses(nsgd)]
    pulls, nsgd_pulls = (_until(s, "pulls_per_worker", targets) for s in (prlc, nsgd))
    if math.inf in pulls:
        return _unjudged(f"PRLC never comes within {LIMITS.close:.0%} of NSGD's final loss")
    quotient = ratio(pulls, nsgd_pulls)
    if quotient is None:
        return _unjudged("NSGD ends no lower than it began")
    outcome = _in_range(quotient.mean, LIMITS.half, in_part=LIMITS.saves_pulls)
    text = f"{quotient} of NSGD's pulls until within {LIMITS.close:.0%} of its final loss"
    return _ratio_finding(text, outcome, "pull_ratio", quotient)


def lag_saves_nothing(nsgd: Series, lag: Series) -> Finding:
    """Compares the pulls per worker over the whole run."""
    if broken := _broken(nsgd, lag):
        return broken
    quotient = ratio(*(last_values(s, "pulls_per_worker") for s in (lag, nsgd)))
    if quotient is None:
        return _unjudged("NSGD never pulled")
    outcome = _graded(quotient.mean, holds=LIMITS.no_saving, in_part=LIMITS.little_saving)
    text = (
        f"{quotient} of NSGD's pulls; final loss {_mean(lag):.4f} against NSGD's {_mean(nsgd):.4f}"
    )
    return _ratio_finding(text, outcome, "pull_ratio", quotient)


def gap_shrinks(by_ratio: Sequence[Series], stage: float, stages: int) -> Finding:
    """Compares the spread of mean losses over pull ratios, in the second half of a stage.

    The first series is NSGD's. Half a stage, since a single evaluation at a large step size is
    mostly noise.
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
    large = first >= LIMITS.large_gap * levels[0][0]
    outcome = Outcome.FAILS
    if last < first:
        outcome = Outcome.HOLDS if large and last <= LIMITS.shrunk * first else Outcome.IN_PART
    text = (
        f"gap {first:.3f} in the first stage ({first / levels[0][0]:.0%} of NSGD's loss), "
        f"{last:.3f} in the last"
    )
    numbers = {"first_gap": first, "last_gap": last, "nsgd": levels[0][0]}
    return Finding(text, outcome, f"{first:.2f}, then {last:.2f}", numbers)


def compensation(prlc: Series, pr: Series) -> Finding:
    """Compares the final training loss."""
    if broken := _broken(prlc):
        return broken
    if not pr.finished:
        text = f"{pr.label} diverged, {prlc.label} ends at {_mean(prlc):.4f}"
        return Finding(text, Outcome.HOLDS, "diverged")
    quotient = ratio(final_losses(pr), final_losses(prlc))
    if quotient is None:
        return _unjudged("PRLC's final loss is zero")
    outcome = _graded(quotient.mean, holds=LIMITS.far_worse, in_part=LIMITS.worse)
    text = f"final loss {_mean(pr):.4f} against PRLC's {_mean(prlc):.4f}: {quotient} times"
    return _ratio_finding(text, outcome, "loss_ratio", quotient)


def time_of_asgd(asgd: Series, run_ahead: Series, barrier: Series) -> Finding:
    """Compares the simulated time until both are close to the higher of their final losses."""
    if broken := _broken(asgd, run_ahead):
        return broken
    finals = zip(final_losses(asgd), final_losses(run_ahead), strict=True)
    targets = [(1 + LIMITS.close) * max(pair) for pair in finals]
    timed = (run_ahead, barrier, asgd)
    *times, asgd_times = (_until(s, "simulated_seconds", targets) for s in timed)
    *ends, asgd_ends = (last_values(s, "simulated_seconds") for s in timed)
    ratios = [*(ratio(own, asgd_times) for own in times), *(ratio(own, asgd_ends) for own in ends)]
    if None in ratios:
        return _unjudged("a common loss is reached at the very start")
    ahead, wait, ahead_end, wait_end = (each for each in ratios if each is not None)
    text = (
        f"to a common loss {ahead} of ASGD's time, with a barrier {wait}; "
        f"for the same epochs {ahead_end.mean:.2f} and {wait_end.mean:.2f}"
    )
    numbers = {
        **ahead.numbers("run_ahead"),
        **wait.numbers("barrier"),
        **ahead_end.numbers("run_ahead_epochs"),
        **wait_end.numbers("barrier_epochs"),
    }
    short = f"{ahead.mean:.2f}; for the same epochs {ahead_end.mean:.2f}"
    return Finding(text, _grade_times(ahead.mean, wait.mean), short, numbers)


def step_time_of_asgd(clock: str, asgd: str, prlc: str) -> Finding:
    """Compares the time of a step of the paper's own model by the clock alone, without training."""
    network, model = paper().networks[clock], paper().clock_only
    ahead = seconds_per_step(model, prlc, network)
    wait = seconds_per_step(model, prlc, replace(network, run_ahead=False))
    other = seconds_per_step(model, asgd, network)
    text = (
        f"a step takes {ahead / other:.2f} of ASGD's time, with a barrier {wait / other:.2f}: "
        f"{format_seconds(ahead)} and {format_seconds(wait)} against {format_seconds(other)}"
    )
    numbers = {"run_ahead_seconds": ahead, "barrier_seconds": wait, "asgd_seconds": other}
    short = f"{ahead / other:.2f}, with a barrier {wait / other:.2f}"
    return Finding(text, _grade_times(ahead / other, wait / other), short, numbers)


def _until(series: Series, x: str, losses: Sequence[float]) -> list[float]:
    """The `x` at which each seed first reaches its loss."""
    return [first_reached(run, x, loss) for run, loss in zip(series.runs, losses, strict=True)]


def _graded(value: float, *, holds: float, in_part: float) -> Outcome:
    """Two lower limits."""
    if value >= holds:
        return Outcome.HOLDS
    return Outcome.IN_PART if value >= in_part else Outcome.FAILS


def _in_range(value: float, holds: tuple[float, float], *, in_part: float) -> Outcome:
    """A range, and an upper limit beyond it."""
    if holds[0] <= value <= holds[1]:
        return Outcome.HOLDS
    return Outcome.IN_PART if value <= in_part else Outcome.FAILS


def _grade_times(run_ahead: float, barrier: float) -> Outcome:
    """Run-ahead and barrier must agree; otherwise the claim holds in part."""
    outcomes = {_in_range(t, LIMITS.time, in_part=LIMITS.faster) for t in (run_ahead, barrier)}
    return outcomes.pop() if len(outcomes) == 1 else Outcome.IN_PART


def _broken(*series: Series) -> Finding | None:
    """The finding if any of them diverged."""
    names = [each.label for each in series if not each.finished]
    return _unjudged(f"{' and '.join(names)} diverged") if names else None


def _unjudged(why: str) -> Finding:
    return Finding(why, Outcome.FAILS)


def _ratio_finding(text: str, outcome: Outcome, name: str, quotient: Ratio) -> Finding:
    return Finding(text, outcome, f"{quotient.mean:.2f}", quotient.numbers(name))


def _mean(series: Series) -> float:
    losses = final_losses(series)
    return math.fsum(losses) / len(losses)


# -- Which claim is judged on which curves ---------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """What the paper says, and how it is judged: on curves, for a figure, on a clock or ""."""

    text: str
    judge: Callable[[Curves, Figure, str], Finding]


#: In the paper's order.
CLAIMS = {
    "slower-start": Claim(
        "PRLC (r=0.4) is slower than NSGD in the first stage",
        lambda on, *_: slower_start(on.series["nsgd"], on.series["prlc:0.4"], on.problem.stage),
    ),
    "same-floor": Claim(
        "PRLC (r=0.4) reaches NSGD's loss floor once the step size has decayed",
        lambda on, *_: same_floor(on.series["nsgd"], on.series["prlc:0.4"]),
    ),
    "half-the-pulls": Claim(
        "PRLC (r=0.4) needs about half of NSGD's pulls at convergence",
        lambda on, *_: half_the_pulls(on.series["nsgd"], on.series["prlc:0.4"]),
    ),
    "lag-saves-nothing": Claim(
        "LAG-PS saves no pulls under stochastic gradients",
        lambda on, *_: lag_saves_nothing(on.series["nsgd"], on.series["lag-ps"]),
    ),
    "gap-shrinks": Claim(
        "the gap between pull ratios is large at first and shrinks with the step size",
        lambda on, figure, _: gap_shrinks(
            [on.series[method] for method in figure.methods], on.problem.stage, on.problem.stages
        ),
    ),
    "compensation": Claim(
        "PR is far worse than PRLC at r=0.01",
        lambda on, *_: compensation(on.series["prlc:0.01"], on.series["pr:0.01"]),
    ),
    "time-of-asgd": Claim(
        "PRLC (r=0.4) takes about 0.71 of ASGD's time",
        lambda on, _, clock: time_of_asgd(*(on.timed[clock, who] for who in TIMED)),
    ),
}


@dataclass(frozen=True, kw_only=True)
class ClaimVerdict(Verdict):
    """A verdict with the numbers behind it."""

    key: str
    """In `CLAIMS`."""
    problem: str
    """A problem's name, or "clock" if nothing is trained."""
    short: str
    numbers: dict[str, float]


def judge_all(figures: Sequence[Figure], curves: Sequence[Curves]) -> list[ClaimVerdict]:
    """Every claim of the figures on all curves, claim by claim in the paper's order."""
    order = list(CLAIMS)
    verdicts = [verdict for on in curves for figure in figures for verdict in _judge(figure, on)]
    verdicts += [verdict for figure in figures for verdict in _judge_clock_only(figure)]
    return sorted(verdicts, key=lambda verdict: order.index(verdict.key))


def _judge(figure: Figure, curves: Curves) -> Iterator[ClaimVerdict]:
    for key in figure.claims:
        for clock in figure.clocks or ("",):
            setting = f"{curves.setting}, {DUPLEX[clock]}" if clock else curves.setting
            finding = CLAIMS[key].judge(curves, figure, clock)
            yield _verdict(figure, key, curves.problem.name, setting, finding)


def _judge_clock_only(figure: Figure) -> Iterator[ClaimVerdict]:
    for clock in figure.clocks:
        finding = step_time_of_asgd(clock, *figure.methods)
        setting = f"ResNet-18, clock only, {DUPLEX[clock]}"
        yield _verdict(figure, "time-of-asgd", "clock", setting, finding)


def _verdict(fig: Figure, key: str, problem: str, setting: str, finding: Finding) -> ClaimVerdict:
    return ClaimVerdict(
        figure=fig.name,
        claim=CLAIMS[key].text,
        key=key,
        problem=problem,
        setting=setting,
        **vars(finding),
    )
