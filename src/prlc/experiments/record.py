"""What a reproduction found, for a program to read: verdicts and every number behind them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prlc.experiments.claims import CLAIMS, LIMITS
from prlc.experiments.evidence import Evidence
from prlc.experiments.judge import Judged
from prlc.experiments.measures import final_losses
from prlc.experiments.settings import Task, shared
from prlc.experiments.tuning import Tuned
from prlc.report import Series

__all__ = ["make_record", "write_record", "write_tuning"]


def make_record(
    scale: str,
    figures: Sequence[str],
    tasks: Mapping[Task, int],
    evidence: Sequence[Evidence],
    tuned: Sequence[Tuned],
    judged: Sequence[Judged],
) -> dict[str, Any]:
    """Everything as JSON would hold it; `tasks` with their numbers of seeds."""
    return {
        "scale": scale,
        "figures": list(figures),
        "tasks": [{**dataclasses.asdict(task), "seeds": seeds} for task, seeds in tasks.items()],
        "lr": shared().lr,
        "network": {name: net.describe() for name, net in shared().networks.items()},
        "limits": LIMITS,
        "tuning": [_tuned(each) for each in tuned],
        "results": [row for each in evidence for row in _results(each)],
        "times": [row for each in evidence for row in _times(each)],
        "verdicts": [_verdict(each) for each in judged],
    }


def write_record(record: Mapping[str, Any], file: Path) -> None:
    file.write_text(json.dumps(record, indent=1) + "\n")


def write_tuning(tuned: Sequence[Tuned], file: Path) -> None:
    """The whole grid as a table."""
    lines = ["task,method,lr,train_loss,chosen"]
    for each in tuned:
        for lr, loss in each.losses:
            lines.append(f"{each.task},{each.method},{lr:g},{loss!r},{int(lr == each.lr)}")
    file.write_text("\n".join(lines) + "\n")


def _tuned(tuned: Tuned) -> dict[str, Any]:
    losses = [[lr, loss if math.isfinite(loss) else None] for lr, loss in tuned.losses]
    return {
        "task": tuned.task,
        "method": tuned.method,
        "lr": tuned.lr,
        "at_edge": tuned.at_edge,
        "losses": losses,
    }


def _results(evidence: Evidence) -> list[dict[str, Any]]:
    """What every method ended with."""
    return [
        {**_common(evidence), "method": method, "lr": evidence.rates[method], **_ends(series)}
        for method, series in evidence.series.items()
    ]


def _times(evidence: Evidence) -> list[dict[str, Any]]:
    """How long the whole run took on each clock."""
    return [
        {
            **_common(evidence),
            "clock": clock,
            "who": who,
            "seconds": _mean([float(r.metrics["simulated_seconds"].iloc[-1]) for r in series.runs]),
        }
        for (clock, who), series in evidence.timed.items()
    ]


def _common(evidence: Evidence) -> dict[str, Any]:
    return {"task": evidence.task.name, "setting": evidence.setting, "tuned": evidence.tuned}


def _ends(series: Series) -> dict[str, Any]:
    """What the runs of a curve ended with."""
    losses = final_losses(series)
    finite = series.finished
    return {
        "label": series.label,
        "seeds": len(series.runs),
        "diverged": not finite,
        "train_loss": _mean(losses) if finite else None,
        "train_loss_low": min(losses) if finite else None,
        "train_loss_high": max(losses) if finite else None,
        "test_accuracy": _mean(series.figures("test_accuracy")),
        "pulls_per_worker": _mean(series.figures("pulls_per_worker")),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _verdict(judged: Judged) -> dict[str, Any]:
    return {
        "figure": judged.figure,
        "claim": judged.claim,
        "text": CLAIMS[judged.claim],
        "task": judged.task,
        "setting": judged.setting,
        "measured": judged.finding.measured,
        "outcome": str(judged.finding.outcome),
        "short": judged.finding.short,
        "numbers": judged.finding.numbers,
    }
