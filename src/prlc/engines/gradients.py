"""Losses and gradients of many workers in one call, for any module and loss.

`torch.func.vmap` runs the module over stacked parameters, which turns P small matrix products
into one batched product. The Python overhead of doing so at every step is then removed by
tracing the whole computation, backward included, into a flat list of tensor operations
(`make_fx`). A trace is used only if it reproduces the untraced result.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from prlc.engines.base import Loss

aten = torch.ops.aten
Flat = Callable[..., Sequence[Tensor]]


class Gradients:
    """Computes the losses and gradients of `rows` workers from their stacked tensors.

    Arguments of a call: the tensors of the model, each with a leading dimension of `rows`, in the
    order parameters, floating-point buffers, integer buffers (buffers are updated in place); the
    stacked inputs and targets. Result: the losses, shape (rows,), and a gradient per parameter.
    """

    def __init__(self, model: nn.Module, loss: Loss, vectorise: bool) -> None:
        self._model = copy.deepcopy(model).train()
        self._loss = loss
        self._vectorise = vectorise
        self._names = [name for name, _ in model.named_parameters()]
        self._num_parameters = len(self._names)
        buffers = list(model.named_buffers())
        self._names += [name for name, b in buffers if b.is_floating_point()]
        self._names += [name for name, b in buffers if not b.is_floating_point()]
        self._traces: dict[torch.Size, Flat] = {}
        self.random = True
        """Whether a call draws random numbers (dropout); until traced, it may."""

    def __call__(
        self, tensors: list[Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        run = self._traces.get(inputs.shape)
        if run is None:
            run = self._trace(*tensors, inputs, targets)
            self._traces[inputs.shape] = run
        losses, *gradients = run(*tensors, inputs, targets)
        return losses, gradients

    def _plainly(self, *arguments: Tensor) -> list[Tensor]:
        """The computation itself, on autograd."""
        *tensors, inputs, targets = arguments
        with torch.inference_mode(False), torch.enable_grad():
            parameters = [t.detach().requires_grad_() for t in tensors[: self._num_parameters]]
            tensors = [*parameters, *tensors[self._num_parameters :]]
            losses = self._losses(tensors, inputs, targets)
            gradients = torch.autograd.grad(
                losses, parameters, torch.ones_like(losses), materialize_grads=True
            )
        return [losses.detach(), *gradients]

    def _losses(self, tensors: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        def outputs(tensors: list[Tensor], inputs: Tensor) -> Tensor:
            named = dict(zip(self._names, tensors, strict=True))
            result: Tensor = functional_call(self._model, named, (inputs,))
            return result

        def loss(tensors: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return self._loss(outputs(tensors, inputs), targets)

        if not self._vectorise:
            return loss([tensor[0] for tensor in tensors], inputs[0], targets[0])[None]
        if _is_cross_entropy(self._loss, targets):
            # Under vmap the loss falls apart into a dozen small operations; sample by sample it
            # is the same for one stack of samples as for many.
            logits = vmap(outputs, randomness="different")(tensors, inputs)
            if logits.ndim == 3:
                flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
                return flat.view(targets.shape).mean(1)
        return vmap(loss, randomness="different")(tensors, inputs, targets)

    def _trace(self, *arguments: Tensor) -> Flat:
        """A traced version of `_plainly` for these shapes, or `_plainly` if that cannot be."""
        n = self._num_parameters
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]):

            def example() -> list[Tensor]:
                # Only buffers are written to; copying the rest would triple the peak of memory.
                return [*arguments[:n], *(b.clone() for b in arguments[n:-2]), *arguments[-2:]]

            try:
                graph = make_fx(self._plainly, tracing_mode="real")(*example())
                _simplify(graph)
                first, second = example(), example()
                torch.manual_seed(0)
                plain = [*self._plainly(*first), *first[n:-2]]
                torch.manual_seed(0)
                traced = [*graph(*second), *second[n:-2]]
            except Exception:  # not every module can be traced; it then runs as it is
                return self._plainly
        same = all(_close(a, b) for a, b in zip(plain, traced, strict=True))
        self.random = any(_is_random(node) for node in graph.graph.nodes)
        forward: Flat = graph.forward
        return forward if same else self._plainly


def _is_cross_entropy(loss: Loss, targets: Tensor) -> bool:
    """Whether `loss` is the plain mean cross entropy over class numbers."""
    if targets.is_floating_point():
        return False
    if loss is F.cross_entropy:
        return True
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.reduction == "mean"
        and loss.label_smoothing == 0.0
    )


def _close(a: Tensor, b: Tensor) -> bool:
    with contextlib.suppress(RuntimeError):  # differing shapes or types
        return torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7, equal_nan=True)
    return False


def _is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


_SHAPES = {
    aten.expand.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.detach.default,
    aten.alias.default,
}


def _simplify(module: fx.GraphModule) -> None:
    """Drop operations that change nothing. Graphs that write in place stay as they are."""
    graph = module.graph
    graph.eliminate_dead_code()
    calls = [node for node in graph.nodes if node.op == "call_function"]
    schemas = [getattr(node.target, "_schema", None) for node in calls]
    if not any(schema is not None and schema.is_mutable for schema in schemas):
        for node in calls:
            source = node.args[0] if node.args else None
            if not isinstance(source, fx.Node) or not isinstance(source.meta.get("val"), Tensor):
                continue
            same_shape = node.target in _SHAPES and _shape(node) == _shape(source)
            if same_shape or (node.target is aten.mul.Scalar and node.args[1] == 1):
                node.replace_all_uses_with(source)
                graph.erase_node(node)
                continue
            if node.target is aten.transpose.int:
                _turn_product(graph, node)
        graph.eliminate_dead_code()
    graph.set_codegen(fx.graph.CodeGen())  # plain positional arguments instead of nested ones
    module.recompile()


def _turn_product(graph: fx.Graph, node: fx.Node) -> None:
    """Replace (A'B)' by B'A, as gradients of linear layers come: its result lies straight."""
    product = node.args[0]
    if not (_swaps(node) and isinstance(product, fx.Node) and product.target is aten.bmm.default):
        return
    left, right = product.args
    if len(product.users) == 1 and isinstance(left, fx.Node) and _swaps(left):
        with graph.inserting_before(node):
            turned = graph.call_function(aten.transpose.int, (right, 1, 2))
            straight = graph.call_function(aten.bmm.default, (turned, left.args[0]))
        node.replace_all_uses_with(straight)


def _swaps(node: fx.Node) -> bool:
    """Whether the node swaps the last two dimensions of a stack of matrices."""
    return node.target is aten.transpose.int and sorted(d % 3 for d in node.args[1:]) == [1, 2]  # type: ignore[operator]


def _shape(node: fx.Node) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape
