"""``SubgraphMatcher``: the names and results of torch's matcher, on the search of this package.

What differs on purpose: matches that an in-place write or another effect forbids are not reported; arguments are
compared by schema; operands of commutative operators may be swapped; a tensor constant in a pattern stands for itself
and a parameter for any; one node may be two of the inputs; nothing recurses; the pattern's graph is not edited.
"""

from __future__ import annotations

from typing import Any

import attrs
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.errors import PatternError, also_as
from fxpasses.partitioners.matching.compiling import CompiledPattern, compile_pattern
from fxpasses.partitioners.matching.matches import PatternMatch
from fxpasses.partitioners.matching.matching import find_matches

__all__ = ["InternalMatch", "SubgraphMatcher", "SubgraphMatcherWithNameNodeMap", "internal_match"]


@attrs.define(eq=True)
class InternalMatch:
    """A match in terms of the two graphs.

    Args:
        anchors: The pattern nodes from which the match was found.
        nodes_map: From pattern nodes to graph nodes (or to literals, for placeholders that stand for one).
        placeholder_nodes: What the placeholders of the pattern stand for, in order.
        returning_nodes: The graph nodes that the pattern returns, each once.
        name_node_map: From the names in the pattern's dictionary to graph nodes
            (``SubgraphMatcherWithNameNodeMap`` only).
    """

    anchors: list[Node]
    nodes_map: dict[Node, Any] = attrs.field(factory=dict)
    placeholder_nodes: list[Any] = attrs.field(factory=list)
    returning_nodes: list[Node] = attrs.field(factory=list)
    name_node_map: dict[str, Any] = attrs.field(factory=dict)

    def __copy__(self) -> InternalMatch:
        return InternalMatch(
            anchors=self.anchors,
            nodes_map=self.nodes_map.copy(),
            placeholder_nodes=self.placeholder_nodes.copy(),
            returning_nodes=self.returning_nodes.copy(),
            name_node_map=self.name_node_map.copy(),
        )


def internal_match(match: PatternMatch) -> InternalMatch:
    """A match of a pattern that was made from a graph, in terms of the two graphs."""
    source = match.pattern.source
    return InternalMatch(
        anchors=[source[root] for root in match.pattern.roots],
        nodes_map={source[key]: value for key, value in match.bound.items() if key in source},
        placeholder_nodes=match.inputs,
        returning_nodes=list(dict.fromkeys(match.results)),
    )


class SubgraphMatcher:
    """Find the places in a graph that look like a pattern graph.

    Args:
        pattern: The pattern; placeholders stand for anything.
        match_output: The output node is part of the pattern.
        match_placeholder: Placeholders stand only for placeholders.
        remove_overlapping_matches: Of matches that share nodes, give only the first.
        ignore_literals: Literals may be anything.
        commutes: Try both operand orders of commutative operators.
        normalize: Compare arguments by schema where the spelling differs.
        effects: False to look at data dependencies only.

    Raises:
        PatternError: The pattern is empty, computes nothing, or has an unused input or dead code.
    """

    def __init__(
        self,
        pattern: Graph,
        match_output: bool = False,
        match_placeholder: bool = False,
        remove_overlapping_matches: bool = True,
        ignore_literals: bool = False,
        *,
        commutes: bool = True,
        normalize: bool = True,
        effects: bool = True,
    ) -> None:
        self.pattern = pattern
        self.match_output = match_output
        self.match_placeholder = match_placeholder
        self.remove_overlapping_matches = remove_overlapping_matches
        self.ignore_literals = ignore_literals
        self._commutes, self._normalize, self._effects = commutes, normalize, effects
        compiled = self._compiled("")
        self.pattern_placeholder_nodes = [compiled.source[pattern] for pattern in compiled.inputs]
        self.pattern_returning_nodes = list(dict.fromkeys(compiled.source[result] for result in compiled.results))
        self.pattern_anchors = [compiled.source[root] for root in compiled.roots]

    def _returned(self) -> list[Node] | None:
        return None

    def _compiled(self, node_name_match: str) -> CompiledPattern:
        return compile_pattern(
            self.pattern,
            commutes=self._commutes,
            normalize=self._normalize,
            ignore_literals=self.ignore_literals,
            match_placeholder=self.match_placeholder,
            match_output=self.match_output,
            name_contains=node_name_match,
            outputs=self._returned(),
        )

    def match(self, graph: Graph, node_name_match: str = "") -> list[InternalMatch]:
        """All matches, in graph order of their first anchors.

        Args:
            graph: Where to look (a ``GraphModule`` works too).
            node_name_match: Anchors also match nodes whose name contains this text.
        """
        if not isinstance(graph, Graph | GraphModule):
            raise also_as(PatternError, TypeError())(
                f"match() takes a Graph or GraphModule, got {type(graph).__name__}"
            )
        found = find_matches(
            self._compiled(node_name_match),
            graph,
            overlapping=not self.remove_overlapping_matches,
            effects=None if self._effects else False,
        )
        return [internal_match(match) for match in found]


