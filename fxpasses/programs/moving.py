"""Move a whole program to another device: weights, constants, the devices that operators name, and fake values.

``module.to(device)`` moves what a module holds and leaves the graph saying ``device="cpu"``. Here everything goes
together, in nested graphs as well, so that no operator is left behind on the old device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from fxpasses.errors import GraphError
from fxpasses.metadata import value_of
from fxpasses.values.fake_modes import fake_mode_of, nested_graph_modules
from fxpasses.values.recorded_values import has_value, set_value

__all__ = ["makes_from_nothing", "move_to_device"]

_DEVICE_METHODS = frozenset({"cpu", "cuda", "xpu"})


def move_to_device(root: GraphModule | ExportedProgram, device: torch.device | str) -> None:
    """Move a graph module or a program to ``device``, in place.

    Tied tensors stay tied. Moving to ``meta`` drops the content of the tensors; moving from there makes uninitialised
    ones. Example inputs of a program move as well. Nothing is recompiled but what changed.

    Args:
        root: What to move.
        device: Where to; a device without an index means the current one of its kind.

    Raises:
        GraphError: ``device`` is not a device.
    """
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise GraphError(f"{device!r} is not a device: {error}") from error
    moved: dict[int, torch.Tensor] = {}
    graph_module = root.graph_module if isinstance(root, ExportedProgram) else root
    if isinstance(root, ExportedProgram):
        for table in (root.state_dict, root.constants):
            table.update({name: _moved(entry, target, moved) for name, entry in table.items()})
        if root._example_inputs is not None:
            root._example_inputs = pytree.tree_map(lambda leaf: _moved(leaf, target, moved), root._example_inputs)
    for module in graph_module.modules():
        _move_tensors(module, target, moved)
    mode = fake_mode_of(graph_module)
    if mode is not None and target.type == "meta":
        mode.allow_meta = True
    for nested in nested_graph_modules(graph_module):
        for node in nested.graph.nodes:
            _retarget(node, target)
            if has_value(node) and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value_of(node))):
                set_value(node, pytree.tree_map(lambda leaf: _moved_fake(leaf, target), value_of(node)))
    for nested in nested_graph_modules(graph_module):
        nested.recompile()


def _move_tensors(module: torch.nn.Module, target: torch.device, moved: dict[int, torch.Tensor]) -> None:
    tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, module.__dict__)
    for table in tables:
        for name, entry in table.items():
            if isinstance(entry, torch.Tensor):
                table[name] = _moved(entry, target, moved)


def _moved(entry: Any, target: torch.device, moved: dict[int, torch.Tensor]) -> Any:
    """``entry`` on the device; the same tensor gives the same tensor each time."""
    if not isinstance(entry, torch.Tensor) or entry.device == target:
        return entry
    if id(entry) not in moved:
        with torch.no_grad():
            made = torch.empty_like(entry, device=target) if entry.device.type == "meta" else entry.detach().to(target)
        if isinstance(entry, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=entry.requires_grad)
        moved[id(entry)] = made
    return moved[id(entry)]


def _moved_fake(leaf: Any, target: torch.device) -> Any:
    mode = getattr(leaf, "fake_mode", None)
    if not isinstance(leaf, torch.Tensor) or mode is None or leaf.device == target:
        return leaf
    with mode, torch.no_grad():
        made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=target)
    if isinstance(leaf, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=leaf.requires_grad)
    return made.requires_grad_(leaf.requires_grad)


def _retarget(node: Node, target: torch.device) -> None:
    """Let an operator that names a device, or makes a tensor out of nothing, do so on ``target``."""
    if node.op == "call_method" and node.target in _DEVICE_METHODS:
        node.target = "to"
        node.args = (node.args[0], target)
        return
    if node.op not in ("call_function", "call_method"):
        return
    args = map_aggregate(node.args, lambda leaf: target if isinstance(leaf, torch.device) else leaf)
    kwargs = dict(map_aggregate(node.kwargs, lambda leaf: target if isinstance(leaf, torch.device) else leaf))
    if isinstance(kwargs.get("device"), str):
        kwargs["device"] = target
    if node.op == "call_method" and node.target == "to":
        args = tuple(target if isinstance(leaf, str) else leaf for leaf in args)
    named = kwargs.get("device") is not None or any(isinstance(leaf, torch.device) for leaf in args)
    if makes_from_nothing(node) and not named:
        kwargs["device"] = target
    if args != node.args or kwargs != node.kwargs:
        node.args, node.kwargs = args, kwargs


def makes_from_nothing(node: Node) -> bool:
    """Whether the operator makes a tensor from no tensor, on a device that it may name."""
    if not isinstance(node.target, OpOverload) or any(
        isinstance(value_of(each), torch.Tensor) for each in node.all_input_nodes
    ):
        return False
    return any(argument.name == "device" for argument in node.target._schema.arguments)
