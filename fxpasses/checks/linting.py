"""Is this a well-formed graph? Order, users, names, targets, placeholders first, one output.

The whole graph is looked at in columns at C speed, about 0.5 us a node; only a graph that fails is walked slowly, to
say which node it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpasses.errors import GraphError, also_as, came_from
from fxpasses.metadata import value_of

__all__ = ["lint", "lint_graphs", "well_formed"]

_OPS = frozenset({"placeholder", "get_attr", "call_function", "call_method", "call_module", "output"})
_op, _name, _inputs, _users, _graph = map(attrgetter, ("op", "name", "_input_nodes", "users", "graph"))


def lint(subject: GraphModule | ExportedProgram) -> None:
    """Refuse a graph that is not well formed; nested graphs are looked at too.

    Nodes stand after what they use; users are what they should be; names are different; targets exist; placeholders
    come before all calls; there is one output, and it is last; a ``call_method`` names a method.

    Raises:
        GraphError: Names the first node that is wrong, and says how to put it right (also a ``RuntimeError``).
    """
    lint_graphs(*_graphs_in(subject))


def well_formed(subject: GraphModule | ExportedProgram) -> None:
    """Like :func:`lint`, but only what no torch.fx graph may break: order, users, names, targets."""
    lint_graphs(*_graphs_in(subject), strict=False)


def _graphs_in(subject: Any) -> tuple[list[GraphModule], torch.nn.Module]:
    root = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    modules = root.modules() if isinstance(root, torch.nn.Module) else iter(())
    found = [inner for inner in modules if isinstance(inner, GraphModule)]
    if not found:
        raise also_as(GraphError, TypeError())(
            f"lint looks at graphs, and a {type(subject).__name__} holds none; trace or export the model first"
        )
    return found, root


def lint_graphs(modules: list[GraphModule], root: torch.nn.Module, *, strict: bool = True) -> None:
    """Lint the graphs of these modules, each by itself."""
    for module in modules:
        if (problem := _first_problem(module, strict)) is not None:
            node, what = problem
            raise _error(module, root, node, what)


def _first_problem(module: GraphModule, strict: bool) -> tuple[Node | None, str] | None:
    graph = module.graph
    nodes: list[Node] = list(graph.nodes)
    if not _is_sound(graph, nodes):
        return next(_unsound(graph, nodes), (None, "its tables do not agree with its nodes"))
    if (bad := next(_bad_targets(module), None)) is not None:
        return bad
    return next(_out_of_place(nodes), None) if strict else None


def _is_sound(graph: Graph, nodes: list[Node]) -> bool:
    """Order, ownership, users and names of all nodes at once; no word about which node is wrong."""
    inputs = list(map(_inputs, nodes))
    seen: set[Node] = set()
    for node, used in zip(nodes, inputs, strict=True):
        if used and not seen.issuperset(used):
            return False
        seen.add(node)
    edges = 0
    for node, used in zip(nodes, inputs, strict=True):
        for one in used:
            if node not in one.users:
                return False
        edges += len(used)
    if edges != sum(map(len, map(_users, nodes))):
        return False
    if len(set(map(_name, nodes))) != len(nodes) or not _OPS.issuperset(map(_op, nodes)):
        return False
    table = graph._find_nodes_lookup_table.table
    return set(map(_graph, nodes)) <= {graph} and sum(map(len, table.values())) == len(nodes)


def _unsound(graph: Graph, nodes: list[Node]) -> Iterator[tuple[Node | None, str]]:
    position = {node: index for index, node in enumerate(nodes)}
    names: dict[str, Node] = {}
    table = graph._find_nodes_lookup_table
    for index, node in enumerate(nodes):
        if node.op not in _OPS:
            yield node, f"has the unknown op {node.op!r}; use one of {', '.join(sorted(_OPS))}"
        if node.graph is not graph:
            yield node, "belongs to another graph; copy it with graph.node_copy()"
        for used in node._input_nodes:
            if used not in position:
                gone = "was erased" if used.graph is graph else "belongs to another graph"
                yield node, f"uses {used.name!r}, which {gone}; replace its uses before erasing it"
            elif position[used] >= index:
                yield (
                    node,
                    f"uses {used.name!r} before it has been defined; insert it after, or sort with legalize_graph()",
                )
            if node not in used.users:
                yield (
                    node,
                    f"uses {used.name!r}, which does not list it among its users; edit node.args, never node.users",
                )
        if names.setdefault(node.name, node) is not node:
            yield node, f"has the name of an earlier node, {node.name!r}; names must differ"
        if node not in table:
            yield node, "is missing in the table of find_nodes(); create nodes through the graph"
    for node in nodes:
        for user in node.users:
            if user not in position or node not in user._input_nodes:
                yield (
                    node,
                    f"lists {user.name!r} among its users, which does not use it; edit node.args, never node.users",
                )


def _bad_targets(module: GraphModule) -> Iterator[tuple[Node | None, str]]:
    table = module.graph._find_nodes_lookup_table.table
    for (op, target), nodes in list(table.items()):
        if op == "call_function" and nodes and not callable(target):
            yield next(iter(nodes)), f"calls {target!r}, which is not callable"
    for op in ("get_attr", "call_module"):
        for node in table.get((op, None), ()):
            if (what := _bad_attribute(module, node)) is not None:
                yield node, what
    for node in table.get(("call_method", None), ()):
        if (what := _bad_method(node)) is not None:
            yield node, what


def _bad_attribute(module: GraphModule, node: Node) -> str | None:
    if not isinstance(node.target, str):
        return f"has the target {node.target!r}; {node.op} takes a dotted name"
    found: Any = module
    for part in node.target.split("."):
        if not hasattr(found, part):
            return f"refers to {node.target!r}, but the module has no such attribute; add it, or drop the node"
        found = getattr(found, part)
    if node.op == "call_module" and not callable(found):
        return f"calls {node.target!r}, which is a {type(found).__name__}, not a module"
    return None


def _bad_method(node: Node) -> str | None:
    if not isinstance(node.target, str) or not node.target.isidentifier():
        return f"is a call_method of {node.target!r}, which is not supported: that is no name of a method"
    value = value_of(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
    if isinstance(value, torch.Tensor) and not hasattr(type(value), node.target):
        return f"is a call_method of {node.target!r}, which tensors do not have"
    return None


def _out_of_place(nodes: list[Node]) -> Iterator[tuple[Node | None, str]]:
    ops = list(map(_op, nodes))
    outputs = ops.count("output")
    if outputs != 1:
        second = None if outputs == 0 else nodes[ops.index("output", ops.index("output") + 1)]
        yield (
            second,
            f"is output number {outputs}; keep one" if outputs else "it has no output node; add graph.output(...)",
        )
    elif ops[-1] != "output":
        yield nodes[ops.index("output") + 1], "stands after the output; the output comes last"
    if "placeholder" in ops:
        last = len(ops) - 1 - ops[::-1].index("placeholder")
        if not {"placeholder", "get_attr"}.issuperset(ops[:last]):  # exported modules read weights between inputs
            yield nodes[last], "is a placeholder that stands after calls; placeholders come first"


def _error(module: GraphModule, root: torch.nn.Module, node: Node | None, what: str) -> GraphError:
    path = next((name for name, inner in root.named_modules() if inner is module), "")
    where = f" of the nested graph {path!r}" if path else ""
    if node is None:
        return also_as(GraphError, RuntimeError())(f"the graph{where} is not well formed: {what}", reason=what)
    line = came_from(node)
    return also_as(GraphError, RuntimeError())(f"node {node.name!r}{where} {what}{line}", node=node, reason=what)
