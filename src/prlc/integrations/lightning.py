"""Lightning: every optimizer step of `trainer.fit` is a step of the team.

team = prlc.join("prlc:0.1", hides_torchrun=True)
trainer = lightning.Trainer(..., callbacks=[TeamCallback(team)])
trainer.fit(model, team.shard(loader))
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import lightning

from prlc.engines.processes.script import Run
from prlc.engines.processes.team import Team


class TeamCallback(lightning.Callback):
    """Trains with a team; validates and, at the end, leaves the common model."""

    def __init__(self, team: Team) -> None:
        self._team, self.run = team, Run()
        self._shown = ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        also = [each.scheduler for each in trainer.lr_scheduler_configs]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        also += [scaler] if scaler is not None else []
        self.run = self._team.train(pl_module, trainer.optimizers, also=also)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        self._shown.enter_context(self.run.global_model())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        self._shown.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        self._shown.close()
        self.run.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        del trainer, pl_module
        self.run.__exit__(type(exception), exception, None)
