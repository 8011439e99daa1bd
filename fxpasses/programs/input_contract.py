"""What a lowered model accepts: the structure, shapes, dtypes and ranges that it was captured with, checked in words.

The check runs before each call and costs a few microseconds an input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from fxpasses.errors import InputError, also_as

__all__ = ["InputContract"]

_MISFIT = also_as(InputError, TypeError())
"""Too many, too few, unknown or otherwise nested arguments are a TypeError, as of any function."""


@attrs.frozen
class _Leaf:
    """One tensor, number or constant among the flattened inputs."""

    path: str
    shape: tuple[Any, ...] | None  # ints and sympy expressions; None for what is no tensor
    dtype: torch.dtype | None
    constant: Any = None


@attrs.frozen(eq=False)
class InputContract:
    """The inputs a program was captured with.

    Args:
        names: The parameters of its ``forward``, positional ones first.
        positional: How many of them were passed by position.
        specs: The structure of each.
        leaves: The flattened inputs, for each parameter.
        ranges: The allowed values of each symbol: lower and upper bound, None where there is none.
    """

    names: tuple[str, ...]
    positional: int
    specs: tuple[pytree.TreeSpec, ...]
    leaves: tuple[tuple[_Leaf, ...], ...]
    ranges: Mapping[str, tuple[int | None, int | None]]

    @classmethod
    def of(cls, program: ExportedProgram) -> InputContract:
        """Read the contract off a program."""
        args_spec, kwargs_spec = program.call_spec.in_spec.children()
        specs = (*args_spec.children(), *kwargs_spec.children())
        keyword_names = tuple(kwargs_spec.context or ())
        forward_names = _forward_names(program, len(args_spec.children()), keyword_names)
        values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
        flat = []
        for spec in program.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                named = getattr(spec.arg, "name", "")
                flat.append((values.get(named), getattr(spec.arg, "value", None)))
        leaves: list[tuple[_Leaf, ...]] = []
        at = 0
        for name, spec in zip(forward_names, specs, strict=True):
            chunk = flat[at : at + spec.num_leaves]
            at += spec.num_leaves
            leaves.append(tuple(_leaf(name, index, len(chunk), *each) for index, each in enumerate(chunk)))
        ranges = {str(symbol): _bounds(bound) for symbol, bound in program.range_constraints.items()}
        return cls(forward_names, len(args_spec.children()), specs, tuple(leaves), ranges)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check a call and put its arguments in the captured order.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments, in any order; captured keywords may also come by position and back.

        Returns:
            The arguments as the generated ``forward`` takes them: all by position.

        Raises:
            InputError: arguments are missing, too many, of another structure, shape, dtype, or out of range.
        """
        ordered = self._ordered(args, kwargs)
        if not torch.compiler.is_compiling():  # while it is captured again, sizes are symbols and must stay free
            self._check(ordered)
        return ordered, {}

    def leaves_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Check a call; give its inputs flat, in the order of the program's user inputs.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.

        Raises:
            InputError: as :meth:`bind` does.
        """
        return self._check(self._ordered(args, kwargs))

    def _ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        if len(args) > len(self.names):
            raise _MISFIT(
                f"The model takes {_counted(len(self.names), 'input')} ({', '.join(self.names) or 'none'}), "
                f"but {len(args)} came."
            )
        bound = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise _MISFIT(f"The input {name!r} came twice, by position and by name.")
            if name not in self.names:
                raise _MISFIT(
                    f"The model was captured without an input {name!r}; it takes {', '.join(self.names) or 'none'}."
                )
            bound[name] = value
        missing = [name for name in self.names if name not in bound]
        if missing:
            raise _MISFIT(f"The input {missing[0]!r} is missing; the model takes {', '.join(self.names)}.")
        return tuple([bound[name] for name in self.names])

    def _check(self, ordered: Sequence[Any]) -> list[Any]:
        given_leaves: list[Any] = []
        symbols: dict[str, int] = {}
        later: list[tuple[_Leaf, int, Any, int]] = []
        for name, spec, leaves, value in zip(self.names, self.specs, self.leaves, ordered, strict=True):
            flat, actual = pytree.tree_flatten(value)
            if actual != spec:
                raise _MISFIT(
                    f"The input {name!r} has another structure than the captured one: {_structure(actual)} instead of "
                    f"{_structure(spec)}."
                )
            given_leaves += flat
            for leaf, given in zip(leaves, flat, strict=True):
                self._check_leaf(leaf, given, symbols, later)
        for leaf, axis, expression, size in later:
            wanted = expression.subs({symbol: symbols.get(str(symbol), symbol) for symbol in expression.free_symbols})
            if wanted.is_Integer and int(wanted) != size:
                raise InputError(
                    f"{leaf.path} has size {size} in dimension {axis}, but the captured shape asks for {wanted}."
                )
        return given_leaves

    def _check_leaf(
        self, leaf: _Leaf, given: Any, symbols: dict[str, int], later: list[tuple[_Leaf, int, Any, int]]
    ) -> None:
        if leaf.shape is None:
            if leaf.constant is not None and given != leaf.constant:
                raise InputError(f"{leaf.path} is {given!r}, but the model was captured for {leaf.constant!r} alone.")
            return
        if not isinstance(given, torch.Tensor):
            raise InputError(
                f"{leaf.path} is a {type(given).__name__}, but the model was captured with a tensor there."
            )
        if given.dtype != leaf.dtype:
            raise InputError(f"{leaf.path} has dtype {given.dtype}, but the model was captured with {leaf.dtype}.")
        if given.dim() != len(leaf.shape):
            raise InputError(
                f"{leaf.path} has shape {tuple(given.shape)}, but the model was captured for {self._shape_text(leaf)}."
            )
        for axis, (wanted, size) in enumerate(zip(leaf.shape, given.shape, strict=True)):
            if isinstance(wanted, int):
                if wanted != size:
                    raise InputError(
                        f"{leaf.path} has shape {tuple(given.shape)}, but the model was captured for "
                        f"{self._shape_text(leaf)}: dimension {axis} is fixed at {wanted}."
                    )
            elif isinstance(wanted, sympy.Symbol):
                self._check_symbol(leaf, axis, wanted, int(size), symbols)
            else:
                later.append((leaf, axis, wanted, int(size)))

    def _check_symbol(self, leaf: _Leaf, axis: int, symbol: sympy.Symbol, size: int, symbols: dict[str, int]) -> None:
        name = str(symbol)
        if symbols.setdefault(name, size) != size:
            raise InputError(
                f"{leaf.path} has size {size} in dimension {axis}, but another input has {symbols[name]} for the same "
                f"dynamic size {name}."
            )
        low, high = self.ranges.get(name, (None, None))
        too_small = low is not None and low > 2 and size < low  # 2 is torch's "not captured with 0 or 1", which run
        if too_small or (high is not None and size > high):
            upper = "any size" if high is None else str(high)
            raise InputError(
                f"{leaf.path} has size {size} in dimension {axis}, but the model was captured for {low} to {upper}."
            )

    def _shape_text(self, leaf: _Leaf) -> str:
        return (
            "(" + ", ".join(str(size) for size in leaf.shape or ()) + ("," if len(leaf.shape or ()) == 1 else "") + ")"
        )


def _forward_names(program: ExportedProgram, positional: int, keywords: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the parameters; positional ones are named by the module call graph, else by the first input in each."""
    signature = program.module_call_graph[0].signature
    names = getattr(signature, "forward_arg_names", None)
    if names and len(names) >= positional + len(keywords):
        return (*tuple(names)[:positional], *keywords)
    return (*(f"arg{index}" for index in range(positional)), *keywords)


def _bounds(bound: Any) -> tuple[int | None, int | None]:
    def finite(value: Any) -> int | None:
        return int(value) if getattr(value, "is_Integer", False) or isinstance(value, int) else None

    return finite(bound.lower), finite(bound.upper)


def _leaf(name: str, index: int, count: int, value: Any, constant: Any) -> _Leaf:
    path = f"The input {name!r}" if count == 1 else f"Leaf {index} of the input {name!r}"
    if not isinstance(value, torch.Tensor):
        return _Leaf(path, None, None, constant)
    shape = tuple(size if isinstance(size, int) else size.node.expr for size in value.shape)
    return _Leaf(path, tuple(int(s) if isinstance(s, sympy.Integer) else s for s in shape), value.dtype)


def _structure(spec: pytree.TreeSpec) -> str:
    if spec.is_leaf():
        return "one value"
    kind = getattr(spec.type, "__name__", str(spec.type))
    if kind == "dict" and spec.context:
        return f"a dict with {', '.join(map(str, spec.context))}"
    return f"a {kind} of {spec.num_leaves}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
