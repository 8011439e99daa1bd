"""Turn nodes of a graph into a submodule that is called, and a called submodule back into nodes.

Both directions keep order, effects, values and provenance, and neither copies a tensor: an attribute that only the
extracted nodes use moves into the submodule (its ``state_dict`` key gets the submodule's name as a prefix), one that
others use as well hangs in both places as the same object.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from fxpasses.errors import CycleError, GraphError
from fxpasses.metadata import copy_metadata, current_pass, merge_provenance, source_of
from fxpasses.values import has_value, refresh_values, same_value, value_of_arguments

__all__ = ["extract_submodule", "get_attribute", "inline_submodule", "remove_attribute", "set_attribute"]

_ORIGINS = "fxpasses.attribute_origins"
_MISSING: Any = object()


# --- attributes by path ----------------------------------------------------------------------------------------------


def get_attribute(root: torch.nn.Module, path: str, default: Any = _MISSING) -> Any:
    """What ``path`` (``"layer.0.weight"``) refers to.

    Raises:
        GraphError: Nothing is there, and no default was given.
    """
    found: Any = root
    for part in path.split("."):
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            if default is not _MISSING:
                return default
            raise GraphError(f"the module has no attribute {path!r}", reason=f"no attribute {path!r}")
    return found


def set_attribute(root: torch.nn.Module, path: str, entry: Any, *, like: torch.nn.Module | None = None) -> None:
    """Hang ``entry`` at ``path``; containers on the way are made.

    Args:
        root: The module that it hangs under.
        path: Where; what is there is replaced.
        entry: A parameter, a tensor, a module or a plain value; tensors become buffers.
        like: The module that ``entry`` comes from, at the same path: buffers stay (non-)persistent, plain attributes
            stay plain.
    """
    *parents, field = path.split(".")
    owner = root
    for part in parents:
        following = getattr(owner, part, None)
        if following is None:
            following = torch.nn.Module()
            owner.add_module(part, following)
        owner = following
    source = get_attribute(like, ".".join(parents), None) if like is not None and parents else like
    if isinstance(entry, torch.nn.Parameter):
        owner.register_parameter(field, entry)
    elif isinstance(entry, torch.nn.Module):
        owner.add_module(field, entry)
    elif isinstance(entry, torch.Tensor) and not (source is not None and field in vars(source)):
        persistent = source is None or field not in source._non_persistent_buffers_set
        owner.register_buffer(field, entry, persistent=persistent)
    else:
        setattr(owner, field, entry)


def remove_attribute(root: torch.nn.Module, path: str) -> None:
    """Take away what hangs at ``path``, and the containers that are empty then."""
    *parents, field = path.split(".")
    owners = [root]
    for part in parents:
        owners.append(getattr(owners[-1], part))
    delattr(owners[-1], field)
    for depth in range(len(parents), 0, -1):
        owner = owners[depth]
        bare = not (owner._modules or owner._parameters or owner._buffers) and type(owner) is torch.nn.Module
        if not bare or any(isinstance(entry, torch.Tensor) for entry in vars(owner).values()):
            return
        delattr(owners[depth - 1], parents[depth - 1])


def _free_path(root: torch.nn.Module, path: str) -> str:
    taken, number = path, 0
    while get_attribute(root, taken, None) is not None:
        taken, number = f"{path}_{number}", number + 1
    return taken


# --- nodes -> submodule ----------------------------------------------------------------------------------------------


def extract_submodule(graph_module: GraphModule, nodes: Iterable[Node], name: str) -> Node:
    """Move nodes into a submodule and call it where they stood.

    Its inputs come in the graph order of their producers, its outputs in the graph order of the nodes; a single output
    is handed over as it is, several as a tuple. ``getitem`` nodes go with the tuple they read, constants go with
    whoever uses them. Other nodes between the first and the last move behind the call only if they need it.

    Args:
        graph_module: Where the nodes are; changed in place, not recompiled.
        nodes: Compute nodes (and constants); any order.
        name: The wished name of the submodule, with dots for one inside of another; made unique.

    Returns:
        The call.

    Raises:
        GraphError: There are no nodes, or one is a placeholder, the output, or not in this graph; or the name is none
            that a submodule can have.
        CycleError: A node outside needs one of them and is needed by another (or must run between them, because of
            its effects); carries the path.
    """
    if not isinstance(name, str) or not all(name.split(".")):
        raise GraphError(f"a submodule is named like an attribute, as 'part_0' or 'block.part_0'; {name!r} is no name")
    graph = graph_module.graph
    chosen = _chosen_nodes(graph, nodes)
    _check_regions(chosen)
    after = _nodes_behind(graph_module, chosen)
    inside = set(chosen)
    inputs = sorted(
        {each for node in chosen for each in node.all_input_nodes if each not in inside and each.op != "get_attr"}
    )
    outputs = [node for node in chosen if node.op != "get_attr" and any(user not in inside for user in node.users)]
    constants = _constants_of(chosen)
    body = _build_body(graph_module, chosen, inputs, outputs, constants, name)
    path = _free_path(graph_module, name)
    set_attribute(graph_module, path, body)
    last = chosen[-1]
    with graph.inserting_after(last):
        call = graph.create_node("call_module", path, tuple(inputs), name=path)
    place = call
    for node in after:
        place.append(node)
        place = node
    merge_provenance(call, [node for node in chosen if node.op != "get_attr"])
    _connect_outputs(call, outputs, inside)
    for node in reversed(chosen):
        if not node.users:
            graph.erase_node(node)
            graph._graph_namespace._used_names.discard(node.name)
    _forget_constants(graph_module, constants)
    return call


def _chosen_nodes(graph: Graph, nodes: Iterable[Node]) -> list[Node]:
    chosen = dict.fromkeys(nodes)
    if not chosen:
        raise GraphError("there are no nodes to extract", pass_name=current_pass())
    for node in chosen:
        if node.graph is not graph or node._erased:
            why = "was erased" if node._erased else "belongs to another graph"
            raise GraphError(f"cannot extract {node.name!r}: it {why}", node=node, pass_name=current_pass())
        if node.op in ("placeholder", "output"):
            raise GraphError(f"cannot extract {node.name!r}: it is the graph's own {node.op}", node=node)
    waiting = list(chosen)
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if user not in chosen and user.target is operator.getitem and _reads_tuple(user, node):
                chosen[user] = None
                waiting.append(user)
    return sorted(chosen)


def _check_regions(chosen: Sequence[Node]) -> None:
    """A region that is opened inside is closed inside, and the other way round."""
    inside = set(chosen)
    for node in chosen:
        name = getattr(node.target, "__name__", "")
        partners = node.users if name == "_enter_autocast" else node.all_input_nodes if name == "_exit_autocast" else ()
        for partner in partners:
            if partner not in inside:
                raise GraphError(
                    f"cannot extract {node.name!r} without {partner.name!r}: they open and close one region; take "
                    "both, or neither",
                    node=node,
                    pass_name=current_pass(),
                )


def _reads_tuple(user: Node, node: Node) -> bool:
    if user.args[0] is not node:
        return False
    return isinstance(_value(node), (tuple, list)) if has_value(node) else isinstance(user.args[1], int)


def _nodes_behind(graph_module: GraphModule, chosen: Sequence[Node]) -> list[Node]:
    """The nodes between the first and the last of ``chosen`` that have to run after them."""
    inside = set(chosen)
    span: list[Node] = []
    node = chosen[0]
    while node is not chosen[-1]:
        node = node.next
        span.append(node)
    if all(node in inside for node in span):
        return []
    before, reason = _predecessors(graph_module, inside | set(span))
    behind: dict[Node, Node] = {}
    for node in span:
        cause = next((each for each in before[node] if each in inside or each in behind), None)
        blocking = next((each for each in before[node] if each in behind), None)
        if node in inside and blocking is not None:
            raise _not_convex(node, blocking, behind, reason)
        if node not in inside and cause is not None and node.op != "get_attr":
            behind[node] = cause
    return list(behind)


def _predecessors(graph_module: GraphModule, nodes: set[Node]) -> tuple[dict[Node, list[Node]], Any]:
    from fxpasses.effects.analysis import analyze_effects

    effects = analyze_effects(graph_module)
    before = {node: list(node.all_input_nodes) for node in nodes}
    for earlier, later in effects.order_edges:
        if later in before and earlier in before:
            before[later].append(earlier)
    return before, effects.why_ordered


def _not_convex(node: Node, blocking: Node, behind: Mapping[Node, Node], reason: Any) -> CycleError:
    path = [node, blocking]
    while path[-1] in behind:
        path.append(behind[path[-1]])
    path.reverse()
    steps = [
        f"{later.name}" if earlier in later.all_input_nodes else f"{later.name} ({reason(earlier, later)})"
        for earlier, later in itertools.pairwise(path)
    ]
    return CycleError(
        f"the nodes cannot become one submodule: {path[0].name} -> {' -> '.join(steps)} leaves it and comes back; "
        f"extract {', '.join(repr(each.name) for each in path[1:-1])} as well, or leave one end out",
        path=path,
        node=node,
        pass_name=current_pass(),
    )


def _constants_of(chosen: Sequence[Node]) -> dict[Node, str]:
    """The ``get_attr`` nodes that the chosen ones use, listed or not."""
    found: dict[Node, str] = {node: str(node.target) for node in chosen if node.op == "get_attr"}
    for node in chosen:
        found.update({each: str(each.target) for each in node.all_input_nodes if each.op == "get_attr"})
    return dict(sorted(found.items()))


def _build_body(
    graph_module: GraphModule,
    chosen: Sequence[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    constants: Mapping[Node, str],
    name: str,
) -> GraphModule:
    graph = Graph()
    env: dict[Node, Node] = {}
    for node in inputs:
        env[node] = graph.placeholder(node.name, type_expr=node.type)
        copy_metadata(node, env[node], provenance=True)
    for node in (*constants, *(node for node in chosen if node.op != "get_attr")):
        env[node] = graph.node_copy(node, env.__getitem__)
        env[node].meta.clear()
        copy_metadata(node, env[node])
    results = [env[node] for node in outputs]
    output = graph.output(results[0] if len(results) == 1 else tuple(results) if results else None)
    if all(map(has_value, results)):
        output.meta["val"] = value_of_arguments(output.args[0])
    body = GraphModule(torch.nn.Module(), Graph(), class_name=name.split(".")[-1])
    called = {str(node.target) for node in chosen if node.op == "call_module"}
    origins = dict.fromkeys([*constants.values(), *called])
    for path in origins:
        set_attribute(body, path, get_attribute(graph_module, path), like=graph_module)
    body.training = graph_module.training
    body.meta[_ORIGINS] = list(origins)
    body.graph = graph
    return body


def _connect_outputs(call: Node, outputs: Sequence[Node], inside: set[Node]) -> None:
    graph = call.graph
    if len(outputs) == 1:
        node = outputs[0]
        for key in ("val", "example_value", "tensor_meta"):
            if key in node.meta:
                call.meta[key] = node.meta[key]
        _hand_over(node, call, inside)
        return
    if all(map(has_value, outputs)):
        call.meta["val"] = tuple(node.meta.get("val", node.meta.get("example_value")) for node in outputs)
    place = call
    for index, node in enumerate(outputs):
        with graph.inserting_after(place):
            place = graph.create_node("call_function", operator.getitem, (call, index), name=f"{node.name}_out")
        copy_metadata(node, place)
        place.meta.pop("from_node", None)
        merge_provenance(place, [node])
        _hand_over(node, place, inside)


def _hand_over(node: Node, by: Node, inside: set[Node]) -> None:
    node.replace_all_uses_with(by, delete_user_cb=lambda user: user not in inside and user is not by)


def _forget_constants(graph_module: GraphModule, constants: Mapping[Node, str]) -> None:
    for node in constants:
        if not node._erased and not node.users:
            node.graph.erase_node(node)
            node.graph._graph_namespace._used_names.discard(node.name)
    used = {str(node.target) for node in graph_module.graph.nodes if node.op in ("get_attr", "call_module")}
    for path in dict.fromkeys(constants.values()):
        needed = any(path == each or path.startswith(f"{each}.") or each.startswith(f"{path}.") for each in used)
        if not needed and get_attribute(graph_module, path, None) is not None:
            remove_attribute(graph_module, path)


# --- submodule -> nodes ----------------------------------------------------------------------------------------------


def inline_submodule(call: Node) -> list[Node]:
    """Put the nodes of a called graph module in the place of the call.

    The submodule's own attributes stay where they are, reached by the path of the submodule
    (``"part.weight"``); what :func:`extract_submodule` had moved goes back under its former name. A submodule that
    nobody calls any more is replaced by a plain container of its attributes.

    Args:
        call: A ``call_module`` node of a :class:`GraphModule`.

    Returns:
        The new nodes, in graph order.

    Raises:
        GraphError: The node calls no graph module, or the arguments do not fit its placeholders.
    """
    graph = call.graph
    root = graph.owning_module
    body = get_attribute(root, str(call.target), None) if root is not None and call.op == "call_module" else None
    if not isinstance(body, GraphModule) or root is None:
        raise GraphError(
            f"cannot inline {call.name!r}: it does not call a graph module", node=call, pass_name=current_pass()
        )
    path = str(call.target)
    env = _bind_arguments(call, body)
    shared = sum(node.op == "call_module" and node.target == path for node in graph.nodes) > 1
    renamed = {} if shared else _attribute_homes(root, body, path)
    made: list[Node] = []
    result: Any = None
    with graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                result = body.graph.process_outputs(map_arg(node.args[0], env.__getitem__))
                break
            if (known := _same_constant(call, node, path, renamed)) is not None:
                env[node] = known
                continue
            env[node] = _copy_into(graph, node, env, path, renamed)
            made.append(env[node])
    if _ORIGINS not in body.meta:
        _add_origin(made, call)
    _replace_structure(call, result)
    graph.erase_node(call)
    graph._graph_namespace._used_names.discard(call.name)
    if not shared:
        _dissolve(root, path, body, renamed)
    _refresh_inlined(made, call, env, body)
    return made


def _bind_arguments(call: Node, body: GraphModule) -> dict[Node, Any]:
    placeholders = body.graph.find_nodes(op="placeholder")
    args, kwargs = list(call.args), dict(call.kwargs)
    try:
        args = list(
            body.graph.process_inputs(*args, **kwargs) if _takes_trees(body) else body.graph.process_inputs(*args)
        )
    except (AssertionError, ValueError, TypeError) as error:
        raise GraphError(f"cannot inline {call.name!r}: its arguments do not fit: {error}", node=call) from error
    if _takes_trees(body):
        kwargs = {}
    env: dict[Node, Any] = {}
    for index, placeholder in enumerate(placeholders):
        if index < len(args):
            env[placeholder] = args[index]
        elif placeholder.target in kwargs:
            env[placeholder] = kwargs.pop(placeholder.target)
        elif placeholder.args:
            env[placeholder] = placeholder.args[0]
        else:
            raise GraphError(
                f"cannot inline {call.name!r}: nothing is given for the input {placeholder.name!r}", node=call
            )
    if len(args) > len(placeholders) or kwargs:
        extra = sorted(kwargs) or f"{len(args) - len(placeholders)} more than it takes"
        raise GraphError(f"cannot inline {call.name!r}: arguments that the submodule does not take: {extra}", node=call)
    return env


def _takes_trees(body: GraphModule) -> bool:
    return hasattr(body.graph._codegen, "pytree_info")


def _attribute_homes(root: GraphModule, body: GraphModule, path: str) -> dict[str, str]:
    """Where attributes that were extracted go back to: their former path, if it is free or holds the same object."""
    homes: dict[str, str] = {}
    for origin in body.meta.get(_ORIGINS, ()):
        found = get_attribute(body, origin, None)
        if found is None:
            continue
        there = get_attribute(root, origin, None)
        if there is None and not _is_under(origin, path):
            set_attribute(root, origin, found, like=body)
            homes[origin] = origin
        elif there is found:
            homes[origin] = origin
    return homes


def _is_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}.")


def _home_of(node: Node, path: str, renamed: Mapping[str, str]) -> str:
    return renamed.get(str(node.target), f"{path}.{node.target}")


def _same_constant(call: Node, node: Node, path: str, renamed: Mapping[str, str]) -> Node | None:
    """A node before the call that reads the same attribute already."""
    if node.op != "get_attr":
        return None
    known = call.graph.find_nodes(op="get_attr", target=_home_of(node, path, renamed))
    return next((each for each in known if each < call), None)


def _copy_into(graph: Graph, node: Node, env: Mapping[Node, Any], path: str, renamed: Mapping[str, str]) -> Node:
    new = graph.node_copy(node, env.__getitem__)
    if node.op in ("get_attr", "call_module"):
        new.target = _home_of(node, path, renamed)
    new.meta.clear()
    copy_metadata(node, new)
    new.meta["from_node"] = [source_of(node)]
    return new


def _add_origin(made: Sequence[Node], call: Node) -> None:
    """Nodes of a body that says nothing of where they come from come from where the call is."""
    for node in made:
        for key in ("stack_trace", "nn_module_stack"):
            if node.meta.get(key) is None and (entry := call.meta.get(key)) is not None:
                node.meta[key] = entry.copy() if isinstance(entry, dict) else entry


def _replace_structure(call: Node, result: Any) -> None:
    """Let users of ``call`` use ``result``, a structure of nodes; reading one entry of it becomes that entry."""
    if isinstance(result, Node):
        call.replace_all_uses_with(result)
        return
    for user in list(call.users):
        if user.target is operator.getitem and user.args[0] is call and _has_entry(result, user.args[1]):
            _replace_structure(user, result[user.args[1]])
            user.graph.erase_node(user)
            continue
        user.args = map_arg(user.args, lambda node: result if node is call else node)
        user.kwargs = map_arg(user.kwargs, lambda node: result if node is call else node)


def _has_entry(result: Any, key: Any) -> bool:
    if isinstance(result, Mapping):
        return key in result
    return isinstance(result, (tuple, list)) and isinstance(key, int) and -len(result) <= key < len(result)


def _dissolve(root: GraphModule, path: str, body: GraphModule, renamed: Mapping[str, str]) -> None:
    for origin in renamed:
        remove_attribute(body, origin)
    remove_attribute(root, path)
    used = {str(node.target) for node in root.graph.nodes if node.op in ("get_attr", "call_module")}
    if not any(_is_under(target, path) for target in used):
        return
    container = torch.nn.Module()
    container.training = body.training
    set_attribute(root, path, container)
    generated = set(vars(GraphModule(torch.nn.Module(), Graph()))) | {"_modules", "_parameters", "_buffers"}
    container._modules.update(body._modules)
    container._parameters.update(body._parameters)
    container._buffers.update(body._buffers)
    container._non_persistent_buffers_set.update(body._non_persistent_buffers_set)
    container.__dict__.update({key: entry for key, entry in vars(body).items() if key not in generated})


def _refresh_inlined(made: Sequence[Node], call: Node, env: Mapping[Node, Any], body: GraphModule) -> None:
    """Compute values again only where the call's arguments look different from what the body was traced with."""
    stale: dict[Node, None] = {node: None for node in made if not has_value(node)}
    for placeholder in body.graph.find_nodes(op="placeholder"):
        given = env[placeholder]
        if not isinstance(given, Node) or not has_value(given):
            continue
        if not has_value(placeholder) or not same_value(_value(placeholder), _value(given)):
            stale.update(dict.fromkeys(env[user] for user in placeholder.users if isinstance(env.get(user), Node)))
    refresh_values(stale)


def _value(node: Node) -> Any:
    return node.meta.get("val", node.meta.get("example_value"))
