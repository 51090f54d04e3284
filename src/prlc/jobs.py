"""From a model, data and settings to a job for an engine."""

from __future__ import annotations

import copy

from torch import nn

from prlc.config import Config, check_device
from prlc.data import Dataset
from prlc.engines import Job, Loss
from prlc.optimizers import SERVER_OPTIMIZERS, WORKER_OPTIMIZERS, choose


def make_job(model: nn.Module, loss: Loss, data: Dataset, config: Config) -> Job:
    """The job that `config` describes; checks everything that can be checked beforehand."""
    device = check_device(config.device)
    per_epoch = config.steps_per_epoch(data.num_train)
    epochs = config.total_steps(data.num_train) / per_epoch
    targets = data.train_targets.cpu().numpy() if data.num_classes is not None else None
    return Job(
        model=copy.deepcopy(model).to(device),
        loss=loss,
        data=data,
        method=config.method,
        shards=config.partition.split(targets, data.num_train, config.workers, config.seed),
        batch_size=config.batch_size,
        lr=lambda step: config.schedule.at(step / per_epoch, epochs),
        seed=config.seed,
        optimizer=choose(config.optimizer, WORKER_OPTIMIZERS, "worker"),
        server_optimizer=choose(config.server_optimizer, SERVER_OPTIMIZERS, "server"),
        device=device,
    )
