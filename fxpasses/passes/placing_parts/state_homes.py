"""Decide where parameters and buffers live that are held at the top level: several parts take them, or share them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Set
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import MAIN_MEMORY, Device
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.passes.placing_parts.copies import DEVICE
from fxpasses.passes.placing_parts.moved_tensors import MovedTensors, tables_of
from fxpasses.passes.placing_parts.moving_parts import fake_on
from fxpasses.passes.placing_parts.streams import Streams

__all__ = ["bring_state_home", "follow_parts"]


def follow_parts(graph_module: GraphModule, device_of: Mapping[str, Device], moved: MovedTensors) -> None:
    """Hold what parts on one torch device took with them outside of parts, too: another name of it, or a result.

    Call it right after the parts are moved: what was moved is known by what was there before.

    Args:
        graph_module: The top level of a split.
        device_of: The device of each part, by the name of its submodule.
        moved: Tensors already moved.
    """
    places = {str(torch.device(device.torch_device)): device for device in device_of.values()}
    home: dict[int, Device] = {}
    for table in _outside_tables(graph_module, device_of):
        for name, held in table.items():
            found = moved.places(held, places) if isinstance(held, torch.Tensor) else []
            if len(found) == 1:
                table[name] = moved.to(held, torch.device(found[0]))
                home[id(table[name])] = places[found[0]]
    for node in graph_module.graph.find_nodes(op="get_attr"):
        device = home.get(id(find_attribute(graph_module, str(node.target)).value))
        if device is not None:
            DEVICE.write(node, device.name)
            if "val" in node.meta:
                node.meta["val"] = fake_on(node.meta["val"], torch.device(device.torch_device))


def _outside_tables(graph_module: GraphModule, parts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Where modules outside of parts hold tensors."""
    inside = {module for part in parts for module in graph_module.get_submodule(part).modules()}
    for module in graph_module.modules():
        if module not in inside:
            yield from tables_of(module)


def bring_state_home(
    graph_module: GraphModule,
    device_of: Mapping[str, Device],
    offloaded: Container[str],
    moved: MovedTensors,
    streams: Streams | None = None,
) -> None:
    """Move state that is passed into parts to where it belongs.

    What a part writes to lives where that part runs. Else it lives where it is used first, of the devices of which some
    part keeps it. What only offloaded parts use lives in main memory.

    Args:
        graph_module: The top level of a split.
        device_of: The device of each part, by the name of its submodule.
        offloaded: Parts that load their parameters.
        moved: Tensors already moved.
        streams: Those of the devices; what is loaded over them is held in memory that they can read by themselves.
    """
    together: dict[object, list[tuple[Node, torch.Tensor]]] = {}  # one tensor may be read by several nodes
    for node in graph_module.graph.find_nodes(op="get_attr"):
        value = find_attribute(graph_module, str(node.target)).value
        if isinstance(value, torch.Tensor):
            together.setdefault(moved.same_memory(value), []).append((node, value))
    effects: EffectAnalysis | None = None
    for group in together.values():
        users = {user for node, _value in group for user in node.users}
        parts = sorted(user for user in users if user.op == "call_module" and str(user.target) in device_of)
        if not parts:
            continue
        effects = effects or analyze_effects(graph_module)
        storages = {storage for node, _value in group for storage in effects.storages(node)}
        home = _home(storages, parts, device_of, offloaded, effects)
        for node, value in group:
            DEVICE.write(node, MAIN_MEMORY if home is None else home.name)
            target = torch.device("cpu") if home is None else torch.device(home.torch_device)
            there = moved.to(value, target)
            if home is None and streams is not None:
                there = _pinned(there, streams)
            _replace(graph_module, value, there)
            if "val" in node.meta:
                node.meta["val"] = fake_on(node.meta["val"], target)


def _home(
    storages: Set[int],
    parts: list[Node],
    device_of: Mapping[str, Device],
    offloaded: Container[str],
    effects: EffectAnalysis,
) -> Device | None:
    """The device whose memory holds it; None for main memory."""
    for part in parts:
        if not storages.isdisjoint(effects.of(part).writes):
            return device_of[str(part.target)]
    resident = {device_of[str(part.target)].name for part in parts if str(part.target) not in offloaded}
    used = (device_of[str(part.target)] for part in parts)
    return next((device for device in used if device.name in resident), None)


def _pinned(value: torch.Tensor, streams: Streams) -> torch.Tensor:
    pinned = streams.pinned(value.detach())
    if pinned.data_ptr() == value.data_ptr():
        return value
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(pinned, requires_grad=value.requires_grad)
    return pinned.requires_grad_(value.requires_grad)


def _replace(graph_module: GraphModule, old: torch.Tensor, new: torch.Tensor) -> None:
    """Put a tensor in the place of another under all its names, so that tied ones stay tied."""
    if new is old:
        return
    for module in graph_module.modules():
        for table in tables_of(module):
            for name, held in table.items():
                if held is old:
                    table[name] = new
