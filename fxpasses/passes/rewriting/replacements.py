"""What comes in place of a match: graphs made from callables, modules, exported programs, or afresh for each match."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import torch
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.utils import _pytree as pytree

from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import PatternError, also_as
from fxpasses.partitioners.matching import CompiledPattern, PatternMatch
from fxpasses.partitioners.matching.bookkeeping import is_bookkeeping
from fxpasses.partitioners.matching.compiling import graph_of, output_leaves
from fxpasses.partitioners.matching.quiet import is_quiet

__all__ = ["BoundReplacement", "ReplacementGraph", "ReplacementSource", "replacement_source"]


@attrs.frozen(eq=False)
class ReplacementGraph:
    """A graph to be copied into the place of a match.

    Args:
        graph: The graph.
        results: What it returns, flattened.
    """

    graph: Graph
    results: tuple[Any, ...]

    @classmethod
    def of(cls, graph: Graph) -> ReplacementGraph:
        """Read the results off the output node.

        Raises:
            PatternError: There is no output node.
        """
        return cls(graph, tuple(output_leaves(graph)))

    @cached_property
    def placeholders(self) -> list[Node]:
        """The inputs, in order."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @cached_property
    def body(self) -> list[Node]:
        """The nodes that are copied."""
        ends = ("placeholder", "output")
        return [node for node in self.graph.nodes if node.op not in ends and not is_bookkeeping(node)]

    @cached_property
    def used(self) -> frozenset[Node]:
        """The placeholders that the replacement reads or returns."""
        returned = [result for result in self.results if isinstance(result, Node)]
        return frozenset(p for p in self.placeholders if p in returned or any(u in self.body for u in p.users))

    @cached_property
    def effects(self) -> EffectAnalysis:
        """What the replacement writes and which of its results live in its inputs.

        Of a function that nobody can look into, such as a kernel in Python, this is what the match does: so says
        whoever puts it in place of one.
        """
        owner = self.graph.owning_module
        return analyze_effects(owner if isinstance(owner, GraphModule) else self.graph, trusting=True)

    @cached_property
    def written_inputs(self) -> list[Node]:
        """The placeholders whose storage the replacement writes."""
        if is_quiet(self.body):
            return []
        written = {storage for node in self.body for storage in self.effects.of(node).writes}
        return [p for p in self.placeholders if written.intersection(self.effects.storages(p))]

    @cached_property
    def steps(self) -> list[tuple[int, bool]]:
        """What happens to the inputs, in order: which one, by place, and whether it is written or only read."""
        found: list[tuple[int, bool]] = []
        inputs = [frozenset(self.effects.storages(placeholder)) for placeholder in self.placeholders]
        for node in self.body:
            effects = self.effects.of(node)
            for touched, writes in ((set(effects.reads) - set(effects.writes), False), (set(effects.writes), True)):
                found += [(place, writes) for place, storages in enumerate(inputs) if not touched.isdisjoint(storages)]
        return found

    def may_live_in(self, result: Any, placeholder: Node) -> bool:
        """Whether a result may share memory with an input."""
        return isinstance(result, Node) and self.effects.may_alias(result, placeholder)

    def shares(self, place: int, inputs: Sequence[Any], value: Any) -> bool:
        """Whether the result at ``place`` may share memory with ``value``, if ``inputs`` are put in."""
        result = self.results[place]
        return any(
            self.may_live_in(result, placeholder)
            for placeholder, given in zip(self.placeholders, inputs, strict=True)
            if given is value
        )


@attrs.frozen(eq=False)
class BoundReplacement:
    """A replacement for one match: the graph, and what its placeholders stand for."""

    graph: ReplacementGraph
    values: Mapping[Node, Any]


@attrs.frozen(eq=False)
class ReplacementSource:
    """Makes the replacement of a match."""

    def bind(self, match: PatternMatch) -> BoundReplacement:
        """The replacement of one match.

        Raises:
            PatternError: It cannot be made, or does not fit the pattern.
        """
        raise NotImplementedError


