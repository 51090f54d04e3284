"""From a model, data and settings to a job for an engine."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import nn

from prlc.data import Dataset
from prlc.data.batches import Indices
from prlc.engines import Job, Loss
from prlc.errors import ConfigError, DataError
from prlc.methods import Scheduled
from prlc.optim.optimizers import SERVER_OPTIMIZERS, WORKER_OPTIMIZERS, choose
from prlc.runs.config import Config, check_device


def make_job(model: nn.Module, loss: Loss, data: Dataset, config: Config) -> Job:
    """The job that `config` describes; checks everything that can be checked in advance."""
    device = check_device(config.device)
    per_epoch = config.steps_per_epoch(data.num_train)
    epochs = config.total_steps(data.num_train) / per_epoch
    targets = data.train_targets.cpu().numpy() if data.num_classes is not None else None
    shards = config.partition.split(targets, data.num_train, config.workers, config.seed)
    _check_shards(shards, config.workers, data.num_train)
    steps, method = config.total_steps(data.num_train), config.method
    if isinstance(method, Scheduled) and method.delay >= steps:
        raise ConfigError(
            f"A model that is pulled would be used after {method.delay} steps, but the run has "
            f"{steps}: take a shorter delay."
        )
    return Job(
        model=copy.deepcopy(model).to(device),
        loss=loss,
        data=data,
        method=config.method,
        shards=shards,
        batch_size=config.batch_size,
        lr=lambda step: config.schedule.at(step / per_epoch, epochs),
        seed=config.seed,
        optimizer=choose(config.optimizer, WORKER_OPTIMIZERS, "worker"),
        optimizer_at=config.optimizer_at,
        steps=steps,
        server_optimizer=choose(
            config.server_optimizer or config.method.server, SERVER_OPTIMIZERS, "server"
        ),
        device=device,
    )


def _check_shards(shards: Sequence[Indices], num_workers: int, num_samples: int) -> None:
    """Refuse an invalid partition, as a user's own may make."""
    if len(shards) != num_workers:
        raise DataError(
            f"The partition made {len(shards)} parts, but there are {num_workers} workers: it must "
            "give each of them one."
        )
    for worker, shard in enumerate(shards):
        if len(shard) == 0:
            raise DataError(f"The partition must give every worker samples; {worker} has none.")
        if min(shard) < 0 or max(shard) >= num_samples:
            raise DataError(
                f"The partition gives worker {worker} samples numbered {min(shard)} to "
                f"{max(shard)}, but the data has 0 to {num_samples - 1}."
            )
