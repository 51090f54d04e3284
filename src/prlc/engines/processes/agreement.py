"""What the workers of a script must agree on before they train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prlc.engines.processes.server import log
from prlc.errors import ConfigError


def check_models(models: Sequence[nn.Module], members: Sequence[int]) -> None:
    """Refuse models that exchange gradients with other workers, or not with all `members` of it."""
    for model in models:
        ranks: list[int] = []
        if isinstance(model, DistributedDataParallel):
            ranks = dist.get_process_group_ranks(model.process_group)
        if len(members) > 1 and sorted(ranks) != sorted(members):
            raise ConfigError(
                f"The ranks {', '.join(map(str, members))} are one worker, and must average their "
                "gradients. Give team.train the model in DistributedDataParallel(model, "
                "process_group=team.group)."
            )
        if len(members) == 1 < len(ranks):
            raise ConfigError(
                "The model is in DistributedDataParallel, which averages gradients over "
                f"{len(ranks)} ranks at every backward pass, so there would be nothing left to "
                "save. Give team.train the model itself (model.module), or say that these ranks "
                "are one worker: prlc.join(..., ranks_per_worker=...)."
            )
        if any(
            type(p).__name__ == "DTensor" or hasattr(p, "_local_tensor") for p in model.parameters()
        ):
            raise ConfigError(
                "The model's parameters are sharded over ranks (FSDP or DTensor), which team.train "
                "cannot average. Give it a model that is whole on every rank."
            )


def check_forms(forms: Sequence[Mapping[str, str]]) -> None:
    """Refuse models with other tensors, or tensors of other shapes, than rank 0's."""
    for rank, form in enumerate(forms):
        for name in {**forms[0], **form}:
            first, own = (each.get(name, "missing") for each in (forms[0], form))
            if own != first:
                raise ConfigError(
                    f"All processes must have the same model, but {name} is {own} on rank {rank} "
                    f"and {first} on rank 0."
                )


def check_alike(number: int, own: dict[str, Any], first: dict[str, Any]) -> None:
    """Refuse a worker that trains otherwise than worker 0."""
    others = {*own.get("trained", ())} ^ {*first.get("trained", ())}
    if others:
        raise ConfigError(
            f"Worker {number} trains other parameters than worker 0: {min(others)} trains on one "
            "of them only. All must train the same."
        )
    if own["optimizers"] != first["optimizers"]:
        raise ConfigError(
            f"All workers must have the same optimizers, but worker {number} has "
            f"{own['optimizers']}, and worker 0 has {first['optimizers']}."
        )


def warn_of_same_data(checksums: Sequence[float | None]) -> None:
    """Warn of two workers with the same gradient in their first step."""
    known: dict[float, int] = {}
    for worker, checksum in enumerate(checksums):
        if not checksum:
            continue
        if checksum in known:
            log.warning(
                "Workers %d and %d had the same gradient in their first step: they train on the "
                "same data, or DistributedDataParallel averages their gradients. Split the data "
                "(loader = team.shard(loader), or seed it by team.worker), and leave DDP out.",
                known[checksum],
                worker,
            )
            return
        known[checksum] = worker
