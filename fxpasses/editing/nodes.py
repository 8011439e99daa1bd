"""Create, replace, insert and erase nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.traceback import NodeSourceAction

from fxpasses.editing.submodules import get_attribute
from fxpasses.errors import CycleError, FakeValueError, GraphError
from fxpasses.metadata import TRACE_KEYS, current_pass, merge_provenance, source_of, value_of
from fxpasses.values import (
    compute_value,
    describe_like,
    fake_mode_of,
    give_value,
    has_value,
    nested_graph_modules,
    refresh_callers,
    refresh_values,
    same_value,
    set_value,
)

__all__ = [
    "add_constant",
    "compute_value",
    "create_node",
    "erase_nodes",
    "fake_mode_of",
    "insert_after",
    "insert_before",
    "nested_graph_modules",
    "refresh_callers",
    "refresh_values",
    "remove_unused_attributes",
    "replace_node",
    "replace_nodes",
]


_MISSING: Any = object()
_NEAR = 8  # how far a node without computed inputs looks for a neighbour: graphs of plain torch.fx have none at all
_OPS = ("call_function", "call_method", "call_module", "get_attr", "placeholder", "output")


def create_node(
    graph: Graph,
    op: str,
    target: str | Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    name: str | None = None,
    replaces: Sequence[Node] = (),
    fake: bool = True,
) -> Node:
    """Create a node at the graph's insert point, with value and provenance.

    Args:
        graph: Where it goes; ``with graph.inserting_before(node):`` sets the place.
        op: ``"call_function"``, ``"call_method"``, ``"call_module"``, ``"get_attr"`` or ``"placeholder"``.
        target: What is called or read.
        args: Nodes of the same graph, or constants.
        kwargs: The same, by name.
        name: The wished name; made unique.
        replaces: The nodes that the new one stands for; their origin is merged into it. Without them, the origin comes
            from the inputs: the new node lies in the module of the last of them.
        fake: Compute ``val`` when all inputs have one; no inputs with values, no ``val``, and no error.

    Returns:
        The new node.

    Raises:
        GraphError: An argument belongs to another graph, was erased, or stands further down; a named attribute is not
            there; there is no such kind of node.
        FakeValueError: The operator does not fit its arguments; the graph is left as it was.
    """
    _check_arguments(graph, target, args, kwargs or {})
    _check_kind(op, target)
    _check_target(graph, op, target)
    node = graph.create_node(op, target, tuple(args), dict(kwargs or {}), name=name)
    late = [each for each in node.all_input_nodes if not each < node]
    if late:
        graph.erase_node(node)
        raise GraphError(
            f"cannot create a node for {getattr(target, '__name__', target)} here: its argument {late[0].name!r} "
            "stands further down; insert it after that",
            node=late[0],
            pass_name=current_pass(),
        )
    if replaces:
        merge_provenance(node, replaces)
    else:
        _inherit_place(node)
    if not fake or op in ("placeholder", "output"):
        return node
    try:
        give_value(node, bindings_of=_binder(replaces))
    except FakeValueError:
        graph.erase_node(node)
        raise
    describe_like(node, (*replaces, *node.all_input_nodes))
    return node


def insert_before(
    node: Node,
    target: str | Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    op: str = "call_function",
    replaces: Sequence[Node] = (),
    name: str | None = None,
) -> Node:
    """Create a node right before ``node``; see :func:`create_node`."""
    _check_member(node.graph, node, "insert before")
    with node.graph.inserting_before(node):
        return create_node(node.graph, op, target, args, kwargs, name=name, replaces=replaces)


def insert_after(
    node: Node,
    target: str | Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    op: str = "call_function",
    replaces: Sequence[Node] = (),
    name: str | None = None,
) -> Node:
    """Create a node right after ``node`` (after the last placeholder, if it is one); see :func:`create_node`."""
    _check_member(node.graph, node, "insert after")
    place = node
    if node.op == "placeholder" and op != "placeholder":
        while place.next.op == "placeholder":
            place = place.next
    with node.graph.inserting_after(place):
        return create_node(node.graph, op, target, args, kwargs, name=name, replaces=replaces)


def replace_node(node: Node, by: Node) -> Node:
    """Let all users of ``node`` use ``by`` instead, and erase ``node``.

    ``by`` gets the provenance of ``node`` merged into its own, unless it was there before as somebody's input (a
    placeholder, a constant). Where ``by`` stands after a user of ``node``, it is moved up together with what it needs,
    if no effect forbids that.

    Args:
        node: The node that goes.
        by: The node that stands for it; of the same graph.

    Returns:
        ``by``.

    Raises:
        GraphError: One of them is not in the graph, or ``node`` is a placeholder or the output.
        CycleError: ``by`` needs a value that is computed from ``node``; carries the path.
        FakeValueError: A user does not fit the new value; the graph is left as it was.
    """
    replace_nodes({node: by})
    return by


def replace_nodes(mapping: Mapping[Node, Node]) -> None:
    """Do several replacements at once; values downstream are refreshed once. See :func:`replace_node`.

    A chain (``{a: b, b: c}``) ends at its last link.

    Raises:
        CycleError: The chain is a circle, or a node would need itself.
    """
    ends = _follow_chains(mapping)
    for node, by in ends.items():
        _check_replacement(node, by)
    users: dict[Node, tuple[Any, Any]] = {}
    for node, by in ends.items():
        _place_before_users(node, by)
        for user in node.users:
            users.setdefault(user, (user.args, user.kwargs))
    stale: dict[Node, None] = {}
    for node, by in ends.items():
        _fill_values(node, by)
        if not (has_value(node) and has_value(by) and same_value(value_of(node), value_of(by))):
            stale.update(dict.fromkeys(node.users))
        node.replace_all_uses_with(by)
    try:
        refresh_values(user for user in stale if user not in ends)
    except FakeValueError:
        for user, (args, kwargs) in users.items():
            user.args, user.kwargs = args, kwargs
        raise
    for node, by in ends.items():
        if by.op in ("call_function", "call_method", "call_module"):
            merge_provenance(by, [node])
    for node in sorted(ends, reverse=True):
        node.graph.erase_node(node)


def erase_nodes(nodes: Iterable[Node]) -> None:
    """Erase nodes that nobody outside of them uses.

    Raises:
        GraphError: One of them has a user that stays, or is a placeholder of a graph module, or was erased before.
    """
    going = dict.fromkeys(nodes)
    for node in going:
        _check_member(node.graph, node, "erase")
        if node.op == "output":
            raise GraphError(f"{node.name!r} is the output of its graph and cannot be erased", node=node)
        staying = [user.name for user in node.users if user not in going]
        if staying:
            raise GraphError(
                f"cannot erase {node.name!r}: {', '.join(map(repr, staying[:5]))} still use it; replace it there "
                "first, or erase its users with it",
                node=node,
                pass_name=current_pass(),
            )
    for node in sorted(going, reverse=True):
        node.graph.erase_node(node)


def add_constant(graph_module: GraphModule, name: str, tensor: torch.Tensor) -> str:
    """Hang a tensor on a graph module under a name that is still free.

    Parameters become parameters, other tensors become non-persistent buffers, so that ``.to`` moves them. The tensor
    itself is kept, never a copy.

    Returns:
        The name for a ``get_attr`` node.
    """
    base = "".join(char if char.isalnum() or char == "_" else "_" for char in name) or "constant"
    if base[0].isdigit():
        base = f"_{base}"
    taken, number = base, 0
    while hasattr(graph_module, taken):
        taken, number = f"{base}_{number}", number + 1
    if isinstance(tensor, torch.nn.Parameter):
        graph_module.register_parameter(taken, tensor)
    else:
        graph_module.register_buffer(taken, tensor, persistent=False)
    return taken


def remove_unused_attributes(graph_module: GraphModule) -> list[str]:
    """Remove submodules, parameters, buffers and tensors that no node of the graph refers to.

    What a called submodule needs for itself stays.

    Returns:
        The names that were removed, sorted.
    """
    used, kept = _referred_names(graph_module)
    removed: list[str] = []
    for path, module in list(graph_module.named_modules()):
        if path and any(path == each or path.startswith(f"{each}.") for each in (*kept, *removed)):
            continue
        prefix = f"{path}." if path else ""
        tensors = [key for key, entry in vars(module).items() if isinstance(entry, torch.Tensor)]
        for key in [*module._parameters, *module._buffers, *tensors]:
            if prefix + key not in used:
                delattr(module, key)
                removed.append(prefix + key)
        for key in list(module._modules):
            child = prefix + key
            if child not in used and not any(each.startswith(f"{child}.") for each in used):
                delattr(module, key)
                removed.append(child)
    return sorted(removed)


# --- questions and checks ------------------------------------------------------------------------------------------


def _referred_names(graph_module: GraphModule) -> tuple[set[str], set[str]]:
    used: set[str] = set()
    kept: set[str] = set()
    for node in graph_module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            used.add(str(node.target))
            found: Any = graph_module
            for part in str(node.target).split("."):
                found = getattr(found, part, None)
            if isinstance(found, torch.nn.Module):
                kept.add(str(node.target))
    return used, kept


def _is_member(graph: Graph, node: Node) -> bool:
    return node.graph is graph and not node._erased


def _check_member(graph: Graph, node: Node, what: str) -> None:
    if not _is_member(graph, node):
        why = "was erased" if node._erased else "belongs to another graph"
        raise GraphError(f"cannot {what} {node.name!r}: it {why}", node=node, pass_name=current_pass())


def _check_arguments(graph: Graph, target: Any, args: Any, kwargs: Any) -> None:
    def check(node: Node) -> Node:
        if not _is_member(graph, node):
            why = "was erased" if node._erased else "belongs to another graph"
            raise GraphError(
                f"cannot create a node for {getattr(target, '__name__', target)}: its argument {node.name!r} {why}",
                node=node,
                pass_name=current_pass(),
            )
        return node

    map_arg((tuple(args), dict(kwargs)), check)


def _check_kind(op: str, target: Any) -> None:
    if op not in _OPS:
        raise GraphError(f"{op!r} is no kind of node; there are {', '.join(_OPS)}", pass_name=current_pass())
    if op == "call_function" and not callable(target):
        raise GraphError(
            f"a call_function node calls a function, and {target!r} is a {type(target).__name__}; "
            "methods are called by call_method, submodules by call_module",
            pass_name=current_pass(),
        )
    if op != "call_function" and not isinstance(target, str):
        raise GraphError(f"the target of a {op} node is a name, not {target!r}", pass_name=current_pass())


def _check_target(graph: Graph, op: str, target: Any) -> None:
    root = graph.owning_module
    if op in ("get_attr", "call_module") and root is not None and get_attribute(root, target, _MISSING) is _MISSING:
        raise GraphError(
            f"cannot create a {op} node for {target!r}: the graph module has no such attribute; hang it there first, "
            "for instance with add_constant",
            pass_name=current_pass(),
        )


def _follow_chains(mapping: Mapping[Node, Node]) -> dict[Node, Node]:
    ends: dict[Node, Node] = {}
    for start in mapping:
        path: dict[Node, None] = {start: None}
        end = start
        while end in mapping:
            end = ends.get(end) or mapping[end]
            if end in path:
                names = " -> ".join(node.name for node in (*path, end))
                raise CycleError(
                    f"the replacements {names} lead back to where they began", path=[*path, end], node=start
                )
            path[end] = None
        ends.update(dict.fromkeys((node for node in path if node is not end), end))
    return {start: ends[start] for start in mapping}


def _check_replacement(node: Node, by: Node) -> None:
    _check_member(node.graph, node, "replace")
    if by.graph is not node.graph or by._erased:
        why = "was erased" if by._erased else "belongs to another graph"
        raise GraphError(f"cannot replace {node.name!r} by {by.name!r}, which {why}", node=by, pass_name=current_pass())
    if node.op in ("placeholder", "output"):
        advice = (
            "use fxpasses.programs.remove_input, or replace its uses"
            if node.op == "placeholder"
            else "set the arguments of the output node"
        )
        raise GraphError(f"{node.name!r} is a {node.op} and cannot be replaced as a whole; {advice}", node=node)
    if by.op == "output":
        raise GraphError(f"{by.name!r} is the output of the graph and gives no value", node=by)


def _fill_values(node: Node, by: Node) -> None:
    """A replacement that was created with plain torch.fx gets its value now, and so does what it was made of."""
    if has_value(by) or not has_value(node):
        return
    missing: dict[Node, None] = {}
    waiting = [by]
    while waiting:
        each = waiting.pop()
        if each not in missing and each.op != "placeholder" and not has_value(each):
            missing[each] = None
            waiting.extend(each.all_input_nodes)
    for each in sorted(missing):
        give_value(each, bindings_of=node if each is by else None)
    if not has_value(by):  # what it calls does not stand fakes: it is taken to give what the old node gave
        set_value(by, value_of(node))


def _place_before_users(node: Node, by: Node) -> None:
    first = min(node.users, default=None)
    moving = _needed_after(by, first) if first is not None else []
    for each in moving:
        if node in each.all_input_nodes:
            path = _path(node, by)
            names = " -> ".join(step.name for step in path)
            raise CycleError(
                f"cannot replace {node.name!r} by {by.name!r}, which is computed from it ({names}); create the "
                "replacement from the inputs of the old node, or use node.replace_all_uses_with with a condition",
                path=[*path, node],
                node=node,
                pass_name=current_pass(),
            )
    if first is None or not moving or not first < by:
        return
    _check_order(node.graph, moving, first)
    for each in moving:
        first.prepend(each)


def _needed_after(by: Node, first: Node) -> list[Node]:
    """``by`` and what it needs, as far as it stands at or after ``first``; in graph order."""
    found: dict[Node, None] = {}
    waiting = [by]
    while waiting:
        node = waiting.pop()
        if node in found or (node is not by and node < first):
            continue
        found[node] = None
        waiting.extend(node.all_input_nodes)
    return sorted(found)


def _path(start: Node, end: Node) -> list[Node]:
    came: dict[Node, Node] = {}
    waiting = [end]
    while waiting:
        node = waiting.pop()
        for each in node.all_input_nodes:
            if each not in came:
                came[each] = node
                waiting.append(each)
    path = [start]
    while path[-1] is not end:
        path.append(came[path[-1]])
    return path


def _check_order(graph: Graph, moving: Sequence[Node], first: Node) -> None:
    """Refuse to move nodes up past something that must run before them."""
    from fxpasses.effects.analysis import analyze_effects

    going = set(moving)
    effects = analyze_effects(graph.owning_module or graph)
    for earlier, later in effects.order_edges:
        if later in going and earlier not in going and not earlier < first:
            raise CycleError(
                f"cannot move {later.name!r} up to {first.name!r}: it must stay after {earlier.name!r}, because "
                f"{effects.why_ordered(earlier, later)}",
                path=[first, earlier, later, first],
                node=later,
                pass_name=current_pass(),
            )


def _inherit_place(node: Node) -> None:
    """Metadata for a node that replaces nothing: it lies where the last of its inputs lies, or beside its neighbour."""
    if node.op not in ("placeholder", "output", "get_attr") and (source := _neighbour_of(node)) is not None:
        for key in TRACE_KEYS:
            if (entry := source.meta.get(key)) is not None:
                node.meta.setdefault(key, entry.copy() if isinstance(entry, (dict, list)) else entry)
    if node.all_input_nodes:
        node.meta["from_node"] = [source_of(node.all_input_nodes[-1], action=NodeSourceAction.CREATE)]


def _neighbour_of(node: Node) -> Node | None:
    """The computed input that says where it comes from; else the next such node below, or above."""
    for source in reversed(node.all_input_nodes):
        if _says_its_place(source):
            return source
    below = node.next
    for _ in range(_NEAR):
        if _says_its_place(below) or below.op in ("root", "output"):
            break
        below = below.next
    return next((each for each in (below, node.prev) if _says_its_place(each)), None)


def _says_its_place(node: Node) -> bool:
    return node.op not in ("placeholder", "get_attr") and "stack_trace" in node.meta


def _binder(replaces: Sequence[Node]) -> Node | None:
    binders = [node for node in replaces if node.meta.get("unbacked_bindings")]
    return binders[0] if len(binders) == 1 else None
