"""Claims about the recommended method, with limits fixed beforehand (beyond.toml).

A claim that cannot be judged, because a loss was never reached, does not hold; its finding says
why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from prlc.experiments.beyond.reached import Race, Reached, mean
from prlc.experiments.beyond.settings import BYTES, beyond
from prlc.experiments.claims import ClaimVerdict, Finding
from prlc.experiments.curves import Ratio, ratio
from prlc.experiments.specs import seconds_per_step
from prlc.methods import recommended
from prlc.network.units import format_bytes
from prlc.report import Outcome, share

__all__ = ["judge"]

ASGD = "asgd"


def judge(race: Race) -> Iterator[ClaimVerdict]:
    """Every claim that is made on a problem."""
    limits = beyond().limits
    own, label = race.reached[recommended()], race.reached[recommended()].row.label
    yield _verdict(race, "loss", f"{label} ends at most at NSGD's loss", same_loss(race, own))
    yield from _about_bytes(race, own, label)
    best = {use: each for each in race.reached.values() for use in each.row.serves}  # plans last
    if BYTES in best:
        yield from _about_bytes(race, best[BYTES], "the setting for bytes", "setting-")
    if not race.problem.timed:
        return
    yield from _about_time(race, dict.fromkeys(own.seconds, own), label)
    clocks = {clock: best[clock] for clock in own.seconds if clock in best}
    yield from _about_time(race, clocks, "the setting for time", "setting-")
    if ASGD in race.reached:
        text = f"{label} takes at most {limits.asgd:g} of ASGD's time with a model of 44.7 MB"
        for clock in race.reached[ASGD].seconds:
            yield _verdict(race, "asgd", text, time_of_asgd(race, own, clock), clock)


def _about_bytes(race: Race, own: Reached, label: str, key: str = "") -> Iterator[ClaimVerdict]:
    limit = race.problem.bytes
    if limit is not None:
        text = f"{label} needs at most 1/{1 / limit:,.0f} of NSGD's bytes"
        yield _verdict(race, f"{key}bytes", text, fewer_bytes(race, own, limit))
    text = f"no rival gets to NSGD's loss by fewer bytes than {label}"
    yield _verdict(race, f"{key}rivals", text, against_rivals(race, own))


def _about_time(
    race: Race, on: Mapping[str, Reached], label: str, key: str = ""
) -> Iterator[ClaimVerdict]:
    """A claim for each clock, about who runs on it."""
    text = f"{label} takes at most {beyond().limits.time:g} times the time of computing alone"
    for clock, own in on.items():
        yield _verdict(race, f"{key}time", text, time_of_computing(race, own, clock), clock)


def same_loss(race: Race, own: Reached) -> Finding:
    """Compares final losses, however long the runs."""
    limits, quotient = beyond().limits, ratio(own.losses, race.baseline.losses)
    if quotient is None:
        return Finding("a run diverged", Outcome.FAILS, "diverged")
    return _below(f"{quotient} of NSGD's loss", quotient, limits.loss, limits.near_loss)


def fewer_bytes(race: Race, own: Reached, limit: float) -> Finding:
    """Compares all bytes, up and down, until NSGD's loss."""
    quotient = ratio(own.bytes, race.baseline.bytes)
    if quotient is None:
        return _never(race, own)
    text = f"{share(quotient.mean)} of NSGD's bytes: {format_bytes(mean(own.bytes) or 0.0)}"
    found = _below(text, quotient, limit, beyond().limits.in_part * limit)
    return Finding(found.measured, found.outcome, share(quotient.mean), found.numbers)


def against_rivals(race: Race, own: Reached) -> Finding:
    """Compares the bytes with those of the published methods that get there."""
    rivals = [r for r in race.reached.values() if r.row.rival and r.arrived]
    if not own.arrived:
        found = _never(race, own)
        there = ", ".join(rival.row.label for rival in rivals)
        more = f"; {there} always" if rivals else "; nor does any rival"
        return Finding(found.measured + more, Outcome.FAILS, found.short)
    if not rivals:
        return Finding("no rival gets there on every seed", Outcome.HOLDS, "alone")
    best = min(rivals, key=lambda rival: mean(rival.bytes) or 0.0)
    quotient = ratio(own.bytes, best.bytes)
    assert quotient is not None
    text = f"{quotient} of the bytes of {best.row.label}, the best of them"
    return _below(text, quotient, beyond().limits.matched, 0.0)


def time_of_computing(race: Race, own: Reached, clock: str) -> Finding:
    """Compares the simulated time with NSGD's on an infinitely fast network."""
    quotient = ratio(own.seconds[clock], [race.fastest[clock]] * len(own.steps))
    if quotient is None:
        return _never(race, own)
    nsgd = ratio(race.baseline.seconds[clock], [race.fastest[clock]] * len(own.steps))
    text = f"{quotient} times; NSGD on this network {nsgd}"
    limit = beyond().limits.time
    return _below(text, quotient, limit, beyond().limits.in_part * limit)


def time_of_asgd(race: Race, own: Reached, clock: str) -> Finding:
    """Compares steps to NSGD's loss, each taking as long as a large model's by the clock alone."""
    asgd = race.reached[ASGD]
    quotient = ratio(own.steps, asgd.steps)
    if quotient is None:
        return _never(race, asgd if own.arrived else own)
    network, large = beyond().networks[clock], beyond().large
    step, other = (seconds_per_step(large, m, network) for m in (own.row.method, ASGD))
    scaled = Ratio(tuple(value * step / other for value in quotient.values))
    text = f"{scaled} of ASGD's time: {quotient} of its steps, each {step / other:.2f} as long"
    return _below(text, scaled, beyond().limits.asgd, 1.0)


def _below(text: str, quotient: Ratio, holds: float, in_part: float) -> Finding:
    """Two upper limits."""
    outcome = Outcome.HOLDS if quotient.mean <= holds else Outcome.FAILS
    if outcome is Outcome.FAILS and quotient.mean <= in_part:
        outcome = Outcome.IN_PART
    return Finding(text, outcome, f"{quotient.mean:.2f}", quotient.numbers("ratio"))


def _never(race: Race, who: Reached) -> Finding:
    there, close = sum(map(math.isfinite, who.steps)), f"within {race.problem.close:.0%}"
    often = f"on {there} of {len(who.steps)} seeds only" if there else "never"
    return Finding(f"{who.row.label} comes {close} {often}", Outcome.FAILS)


def _verdict(race: Race, key: str, text: str, finding: Finding, clock: str = "") -> ClaimVerdict:
    setting = f"{race.problem.title}, {clock}" if clock else race.problem.title
    return ClaimVerdict(
        figure="beyond",
        claim=text,
        key=key,
        problem=race.problem.name,
        setting=setting,
        **vars(finding),
    )
