"""Put the parts of a split graph on their devices: tensors moved once, one copy node per value and target device.

The result is an ordinary ``GraphModule``: copies are ``aten._to_copy`` calls in its graph, which autograd passes
through and which generated code frees after their last use.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.devices import Device
from fxpasses.effects import analyze_effects
from fxpasses.errors import PlacementError
from fxpasses.metadata import MetaKey
from fxpasses.partitioners.cost import tensor_bytes, tensors_in
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.values import nested_graph_modules

__all__ = ["COPY_OF", "DEVICE", "Copy", "PlaceOnDevices", "copies_of", "move_part"]

_COPY = torch.ops.aten._to_copy.default
_ANY_DEVICE = ("meta",)

Memo = dict[tuple[int, str], torch.Tensor]
"""Tensors already moved, by identity and device, so that tied ones stay tied."""


@attrs.frozen
class Copy:
    """One transfer between devices.

    Args:
        value: Name of the node whose value is sent.
        source: Where it comes from; ``"host"`` for what the caller passes in.
        target: The device that receives it.
        size: Bytes.
    """

    value: str
    source: str
    target: str
    size: int


DEVICE = MetaKey[str]("fxpasses.device", made_by="PlaceOnDevices(...)", depends_on_value=False)
"""The name of the device whose memory holds a node's value."""

COPY_OF = MetaKey[Copy]("fxpasses.copy", made_by="PlaceOnDevices(...)", depends_on_value=False)
"""On a copy node: what it sends where."""


def copies_of(graph_module: GraphModule) -> list[Copy]:
    """The transfers of a placed graph, in execution order."""
    return [COPY_OF.read(node) for node in graph_module.graph.nodes if COPY_OF.has(node)]


@attrs.frozen
class PlaceOnDevices(PassBase):
    """Move each part to its device and copy what crosses.

    Args:
        device_of: The device of each part, by the name of its submodule.

    Raises:
        PlacementError: the graph calls no submodule of that name, or computes outside of all parts.
    """

    visit_nested = False
    device_of: Mapping[str, Device]

    def requires(self, graph_module: GraphModule) -> None:
        """Every part is there."""
        called = {str(node.target) for node in graph_module.graph.find_nodes(op="call_module")}
        for name in self.device_of:
            if name not in called:
                raise PlacementError(
                    f"The graph calls no part {name!r}; it calls {', '.join(sorted(called)) or 'none'}."
                )

    def call(self, graph_module: GraphModule) -> PassResult:
        """Move, copy, and bring results back to where the model would give them."""
        memo: Memo = {}
        wanted = _result_devices(graph_module)
        for name, device in self.device_of.items():
            move_part(graph_module.get_submodule(name), device.torch_device, memo)
        _insert_copies(graph_module, self.device_of)
        _return_results(graph_module, wanted)
        return PassResult(graph_module, True)


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
                    table[name] = _moved(tensor, target, memo)
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, _moved(value, target, memo))
    if isinstance(part, GraphModule):
        for graph_module in nested_graph_modules(part):
            _retarget(graph_module, target)


def _moved(tensor: torch.Tensor, target: torch.device, memo: Memo) -> torch.Tensor:
    if _same_device(tensor.device, target) or tensor.device.type in _ANY_DEVICE:
        return tensor
    key = (id(tensor), str(target))
    if key not in memo:
        moved = tensor.detach().to(target)
        memo[key] = (
            torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter)
            else moved.requires_grad_(tensor.requires_grad)
        )
    return memo[key]


