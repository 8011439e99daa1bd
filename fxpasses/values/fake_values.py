"""Compute fake values: of one node, of all that follows from it, of a whole graph."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.errors import FakeValueError
from fxpasses.metadata import current_pass, value_of
from fxpasses.values.evaluation import UNKNOWN, Evaluation, attribute_of, bind_symbols, own_symbols, try_compute
from fxpasses.values.fake_modes import fake_of, nested_graph_modules, obtain_fake_mode
from fxpasses.values.recorded_values import (
    forget_value,
    has_value,
    same_value,
    set_value,
)

__all__ = [
    "compute_value",
    "give_value",
    "propagate_values",
    "refresh_callers",
    "refresh_value",
    "refresh_values",
]


def compute_value(node: Node) -> Any:
    """The fake value that ``node`` gives for the recorded values of its arguments; nothing is written.

    Args:
        node: Any node but a placeholder.

    Returns:
        A fake tensor, a symbol, a number, or a structure of them; None for nodes that give nothing.

    Raises:
        FakeValueError: An argument has no value, the arguments do not fit the operator, or it has no fake kernel.
    """
    mode = obtain_fake_mode(node.graph)
    with own_symbols(mode.shape_env):
        value = try_compute(node, Evaluation(mode, record=False))
    if value is UNKNOWN:
        missing = [each.name for each in node.all_input_nodes if not has_value(each)]
        why = f"its inputs {missing} have no recorded value" if missing else "what it calls cannot run on fake tensors"
        raise FakeValueError(
            f"the value of {node.name!r} cannot be computed: {why}; export the model, or propagate fake tensors first",
            node=node,
            pass_name=current_pass(),
            reason=why,
        )
    return value


def give_value(node: Node, mode: FakeTensorMode | None = None, *, bindings_of: Node | None = None) -> bool:
    """Compute and record the value of a new node; False when it cannot be known.

    Args:
        node: The node; its arguments have their values.
        mode: The mode of the program; looked up if None.
        bindings_of: A node that it replaces; unbacked symbols (``u0``) that were born there are born here from now on,
            so everything that is said about them stays true.
    """
    if not _inputs_known(node):
        return False
    bindings = (bindings_of or node).meta.get("unbacked_bindings")
    value = _computed(node, Evaluation(mode or obtain_fake_mode(node.graph), record=True), bindings)
    if value is UNKNOWN:
        return False
    set_value(node, value)
    return True


def refresh_value(node: Node, mode: FakeTensorMode | None = None) -> bool:
    """Compute the value of one node again and record it; whether it looks different from before.

    Raises:
        FakeValueError: The operator does not fit its arguments any more.
    """
    evaluation = None
    if node.op != "placeholder" and _inputs_known(node):
        evaluation = Evaluation(mode or obtain_fake_mode(node.graph), record=True)
    return _refresh(node, evaluation)


def refresh_values(nodes: Iterable[Node], *, fill_bodies: bool = False) -> list[Node]:
    """Compute the values of ``nodes`` again, then those of their users, and so on until nothing changes.

    Nodes are visited in graph order, each once, so the cost is that of the nodes whose inputs really changed. A value
    that can no longer be known is dropped, rather than left wrong.

    Args:
        nodes: Where to begin; nodes of one graph.
        fill_bodies: Whether nodes of nested graphs get a value though they have none.

    Returns:
        The nodes whose recorded value changed, in graph order.

    Raises:
        FakeValueError: An operator does not fit its arguments any more; all values are what they were before.
    """
    waiting = list(dict.fromkeys(nodes))
    if not waiting:
        return []
    heapq.heapify(waiting)
    queued = set(waiting)
    changed: dict[Node, dict[str, Any]] = {}
    evaluation: Evaluation | None = None
    with contextlib.ExitStack() as session:
        while waiting:
            node = heapq.heappop(waiting)
            if evaluation is None and node.op != "placeholder" and _inputs_known(node):
                evaluation = Evaluation(obtain_fake_mode(node.graph), record=True, fill_bodies=fill_bodies)
                session.enter_context(evaluation.session())
            before = node.meta.copy()
            try:
                if not _refresh(node, evaluation):
                    continue
            except FakeValueError:
                _take_back(changed)
                raise
            changed[node] = before
            for user in node.users:
                if user not in queued:
                    queued.add(user)
                    heapq.heappush(waiting, user)
    return list(changed)


def propagate_values(graph_module: GraphModule, args: Sequence[Any]) -> None:
    """Record values on a graph that was traced without any, from example inputs; nothing is computed for real.

    Graphs that it calls get values, too: the last ones, if they are called more than once.

    Args:
        graph_module: The graph; values that it has already are replaced where they differ.
        args: One example for each placeholder, in order; those left out take their defaults.

    Raises:
        FakeValueError: More inputs than placeholders, too few, or inputs that an operator cannot work on.
    """
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    needed = [node for node in placeholders if not node.args]
    if not len(needed) <= len(args) <= len(placeholders):
        names = ", ".join(node.name for node in placeholders)
        raise FakeValueError(f"the graph takes {len(placeholders)} inputs ({names}), but got {len(args)} examples")
    mode = obtain_fake_mode(graph_module)
    values = [*args, *(node.args[0] for node in placeholders[len(args) :])]
    for node, given in zip(placeholders, values, strict=True):
        leaves, structure = pytree.tree_flatten(given)
        fakes = [fake_of(leaf, mode, node) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        set_value(node, pytree.tree_unflatten(fakes, structure))
    refresh_values((node for node in graph_module.graph.nodes if node.op != "placeholder"), fill_bodies=True)


def refresh_callers(root: GraphModule) -> list[Node]:
    """Bring the values of all calls in step with the bodies that they call, after bodies were edited.

    A nested graph does not know who calls it, so edits inside stop at its output; this goes on from there, from the
    innermost graphs to ``root``.

    Returns:
        The nodes whose recorded value changed.
    """
    changed: list[Node] = []
    for graph_module in reversed(list(nested_graph_modules(root))):
        changed += refresh_values(_calls_of_bodies(graph_module))
    return changed


def _inputs_known(node: Node) -> bool:
    return all(has_value(each) or each.op == "get_attr" for each in node.all_input_nodes)


def _computed(node: Node, evaluation: Evaluation, bindings: Any) -> Any:
    """What ``node`` gives, its unbacked symbols bound to it; ``UNKNOWN`` when it cannot be known."""
    with own_symbols(evaluation.mode.shape_env):
        value = try_compute(node, evaluation)
        return value if value is UNKNOWN else bind_symbols(node, value, evaluation.mode.shape_env, bindings)


def _refresh(node: Node, evaluation: Evaluation | None) -> bool:
    if node.op == "placeholder" or (node.op == "output" and not has_value(node)):
        return node.op == "placeholder"
    known = has_value(node)
    before = value_of(node)
    value = UNKNOWN
    if evaluation is not None and _inputs_known(node):
        value = _computed(node, evaluation, node.meta.get("unbacked_bindings"))
    if value is UNKNOWN:
        if known:
            forget_value(node)
        return known
    if known and same_value(before, value):
        return False
    set_value(node, value)
    return known or value is not None


def _take_back(changed: dict[Node, dict[str, Any]]) -> None:
    for node, meta in changed.items():
        node.meta.clear()
        node.meta.update(meta)


def _calls_of_bodies(graph_module: GraphModule) -> list[Node]:
    calls: dict[Node, None] = {}
    for node in graph_module.graph.nodes:
        if node.op in ("call_module", "get_attr") and isinstance(attribute_of(node), GraphModule):
            calls.update(dict.fromkeys(node.users if node.op == "get_attr" else [node]))
    return [node for node in calls if has_value(node)]
