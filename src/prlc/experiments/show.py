"""The end of a reproduction on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from prlc.experiments.judge import Judged
from prlc.experiments.tuning import Tuned
from prlc.methods import parse_method
from prlc.report import Outcome

__all__ = ["count_sentence", "tuning_sentences", "verdict_table"]

_COLOURS = {Outcome.HOLDS: "green", Outcome.IN_PART: "yellow", Outcome.FAILS: "red"}


def verdict_table(judged: Sequence[Judged], title: str) -> Table:
    """A row per verdict; a claim is named once, above all that it was tried on."""
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        expand=True,
    )
    for heading, ratio in (("the paper's claim", 22), ("tried on", 15), ("measured", 30)):
        table.add_column(heading, ratio=ratio)
    table.add_column("verdict", no_wrap=True)
    before = None
    for each in judged:
        if before not in (None, each.claim):
            table.add_section()
        verdict = each.verdict
        claim = "" if before == each.claim else f"{verdict.figure}: {verdict.claim}"
        outcome = f"[{_COLOURS[verdict.outcome]}]{verdict.outcome}[/]"
        table.add_row(claim, verdict.setting, verdict.measured, outcome)
        before = each.claim
    return table


def count_sentence(judged: Sequence[Judged]) -> str:
    """How many of the verdicts say what."""
    outcomes = [each.finding.outcome for each in judged]
    counts = [f"{outcomes.count(outcome)} {outcome}" for outcome in Outcome]
    return f"Of {len(outcomes)} verdicts: {', '.join(counts)}."


def tuning_sentences(tuned: Sequence[Tuned]) -> list[str]:
    """The step sizes chosen, and which of them a wider grid might change."""
    sentences = []
    for task in dict.fromkeys(each.task for each in tuned):
        own = [each for each in tuned if each.task == task]
        listed = ", ".join(f"{parse_method(each.method).label} {each.lr:g}" for each in own)
        sentences.append(f"Tuned step sizes, {task}: {listed}.")
        edges = [parse_method(each.method).label for each in own if each.at_edge]
        if edges:
            grid = ", ".join(f"{lr:g}" for lr, _ in own[0].losses)
            sentences.append(f"At the edge of the grid ({grid}): {', '.join(edges)}.")
    return sentences
