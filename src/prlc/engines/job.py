"""A job: a model, data, a method, and who owns which samples.

A model travels as its floating-point tensors: the parameters, then the buffers (BatchNorm's
running statistics). A worker's update of a parameter comes from its optimizer; its update of a
buffer is what the forward pass changed. From there on both are treated alike: the server adds the
mean, a pull overwrites, a worker that does not pull applies its share. Integer buffers (BatchNorm
counts its batches) stay with their worker; the server's model has worker 0's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from prlc.data import Dataset
from prlc.data.batches import Batches, Indices
from prlc.draws import Purpose, torch_seed
from prlc.engines.flat import FlatModel
from prlc.errors import ConfigError
from prlc.methods import Method, Scheduled, Timetable
from prlc.network import Network
from prlc.network.timeline import Timeline
from prlc.network.traffic import MessageSizes, Traffic, payload_bytes
from prlc.optim.optimizers import OptimizerFactory, RuleSettings

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Job:
    """What to train, by which method, on whose data."""

    model: nn.Module
    loss: Loss
    data: Dataset
    method: Method
    shards: Sequence[Indices]
    batch_size: int
    lr: Callable[[int], float]
    seed: int = 0
    optimizer: OptimizerFactory | None = None
    optimizer_at: str = "workers"
    """Where `optimizer` runs: on the workers, which push updates, or on the server, to which they
    push gradients."""
    server_optimizer: OptimizerFactory | None = None
    steps: int | None = None
    """The length of the run; None: no known end."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def num_workers(self) -> int:
        return len(self.shards)

    def batches(self) -> Batches:
        return Batches(self.shards, self.batch_size, self.seed)

    def rule(self) -> RuleSettings:
        """What the server does with a mean update."""
        at_server = self.optimizer_at == "server"
        optimizer = self.optimizer if at_server else self.server_optimizer
        return RuleSettings(optimizer, takes_gradients=at_server)

    def weights(self) -> list[float]:
        """How much each worker counts if they count by samples."""
        return [float(len(shard)) for shard in self.shards]

    def flat(self) -> FlatModel:
        """The model's flat form, in the method's blocks."""
        blocks = self.method.blocks if isinstance(self.method, Scheduled) else 1
        return FlatModel(self.model, blocks)

    def timetable(self) -> Timetable:
        """Who does what when (scheduled methods)."""
        assert isinstance(self.method, Scheduled)
        return Timetable(self.method, self.num_workers, self.seed, self.steps)

    def sizes(self) -> MessageSizes:
        """The bytes of every message."""
        payload = payload_bytes(travelling(self.model))
        flat = self.flat()
        blocks = [(block.numel, block.num_buffers) for block in flat.blocks]
        return MessageSizes(self.method, self.num_workers, blocks, flat.dtype, payload)

    def traffic(self) -> Traffic:
        return Traffic(self.num_workers)

    def timeline(self, network: Network | None) -> Timeline:
        """The simulated time of its steps on a network; unknown without one."""
        flops = flops_per_step(self, counting=network is not None and network.needs_flops)
        return Timeline(
            network,
            self.method,
            self.num_workers,
            sizes=self.sizes(),
            timetable=self.timetable() if isinstance(self.method, Scheduled) else None,
            step_seconds=network.compute_seconds(flops) if network else 0.0,
            seed=self.seed,
        )


@contextmanager
def fixed_seed(job: Job, *indices: int) -> Iterator[None]:
    """Seed torch by these indices inside the block; the caller's generator is unaffected."""
    devices = [job.device] if job.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed = torch_seed(job.seed, Purpose.MODEL, *indices)
        if devices:
            torch.manual_seed(seed)
        else:  # without the stack traces that torch keeps for each kind of GPU it does not find
            torch.default_generator.manual_seed(seed)
        yield


def travelling(model: nn.Module) -> list[Tensor]:
    """The tensors that travel: parameters, then floating-point buffers."""
    return [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]


def staying(model: nn.Module) -> list[Tensor]:
    """The tensors that never travel: integer buffers."""
    return [b for b in model.buffers() if not b.is_floating_point()]


def all_tensors(model: nn.Module) -> list[Tensor]:
    """Every tensor of the model, those that travel first."""
    return [*travelling(model), *staying(model)]


def flops_per_step(job: Job, *, counting: bool = True) -> float:
    """Floating-point operations of one worker's step: products and convolutions, both ways.

    The first time that the model meets the data, so this finds out whether they go together. That
    is all it does unless `counting`, which costs a second of imports in every process.
    """
    chosen = torch.arange(min(job.batch_size, job.data.num_train))
    if job.data.num_classes is not None:  # with the largest class number among the targets
        chosen[0] = job.data.train_targets.reshape(job.data.num_train, -1).amax(1).argmax()
    inputs = job.data.train_inputs[chosen].to(job.device)
    targets = job.data.train_targets[chosen].to(job.device)
    own = {
        name: p.detach().requires_grad_(p.requires_grad) for name, p in job.model.named_parameters()
    }
    buffers = {name: b.clone() for name, b in job.model.named_buffers()}
    tensors = {**own, **buffers}
    parameters = [p for p in own.values() if p.requires_grad]
    as_products = sdpa_kernel(SDPBackend.MATH)  # the other ways of attention are not counted
    counter = FlopCounterMode(display=False)
    with counter if counting else nullcontext(), as_products, fixed_seed(job, 0):
        try:
            output = torch.func.functional_call(job.model, tensors, (inputs,))
            loss: Any = job.loss(output, targets)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise TypeError(f"the loss is {_described(loss)}")
            torch.autograd.grad(loss, parameters, allow_unused=True)
        except Exception as error:  # whatever a module may raise
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(
                f"The model, the loss and the data do not go together ({reason[0]}). The model "
                f"must take inputs of shape {tuple(inputs.shape)} and {inputs.dtype}, and the loss "
                "must give one number that depends on its parameters."
            ) from error
    return float(counter.get_total_flops()) * job.batch_size / len(inputs)


def _described(loss: object) -> str:
    if not isinstance(loss, torch.Tensor):
        return f"a {type(loss).__name__}, not a tensor"
    if loss.numel() != 1:
        return f"a tensor of shape {tuple(loss.shape)}, not one number"
    return "detached from the parameters, or all parameters are frozen"
