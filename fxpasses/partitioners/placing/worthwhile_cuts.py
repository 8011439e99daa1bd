"""Which autocast and grad-mode regions a placement had better be able to cut: those with work to share out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from fxpasses.editing.attributes import find_attribute
from fxpasses.outlining.regions import BODY_AT, body_of_region, is_region
from fxpasses.partitioners.costs.operation_counts import COUNTERS

__all__ = ["is_worth_cutting"]


def is_worth_cutting(region: Node) -> bool:
    """Whether at least two operators of a region, however deep, multiply or read a parameter.

    A norm or a rotary table that a model computes in another mode stays one operator, which is computed again where
    that is cheaper than sending it. The answer depends on the model only, so that plans fit after another export.

    Args:
        region: A node that :func:`~fxpasses.outlining.regions.is_region` says yes to.
    """
    heavy = _heavy_operators(region)
    return next(heavy, None) is not None and next(heavy, None) is not None


def _heavy_operators(region: Node) -> Iterator[Node]:
    root = region.graph.owning_module
    parameters = {node for node in region.all_input_nodes if root is not None and _is_parameter(root, node)}
    waiting = [(region, parameters)]
    while waiting:
        outer, held = waiting.pop()
        body = body_of_region(outer)
        if body is None:
            continue
        operands = outer.args[BODY_AT[outer.target.__name__] + 1 :]  # type: ignore[union-attr]  # a region
        inside = {
            placeholder
            for placeholder, operand in zip(body.graph.find_nodes(op="placeholder"), operands, strict=False)
            if operand in held
        }
        for node in body.graph.nodes:
            if is_region(node):
                waiting.append((node, inside))
            elif _multiplies(node) or (node.op != "output" and not inside.isdisjoint(node.all_input_nodes)):
                yield node


def _is_parameter(root: GraphModule, node: Node) -> bool:
    return node.op == "get_attr" and isinstance(find_attribute(root, str(node.target)).value, torch.nn.Parameter)


def _multiplies(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket.__name__ in COUNTERS