@attrs.frozen(eq=False)
class SameForAll(ReplacementSource):
    """One graph for all matches; its placeholders are bound by position, or by name to what the pattern names."""

    replacement: ReplacementGraph
    by_name: bool

    def bind(self, match: PatternMatch) -> BoundReplacement:
        """Lay the inputs of the match beside the placeholders."""
        placeholders = self.replacement.placeholders
        if self.by_name:
            values = {p: _capture(match, _plain_name(p)) for p in placeholders}
        else:
            values = dict(zip(placeholders, match.inputs, strict=True))
        return BoundReplacement(self.replacement, values)


@attrs.frozen(eq=False)
class MadeByCallback(ReplacementSource):
    """A callback that gives a graph for each match."""

    callback: Callable[[PatternMatch], Graph]

    def bind(self, match: PatternMatch) -> BoundReplacement:
        """Ask the callback."""
        graph = _guarded(self.callback, match)
        if isinstance(graph, GraphModule):
            graph = graph.graph
        if not isinstance(graph, Graph):
            name = getattr(self.callback, "__name__", "replacement_callback")
            raise PatternError(f"{name} must return a Graph, it returned {type(graph).__name__}")
        replacement = ReplacementGraph.of(graph)
        check_counts(match.pattern, replacement)
        return BoundReplacement(replacement, dict(zip(replacement.placeholders, match.inputs, strict=True)))


@attrs.frozen(eq=False)
class TracedForEach(ReplacementSource):
    """A function whose parameters are what the pattern names, run for each match with the literals as they are.

    Nodes come as proxies, so the function is written like the code that it makes, and may compute with the literals.
    Results for the same literals are reused, unless the function asks for the ``match``.
    """

    function: Callable[..., Any]
    parameters: tuple[str, ...]
    _made: dict[Any, tuple[ReplacementGraph, list[Node]]] = attrs.field(factory=dict, init=False)

    def bind(self, match: PatternMatch) -> BoundReplacement:
        """Run the function, or take what it gave for the same literals."""
        captured = {name: match if name == "match" else _capture(match, name) for name in self.parameters}
        nodes: dict[Node, int] = {}
        key = None if "match" in self.parameters else _key_of(captured, nodes)
        if key is None:
            replacement, placeholders, found = self._trace(captured)
            return BoundReplacement(replacement, dict(zip(placeholders, found, strict=True)))
        if key not in self._made:
            replacement, placeholders, _ = self._trace(captured)
            self._made[key] = (replacement, placeholders)
        replacement, placeholders = self._made[key]
        return BoundReplacement(replacement, dict(zip(placeholders, nodes, strict=True)))

    def _trace(self, captured: Mapping[str, Any]) -> tuple[ReplacementGraph, list[Node], list[Node]]:
        graph = Graph()
        tracer = GraphAppendingTracer(graph)
        placeholders: dict[Node, Node] = {}

        def stand_in(value: Any) -> Any:
            if not isinstance(value, Node):
                return value
            if value not in placeholders:
                placeholders[value] = graph.placeholder(value.name)
                if "val" in value.meta:
                    placeholders[value].meta["val"] = value.meta["val"]
            return Proxy(placeholders[value], tracer)

        arguments = {
            name: value if name == "match" else pytree.tree_map(stand_in, value, is_leaf=lambda v: isinstance(v, Node))
            for name, value in captured.items()
        }
        returned = _guarded(lambda: self.function(**arguments), name=getattr(self.function, "__name__", "replacement"))
        graph.output(pytree.tree_map(_unwrapped, returned, is_leaf=lambda v: isinstance(v, Proxy)))
        found = list(placeholders)
        return ReplacementGraph.of(graph), [placeholders[node] for node in found], found


def _unwrapped(value: Any) -> Any:
    return value.node if isinstance(value, Proxy) else value


def _key_of(value: Any, nodes: dict[Node, int]) -> Any:
    """A key that is equal for captures that differ only in their nodes; None if there is none."""
    if isinstance(value, Node):
        return ("node", nodes.setdefault(value, len(nodes)))
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list | tuple):
        inside = [_key_of(item, nodes) for item in value]
        return None if None in inside else (type(value).__name__, *inside)
    try:
        hash(value)
    except TypeError:
        return None
    return (type(value), value)


