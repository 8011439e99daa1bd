"""Move one part of a split to its device: its tensors, the devices that its operators name, its fake values."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.devices import same_torch_device
from fxpasses.metadata import value_of
from fxpasses.programs.moving import makes_from_nothing, names_device, rename_devices
from fxpasses.values import nested_graph_modules

__all__ = ["Memo", "fake_on", "move_part", "moved"]

_ANY_DEVICE = ("meta",)

Memo = dict[tuple[int, str], torch.Tensor]
"""Tensors already moved, by identity and device, so that tied ones stay tied."""


def move_part(part: torch.nn.Module, torch_device: str, memo: Memo | None = None) -> None:
    """Move one part: its tensors, the devices its operators name, and its fake values.

    Args:
        part: A submodule; its attributes are replaced, never changed in place, so the source model keeps its own.
        torch_device: Where to.
        memo: Tensors already moved, so that tied ones stay tied; share it between calls.
    """
    target = torch.device(torch_device)
    memo = {} if memo is None else memo
    for module in part.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = moved(tensor, target, memo)
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, moved(value, target, memo))
    if isinstance(part, GraphModule):
        for graph_module in nested_graph_modules(part):
            _retarget(graph_module, target)


def moved(tensor: torch.Tensor, target: torch.device, memo: Memo) -> torch.Tensor:
    """The tensor on a device: itself where it is there, and always the same one for the same tensor."""
    if same_torch_device(tensor.device, target) or tensor.device.type in _ANY_DEVICE:
        return tensor
    key = (id(tensor), str(target))
    if key not in memo:
        there = tensor.detach().to(target)
        memo[key] = (
            torch.nn.Parameter(there, requires_grad=tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter)
            else there.requires_grad_(tensor.requires_grad)
        )
    return memo[key]


def _retarget(graph_module: GraphModule, target: torch.device) -> None:
    """Rewrite the devices that operators name (factories, casts, autocast) and the devices of fake values."""
    for node in graph_module.graph.nodes:
        _retarget_node(node, target)
        if "val" in node.meta:
            node.meta["val"] = fake_on(node.meta["val"], target)
    graph_module.recompile()


def _retarget_node(node: Node, target: torch.device) -> None:
    rename_devices(node, target, kept=_ANY_DEVICE)
    if isinstance(node.target, torch._ops.HigherOrderOperator) and "autocast" in str(node.target):
        node.args = (target.type, *node.args[1:])
    if target.type != "cpu" and makes_from_nothing(node) and not names_device(node) and not _on_meta(node):
        node.kwargs = {**node.kwargs, "device": target}


def _on_meta(node: Node) -> bool:
    """Whether the model itself asks for a tensor without memory."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in pytree.tree_leaves(value_of(node)))


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
        if (leaf.device.type in _ANY_DEVICE and not from_anywhere) or (
            mode := getattr(leaf, "fake_mode", None)
        ) is None:
            return leaf
        with mode, torch.no_grad():  # a fake value has no history
            if leaf.device.type in _ANY_DEVICE:
                made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=target)
            else:
                made = leaf.to(target)
        return made.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, value)
