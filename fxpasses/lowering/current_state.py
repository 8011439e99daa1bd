"""What a lowered module holds now: parameters that were moved to a device and buffers that were written are its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.devices import Device, holds_no_data
from fxpasses.errors import InputError

__all__ = ["check_data", "replaced_tensors", "tensors_of"]


def replaced_tensors(
    module: GraphModule, program: ExportedProgram, qualified_names: Mapping[str, str]
) -> dict[int, torch.Tensor]:
    """The tensors of a program in whose place a module holds others, by ``id``; with what is there now.

    Each is where the one of the program is: what is on another device is copied, nothing else is. Tied names have one
    tensor. A device that holds no data has taken none from the program, whose own are there still.

    Args:
        module: What was made of the program.
        program: The program.
        qualified_names: The name in the program of each tensor of the module, by its name there.
    """
    held = _held_now(module, qualified_names)
    found: dict[int, torch.Tensor] = {}
    for name, (tensor, is_used) in held.items():
        original = program.state_dict.get(name, program.constants.get(name))
        if isinstance(original, torch.Tensor) and (is_used or id(original) not in found):
            found[id(original)] = _in_place_of(original, tensor)
    return {key: tensor for key, tensor in found.items() if id(tensor) != key}


def check_data(
    module: GraphModule, program: ExportedProgram, qualified_names: Mapping[str, str], device_of: Mapping[str, Device]
) -> None:
    """Refuse to write a module that was moved to ``meta``: the program holds what it was made with, which is old.

    Args:
        module: What was made of the program.
        program: The program.
        qualified_names: The name in the program of each tensor of the module, by its name there.
        device_of: The device of each submodule. On one that holds no data it was made without.

    Raises:
        InputError: something has no data that the program has.
    """
    on_paper = tuple(f"{name}." for name, device in device_of.items() if holds_no_data(device.torch_device))
    for here, tensor in tensors_of(module).items():
        name = qualified_names.get(here, here)
        original = program.state_dict.get(name, program.constants.get(name))
        is_lost = tensor.is_meta and isinstance(original, torch.Tensor) and not original.is_meta
        if is_lost and not here.startswith(on_paper):
            raise InputError(
                f"{name!r} of the lowered model is on meta and holds no data that could be written. Save the model "
                "before it is moved there, or give it its state back: load_state_dict(state, assign=True)."
            )


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All tensors of a module under each of their names: parameters, buffers, and constants in plain attributes."""
    found: dict[str, torch.Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for table in (part._parameters, part._buffers, vars(part)):
            found.update({prefix + name: each for name, each in table.items() if isinstance(each, torch.Tensor)})
    return found


def _held_now(module: GraphModule, qualified_names: Mapping[str, str]) -> dict[str, tuple[torch.Tensor, bool]]:
    """Each tensor by its name in the program, and whether the module computes with it: what nobody uses goes stale."""
    read = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    found: dict[str, tuple[torch.Tensor, bool]] = {}
    for here, tensor in tensors_of(module).items():
        name, is_used = qualified_names.get(here, here), here in qualified_names or here in read
        if is_used or name not in found:
            found[name] = tensor, is_used
    return found


def _in_place_of(original: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if tensor is original or (tensor.is_meta and not original.is_meta):
        return original
    moved = tensor.detach().to(original.device)
    return torch.nn.Parameter(moved, tensor.requires_grad) if isinstance(original, torch.nn.Parameter) else moved
