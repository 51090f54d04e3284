"""From curves to verdicts: which claim is tried on which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prlc.experiments import claims
from prlc.experiments.claims import CLAIMS, Finding
from prlc.experiments.clocks import seconds_per_step
from prlc.experiments.evidence import ASGD, BARRIER, RUN_AHEAD, Evidence
from prlc.experiments.settings import Figure, shared
from prlc.report import Verdict
from prlc.units import format_seconds

__all__ = ["DUPLEX", "Judged", "in_order", "judge", "judge_clock_only"]

#: What the clocks are called.
DUPLEX = {"half": "half duplex", "full": "full duplex"}


@dataclass(frozen=True)
class Judged:
    """A claim, what it was tried on, and what came out."""

    figure: str
    claim: str
    """A key of `CLAIMS`."""
    task: str
    """A name of a task, or "clock" where nothing is trained."""
    setting: str
    finding: Finding

    @property
    def verdict(self) -> Verdict:
        """The same as reports show it."""
        found = self.finding
        text = CLAIMS[self.claim]
        return Verdict(self.figure, text, self.setting, found.measured, found.outcome)


def judge(figure: Figure, evidence: Evidence) -> list[Judged]:
    """Every claim of the figure on this evidence."""
    found: list[Judged] = []
    for claim in figure.claims:
        for setting, finding in _findings(claim, figure, evidence):
            found.append(Judged(figure.name, claim, evidence.task.name, setting, finding))
    return found


def _findings(claim: str, figure: Figure, evidence: Evidence) -> list[tuple[str, Finding]]:
    curves, task, setting = evidence.series, evidence.task, evidence.setting
    if claim == "time-of-asgd":
        timed = evidence.timed
        return [
            (
                f"{setting}, {DUPLEX[clock]}",
                claims.time_of_asgd(*(timed[clock, who] for who in (ASGD, RUN_AHEAD, BARRIER))),
            )
            for clock in figure.clocks
        ]
    if claim == "slower-start":
        finding = claims.slower_start(curves["nsgd"], curves["prlc:0.4"], task.stage)
    elif claim == "same-floor":
        finding = claims.same_floor(curves["nsgd"], curves["prlc:0.4"])
    elif claim == "half-the-pulls":
        finding = claims.half_the_pulls(curves["nsgd"], curves["prlc:0.4"])
    elif claim == "lag-saves-nothing":
        finding = claims.lag_saves_nothing(curves["nsgd"], curves["lag-ps"])
    elif claim == "gap-shrinks":
        ratios = [curves[method] for method in figure.methods]
        finding = claims.gap_shrinks(ratios, task.stage, task.stages)
    else:
        finding = claims.compensation(curves["prlc:0.01"], curves["pr:0.01"])
    return [(setting, finding)]


def judge_clock_only(figure: Figure) -> list[Judged]:
    """The time of a step of the paper's own model: no training, the clock alone."""
    found: list[Judged] = []
    for clock in figure.clocks:
        network, only = shared().networks[clock], shared().clock_only
        asgd, prlc = figure.methods
        ahead = seconds_per_step(only, prlc, network)
        wait = seconds_per_step(only, prlc, replace(network, run_ahead=False))
        other = seconds_per_step(only, asgd, network)
        text = (
            f"a step takes {ahead / other:.2f} of ASGD's time, with a barrier {wait / other:.2f}: "
            f"{format_seconds(ahead)} and {format_seconds(wait)} against {format_seconds(other)}"
        )
        numbers = {"run_ahead_seconds": ahead, "barrier_seconds": wait, "asgd_seconds": other}
        outcome = claims.judge_times(ahead / other, wait / other)
        setting = f"ResNet-18, clock only, {DUPLEX[clock]}"
        short = f"{ahead / other:.2f}, with a barrier {wait / other:.2f}"
        finding = Finding(text, outcome, short, numbers)
        found.append(Judged(figure.name, "time-of-asgd", "clock", setting, finding))
    return found


def in_order(judged: Sequence[Judged]) -> list[Judged]:
    """Claim by claim, as the paper makes them."""
    order = list(CLAIMS)
    return sorted(judged, key=lambda each: order.index(each.claim))