def _same_device(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def _retarget(graph_module: GraphModule, target: torch.device) -> None:
    """Rewrite the devices that operators name (factories, casts, autocast) and the devices of fake values."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function" or node.op == "call_method":
            args, kwargs = _with_device((node.args, node.kwargs), target)
            if isinstance(node.target, torch._ops.HigherOrderOperator) and "autocast" in str(node.target):
                args = (target.type, *args[1:])
            if (args, kwargs) != (node.args, node.kwargs):
                node.args, node.kwargs = args, kwargs
        if "val" in node.meta:
            node.meta["val"] = _fake_on(node.meta["val"], target)
    graph_module.recompile()


def _with_device(arguments: Any, target: torch.device) -> Any:
    def swap(leaf: Any) -> Any:
        return target if isinstance(leaf, torch.device) and leaf.type != "meta" else leaf

    return torch.fx.node.map_aggregate(arguments, swap)


def _fake_on(value: Any, target: torch.device) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and not _same_device(leaf.device, target) and leaf.device.type != "meta":
            mode = getattr(leaf, "fake_mode", None)
            if mode is None:
                return leaf
            with mode:
                return leaf.to(target)
        return leaf

    return pytree.tree_map(move, value)


def _insert_copies(graph_module: GraphModule, device_of: Mapping[str, Device]) -> None:
    """Insert one copy per (value, target device), right before the first part that needs it.

    An input of the caller that a part writes to is written back after it.
    """
    graph = graph_module.graph
    effects = analyze_effects(graph_module)
    copied: dict[tuple[Node, str], Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_module" or str(node.target) not in device_of:
            _inherit(node)
            continue
        device = device_of[str(node.target)]
        DEVICE.write(node, device.name)
        if "val" in node.meta:
            node.meta["val"] = _fake_on(node.meta["val"], torch.device(device.torch_device))
        written = set(effects.of(node).writes)
        for value in dict.fromkeys(node.all_input_nodes):
            if not _crosses(value, device):
                continue
            if (value, device.name) not in copied:
                with graph.inserting_before(node):
                    copied[value, device.name] = _copy_node(graph_module, value, device)
            replica = copied[value, device.name]
            node.replace_input_with(value, replica)
            if value.op == "placeholder" and written.intersection(effects.storages(value)):
                with graph.inserting_after(node):
                    graph.call_function(torch.ops.aten.copy_.default, (value, replica))


def _inherit(node: Node) -> None:
    """A ``getitem`` of a part's results lives where the part does."""
    homes = [DEVICE.read(used) for used in node.all_input_nodes if DEVICE.has(used)]
    if homes and node.op not in ("placeholder", "output"):
        DEVICE.write(node, homes[0])
        if "val" in node.meta and (source := tensors_in(node.all_input_nodes[0].meta.get("val"))):
            node.meta["val"] = _fake_on(node.meta["val"], source[0].device)


def _crosses(value: Node, device: Device) -> bool:
    """Whether a device must receive a copy of a value: it lives in another memory and holds tensors."""
    tensors = tensors_in(value.meta.get("val"))
    if not tensors or isinstance(value.meta["val"], (tuple, list)):
        return False
    if DEVICE.has(value):
        return DEVICE.read(value) != device.name
    return not _same_device(tensors[0].device, torch.device(device.torch_device))


def _copy_node(graph_module: GraphModule, value: Node, device: Device) -> Node:
    tensor = tensors_in(value.meta["val"])[0]
    target = torch.device(device.torch_device)
    to_gpu = tensor.device.type == "cpu" and target.type == "cuda"
    kwargs: dict[str, Any] = {"device": target, **({"non_blocking": True} if to_gpu else {})}
    node = graph_module.graph.create_node(
        "call_function", _COPY, (value,), kwargs, name=f"{value.name}_to_{device.name}"
    )
    node.meta.update({key: copy.copy(entry) for key, entry in value.meta.items() if key != COPY_OF.name})
    node.meta["val"] = _fake_on(value.meta["val"], target)
    source = DEVICE.read(value) if DEVICE.has(value) else "host"
    DEVICE.write(node, device.name)
    COPY_OF.write(node, Copy(value.name, source, device.name, tensor_bytes(tensor)))
    return node


def _result_devices(graph_module: GraphModule) -> dict[Node, torch.device]:
    """Where the model itself would give each of its results: read before anything moves."""
    devices: dict[Node, torch.device] = {}
    for value in graph_module.graph.output_node().all_input_nodes:
        if tensors := tensors_in(value.meta.get("val")):
            devices[value] = tensors[0].device
    return devices


def _return_results(graph_module: GraphModule, wanted: Mapping[Node, torch.device]) -> None:
    """Give results on the torch device on which the model itself would give them."""
    output = graph_module.graph.output_node()
    for value, home in wanted.items():
        tensors = tensors_in(value.meta.get("val"))
        if tensors and not _same_device(tensors[0].device, home):
            with graph_module.graph.inserting_before(output):
                replica = _copy_node(graph_module, value, Device("host", torch_device=str(home)))
            output.replace_input_with(value, replica)
