"""Losses and gradients of many workers in one call, for any module and loss.

`torch.func.vmap` runs the module over stacked parameters, which turns P small matrix products into
one batched product. Tracing the whole computation, backward included, into a flat list of tensor
operations (`make_fx`) then removes the Python overhead of every step. A trace is used only if it
reproduces the untraced result; a module that vmap cannot run is run worker by worker.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from prlc.engines.job import Job, Loss
from prlc.engines.simulator.tracing import depends_on_data, is_random, simplify
from prlc.models import cross_entropy

Flat = Callable[..., Sequence[Tensor]]


class Gradients:
    """Computes the losses and gradients of some workers from their stacked tensors.

    Arguments of a call: the stacked tensors of the model in the order parameters, floating-point
    buffers, integer buffers (buffers are updated in place); the stacked inputs and targets. Result:
    the losses, one per worker, and a gradient per parameter.
    """

    def __init__(self, job: Job, vectorise: bool) -> None:
        self._model = copy.deepcopy(job.model).to(job.device).train()
        self._loss = job.loss
        self._vectorise = vectorise
        self._plain_cross_entropy = _is_cross_entropy(job.loss) and _are_classes(job)
        self._trainable = [parameter.requires_grad for parameter in self._model.parameters()]
        self._names = [name for name, _ in self._model.named_parameters()]
        buffers = list(self._model.named_buffers())
        self._names += [name for name, b in buffers if b.is_floating_point()]
        self._names += [name for name, b in buffers if not b.is_floating_point()]
        self._traces: dict[torch.Size, Flat] = {}
        self.random = True
        """Whether a call draws random numbers (dropout); until traced, it may."""
        self.used = list(self._trainable)
        """Which parameters get a gradient: those that are neither frozen nor left out."""

    def __call__(
        self, tensors: list[Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        run = self._traces.get(inputs.shape)
        if run is None:
            run = self._traces[inputs.shape] = self._trace(*tensors, inputs, targets)
        losses, *gradients = run(*tensors, inputs, targets)
        return losses, gradients

    # -- the computation itself -------------------------------------------------------------------

    def _plainly(self, *arguments: Tensor) -> list[Tensor]:
        """Losses and gradients by autograd; all workers at once if possible."""
        *tensors, inputs, targets = arguments
        with torch.inference_mode(False), torch.enable_grad():
            if self._vectorise:
                return self._differentiate(self._all_losses, tensors, inputs, targets)
            rows = [
                self._differentiate(self._one_loss, [t[i] for t in tensors], inputs[i], targets[i])
                for i in range(len(inputs))
            ]
        return [torch.stack(each) for each in zip(*rows, strict=True)]

    def _differentiate(
        self,
        function: Callable[[list[Tensor], Tensor, Tensor], Tensor],
        tensors: list[Tensor],
        inputs: Tensor,
        targets: Tensor,
    ) -> list[Tensor]:
        n = len(self._trainable)
        parameters = [t.detach() for t in tensors[:n]]
        for parameter, trainable in zip(parameters, self._trainable, strict=True):
            parameter.requires_grad_(trainable)
        losses = function([*parameters, *tensors[n:]], inputs, targets)
        asked = [parameter for parameter in parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(losses, asked, torch.ones_like(losses), allow_unused=True))
        gradients = [next(found) if each.requires_grad else None for each in parameters]
        self.used = [gradient is not None for gradient in gradients]
        pairs = zip(gradients, parameters, strict=True)
        dense = [torch.zeros_like(p) if g is None else g.to_dense() for g, p in pairs]
        return [losses.detach(), *dense]

    def _all_losses(self, tensors: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # vmap knows attention as products alone
            outputs = vmap(self._outputs, randomness="different")(tensors, inputs)
        last_axis = outputs.ndim == 3 or self._loss is cross_entropy  # that of the classes
        if self._plain_cross_entropy and last_axis:
            # Under vmap the loss falls apart into a dozen small operations; target by target it
            # is the same for one stack of samples as for many.
            flat = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
            return flat.view(len(targets), -1).mean(1)
        losses: Tensor = vmap(self._loss, randomness="different")(outputs, targets)
        return losses

    def _one_loss(self, tensors: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self._outputs(tensors, inputs), targets)

    def _outputs(self, tensors: list[Tensor], inputs: Tensor) -> Any:
        named = dict(zip(self._names, tensors, strict=True))
        outputs = functional_call(self._model, named, (inputs,))
        for name, tensor in zip(self._names, tensors, strict=True):
            if named[name] is not tensor:  # a buffer that the module replaced
                tensor.copy_(named[name].detach())
        return outputs

    # -- tracing ----------------------------------------------------------------------------------

    def _trace(self, *arguments: Tensor) -> Flat:
        """A traced version of `_plainly` for these shapes, or `_plainly` if tracing fails."""
        n = len(self._trainable)

        def example() -> list[Tensor]:
            # Only buffers are written to; copying the rest would triple the peak of memory.
            return [*arguments[:n], *(b.clone() for b in arguments[n:-2]), *arguments[-2:]]

        def outcome(run: Flat) -> list[Tensor]:
            given = example()
            torch.manual_seed(0)
            return [*run(*given), *given[n:-2]]

        gpus = {a.device for a in arguments if a.device.type == "cuda"}
        with torch.inference_mode(False), torch.random.fork_rng(devices=gpus):
            try:
                plain = outcome(self._plainly)
            except Exception:
                if not self._vectorise:
                    raise
                self._vectorise = False  # what vmap cannot do, a loop can
                return self._plainly
            with contextlib.suppress(Exception):  # not every module can be traced
                graph = make_fx(self._plainly, tracing_mode="fake")(*example())
                simplify(graph)
                with torch.inference_mode():  # as it will run
                    traced = outcome(graph.forward)
                same = zip(plain, traced, strict=True)
                if not depends_on_data(graph) and all(_close(a, b) for a, b in same):
                    self.random = is_random(graph)
                    forward: Flat = graph.forward
                    return forward
        return self._plainly


def _is_cross_entropy(loss: Loss) -> bool:
    """Whether `loss` is the plain mean cross entropy over class numbers."""
    if loss is F.cross_entropy or loss is cross_entropy:
        return True
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.reduction == "mean"
        and loss.label_smoothing == 0.0
        and loss.ignore_index == nn.CrossEntropyLoss().ignore_index
    )


def _are_classes(job: Job) -> bool:
    """Whether all targets are class numbers, none of them to be ignored."""
    targets = job.data.train_targets
    return not targets.is_floating_point() and bool((targets >= 0).all())


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(
        a.double(), b.double(), rtol=1e-5, atol=1e-7, equal_nan=True
    )
