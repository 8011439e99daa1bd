"""What a lowered model accepts: the structure, shapes, dtypes and ranges that it was captured with, checked in words.

The check runs before each call and costs a few microseconds an input. It is plain arithmetic, so that it also runs
while the model is compiled or captured again: sizes are symbols then, and what is asked of them becomes a condition of
the new graph.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Proxy
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from fxpasses.errors import InputError, also_as
from fxpasses.programs.input_sources import InputSources, forward_names
from fxpasses.wording import counted, listed

__all__ = ["InputContract", "in_order", "is_traced"]

_MISFIT = also_as(InputError, TypeError())
"""Too many, too few, unknown or otherwise nested arguments are a TypeError, as of any function."""
_OTHER = also_as(InputError, RuntimeError())
"""Shapes, types, sizes and constants that were not captured are a RuntimeError, as of torch's unflattened modules."""
_FUNCTIONS = {"math": math, "torch": torch}
_KNOWN = {*_FUNCTIONS, "flat", "max", "min", "abs", "int", "float", "round", "pow"}
"""What these conditions may call, and may name."""
_TORCHS_OWN = re.compile(r"sym_\w+")
"""The functions of torch among them."""
MOST_TOLD = 4
"""Inputs of which an error tells the sizes."""


@attrs.frozen(eq=False)
class _Derived:
    """A size that follows from others: the symbols, and the size by their values."""

    symbols: tuple[str, ...]
    size: Callable[..., int]

    @classmethod
    def of(cls, expression: sympy.Expr) -> _Derived:
        symbols = tuple(sorted(map(str, expression.free_symbols)))
        code = PythonPrinter().doprint(expression)
        return cls(symbols, eval(f"lambda {', '.join(symbols)}: {code}", {**_FUNCTIONS}))


@attrs.frozen(eq=False)
class _Relation:
    """A condition on sizes under which the graph was captured: in words, and whether it holds for flattened inputs."""

    words: str
    holds: Callable[[Sequence[Any]], bool]

    @classmethod
    def of(cls, code: str, sources: InputSources) -> _Relation | None:
        """Read what torch wrote of inputs; None where it speaks of something else.

        What it wrote of strides is no condition here: inputs may lie in memory as they like.
        """
        if ".stride()" in code or ".storage_offset()" in code:
            return None
        written = sources.rewritten(code, lambda source: f"flat[{source.place}]")
        if not _is_arithmetic(written):
            return None
        words = sources.rewritten(code, lambda source: source.words).replace(".size()[", ".shape[")
        return cls(words, eval(f"lambda flat: {written}", {**_FUNCTIONS}))


