"""Turn a pattern into a graph that runs: choices are made at random, captures become inputs and literals."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from fxpasses.arguments import REQUIRED, Parameter, signature_of
from fxpasses.outlining.lazy_modules import lazy_graph_module
from fxpasses.partitioners.matching import CompiledPattern, Pattern
from fxpasses.partitioners.matching.terms import (
    Both,
    Call,
    Constant,
    Either,
    Items,
    Literal,
    Maybe,
    Not,
    Repeat,
    Value,
    Weight,
    parts,
)

__all__ = ["ConcretePattern", "concretize"]

_CANDIDATES: dict[str, tuple[Any, ...]] = {
    "ListType": ([-1], [0], [1]),
    "IntType": (-1, 0, 1, 2),
    "SymIntType": (-1, 0, 1, 2),
    "FloatType": (0.5, 1e-5, 2.0),
    "NumberType": (2, 0.5, -1, 1),
    "BoolType": (False, True),
    "StringType": ("none", "tanh"),
}
_BY_NAME = {"dtype": (torch.float32,), "layout": (torch.strided,), "memory_format": (torch.contiguous_format,)}
_ANY = (1, 2, -1, 0, 0.5)


@attrs.frozen(eq=False)
class ConcretePattern:
    """One way to write a pattern as a graph.

    Args:
        graph_module: The graph.
        literals: The literals that were chosen, by name.
    """

    graph_module: GraphModule
    literals: Mapping[str, Any]

    @property
    def inputs(self) -> list[str]:
        """The names of the tensors that it takes."""
        return [node.name for node in self.graph_module.graph.nodes if node.op == "placeholder"]


def concretize(
    pattern: CompiledPattern, rng: random.Random, literals: Mapping[str, Sequence[Any]] | None = None
) -> ConcretePattern:
    """Choose alternatives, optional parts, lengths and literals, and write the rest down.

    Args:
        pattern: The pattern.
        rng: Makes the choices.
        literals: Candidates for named literals and inputs.
    """
    return _Writer(rng, literals or {}, pattern).write()


class _Writer:
    def __init__(self, rng: random.Random, literals: Mapping[str, Sequence[Any]], pattern: CompiledPattern) -> None:
        self.rng, self.candidates, self.pattern = rng, literals, pattern
        self.graph = Graph()
        self.root = lazy_graph_module(self.graph)
        self.chosen: dict[str, Any] = {}
        self.head: Node | None = None  # the last placeholder; the next goes behind it

    def write(self) -> ConcretePattern:
        values: dict[Pattern, Any] = {}
        for root in self.pattern.roots:
            self._fill(root, values)
        results = [values[result] for result in self.pattern.results]
        self.graph.output(results[0] if len(results) == 1 else tuple(results))
        return ConcretePattern(self.root, dict(self.chosen))

    def _fill(self, root: Pattern, values: dict[Pattern, Any], hint: Parameter | None = None) -> None:
        """Give ``root`` and what it needs their values, children first."""
        waiting: list[tuple[Pattern, Parameter | None, bool]] = [(root, hint, False)]
        needed: dict[Pattern, list[Pattern]] = {}
        while waiting:
            pattern, kind, is_ready = waiting.pop()
            if pattern in values:
                continue
            if is_ready:
                values[pattern] = self._value(pattern, needed[pattern], values, kind)
                continue
            hinted = self._needs(pattern)
            needed[pattern] = [child for child, _ in hinted]
            waiting.append((pattern, kind, True))
            waiting.extend((child, h or kind, False) for child, h in reversed(hinted))

    def _needs(self, pattern: Pattern) -> list[tuple[Pattern, Parameter | None]]:
        if isinstance(pattern, Either):
            runnable = [option for option in pattern.options if not _lacks_arguments(option)]
            return [(self.rng.choice(runnable or list(pattern.options)), None)]
        if isinstance(pattern, Both):
            owning = [demand for demand in pattern.demands if isinstance(demand, Call)]
            return [(owning[0] if owning else pattern.demands[0], None)]
        if isinstance(pattern, Maybe):
            return [(pattern.pattern, None)] if self.rng.random() < 0.5 else []
        if isinstance(pattern, Call):
            return [(part, kind) for term, kind in _hinted_terms(pattern) for part in parts(term)]
        if isinstance(pattern, Items):
            return [(part, None) for part in pattern.children() if not isinstance(part, Repeat)]
        return []

    def _value(
        self, pattern: Pattern, needed: list[Pattern], values: dict[Pattern, Any], kind: Parameter | None
    ) -> Any:
        if isinstance(pattern, Either | Both):
            return values[needed[0]]
        if isinstance(pattern, Maybe):
            return values[needed[0]] if needed else None
        if isinstance(pattern, Call):
            return self._call(pattern, values)
        if isinstance(pattern, Items):
            return self._list(pattern.items, values)
        return self._leaf(pattern, kind)

    def _leaf(self, pattern: Pattern, kind: Parameter | None) -> Any:
        name = pattern.name
        if name is not None and name in self.candidates:
            return self._choose(name, self.candidates[name])
        if isinstance(pattern, Literal):
            return self._choose(name, _literals(pattern, kind))
        if isinstance(pattern, Constant) and pattern.value is not None:
            held = pattern.value if isinstance(pattern.value, torch.Tensor) else torch.tensor(pattern.value)
            path = f"_constant{len(self.root._buffers)}"
            self.root.register_buffer(path, held)
            return self.graph.get_attr(path)
        if not isinstance(pattern, Value | Weight | Constant | Not) and kind is not None and _is_number(kind):
            return self._choose(name, _literals(Literal(), kind))
        return self._placeholder(name or "input")

    def _choose(self, name: str | None, candidates: Sequence[Any]) -> Any:
        if name is not None and name in self.chosen:
            return self.chosen[name]
        value = self.rng.choice(list(candidates))
        if name is not None:
            self.chosen[name] = value
        return value

    def _placeholder(self, name: str) -> Node:
        place = self.graph.inserting_after(self.head) if self.head else self.graph.inserting_before(_first(self.graph))
        with place:
            self.head = self.graph.placeholder(self._free_name(name))
        return self.head

    def _free_name(self, name: str) -> str:
        taken = {node.target for node in self.graph.nodes if node.op == "placeholder"}
        return next(n for n in (name, *(f"{name}_{i}" for i in range(1, len(taken) + 2))) if n not in taken)

    def _call(self, pattern: Call, values: dict[Pattern, Any]) -> Node:
        target = self.rng.choice(pattern.targets)
        if isinstance(target, torch._ops.OpOverloadPacket):
            target = getattr(target, self.rng.choice(target.overloads()))  # type: ignore[no-untyped-call]
        args = self._list(pattern.args, values)
        kwargs = {key: self._term(term, values) for key, term in pattern.kwargs.items()}
        if isinstance(target, type):
            path = f"module{len(self.root._modules)}"
            self.root.add_module(path, target())
            target = path
        return self.graph.create_node(pattern.op, target, tuple(args), kwargs)

    def _list(self, terms: Sequence[Any], values: dict[Pattern, Any]) -> list[Any]:
        made: list[Any] = []
        for term in terms:
            if isinstance(term, Repeat):
                made.extend(self._repeated(term, values))
            else:
                made.append(self._term(term, values))
        return made

    def _repeated(self, repeat: Repeat, values: dict[Pattern, Any]) -> list[Any]:
        most = repeat.at_least + 2 if repeat.at_most is None else repeat.at_most
        made = []
        for _ in range(self.rng.randint(repeat.at_least, most)):
            inner = {p: v for p, v in values.items() if p not in self.pattern.scoped}
            self._fill(repeat.pattern, inner)
            made.append(inner[repeat.pattern])
        return made

    def _term(self, term: Any, values: dict[Pattern, Any]) -> Any:
        if isinstance(term, Pattern):
            return values[term]
        if isinstance(term, list | tuple):
            return [self._term(item, values) for item in term]
        if isinstance(term, dict):
            return {key: self._term(item, values) for key, item in term.items()}
        if isinstance(term, slice):
            return slice(*(self._term(bound, values) for bound in (term.start, term.stop, term.step)))
        return map_arg(term, lambda node: node)


def _first(graph: Graph) -> Node:
    return next(iter(graph.nodes), graph._root)


def _hinted_terms(pattern: Call) -> list[tuple[Any, Parameter | None]]:
    """The arguments of a call with what the schema says about them."""
    signature = signature_of(pattern.targets[0]) if pattern.op == "call_function" else None
    named = {} if signature is None else {p.name: p for p in signature.parameters}
    placed = [] if signature is None else list(signature.positional)
    hints = [*placed, *([None] * len(pattern.args))]
    return [*zip(pattern.args, hints, strict=False), *((t, named.get(key)) for key, t in pattern.kwargs.items())]


def _lacks_arguments(pattern: Pattern) -> bool:
    """Whether a call leaves arguments open that its operator needs."""
    if not isinstance(pattern, Call) or not pattern.open:
        return False
    signature = signature_of(pattern.targets[0]) if pattern.op == "call_function" else None
    given = [*pattern.args, *pattern.kwargs]
    return signature is None or sum(p.default is REQUIRED for p in signature.parameters) > len(given)


def _kind(parameter: Parameter | None) -> str:
    kind = None if parameter is None else parameter.type
    while kind is not None and kind.kind() == "OptionalType":
        kind = kind.getElementType()
    return "" if kind is None else str(kind.kind())


def _is_number(parameter: Parameter) -> bool:
    return _kind(parameter) in _CANDIDATES


def _literals(pattern: Literal, kind: Parameter | None) -> list[Any]:
    """Candidates for a literal: its own set, else what the schema allows, within its bounds."""
    if pattern.allowed:
        return list(pattern.allowed)
    if kind is not None and kind.name in _BY_NAME:
        return list(_BY_NAME[kind.name])  # the schema calls these ints, and a wrong one can crash
    found = [v for v in _CANDIDATES.get(_kind(kind), _ANY) if not isinstance(v, str) or _kind(kind) == "StringType"]
    if pattern.at_least == -float("inf") and pattern.at_most == float("inf"):
        return found
    bounds = [b for b in (pattern.at_least, pattern.at_most) if abs(b) != float("inf")]
    middle = sum(bounds) / len(bounds)
    wanted = [v for v in [*found, *bounds, middle] if isinstance(v, int | float)]
    return [v for v in wanted if pattern.at_least <= v <= pattern.at_most]
