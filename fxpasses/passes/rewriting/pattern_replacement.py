"""``replace_pattern`` and ``replace_pattern_with_filters``: torch's names and results, on the rules of this package.

What differs on purpose: a match is left alone where replacing it would not be right (see ``RuleSet``); new nodes have
values and provenance; bodies of control flow are rewritten too; a replacement that does not fit is refused before
anything changes; an error of a filter or callback leaves the module as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpasses.collecting import collection_paused
from fxpasses.editing import nested_graph_modules
from fxpasses.editing.submodules import get_attribute, remove_attribute
from fxpasses.errors import PatternError, also_as
from fxpasses.journal import Snapshot
from fxpasses.metadata import current_pass, running_pass
from fxpasses.outlining.body_constants import hand_in_constants
from fxpasses.outlining.owning import own_bodies
from fxpasses.partitioners.matching import CompiledPattern, GraphView, InternalMatch, PatternMatch, compile_pattern
from fxpasses.partitioners.matching.compiling import graph_of
from fxpasses.partitioners.matching.matching import Matcher, checked_filters
from fxpasses.partitioners.matching.subgraph_matcher import internal_match
from fxpasses.passes.rewriting.code_on_demand import recompile_on_demand
from fxpasses.passes.rewriting.replacements import MadeByCallback, ReplacementSource, replacement_source
from fxpasses.passes.rewriting.replacing import Refused, Replacer
from fxpasses.programs import with_graph_module

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]

CompatibleFilter = Callable[[InternalMatch, Graph, Graph], bool]


class Match(NamedTuple):
    """One place that was replaced.

    Args:
        anchor: The pattern node from which the match was found.
        nodes_map: From pattern nodes to the nodes that were replaced.
    """

    anchor: Node
    nodes_map: dict[Node, Any]


@attrs.define(eq=True)
class ReplacedPatterns:
    """One place that was replaced, with the nodes that are there now.

    Args:
        anchor: The pattern node from which the match was found.
        nodes_map: From pattern nodes to the nodes that were replaced; placeholders map to what is there now.
        replacements: The new nodes, in graph order.
    """

    anchor: Node
    nodes_map: dict[Node, Any]
    replacements: list[Node]


def replace_pattern(
    gm: GraphModule | ExportedProgram,
    pattern: Callable[..., Any] | GraphModule,
    replacement: Callable[..., Any] | GraphModule,
    **options: Any,
) -> list[Match]:
    """Replace every match of ``pattern`` in ``gm`` by ``replacement``, in place.

    >>> import torch
    >>> module = torch.fx.symbolic_trace(lambda x: torch.neg(torch.relu(x)))
    >>> len(replace_pattern(module, lambda x: torch.neg(torch.relu(x)), lambda x: torch.clamp(-x, max=0)))
    1

    Args:
        gm: The module (or the exported program) whose graph is edited.
        pattern: What to look for; its parameters stand for anything and must all be used.
        replacement: What comes in its place; as many parameters and results as the pattern, in the same order.
        options: As the keyword-only ones of :func:`replace_pattern_with_filters`.

    Returns:
        One entry for each place, in graph order; matches that share nodes with an earlier one are not replaced.

    Raises:
        PatternError: The pattern cannot work, or the replacement does not fit it; nothing has changed then.
    """
    return [
        Match(each.anchor, each.nodes_map) for each in replace_pattern_with_filters(gm, pattern, replacement, **options)
    ]


def replace_pattern_with_filters(
    gm: GraphModule | ExportedProgram,
    pattern: Callable[..., Any] | Graph | GraphModule,
    replacement: Callable[..., Any] | Graph | GraphModule | None = None,
    match_filters: list[CompatibleFilter] | None = None,
    ignore_literals: bool = False,
    replacement_callback: Callable[[InternalMatch, Graph, Graph], Graph] | None = None,
    node_name_match: str = "",
    *,
    nested: bool = True,
    commutes: bool = True,
    normalize: bool = True,
    check_values: bool = True,
    keeps_shared: bool = False,
) -> list[ReplacedPatterns]:
    """Replace the matches that all filters accept, in place.

    Args:
        gm: The module (or the exported program) whose graph is edited.
        pattern: What to look for.
        replacement: What comes in its place.
        match_filters: Each is asked with ``(match, graph, pattern_graph)``.
        ignore_literals: Literals in the pattern may be anything.
        replacement_callback: Gives the replacement of one match, from ``(match, graph, pattern_graph)``.
        node_name_match: Anchors also match nodes whose name contains this text.
        nested: Also inside control flow and submodules, each body once.
        commutes: Try both operand orders of commutative operators.
        normalize: Compare arguments by schema where the spelling differs.
        check_values: Refuse a replacement whose results have another dtype, shape or device.
        keeps_shared: Match even if a value inside is used outside; what is used then stays.

    Returns:
        One entry for each place, in graph order.

    Raises:
        PatternError: The pattern cannot work, the replacement does not fit it (both sides are in the message), or a
            filter or callback raised (then also catchable as what it raised). Nothing has changed then.
    """
    module = _checked(gm, replacement, replacement_callback)
    filters = checked_filters(() if match_filters is None else match_filters)
    pattern_graph = pattern.graph if isinstance(pattern, GraphModule) else graph_of(pattern, "pattern")
    is_traced = isinstance(pattern, Graph | GraphModule)
    compiled = compile_pattern(
        pattern_graph,
        origin=None if is_traced or not isinstance(pattern, torch.nn.Module) else pattern,
        commutes=commutes,
        normalize=normalize,
        ignore_literals=ignore_literals,
        name_contains=node_name_match,
    )
    source = None if replacement_callback is not None else replacement_source(replacement, compiled)
    job = _Job(compiled, pattern_graph, source, filters, replacement_callback, check_values, keeps_shared)
    if nested:
        own_bodies(module)
    bodies = list(nested_graph_modules(module)) if nested else [module]
    snapshot = Snapshot.take(gm)
    try:
        with running_pass(current_pass() or "replace_pattern"), collection_paused():
            done = [replaced for body in bodies for replaced in job.run(body, is_root=body is module)]
            if done and nested:
                for body in hand_in_constants(module):
                    recompile_on_demand(body)
            if done and isinstance(gm, ExportedProgram):
                with_graph_module(gm, module)
            return done
    except Exception:
        snapshot.restore()
        raise


def _checked(gm: Any, replacement: Any, callback: Any) -> GraphModule:
    gm = gm.graph_module if isinstance(gm, ExportedProgram) else gm
    if not isinstance(gm, GraphModule):
        raise also_as(PatternError, TypeError())(
            f"replace_pattern works on a GraphModule, got {type(gm).__name__}; trace or export the module first"
        )
    if replacement is None and callback is None:
        raise also_as(PatternError, AssertionError())(
            "there is nothing to put in place of a match: give a replacement or a replacement_callback"
        )
    return gm


@attrs.frozen(eq=False)
class _Job:
    """One pattern and its replacement, for one graph after the other."""

    pattern: CompiledPattern
    pattern_graph: Graph
    source: ReplacementSource | None
    filters: tuple[CompatibleFilter, ...]
    callback: Callable[[InternalMatch, Graph, Graph], Graph] | None
    check_values: bool
    keeps_shared: bool

    def run(self, module: GraphModule, *, is_root: bool) -> list[ReplacedPatterns]:
        view = GraphView(module)
        graph = module.graph
        filters = [self._asking(each, graph) for each in self.filters]
        matcher = Matcher(self.pattern, view, filters, set(), keeps_shared=self.keeps_shared)
        found = [match for node in matcher.candidates() if (match := matcher.at(node)) is not None]
        if not found:
            return []
        source = self.source
        if source is None:
            source = MadeByCallback(self._calling(graph))
        named = _modules_named(module) if is_root else set()
        replacer = Replacer(module, view, self.check_values)
        bound = [source.bind(match) for match in found]  # all of them before anything changes
        replacer.prepare(bound)
        done = [self._replace(match, b, replacer) for match, b in zip(found, bound, strict=True)]
        replacer.finish()
        if is_root:
            _delete_modules(module, named - _modules_named(module))
        recompile_on_demand(module)
        return [each for each in done if each is not None]

    def _replace(self, match: PatternMatch, bound: Any, replacer: Replacer) -> ReplacedPatterns | None:
        try:
            made = replacer.replace(match, bound)
        except Refused as refusal:
            if not refusal.is_wrong:
                return None
            anchor = match.anchors[0]
            raise PatternError(
                f"the replacement does not fit the match at {anchor.name}: {refusal.reason}; "
                "nothing was changed (check_values=False lets results differ)",
                node=anchor,
                reason=refusal.reason,
            ) from None
        known = internal_match(match)
        inputs = {self.pattern.source[term] for term in self.pattern.inputs}
        for node in inputs:
            if node in known.nodes_map:
                known.nodes_map[node] = replacer.current(known.nodes_map[node])
        return ReplacedPatterns(known.anchors[0], known.nodes_map, made)

    def _asking(self, accepts: CompatibleFilter, graph: Graph) -> Callable[[PatternMatch], bool]:
        def ask(match: PatternMatch) -> bool:
            return accepts(internal_match(match), graph, self.pattern_graph)

        ask.__name__ = getattr(accepts, "__name__", repr(accepts))
        return ask

    def _calling(self, graph: Graph) -> Callable[[PatternMatch], Graph]:
        def make(match: PatternMatch) -> Graph:
            assert self.callback is not None  # only asked when there is no replacement
            return self.callback(internal_match(match), graph, self.pattern_graph)

        make.__name__ = getattr(self.callback, "__name__", "replacement_callback")
        return make


def _modules_named(module: GraphModule) -> set[str]:
    """The modules that nodes call, or read from, by path."""
    paths = {str(node.target) for node in module.graph.nodes if node.op in ("call_module", "get_attr")}
    return {path if _is_module(module, path) else path.rpartition(".")[0] for path in paths}


def _delete_modules(module: GraphModule, paths: Iterable[str]) -> None:
    """Delete modules, but none that is in a module which nodes name, nor one that holds such a module."""
    used = _modules_named(module)
    holding = used.union(*map(_holders, used))
    for path in sorted(paths):
        if path not in holding and used.isdisjoint(_holders(path)) and _is_module(module, path):
            remove_attribute(module, path)


def _holders(path: str) -> list[str]:
    """The modules that hold a module.

    >>> _holders("a.b.c")
    ['a', 'a.b']
    """
    return [path[:at] for at, letter in enumerate(path) if letter == "."]


def _is_module(module: GraphModule, path: str) -> bool:
    return bool(path) and isinstance(get_attribute(module, path, None), torch.nn.Module)
