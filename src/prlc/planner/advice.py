"""The planner's answer as data: the rows considered, the recommended one, and its basis."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from prlc.network import Network
from prlc.planner.bounds import BoundAnswer, StepLimits
from prlc.planner.cost import RESOURCES, Price
from prlc.theory import Constants
from prlc.theory.measure import MeasuredConstants


@dataclass(frozen=True)
class Row:
    """One pull ratio: its best learning rate, and the cost of reaching the target."""

    pull_ratio: float
    lr: float
    steps: int | None
    """None if no trial reached the target."""
    pulls_per_worker: float | None
    bytes_up: float | None
    bytes_down: float | None
    seconds: float | None
    against_nsgd: float | None
    """Time to the target over NSGD's."""
    lowest_loss: float | None
    """None without trials."""
    price: Price
    limits: StepLimits

    @property
    def bytes(self) -> float | None:
        """Both directions together."""
        if self.bytes_up is None or self.bytes_down is None:
            return None
        return self.bytes_up + self.bytes_down

    def as_json(self) -> dict[str, Any]:
        return {
            "pull_ratio": self.pull_ratio,
            "lr": self.lr,
            "steps": self.steps,
            "pulls_per_worker": self.pulls_per_worker,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds_per_step": self.price.seconds_per_step,
            "seconds": self.seconds,
            "against_nsgd": self.against_nsgd,
            "lowest_loss": self.lowest_loss,
            "limited_by": self.price.bottleneck,
            "saved_if_free": {name: self.price.saved(name) for name in RESOURCES},
            "largest_step": dataclasses.asdict(self.limits),
        }


@dataclass(frozen=True)
class Effort:
    """The cost of the trials."""

    runs: int
    steps: int
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class Advice:
    """What to use, and why. `rows[0]` is NSGD; the others are the pull ratios considered."""

    recommended: Row
    rows: tuple[Row, ...]
    target_loss: float | None
    """None without trials; the target is then NSGD's bound after `nsgd_steps`."""
    target_given: bool
    nsgd_steps: int
    effort: Effort | None
    """None without trials."""
    constants: Constants
    measured: MeasuredConstants | None
    theory: dict[str, dict[float, BoundAnswer]]
    """By bound and pull ratio."""
    learning_rates: tuple[float, ...]
    aligned_step_seconds: float
    """Seconds per step, by the clock, if all workers pushed and pulled only every tenth step."""
    workers: int
    network: Network
    notes: tuple[str, ...] = ()

    @property
    def nsgd(self) -> Row:
        return self.rows[0]

    @property
    def rests_on(self) -> str:
        """`trials`, or `theory` if none were run."""
        return "theory" if self.effort is None else "trials"

    def preferred(self, bound: str) -> float:
        """The pull ratio that a bound prefers."""
        found = self.theory[bound]
        return min(found, key=lambda ratio: (found[ratio].seconds, -ratio))

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON; infinite values become null."""
        content = {
            "recommended": self.recommended.as_json(),
            "nsgd": self.nsgd.as_json(),
            "rows": [row.as_json() for row in self.rows],
            "rests_on": self.rests_on,
            "target_loss": self.target_loss,
            "target_given": self.target_given,
            "nsgd_steps": self.nsgd_steps,
            "trials": dataclasses.asdict(self.effort) if self.effort else None,
            "constants": self._constants(),
            "theory": {
                name: {
                    "preferred_ratio": self.preferred(name),
                    "lr": found[self.preferred(name)].lr,
                    "by_ratio": [
                        {"pull_ratio": ratio, **dataclasses.asdict(answer)}
                        for ratio, answer in found.items()
                    ],
                }
                for name, found in self.theory.items()
            },
            "learning_rates": list(self.learning_rates),
            "seconds_per_step_if_every_10": self.aligned_step_seconds,
            "workers": self.workers,
            "network": dataclasses.asdict(self.network),
            "notes": list(self.notes),
        }
        finite: dict[str, Any] = _finite(content)
        return finite

    def _constants(self) -> dict[str, Any]:
        names = ("smoothness", "variance", "gradient_bound", "initial_gap")
        if self.measured is None:
            given: dict[str, Any] = {
                name: {"value": getattr(self.constants, name)} for name in names
            }
            return {"measured": False, **given, "cost": None}
        measured = {name: dataclasses.asdict(getattr(self.measured, name)) for name in names}
        return {"measured": True, **measured, "cost": dataclasses.asdict(self.measured.cost)}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
