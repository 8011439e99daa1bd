"""Whether two graphs are the same graph: the same calls, in the same order, on the same things."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.journal.line_diff import unified_lines

__all__ = ["clone_sharing_tensors", "graph_diff", "graph_text", "same_structure"]


def same_structure(one: GraphModule, other: GraphModule) -> bool:
    """Whether two modules have the same graphs, by op, target, name and arguments, and refer to the same tensors.

    Nested graph modules are compared in the same way; tensors and modules may be equal copies of each other.
    Linear in the number of nodes.
    """
    waiting = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        if left is right:
            continue
        if len(left.graph.nodes) != len(right.graph.nodes):
            return False
        partner: dict[Node, Node] = {}
        for mine, theirs in zip(left.graph.nodes, right.graph.nodes, strict=True):
            if not _same_node(mine, theirs, partner):
                return False
            partner[mine] = theirs
            if mine.op in ("get_attr", "call_module"):
                found, wanted = _attribute(left, str(mine.target)), _attribute(right, str(theirs.target))
                if isinstance(found, GraphModule) and isinstance(wanted, GraphModule):
                    waiting.append((found, wanted))
                elif not _same_attribute(found, wanted):
                    return False
    return True


def _same_node(mine: Node, theirs: Node, partner: dict[Node, Node]) -> bool:
    if mine.op != theirs.op or mine.target != theirs.target or mine.name != theirs.name:
        return False
    if mine.args is theirs.args and mine.kwargs is theirs.kwargs:
        return True
    mapped: Any = map_arg((mine.args, mine.kwargs), lambda node: partner.get(node, node))
    return _same_values(mapped, (theirs.args, theirs.kwargs))


def _same_values(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, (torch.Tensor, Node)) or isinstance(theirs, (torch.Tensor, Node)):
        return mine is theirs
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(_same_values, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return list(mine) == list(theirs) and all(_same_values(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, slice) and isinstance(theirs, slice):
        return _same_values((mine.start, mine.stop, mine.step), (theirs.start, theirs.stop, theirs.step))
    return type(mine) is type(theirs) and (mine is theirs or repr(mine) == repr(theirs))


def _attribute(module: GraphModule, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _same_attribute(found: Any, wanted: Any) -> bool:
    """Whether two attributes are the same thing, or equal copies of it."""
    if found is wanted:
        return True
    if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor):
        return _same_tensor(found, wanted)
    if not isinstance(found, torch.nn.Module) or type(found) is not type(wanted):
        return False
    mine, theirs = found.state_dict(keep_vars=True), wanted.state_dict(keep_vars=True)
    return list(mine) == list(theirs) and all(_same_attribute(mine[key], theirs[key]) for key in mine)


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    if one.device.type == "meta" or type(one) is not type(other):
        return False
    return (one.data_ptr() == other.data_ptr() != 0) or torch.equal(one, other)


def clone_sharing_tensors(module: GraphModule) -> GraphModule:
    """A copy of a module whose graphs are its own and whose tensors are the module's; nested graphs are copied too."""
    memo: dict[int, Any] = {}
    for inner in module.modules():
        for group in (inner._parameters, inner._buffers, inner.__dict__):
            memo.update({id(entry): entry for entry in group.values() if isinstance(entry, torch.Tensor)})
    cloned: GraphModule = copy.deepcopy(module, memo)
    return cloned


def graph_text(module: GraphModule) -> str:
    """All graphs of a module as text, each nested one under its path; equal graphs give equal texts."""
    graphs = [(path, inner) for path, inner in module.named_modules() if isinstance(inner, GraphModule)]
    return "\n".join(f"# {path}\n{inner.graph}" if path else str(inner.graph) for path, inner in graphs)


def graph_diff(before: str, after: str) -> str:
    """A unified diff of two texts; empty if they are equal."""
    return "".join(f"{line}\n" for line in unified_lines(before.splitlines(), after.splitlines()))