def _plain_name(placeholder: Node) -> str:
    return str(placeholder.target).lstrip("*")


def _capture(match: PatternMatch, name: str) -> Any:
    if name not in match.captures:
        known = ", ".join(match.captures) or "nothing"
        raise PatternError(f"the replacement asks for {name!r}, but the pattern names {known}")
    return match.captures[name]


def _guarded(function: Callable[..., Any], *args: Any, name: str | None = None) -> Any:
    """Call the user's code; what it raises becomes a PatternError that can still be caught as what it was."""
    try:
        return function(*args)
    except PatternError:
        raise
    except Exception as error:
        name = name or getattr(function, "__name__", "replacement_callback")
        raise also_as(PatternError, error)(
            f"the replacement {name} raised {type(error).__name__}: {error}", reason=str(error)
        ) from error


def check_counts(pattern: CompiledPattern, replacement: ReplacementGraph) -> None:
    """Refuse a replacement with another number of inputs or outputs, and print both sides.

    Raises:
        PatternError: Also catchable as AssertionError.
    """
    theirs = [_plain_name(p) for p in replacement.placeholders]
    ours = [p.name or "?" for p in pattern.inputs]
    if len(theirs) != len(ours):
        raise also_as(PatternError, AssertionError())(
            f"the pattern has {len(ours)} inputs ({', '.join(ours)}), "
            f"the replacement has {len(theirs)} ({', '.join(theirs)}); they must be as many, in the same order"
        )
    check_results(pattern, replacement)


def check_results(pattern: CompiledPattern, replacement: ReplacementGraph) -> None:
    """Refuse a replacement that returns more or fewer values than the pattern.

    Raises:
        PatternError: Also catchable as AssertionError.
    """
    wanted, given = len(pattern.results), len(replacement.results)
    if given not in (wanted, len(pattern.returning)):
        raise also_as(PatternError, AssertionError())(
            f"the pattern returns {wanted} value{'s' if wanted != 1 else ''} "
            f"({', '.join(_result_names(pattern))}), the replacement returns {given} "
            f"({', '.join(map(str, replacement.results))}); they must be as many, in the same order"
        )


def _result_names(pattern: CompiledPattern) -> list[str]:
    return [str(pattern.source[r]) if r in pattern.source else r.name or r.describe() for r in pattern.results]


def replacement_source(replacement: Any, pattern: CompiledPattern) -> ReplacementSource:
    """How to make replacements for the matches of a pattern.

    Args:
        replacement: For a pattern made from a graph: a callable, graph, module or program with the same inputs. For a
            pattern of terms: a function whose parameters are names in the pattern (``match`` asks for the match), or a
            graph whose placeholders are.
        pattern: The pattern.

    Raises:
        PatternError: It does not fit the pattern.
    """
    if isinstance(replacement, ReplacementSource):
        return replacement
    has_inputs = bool(pattern.source)
    is_plain = callable(replacement) and not isinstance(replacement, torch.nn.Module)
    if is_plain and not has_inputs:
        return TracedForEach(replacement, _parameters(replacement, pattern))
    graph = ReplacementGraph.of(graph_of(replacement, "replacement"))
    if has_inputs:
        check_counts(pattern, graph)
    else:
        _check_names([_plain_name(p) for p in graph.placeholders], pattern)
        check_results(pattern, graph)
    return SameForAll(graph, by_name=not has_inputs)


def _parameters(function: Callable[..., Any], pattern: CompiledPattern) -> tuple[str, ...]:
    names: Sequence[str] = list(inspect.signature(function).parameters)
    _check_names([name for name in names if name != "match"], pattern)
    return tuple(names)


def _check_names(names: Sequence[str], pattern: CompiledPattern) -> None:
    unknown = [name for name in names if name not in pattern.captures]
    if unknown:
        known = ", ".join(pattern.captures) or "nothing"
        raise PatternError(f"the replacement asks for {', '.join(map(repr, unknown))}, but the pattern names {known}")
