"""Fewer operations in a traced computation.

On small models a step is many tiny operations, each of which costs microseconds. This removes those
that vmap and autograd leave behind but that change nothing, or always give the same. Graphs with
in-place writes are left alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx

aten = torch.ops.aten

# They may change the shape; where they do not, they change nothing.
_RESHAPES = {
    aten.expand.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.detach.default,
    aten.alias.default,
}


# The same functions under names by which Python calls them in half the time.
_DIRECT: dict[object, Callable[..., Tensor]] = {
    aten.view.default: Tensor.view,
    aten.transpose.int: torch.transpose,
    aten.bmm.default: torch.bmm,
    aten.add.Tensor: torch.add,
    aten.mul.Tensor: torch.mul,
    aten.sum.dim_IntList: torch.sum,
}


def simplify(module: fx.GraphModule) -> None:
    """Remove needless operations from a traced function."""
    graph = module.graph
    graph.eliminate_dead_code()
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if not any(_writes(node) for node in calls):
        for node in calls:
            if _changes_nothing(node):
                source = node.args[0]
                assert isinstance(source, fx.Node)
                node.replace_all_uses_with(source)
                graph.erase_node(node)
            elif node.target is aten.transpose.int:
                _turn_product(graph, node)
        graph.eliminate_dead_code()
        _fold_constants(module)
        for node in graph.nodes:
            if node.op == "call_function" and not node.kwargs:
                node.target = _DIRECT.get(node.target, node.target)
    graph.set_codegen(fx.graph.CodeGen())  # plain positional arguments instead of nested ones
    module.recompile()


def is_random(module: fx.GraphModule) -> bool:
    """Whether the traced function draws random numbers."""
    return any(_draws(node) for node in module.graph.nodes)


def depends_on_data(module: fx.GraphModule) -> bool:
    """Whether shapes or decisions depend on values; a trace would freeze the example's."""
    kinds = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    tags = [getattr(node.target, "tags", ()) for node in module.graph.nodes]
    return any(kind in each for each in tags for kind in kinds)


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _draws(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _changes_nothing(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    before = _value(source) if isinstance(source, fx.Node) else None
    after = _value(node)
    if before is None or after is None:
        return False
    if node.target is aten.mul.Scalar:
        return bool(node.args[1] == 1)
    return node.target in _RESHAPES and after.shape == before.shape


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
    dimensions = [d % 3 for d in node.args[1:] if isinstance(d, int)]
    return node.target is aten.transpose.int and sorted(dimensions) == [1, 2]


def _fold_constants(module: fx.GraphModule) -> None:
    """Compute once what depends on no argument, such as the gradient of a mean."""
    graph = module.graph
    constants: dict[fx.Node, Tensor] = {}
    for node in graph.nodes:
        value = _value(node)
        if node.op != "call_function" or value is None or _draws(node):
            continue
        if node.target is aten.ones_like.default:
            constants[node] = torch.ones(value.shape, dtype=value.dtype, device=value.device)
        elif node.all_input_nodes and all(each in constants for each in node.all_input_nodes):
            arguments = fx.node.map_arg((node.args, node.kwargs), constants.__getitem__)
            constants[node] = node.target(*arguments[0], **arguments[1])
    for number, (node, constant) in enumerate(constants.items()):
        users = [u for u in node.users if u not in constants and u.op != "output"]
        if users:
            module.register_buffer(f"_constant{number}", constant.contiguous(), persistent=False)
            with graph.inserting_before(node):
                stored = graph.get_attr(f"_constant{number}")
            for user in users:
                user.replace_input_with(node, stored)
    graph.eliminate_dead_code()


def _value(node: fx.Node) -> Tensor | None:
    """An example of what the node gives, for its shape."""
    value = node.meta.get("val")
    return value if isinstance(value, Tensor) else None
