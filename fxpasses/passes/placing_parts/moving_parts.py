"""Move one part of a split to its device: its tensors, the devices that its operators name, its fake values."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import torch
from torch._higher_order_ops.wrap import wrap_with_autocast
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.devices import same_torch_device
from fxpasses.metadata import value_of
from fxpasses.outlining.owning import own_bodies
from fxpasses.passes.placing_parts.moved_tensors import ANYWHERE, MovedTensors, tables_of
from fxpasses.passes.placing_parts.steady_views import steady_views
from fxpasses.programs.moving import makes_from_nothing, names_device, rename_devices
from fxpasses.values import nested_graph_modules

__all__ = ["fake_on", "move_part"]


def move_part(part: torch.nn.Module, torch_device: str, moved: MovedTensors | None = None) -> None:
    """Move one part: its tensors, the devices its operators name, and its fake values.

    Its views hold there, too, whatever layout the kernels of that device choose.

    Args:
        part: A submodule; its attributes are replaced, never changed in place, so the source model keeps its own.
        torch_device: Where to.
        moved: Tensors already moved, so that tied ones stay tied; share it between calls.
    """
    target = torch.device(torch_device)
    moved = moved or MovedTensors(part)
    if isinstance(part, GraphModule):
        own_bodies(part)
    for module in part.modules():
        for table in tables_of(module):
            for name, value in table.items():
                if isinstance(value, torch.Tensor):
                    table[name] = moved.to(value, target)
    if isinstance(part, GraphModule):
        for graph_module in nested_graph_modules(part):
            _retarget(graph_module, target)


def _retarget(graph_module: GraphModule, target: torch.device) -> None:
    """Rewrite the devices that operators name (factories, casts, autocast) and the devices of fake values."""
    here = {kind for node in graph_module.graph.nodes for kind in _kinds(value_of(node))}
    for node in graph_module.graph.nodes:
        _retarget_node(node, target, here)
        if "val" in node.meta:
            node.meta["val"] = fake_on(node.meta["val"], target)
    steady_views(graph_module)
    graph_module.recompile()


def _retarget_node(node: Node, target: torch.device, here: Set[str]) -> None:
    rename_devices(node, target, kept=ANYWHERE)
    if node.target in (wrap_with_autocast, torch.amp.autocast_mode._enter_autocast):
        _retarget_autocast(node, target, here)
    if target.type != "cpu" and makes_from_nothing(node) and not names_device(node) and not _on_meta(node):
        node.kwargs = {**node.kwargs, "device": target}


def _retarget_autocast(node: Node, target: torch.device, here: Set[str]) -> None:
    """Let a region do on a device what it did where it was captured: one for another kind of device did nothing."""
    kind, dtype, is_enabled, *rest = node.args
    did_nothing = bool(here) and kind not in here
    node.args = (kind if did_nothing else target.type, dtype, is_enabled and not did_nothing, *rest)


def _kinds(value: Any) -> Iterator[str]:
    """The kinds of devices of the tensors in a value."""
    yield from (leaf.device.type for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _on_meta(node: Node) -> bool:
    """Whether the model itself asks for a tensor without memory."""
    return "meta" in _kinds(value_of(node))


def fake_on(value: Any, target: torch.device, *, from_anywhere: bool = False) -> Any:
    """A fake value as it is on a device.

    Args:
        value: A fake tensor, or a structure of them; what is no fake tensor stays.
        target: The device.
        from_anywhere: Move what is on ``meta``, too; otherwise it is taken to be there on purpose.
    """

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or same_torch_device(leaf.device, target):
            return leaf
        if (leaf.device.type in ANYWHERE and not from_anywhere) or (mode := getattr(leaf, "fake_mode", None)) is None:
            return leaf
        with mode, torch.no_grad():  # a fake value has no history
            if leaf.device.type in ANYWHERE:
                made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=target)
            else:
                made = leaf.to(target)
        return made.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, value)
