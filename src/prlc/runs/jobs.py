"""From a model, data and settings to a job for an engine."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from prlc.data import Dataset
from prlc.data.batches import Indices
from prlc.engines import Cadence, Job, Loss
from prlc.errors import ConfigError, DataError
from prlc.methods import Scheduled
from prlc.optim.optimizers import (
    SERVER_OPTIMIZERS,
    WORKER_OPTIMIZERS,
    OptimizerFactory,
    choose,
    make,
)
from prlc.runs.config import Config, check_device
from prlc.text import without_folders


def make_job(model: nn.Module, loss: Loss, data: Dataset, config: Config) -> Job:
    """The job that `config` describes; checks everything that can be checked in advance."""
    device = check_device(config.device)
    if config.batch_size > data.num_train:
        raise ConfigError(
            f"A batch of {config.batch_size:,} samples is more than the data has "
            f"({data.num_train:,}): take a smaller one."
        )
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


def deciding(config: Config, job: Job, cadence: Cadence) -> dict[str, Any]:
    """Everything that decides the result, in a few words each: all processes must agree on it."""
    optimizers = {"optimizer": job.optimizer, "server optimizer": job.server_optimizer}
    places = sorted({0, job.steps // 3, job.steps // 2, job.steps - 1}) if job.steps else []
    configured = config.as_json()
    for name in ("device", "epochs", "optimizer", "server_optimizer", "partition", "schedule"):
        del configured[name]  # below, or another on every machine
    return {
        "version of prlc": version("prlc"),
        **configured,
        "method": without_folders(str(config.method)),
        "steps": job.steps,
        "learning rate": " ".join(f"{job.lr(step):.6g} at step {step}," for step in places)[:-1],
        **{name: _optimizer_words(each, job.model) for name, each in optimizers.items()},
        "partition": f"{_plain(config.partition)} (checksum {_checksum(job.shards):08x})",
        "data": _data_words(job.data),
        "loss": _plain(getattr(job.loss, "__qualname__", type(job.loss).__name__)),
        "steps between evaluations": cadence.eval_every,
        "steps between checkpoints": cadence.checkpoint_every,
    }


def _optimizer_words(factory: OptimizerFactory | None, model: nn.Module) -> str:
    if factory is None:
        return "plain"
    made = make(factory, model.parameters())
    settings = ", ".join(f"{name}={value}" for name, value in made.defaults.items())
    return f"{type(made).__name__}({settings})"


def _data_words(data: Dataset) -> str:
    """Its size and a checksum of some of it: a look at all of a large data set takes too long."""
    some = torch.linspace(0, data.num_train - 1, min(256, data.num_train)).long()
    inputs, targets = (
        part[some.to(part.device)].cpu() for part in (data.train_inputs, data.train_targets)
    )
    checksum = _checksum([inputs.contiguous().view(torch.uint8).numpy(), targets.numpy()])
    shape = "x".join(map(str, data.sample_shape))
    return f"{data.name}, {data.num_train} samples of {shape} (checksum {checksum:08x})"


def _checksum(arrays: Sequence[Any]) -> int:
    checksum = 0
    for each in arrays:
        checksum = zlib.crc32(np.ascontiguousarray(each).tobytes(), checksum)
    return checksum


def _plain(value: object) -> str:
    """Text without an address in memory."""
    return str(value).split(" at 0x")[0]


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