class SubgraphMatcherWithNameNodeMap(SubgraphMatcher):
    """A matcher whose pattern also returns a dictionary of names, which each match then maps to graph nodes.

    The pattern returns ``(result, ..., {"conv": conv, "relu": relu})``; the dictionary is not part of what is matched.
    Unlike torch's, this leaves the pattern module as it is.

    Args:
        pattern_gm: The pattern, with a dictionary as its last output.
        match_output: As for :class:`SubgraphMatcher`, and so on.

    Raises:
        PatternError: The pattern does not return a tuple that ends in a dictionary.
    """

    def __init__(
        self,
        pattern_gm: GraphModule,
        match_output: bool = False,
        match_placeholder: bool = False,
        remove_overlapping_matches: bool = True,
        ignore_literals: bool = False,
        *,
        commutes: bool = True,
        normalize: bool = True,
        effects: bool = True,
    ) -> None:
        given: Any = pattern_gm
        if not isinstance(given, GraphModule):
            kind = type(given).__name__
            raise also_as(PatternError, TypeError())(f"the pattern must be a GraphModule, got {kind}")
        self._results, self.name_node_map = _split_outputs(pattern_gm)
        super().__init__(
            pattern_gm.graph,
            match_output,
            match_placeholder,
            remove_overlapping_matches,
            ignore_literals,
            commutes=commutes,
            normalize=normalize,
            effects=effects,
        )

    def _returned(self) -> list[Node] | None:
        return self._results

    def match(self, graph: Graph, node_name_match: str = "") -> list[InternalMatch]:
        """All matches, with ``name_node_map`` filled in."""
        found = super().match(graph, node_name_match)
        for match in found:
            match.name_node_map.update({name: match.nodes_map[node] for name, node in self.name_node_map.items()})
        return found


def _split_outputs(pattern: GraphModule) -> tuple[list[Node], dict[str, Node]]:
    """What the pattern returns beside its dictionary of names, and the dictionary."""
    output = next(iter(reversed(pattern.graph.nodes)), None)
    if output is None or output.op != "output":
        raise PatternError("the pattern graph has no output node")
    returned: Any = output.args[0]
    if (info := getattr(pattern.graph._codegen, "pytree_info", None)) is not None and info.out_spec is not None:
        leaves = returned if isinstance(returned, list | tuple) else [returned]
        returned = pytree.tree_unflatten(list(leaves), info.out_spec)
    if not isinstance(returned, tuple | list) or len(returned) < 2 or not isinstance(returned[-1], dict):
        raise also_as(PatternError, AssertionError())(
            "the pattern must return (result, ..., {name: node}): at least one result and then a dictionary of names"
        )
    *results, names = returned
    nodes = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Node)]
    return nodes, {str(name): node for name, node in names.items()}
