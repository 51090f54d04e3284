"""What `prlc plan` finds for a problem: by the fewest bytes, and soonest on every clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from prlc.engines import Execution
from prlc.experiments.beyond.settings import BYTES, Problem, Row, beyond
from prlc.experiments.pool import OnFraction
from prlc.experiments.specs import Workspace, load_data, write_whole
from prlc.models import build, cross_entropy
from prlc.planner import Plan, SearchProgress, Trials, plan

__all__ = ["Planning"]

_TRAINED = 1.2  # a trial, in multiples of NSGD's steps; only the progress bar uses it
_NEARLY = 0.99  # a plan is over when it is over


@dataclass(frozen=True)
class Planning:
    """The plans for a problem: one for bytes and, where times have limits, one for each clock.

    They see no seed that a curve shows, and training losses alone. Step sizes are those of the
    grid that every method is tried at.
    """

    problem: Problem

    @property
    def name(self) -> str:
        """Its file in the workspace."""
        return f"plans/{self.problem.name}.json"

    @property
    def cost(self) -> float:
        return _TRAINED * self._tries * self.problem.steps * self.problem.step_ms / 1e3

    @property
    def _purposes(self) -> tuple[str, ...]:
        return (BYTES, *(beyond().networks if self.problem.timed else ()))

    @property
    def _tries(self) -> float:
        """Roughly; a plan trains what an earlier one did not."""
        return self.problem.plan_trials * (1 + len(self._purposes) / 4)

    def make(self, workspace: Workspace, on_fraction: OnFraction | None = None) -> None:
        """Plan for each purpose that the file lacks."""
        found, trials, tried = self._read(workspace), None, count(1)

        def on_search(_: SearchProgress) -> None:
            if on_fraction is not None:
                on_fraction(min(_NEARLY, next(tried) / self._tries))

        for purpose in self._purposes:
            if purpose in found:
                continue
            made = self._plan(workspace, purpose, trials, on_search)
            trials, chosen = made.trials, made.chosen
            found[purpose] = {
                "method": str(chosen.candidate.method),
                "optimizer_at": chosen.candidate.optimizer_at,
                "lr": chosen.candidate.lr,
                "steps": chosen.steps,
                "trials": made.effort.trials,
            }
            write_whole(workspace.out / self.name, found)

    def _read(self, workspace: Workspace) -> dict[str, Any]:
        """What the file has, by purpose."""
        file = workspace.out / self.name
        return json.loads(file.read_text()) if file.is_file() else {}

    def _plan(
        self,
        workspace: Workspace,
        purpose: str,
        trials: Trials | None,
        on_search: Callable[[SearchProgress], None],
    ) -> Plan:
        problem, seed = self.problem, beyond().tuning_seed
        data = load_data(problem, workspace.data_dir)
        clock = next(iter(beyond().networks)) if purpose == BYTES else purpose
        cpu = workspace.device == "cpu"
        return plan(
            build(problem.model, data.sample_shape, data.num_classes, seed),
            cross_entropy,
            data,
            network=beyond().networks[clock],
            goal=BYTES if purpose == BYTES else "time",
            learning_rates=problem.grid,
            within=problem.close,
            steps=problem.steps,
            most_trials=problem.plan_trials,
            rehearsals=problem.rehearsals,
            workers=problem.workers,
            batch_size=problem.batch_size,
            optimizer=problem.optimizer,
            schedule="cosine",
            partition=problem.partition,
            seed=seed,
            device=workspace.device,
            execution=Execution(problem.chunk, threads=1) if cpu else None,
            eval_samples=problem.eval_samples or None,
            trials=trials,
            on_search=on_search,
        )

    def load(self, workspace: Workspace) -> list[Row]:
        """A row for each plan, with all that it serves."""
        rows: dict[Row, list[str]] = {}
        for purpose, own in self._read(workspace).items():
            settings = {name: own[name] for name in ("method", "optimizer_at", "lr", "steps")}
            rows.setdefault(Row(**settings), []).append(purpose)
        return [replace(row, serves=tuple(purposes)) for row, purposes in rows.items()]
