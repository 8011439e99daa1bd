"""Programs that would go on with a buffer that the model replaces: refused where their results depend on it."""

from __future__ import annotations

import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node

from fxpasses.effects import analyze_effects
from fxpasses.errors import CaptureError
from fxpasses.programs.replaced_buffers import ReplacedBuffers, share_memory

__all__ = ["refuse_stale_buffers"]


def refuse_stale_buffers(model: torch.nn.Module, program: ExportedProgram, replaced: ReplacedBuffers) -> None:
    """Refuse a program that would go on with a stale buffer; warn of one in checkpoints that nothing depends on.

    Args:
        model: The model.
        program: What was captured of it.
        replaced: What its forward replaced meanwhile.

    Raises:
        CaptureError: the program reads a buffer that cannot take its new value; or what takes it shares its memory with
            another buffer, or with a result.
    """
    for place in replaced.lost:
        _refuse_lost(model, program, replaced, place)
    for place in replaced.written:
        _refuse_shared(model, replaced, place)
    if (node := _stale_result(model, program, replaced)) is not None:
        raise CaptureError(
            f"The forward of {type(model).__name__} replaces a buffer and gives back its old value ({node.name!r}), "
            "over which a program writes; give back a .clone() of it.",
            reason="forward gives back a buffer that it replaces",
            node=node,
        )


def _refuse_lost(model: torch.nn.Module, program: ExportedProgram, replaced: ReplacedBuffers, place: int) -> None:
    module, field, name = replaced.places[place]
    buffer, constant, reason = replaced.buffer(place), replaced.constants.get(place), replaced.lost[place]
    if buffer is None or _is_same(buffer, constant):
        return
    what = f"The forward of {type(model).__name__} replaces the buffer {name!r} by {reason}."
    if _is_read(model, program, buffer):
        raise CaptureError(
            f"{what} A program cannot keep that, and would go on with the old one; write into a buffer of a fixed "
            f"shape and type, in place: self.{field}.copy_(...).",
            reason=f"forward replaces the buffer {name!r} by {reason}",
        )
    if constant is None and field not in module._non_persistent_buffers_set:
        warnings.warn(
            f"{what} Results do not depend on it, but it stays as it is in the captured program.", stacklevel=4
        )


def _refuse_shared(model: torch.nn.Module, replaced: ReplacedBuffers, place: int) -> None:
    _module, field, name = replaced.places[place]
    if (other := _sharing(replaced, place)) is not None:
        raise CaptureError(
            f"The forward of {type(model).__name__} replaces the buffer {name!r}, which shares its memory with "
            f"{other!r}, and a program can only write to both; give each its own memory (.clone()), or write in place: "
            f"self.{field}.copy_(...).",
            reason=f"forward replaces the buffer {name!r}, which shares its memory",
        )


def _is_read(model: torch.nn.Module, program: ExportedProgram, buffer: torch.Tensor) -> bool:
    """Whether the program reads a buffer, under whatever name."""
    names = {name for name, each in model.named_buffers(remove_duplicate=False) if each is buffer}
    sources = program.graph_signature.inputs_to_buffers
    return any(node.users and sources.get(node.name) in names for node in program.graph.find_nodes(op="placeholder"))


def _is_same(buffer: torch.Tensor, constant: torch.Tensor | None) -> bool:
    """Whether a buffer is replaced by what it holds, as rotary embeddings do that look at the length of the input."""
    if constant is None or isinstance(buffer, FakeTensor) or buffer.is_meta or constant.device != buffer.device:
        return False
    return constant.dtype == buffer.dtype and torch.equal(constant, buffer)


def _stale_result(model: torch.nn.Module, program: ExportedProgram, replaced: ReplacedBuffers) -> Node | None:
    """A result in the memory of a buffer that is written when all else is computed."""
    written = [replaced.buffer(place) for place in replaced.written]
    if not written:
        return None
    buffers, sources = dict(model.named_buffers(remove_duplicate=False)), program.graph_signature.inputs_to_buffers
    effects = analyze_effects(program.graph_module)
    memory = {
        storage
        for node in program.graph.find_nodes(op="placeholder")
        if any(buffers.get(sources.get(node.name, "")) is each for each in written if each is not None)
        for storage in effects.storages(node)
    }
    results = program.graph.output_node().all_input_nodes
    return next((node for node in results if not memory.isdisjoint(effects.storages(node))), None)


def _sharing(replaced: ReplacedBuffers, place: int) -> str | None:
    """Another buffer in the memory of one: a view of it, or the same tensor under another name."""
    if (buffer := replaced.buffer(place)) is None:
        return None
    for index, (_module, _field, name) in enumerate(replaced.places):
        other = replaced.buffer(index)
        if index != place and other is not None and share_memory(buffer, other):
            return name
    return None
