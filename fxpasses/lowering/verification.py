"""Compare a lowered model with the model itself: same inputs, same random seed, same state before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fxpasses.report.summary import CheckRow
from fxpasses.seeding import seeded

__all__ = ["compare_with_model"]

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def compare_with_model(
    model: Any,
    program: ExportedProgram,
    lowered: torch.nn.Module,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> CheckRow:
    """Run both on the same inputs and compare every output tensor, and what they leave in buffers.

    Neither the model nor the lowered module is left changed: state that a run writes to is put back.

    Args:
        model: The model; its program stands in for it where it is no module.
        program: The captured program.
        lowered: What to compare with it.
        args: Inputs; by default the program's own example inputs.
        kwargs: Keyword inputs.
    """
    if args is None and kwargs is None:
        args, kwargs = program.example_inputs or ((), {})
    reference = model if isinstance(model, torch.nn.Module) else program.module(check_guards=False)
    with torch.no_grad():
        expected, state = _run(reference, args or (), kwargs or {})
        actual, own_state = _run(lowered, args or (), kwargs or {}, _buffer_names(lowered, program))
    if len(expected) != len(actual):
        return CheckRow(False, False, len(actual), float("inf"), "the same number of tensors")
    pairs = list(zip(expected, actual, strict=True))
    stale = tuple(name for name, left in own_state.items() if name in state and not _close(state[name], left))
    exact = all(_identical(one, other) for one, other in pairs) and not stale
    difference = max((_difference(one, other) for one, other in pairs), default=0.0)
    tolerance = max((_TOLERANCES.get(one.dtype, 0.0) for one in expected), default=0.0)
    ok = difference <= tolerance * _scale(expected) and not stale
    return CheckRow(ok, exact, len(actual), difference, f"{tolerance:g} relative", stale)


def _buffer_names(lowered: torch.nn.Module, program: ExportedProgram) -> dict[str, str]:
    """Names in the model by those in the lowered module; without other names of what its parts hold."""
    names: Mapping[str, str] = getattr(lowered, "qualified_names", {})
    tensors = {**program.constants, **program.state_dict}
    held = {id(tensors[name]) for name in names.values() if name in tensors}
    others = (name for name, _buffer in lowered.named_buffers() if name not in names)
    return {**names, **{name: name for name in others if id(tensors.get(name)) not in held}}


def _run(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """What a run gives, and what it leaves in buffers: all, or those whose names in the model are given."""
    with _state_kept(module), seeded():
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (tuple(args), dict(kwargs)))
        results = _tensors(module(*args, **kwargs))
        left = dict(module.named_buffers(remove_duplicate=False))
        named = left if names is None else {names[here]: each for here, each in left.items() if here in names}
        return results, {name: each.detach().cpu().clone() for name, each in named.items()}


@contextlib.contextmanager
def _state_kept(module: torch.nn.Module) -> Iterator[None]:
    """Put back buffers that a run writes to or replaces; parameters are not written in a forward pass."""
    tables = [(part._buffers, dict(part._buffers)) for part in module.modules()]
    kept = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for table, before in tables:
            table.clear()
            table.update(before)
        with torch.no_grad():
            for buffer, content in kept:
                buffer.copy_(content)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf.detach().cpu() for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a buffer holds the same; forward may have replaced it by one of another type."""
    return _difference(one.to(other.dtype), other) <= _TOLERANCES.get(other.dtype, 0.0) * _scale([one])


def _scale(tensors: Sequence[torch.Tensor]) -> float:
    """The largest number, where it is above one."""
    return max([1.0, *(float(one.abs().max()) for one in tensors if one.is_floating_point() and one.numel())])


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Compare NaN with NaN as equal: what counts is the pattern."""
    return torch.nan_to_num(tensor) if tensor.is_floating_point() else tensor


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.numel() == 0:
        return 0.0
    if one.dtype == torch.bool:
        return float((one != other).any())
    wide = torch.complex128 if one.is_complex() else torch.float64
    return float((one.to(wide) - other.to(wide)).abs().nan_to_num(0.0).max())
