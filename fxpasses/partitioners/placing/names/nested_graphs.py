"""Which operators a device map means by a module that no operator carries the path of.

``torch.export`` does not enter a graph that was captured before and is nested in a model: its operators carry the path
of the module around. So do those that use the parameters of a module without calling it, and regions (the branches of a
condition) in which modules are called. The parameters tell them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch._ops import HigherOrderOperator
from torch.fx import Node

from fxpasses.partitioners.placing.names.device_maps import covering, holders

__all__ = ["modules_of_region", "paths_by_parameters"]


def paths_by_parameters(nodes: Sequence[Node], paths: Sequence[str], entries: Iterable[str]) -> list[str]:
    """The module of each operator, where modules of a map would cover none those that their parameters tell.

    What reads a parameter of such a module belongs to it, and what lies between two such operators; but not what comes
    from another module than those around. Linear in nodes and edges for each such module.

    Args:
        nodes: The operators, in graph order.
        paths: The module that each carries.
        entries: The modules of the map.
    """
    carried = {step for path in paths for step in holders(path)}
    silent = [entry for entry in entries if entry not in carried]
    if not silent:
        return list(paths)
    path_of = dict(zip(nodes, paths, strict=True))
    told: dict[Node, str] = {}
    for node, path in _modules_read(nodes).items():
        for each in modules_of_region(node) or (path,):
            if (entry := covering(each, silent)) is not None and path_of[node] in holders(entry):
                told.setdefault(node, each)
    for entry in sorted(silent, key=lambda entry: -len(holders(entry))):  # inner ones first
        members = {node for node, path in told.items() if entry in holders(path)}
        for node in _between(nodes, members) if members else ():
            if path_of[node] in holders(entry):
                told.setdefault(node, entry)
    return [told.get(node, path) for node, path in path_of.items()]


def modules_of_region(node: Node) -> tuple[str, ...]:
    """The modules whose parameters a region reads; none where the node is no region."""
    if not isinstance(node.target, HigherOrderOperator):
        return ()
    return tuple(dict.fromkeys(_holder(each) for each in node.all_input_nodes if _is_tensor(each)))


def _is_tensor(node: Node) -> bool:
    """Whether a node reads a parameter, or what else is no graph of a region."""
    return node.op == "get_attr" and node.meta.get("val") is not None


def _holder(node: Node) -> str:
    return str(node.target).rpartition(".")[0]


def _modules_read(nodes: Sequence[Node]) -> Mapping[Node, str]:
    """The module that holds the first parameter that each operator reads, itself or made over by other operators."""
    read: dict[Node, str] = {}
    made_over: dict[Node, str] = {}  # from parameters alone
    for node in nodes:
        used = node.all_input_nodes
        for each in used:
            if _is_tensor(each):
                made_over[each] = _holder(each)
        found = [made_over[each] for each in used if each in made_over]
        if found:
            read[node] = found[0]
        if found and len(found) == len(used):
            made_over[node] = found[0]
    return read


def _between(nodes: Sequence[Node], members: set[Node]) -> list[Node]:
    """What is made from a value of some operators and is needed by one of them."""
    after, before = set(members), set(members)
    for node in nodes:
        if not after.isdisjoint(node.all_input_nodes):
            after.add(node)
    for node in reversed(nodes):
        if not before.isdisjoint(node.users):
            before.add(node)
    return [node for node in nodes if node in after and node in before and node not in members]