def _is_arithmetic(code: str) -> bool:
    """Whether it is nothing else: a program may come from a file that somebody else wrote."""
    for node in ast.walk(ast.parse(code, mode="eval")):
        if isinstance(node, ast.Name) and node.id not in _KNOWN:
            return False
        if isinstance(node, ast.Attribute):
            is_of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
            if node.attr.startswith("_") or (is_of_torch and not _TORCHS_OWN.fullmatch(node.attr)):
                return False
        if isinstance(node, (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
    return True


@attrs.frozen
class _Leaf:
    """One tensor, number or constant among the flattened inputs.

    Args:
        path: What it is called in errors.
        shape: Ints and sympy expressions; None for what is no tensor.
        dtype: None for what is no tensor.
        is_constant: Whether the model was captured for one value alone.
        constant: That value.
        sizes: For each dimension its size, the name of its symbol, or how it follows from others.
    """

    path: str
    shape: tuple[Any, ...] | None
    dtype: torch.dtype | None
    is_constant: bool = False
    constant: Any = None
    sizes: tuple[int | str | _Derived, ...] = ()


@attrs.frozen(eq=False)
class InputContract:
    """The inputs a program was captured with.

    Args:
        names: The parameters of its ``forward``, positional ones first.
        positional: How many of them were passed by position.
        specs: The structure of each.
        leaves: The flattened inputs, for each parameter.
        ranges: The allowed values of each symbol: lower and upper bound, None where there is none.
        relations: What else has to hold of sizes.
    """

    names: tuple[str, ...]
    positional: int
    specs: tuple[pytree.TreeSpec, ...]
    leaves: tuple[tuple[_Leaf, ...], ...]
    ranges: Mapping[str, tuple[int | None, int | None]]
    relations: tuple[_Relation, ...] = ()

    @classmethod
    def of(cls, program: ExportedProgram) -> InputContract:
        """Read the contract off a program."""
        args_spec, kwargs_spec = program.call_spec.in_spec.children()
        specs = (*args_spec.children(), *kwargs_spec.children())
        names = forward_names(program)
        values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
        flat = []
        for spec in program.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                named = getattr(spec.arg, "name", "")
                flat.append((values.get(named), spec.arg))
        leaves: list[tuple[_Leaf, ...]] = []
        at = 0
        for name, spec in zip(names, specs, strict=True):
            chunk = flat[at : at + spec.num_leaves]
            at += spec.num_leaves
            leaves.append(tuple(_leaf(name, index, len(chunk), *each) for index, each in enumerate(chunk)))
        ranges = {str(symbol): _bounds(bound) for symbol, bound in program.range_constraints.items()}
        sources, conditions = InputSources.of(program), getattr(program, "_guards_code", None) or ()
        relations = (_Relation.of(code, sources) for code in conditions)
        found = tuple(each for each in relations if each is not None)
        return cls(names, len(args_spec.children()), specs, tuple(leaves), ranges, found)

    @property
    def types(self) -> tuple[torch.dtype | None, ...]:
        """The type of each flattened input; None for what is no tensor."""
        return tuple(leaf.dtype for leaves in self.leaves for leaf in leaves)

    def in_types(self, converted: Mapping[torch.dtype, torch.dtype]) -> InputContract:
        """The same for a program that was converted as a whole: inputs come in the new types."""

        def convert(leaf: _Leaf) -> _Leaf:
            return leaf if leaf.dtype is None else attrs.evolve(leaf, dtype=converted.get(leaf.dtype, leaf.dtype))

        return attrs.evolve(self, leaves=tuple(tuple(map(convert, leaves)) for leaves in self.leaves))

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
        ordered, _leaves = self._check(self.arranged(args, kwargs))
        return ordered, {}

    def leaves_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Check a call; give its inputs flat, in the order of the program's user inputs.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.

        Raises:
            InputError: as :meth:`bind` does.
        """
        return self._check(self.arranged(args, kwargs))[1]

    def arranged(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put the arguments of a call in the captured order, all by position, and check nothing else.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.

        Raises:
            InputError: arguments are missing, or too many.
        """
        if len(args) > len(self.names):
            raise _MISFIT(
                f"The model takes {counted(len(self.names), 'input')} ({', '.join(self.names) or 'none'}), "
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

    def check_leaves(self, given: Sequence[Any]) -> None:
        """Check inputs that are flat already, in the order of the program's user inputs.

        Raises:
            InputError: they have other shapes or types than the captured ones, or are out of range.
        """
        symbols: dict[str, int] = {}
        later: list[tuple[_Leaf, int, _Derived, int]] = []
        at = 0
        for leaves in self.leaves:
            for leaf in leaves:
                self._check_leaf(leaf, given[at], symbols, later)
                at += 1
        for leaf, axis, derived, size in later:
            known = [symbols[symbol] for symbol in derived.symbols if symbol in symbols]
            if len(known) == len(derived.symbols) and derived.size(*known) != size:
                raise _OTHER(
                    f"{leaf.path} has size {size} in dimension {axis}, but the captured shape asks for "
                    f"{derived.size(*known)}."
                )
        for relation in self.relations:
            if not relation.holds(given):
                raise _OTHER(
                    f"The model was captured for sizes with {relation.words}; {self._sizes_text(given)}. "
                    "Capture it once more for such sizes."
                )

    def _check(self, ordered: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
        """The arguments, dicts in the captured order, and their leaves."""
        given_leaves: list[Any] = []
        for place, (name, spec) in enumerate(zip(self.names, self.specs, strict=True)):
            flat, actual = pytree.tree_flatten(ordered[place])
            if actual != spec:
                value = in_order(ordered[place], spec, name)
                ordered = (*ordered[:place], value, *ordered[place + 1 :])
                flat = pytree.tree_leaves(value)
            given_leaves += flat
        if not is_traced(given_leaves):
            self.check_leaves(given_leaves)
        return ordered, given_leaves

    def _check_leaf(
        self, leaf: _Leaf, given: Any, symbols: dict[str, int], later: list[tuple[_Leaf, int, _Derived, int]]
    ) -> None:
        if leaf.shape is None:
            if leaf.is_constant and not _is_same(given, leaf.constant):
                words = f"a {type(given).__name__}" if isinstance(given, torch.Tensor) else repr(given)
                raise _OTHER(f"{leaf.path} is {words}, but the model was captured for {leaf.constant!r} alone.")
            return
        if not isinstance(given, torch.Tensor):
            raise _OTHER(f"{leaf.path} is a {type(given).__name__}, but the model was captured with a tensor there.")
        if given.dtype != leaf.dtype:
            raise _OTHER(f"{leaf.path} has dtype {given.dtype}, but the model takes {leaf.dtype}.")
        if given.dim() != len(leaf.shape):
            raise _OTHER(
                f"{leaf.path} has shape {tuple(given.shape)}, but the model was captured for {self._shape_text(leaf)}."
            )
        for axis, (wanted, size) in enumerate(zip(leaf.sizes, given.shape, strict=True)):
            if isinstance(wanted, int):
                if wanted != size:
                    raise _OTHER(
                        f"{leaf.path} has shape {tuple(given.shape)}, but the model was captured for "
                        f"{self._shape_text(leaf)}: dimension {axis} is fixed at {wanted}."
                    )
            elif isinstance(wanted, str):
                self._check_symbol(leaf, axis, wanted, size, symbols)
            else:
                later.append((leaf, axis, wanted, size))

    def _check_symbol(self, leaf: _Leaf, axis: int, name: str, size: int, symbols: dict[str, int]) -> None:
        if symbols.setdefault(name, size) != size:
            raise _OTHER(
                f"{leaf.path} has size {size} in dimension {axis}, but another input has {symbols[name]} for the same "
                f"dynamic size {name}."
            )
        low, high = self.ranges.get(name, (None, None))
        too_small = low is not None and low > 2 and size < low  # 2 is torch's "not captured with 0 or 1", which run
        if too_small or (high is not None and size > high):
            upper = "any size" if high is None else str(high)
            raise _OTHER(
                f"{leaf.path} has size {size} in dimension {axis}, but the model was captured for {low} to {upper}."
            )

    def _sizes_text(self, given: Sequence[Any]) -> str:
        """The shapes of the inputs with dynamic sizes."""
        leaves = [leaf for leaves in self.leaves for leaf in leaves]
        dynamic = [
            f"{leaf.path[0].lower()}{leaf.path[1:]} has shape {tuple(value.shape)}"
            for leaf, value in zip(leaves, given, strict=True)
            if not all(isinstance(size, int) for size in leaf.sizes)
        ]
        return listed(dynamic, MOST_TOLD) or "these are others"

    def _shape_text(self, leaf: _Leaf) -> str:
        return (
            "(" + ", ".join(str(size) for size in leaf.shape or ()) + ("," if len(leaf.shape or ()) == 1 else "") + ")"
        )


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether a module is traced symbolically that calls the model: nothing is known of its inputs."""
    return any(isinstance(leaf, Proxy) for leaf in leaves)


def _bounds(bound: Any) -> tuple[int | None, int | None]:
    def finite(value: Any) -> int | None:
        return int(value) if getattr(value, "is_Integer", False) or isinstance(value, int) else None

    return finite(bound.lower), finite(bound.upper)


def _is_same(given: Any, constant: Any) -> bool:
    """Whether a value is the captured one, also where that is not a number; a tensor may have it, and is another."""
    if constant is None or isinstance(given, torch.Tensor):
        return given is constant
    return bool(given == constant or (given != given and constant != constant))


def _leaf(name: str, index: int, count: int, value: Any, argument: Any) -> _Leaf:
    path = f"The input {name!r}" if count == 1 else f"Leaf {index} of the input {name!r}"
    if not isinstance(value, torch.Tensor):
        return _Leaf(path, None, None, isinstance(argument, ConstantArgument), getattr(argument, "value", None))
    given = (size if isinstance(size, int) else size.node.expr for size in value.shape)
    shape = tuple(int(size) if isinstance(size, sympy.Integer) else size for size in given)
    return _Leaf(path, shape, value.dtype, sizes=tuple(map(_size, shape)))


def _size(size: Any) -> int | str | _Derived:
    if isinstance(size, int):
        return size
    return str(size) if isinstance(size, sympy.Symbol) else _Derived.of(size)


def in_order(value: Any, spec: pytree.TreeSpec, path: str) -> Any:
    """A value of the captured structure, its dicts in the captured order of their keys.

    Raises:
        InputError: it has another structure.
    """
    if type(value) is torch.Size and spec.type is tuple:  # which torch captures it as
        value = tuple(value)
    own = pytree.tree_structure(value, is_leaf=lambda each: each is not value)
    keys = list(spec.context or ()) if spec.type is dict else []
    if type(value) is dict and spec.type is dict and value.keys() == {*keys}:
        children = zip(keys, spec.children(), strict=True)
        return {key: in_order(value[key], child, f"{path}[{key!r}]") for key, child in children}
    if own.type != spec.type or own.context != spec.context or own.num_children != spec.num_children:
        raise _MISFIT(
            f"The input {path!r} has another structure than the captured one: "
            f"{_structure(pytree.tree_structure(value))} instead of {_structure(spec)}."
        )
    if spec.is_leaf():
        return value
    parts = pytree.tree_leaves(value, is_leaf=lambda each: each is not value)
    paths = [f"{path}[{place}]" for place in range(len(parts))]
    ordered = [in_order(*each) for each in zip(parts, spec.children(), paths, strict=True)]
    return pytree.tree_unflatten(ordered, own)


def _structure(spec: pytree.TreeSpec) -> str:
    if spec.is_leaf():
        return "one value"
    kind = getattr(spec.type, "__name__", str(spec.type))
    if kind == "dict" and spec.context:
        return f"a dict with {', '.join(map(str, spec.context))}"
    return f"a {kind} of {spec.num_leaves}"
