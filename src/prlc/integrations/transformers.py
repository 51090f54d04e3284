"""Hugging Face's Trainer: every optimizer step of `trainer.train()` is a step of the team.

team = prlc.join("prlc:0.1", hides_torchrun=True)
trainer = transformers.Trainer(
    ..., train_dataset=team.shard(dataset), callbacks=[TeamCallback(team)]
)
trainer.train()
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from prlc.engines.processes.script import Run
from prlc.engines.processes.team import Team


class TeamCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Trains with a team; evaluates, saves and, at the end, leaves the common model."""

    def __init__(self, team: Team) -> None:
        self._team, self.run = team, Run()
        self._shown = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        del args, state, control
        also = [given["lr_scheduler"]] if given.get("lr_scheduler") is not None else []
        self.run = self._team.train(given["model"], given["optimizer"], also=also)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        del args, state, control, given
        self._shown.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        del args, state, given
        if control.should_evaluate or control.should_save:  # until the next step begins
            self._shown.enter_context(self.run.global_model())

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        del args, state, control, given
        self._shown.close()
        self.run.finish()
