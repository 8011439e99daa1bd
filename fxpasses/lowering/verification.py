"""Compare a lowered model with the model itself: same inputs, same random seed, same state before."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fxpasses.effects import analyze_effects
from fxpasses.programs.unseen_state import unchanged
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
    """Run both on the same inputs and compare every output tensor, and what they leave in buffers and parameters.

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
    written = _written_parameters(program)
    with torch.no_grad():
        expected, state = _run(reference, args or (), kwargs or {}, written)
        actual, own_state = _run(lowered, args or (), kwargs or {}, written, _buffer_names(lowered, program))
    if len(expected) != len(actual):
        return CheckRow(False, False, len(actual), math.inf, "the same number of tensors")
    pairs = list(zip(expected, actual, strict=True))
    stale = tuple(
        name for name, left in own_state.items() if name in state and not _close(state[name].to(left.dtype), left)
    )
    exact = all(_identical(one, other) for one, other in pairs) and not stale
    difference = max((_difference(one, other) for one, other in pairs), default=0.0)
    tolerance = max(map(_tolerance, expected), default=0.0)
    ok = all(_close(one, other) for one, other in pairs) and not stale
    return CheckRow(ok, exact, len(actual), difference, f"{tolerance:g} relative", stale)


def _written_parameters(program: ExportedProgram) -> list[str]:
    """The names of parameters that a run writes to, as an embedding with ``max_norm`` does."""
    names, written = (
        program.graph_signature.inputs_to_parameters,
        analyze_effects(program.graph_module).written_inputs(),
    )
    return [names[node.name] for node in written if node.name in names]


def _buffer_names(lowered: torch.nn.Module, program: ExportedProgram) -> dict[str, str]:
    """Names in the model by those in the lowered module; without other names of what its parts hold."""
    names: Mapping[str, str] = getattr(lowered, "qualified_names", {})
    tensors = {**program.constants, **program.state_dict}
    held = {id(tensors[name]) for name in names.values() if name in tensors}
    others = (name for name, _buffer in lowered.named_buffers() if name not in names)
    return {**names, **{name: name for name in others if id(tensors.get(name)) not in held}}


def _run(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    written: Sequence[str],
    names: Mapping[str, str] | None = None,
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """What a run gives, and what it leaves in parameters that it writes to and in buffers.

    These are all, or those whose names in the model are given.
    """
    parameters = {name: module.get_parameter(name) for name in written}
    with unchanged(module), _state_kept(module, parameters.values()), seeded():
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (tuple(args), dict(kwargs)))
        results = _tensors(module(*args, **kwargs))
        left = dict(module.named_buffers(remove_duplicate=False))
        named = left if names is None else {names[here]: each for here, each in left.items() if here in names}
        return results, {name: each.detach().cpu().clone() for name, each in {**named, **parameters}.items()}


@contextlib.contextmanager
def _state_kept(module: torch.nn.Module, parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Put back buffers that a run writes to or replaces, and some parameters."""
    tables = [(part._buffers, dict(part._buffers)) for part in module.modules()]
    kept = [(tensor, tensor.detach().clone()) for tensor in (*module.buffers(), *parameters)]
    try:
        yield
    finally:
        for table, before in tables:
            table.clear()
            table.update(before)
        with torch.no_grad():
            for tensor, content in kept:
                tensor.copy_(content)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf.detach().cpu() for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding, beside the largest number of the first."""
    return _difference(one, other) <= _tolerance(one) * _scale(one)


def _tolerance(tensor: torch.Tensor) -> float:
    """The share that rounding explains; none of whole numbers."""
    return _TOLERANCES.get(tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype, 0.0)


def _scale(tensor: torch.Tensor) -> float:
    """The largest finite number, where it is above one."""
    size = _wide(tensor).abs()
    return max(1.0, float(size[size.isfinite()].max())) if size.isfinite().any() else 1.0


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Number by number; NaN is NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | (one != one) & (other != other)).all())


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest one between two numbers; ``inf`` where one of them is NaN or infinite, and the other is not."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if one.numel() == 0:
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        return float((one != other).any()) if one.dtype == torch.bool else _of_whole_numbers(one, other)
    one, other = _wide(one), _wide(other)
    is_finite = one.isfinite() & other.isfinite()
    if not _identical(one[is_finite.logical_not()], other[is_finite.logical_not()]):
        return math.inf
    return float((one - other)[is_finite].abs().max()) if is_finite.any() else 0.0


def _of_whole_numbers(one: torch.Tensor, other: torch.Tensor) -> float:
    """At least one where they differ, though numbers beyond 2**53 have no difference as floats."""
    rounded = float((one.to(torch.float64) - other.to(torch.float64)).abs().max())
    return max(rounded, 1.0) if bool((one != other).any()) else 0.0


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of 64 bits; of a complex number both parts."""
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.to(torch.float64)
