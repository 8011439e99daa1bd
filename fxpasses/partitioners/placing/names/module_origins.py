"""From which modules an operator comes, and what it runs inside where it has a body: a region, a branch, a loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from fxpasses.editing.submodules import get_attribute
from fxpasses.errors import user_line
from fxpasses.outlining.regions import is_region
from fxpasses.partitioners.placing.names.device_maps import holders
from fxpasses.partitioners.support import module_paths
from fxpasses.values import nested_graph_modules

__all__ = ["has_body", "in_words", "module_of", "origins", "runs_inside"]


def module_of(node: Node) -> str:
    """The path of the innermost module that a node comes from; ``""`` for the model itself.

    A region of autocast or of a grad mode, which ``torch.export`` puts in the module around, counts as what it gives.
    """
    if is_region(node):
        results = (made for body in _bodies(node) for made in body.graph.output_node().all_input_nodes)
        node = next((made for made in results if module_paths(made)), node)
    return (module_paths(node) or [""])[-1]


def in_words(node: Node) -> str:
    """An operator for a sentence: what it calls, of which module, and the user's line where these are known."""
    module, line = module_of(node), user_line(node)
    facts = [str(node.target), f"of module {module!r}" if module else "", f"from {line}" if line else ""]
    return f"{node.name} ({', '.join(filter(None, facts))})"


def origins(node: Node) -> dict[str, None]:
    """The modules that a node comes from, with all that hold them; of one with bodies also what all inside shares."""
    found = _holding(node)
    inside = map(_holding, _inner_calls(node))
    if (common := next(inside, None)) is not None:
        for each in inside:
            common = {module: None for module in common if module in each}
        found.update(common)
    return found


def runs_inside(node: Node, module: str) -> bool:
    """Whether something of a module runs inside of a node: an operator, or one with its parameters."""
    bodies = list(_bodies(node))
    held = [str(used.target) for used in node.all_input_nodes if used.op == "get_attr"] if bodies else []
    return any(name.startswith(f"{module}.") for name in held) or any(
        module in _holding(each) for each in _inner_calls(node)
    )


def has_body(node: Node) -> bool:
    """Whether a node runs a graph of its own: a region, a branch, a loop."""
    return next(_bodies(node), None) is not None


def _holding(node: Node) -> dict[str, None]:
    """Where a node is in, and what holds that: a leaf module's own stack may leave its parents out."""
    return dict.fromkeys(module for path in module_paths(node) for module in holders(path) if module)


def _bodies(node: Node) -> Iterator[GraphModule]:
    owner = node.graph.owning_module
    if owner is None or not isinstance(node.target, torch._ops.HigherOrderOperator):
        return
    for used in node.all_input_nodes:
        body = get_attribute(owner, str(used.target), None) if used.op == "get_attr" else None
        if isinstance(body, GraphModule):
            yield body


def _inner_calls(node: Node) -> Iterator[Node]:
    for body in _bodies(node):
        for graph_module in nested_graph_modules(body):
            yield from (each for each in graph_module.graph.nodes if each.op.startswith("call_"))
