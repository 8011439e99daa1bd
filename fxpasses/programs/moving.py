"""Move a whole program to another device: weights, constants, the devices that operators name, and fake values.

``module.to(device)`` moves what a module holds and leaves the graph saying ``device="cpu"``. Here everything goes
together, in nested graphs as well, so that no operator is left behind on the old device.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors

from fxpasses.errors import GraphError
from fxpasses.metadata import value_of
from fxpasses.outlining.owning import own_bodies
from fxpasses.values.fake_modes import fake_mode_of, nested_graph_modules
from fxpasses.values.recorded_values import has_value, set_value

__all__ = ["makes_from_nothing", "move_to_device", "names_device", "rename_devices"]

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
    own_bodies(graph_module)
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
    rename_devices(node, target)
    if makes_from_nothing(node) and not names_device(node):
        node.kwargs = {**node.kwargs, "device": target}


def rename_devices(node: Node, target: torch.device, *, kept: Collection[str] = ()) -> None:
    """Let an operator name another device wherever it names one: as a device, as text, by a number or a method.

    Args:
        node: The operator; what calls nothing stays.
        target: The device.
        kept: Types of devices that are named on purpose, and stay.
    """
    if node.op not in ("call_function", "call_method"):
        return
    if node.op == "call_method" and node.target in _DEVICE_METHODS:
        others = {name: each for name, each in node.kwargs.items() if name != "device"}
        node.target, node.args, node.kwargs = "to", (node.args[0], target), others
        return

    def swap(leaf: Any) -> Any:
        return target if isinstance(leaf, torch.device) and leaf.type not in kept else leaf

    args, kwargs = list(map_aggregate(node.args, swap)), dict(map_aggregate(node.kwargs, swap))
    place = _place_of_device(node)
    if place is not None and place < len(args) and _is_name(args[place], kept):
        args[place] = target
    if _is_name(kwargs.get("device"), kept):
        kwargs["device"] = target
    if tuple(args) != node.args or kwargs != node.kwargs:
        node.args, node.kwargs = tuple(args), kwargs


def names_device(node: Node) -> bool:
    """Whether an operator names a device, in whatever way."""
    place = _place_of_device(node)
    given = node.args[place] if place is not None and place < len(node.args) else node.kwargs.get("device")
    return given is not None


def _place_of_device(node: Node) -> int | None:
    """Where among the arguments of an operator a device may stand without its name."""
    if node.op == "call_method":
        return 1 if node.target == "to" else None
    if not isinstance(node.target, OpOverload):
        return None
    return next((at for at, each in enumerate(node.target._schema.arguments) if each.name == "device"), None)


def _is_name(leaf: Any, kept: Collection[str]) -> bool:
    """Whether an argument that may be a device is the name of one, or the number of an accelerator."""
    return type(leaf) is int or (isinstance(leaf, str) and leaf.partition(":")[0] not in kept)


def makes_from_nothing(node: Node) -> bool:
    """Whether the operator makes a tensor from no tensor, on a device that it may name."""
    if any(isinstance(value_of(each), torch.Tensor) for each in node.all_input_nodes):
        return False
    return node.target in _device_constructors() or (_place_of_device(node) is not None and node.op == "call_function")
