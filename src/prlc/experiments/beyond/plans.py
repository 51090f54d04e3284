"""What `prlc plan` finds for a problem by the fewest bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from prlc.engines import Execution
from prlc.experiments.beyond.settings import BYTES, Problem, Row, beyond
from prlc.experiments.pool import OnFraction
from prlc.experiments.specs import Workspace, load_data, write_whole
from prlc.models import build, cross_entropy
from prlc.planner import Plan, SearchProgress, plan

__all__ = ["Planning"]

_TRAINED = 1.2  # a trial, in multiples of NSGD's steps; only the progress bar uses it


@dataclass(frozen=True)
class Planning:
    """The plan for a problem.

    It sees no seed that a curve shows, and training losses alone. Step sizes are those of the grid
    that every method is tried at.
    """

    problem: Problem

    @property
    def name(self) -> str:
        """Its file in the workspace."""
        return f"plans/{self.problem.name}.json"

    @property
    def cost(self) -> float:
        problem = self.problem
        return _TRAINED * problem.plan_trials * problem.steps * problem.step_ms / 1e3

    def make(self, workspace: Workspace, on_fraction: OnFraction | None = None) -> None:
        """Plan, unless the file is there."""
        file = workspace.out / self.name
        if file.is_file():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        weighed = count(1)

        def on_search(_: SearchProgress) -> None:
            if on_fraction is not None:  # how many there will be nobody knows
                on_fraction(1 - 1 / (1 + next(weighed) / self.problem.plan_trials))

        made = self._plan(workspace, on_search)
        chosen = made.chosen
        found = {
            "method": str(chosen.candidate.method),
            "optimizer_at": chosen.candidate.optimizer_at,
            "lr": chosen.candidate.lr,
            "steps": chosen.steps,
            "trials": made.effort.trials,
        }
        write_whole(file, found)

    def _plan(self, workspace: Workspace, on_search: Callable[[SearchProgress], None]) -> Plan:
        problem, seed = self.problem, beyond().tuning_seed
        data = load_data(problem, workspace.data_dir)
        cpu = workspace.device == "cpu"
        return plan(
            build(problem.model, data.sample_shape, data.num_classes, seed),
            cross_entropy,
            data,
            goal=BYTES,
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
            journal=(workspace.out / self.name).with_suffix(".jsonl"),
            on_search=on_search,
        )

    def load(self, workspace: Workspace) -> Row:
        """Its row in the tables."""
        found = json.loads((workspace.out / self.name).read_text())
        settings = {name: found[name] for name in ("method", "optimizer_at", "lr", "steps")}
        return Row(**settings, serves=(BYTES,))
