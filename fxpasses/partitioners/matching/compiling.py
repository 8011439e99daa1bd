"""Turn what users write into patterns ready to be searched for: callables, graphs, exported programs, terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.utils import _pytree as pytree

from fxpasses.arguments import REQUIRED, signature_of
from fxpasses.effects import is_impure
from fxpasses.errors import PatternError, also_as
from fxpasses.partitioners.matching.bookkeeping import is_bookkeeping
from fxpasses.partitioners.matching.commuting import target_commutes
from fxpasses.partitioners.matching.conditions import conditions_from
from fxpasses.partitioners.matching.literals import same_literal
from fxpasses.partitioners.matching.terms import (
    Anything,
    Both,
    Call,
    Constant,
    Either,
    Input,
    Items,
    Not,
    OneOf,
    Outputs,
    Pattern,
    Repeat,
    Role,
    Value,
    Weight,
)

__all__ = ["Bridge", "CompiledPattern", "PatternLike", "compile_pattern", "graph_of", "output_leaves"]

PatternLike = Any
"""A pattern term, ``Outputs``, a callable, a ``Graph``, a ``GraphModule``, an ``ExportedProgram``, or compiled."""

_NAMED_BY_TRACERS = ("_tensor_constant", "lifted_tensor", "_lifted_tensor", "c_lifted_tensor")


@attrs.frozen(eq=False)
class Bridge:
    """How to get from a value that is bound already to the nodes that another root may stand for.

    Args:
        start: A pattern that both roots share.
        steps: The calls from ``start`` (exclusive) up to the root (inclusive).
    """

    start: Pattern
    steps: tuple[Call, ...]


@attrs.frozen(eq=False)
class CompiledPattern:
    """A pattern with all that the search wants to know about it beforehand.

    Args:
        roots: The anchors: results that no other part of the pattern uses.
        results: Every value that the pattern returns, in order, repetitions included.
        inputs: For patterns made from graphs: one pattern a placeholder, in order.
        patterns: All patterns, each before its children.
        source: For patterns made from graphs: which graph node each pattern stands for.
        graph: The graph that it was made from.

    Attributes:
        turns: When each part runs, for comparisons: what effects order in a graph must be in the same order here.
    """

    roots: tuple[Pattern, ...]
    results: tuple[Pattern, ...]
    inputs: tuple[Pattern, ...]
    patterns: tuple[Pattern, ...]
    source: Mapping[Pattern, Node] = attrs.field(factory=dict)
    graph: Graph | None = None
    returning: frozenset[Pattern] = attrs.field(init=False)
    roles: Mapping[Pattern, Role] = attrs.field(init=False)
    scoped: frozenset[Pattern] = attrs.field(init=False)
    has_choice: frozenset[Pattern] = attrs.field(init=False)
    captures: Mapping[str, tuple[Pattern, ...]] = attrs.field(init=False)
    bridges: tuple[tuple[Bridge, ...], ...] = attrs.field(init=False)
    height: int = attrs.field(init=False)
    turns: Mapping[Pattern, tuple[int, int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        derived = {
            "returning": frozenset(self.results),
            "roles": _roles(self.patterns),
            "scoped": _scoped(self.roots),
            "has_choice": _with_choices(self.patterns),
            "captures": _captures(self.patterns),
            "bridges": tuple(_bridges(self.roots, place) for place in range(len(self.roots))),
            "height": _height(self.patterns, self.roots[0]),
            "turns": _turns(self.patterns, self.source, self.graph),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """The number of calls in the pattern."""
        return sum(isinstance(pattern, Call) for pattern in self.patterns)


def compile_pattern(
    pattern: PatternLike,
    *,
    inputs: Mapping[str, Pattern] | None = None,
    commutes: bool = True,
    normalize: bool = True,
    ignore_literals: bool = False,
    match_placeholder: bool = False,
    match_output: bool = False,
    name_contains: str = "",
    outputs: Sequence[Node] | None = None,
    origin: torch.nn.Module | None = None,
) -> CompiledPattern:
    """Compile a pattern in any of its forms.

    Args:
        pattern: A term of the pattern language, or a callable, ``Graph``, ``GraphModule``, module or exported program
            whose placeholders stand for anything.
        inputs: For the graph forms: what a placeholder must look like, by its name.
        commutes: Try both operand orders of commutative operators.
        normalize: Compare arguments by schema where the spelling differs.
        ignore_literals: Let literals, and the values of tensor constants, be anything.
        match_placeholder: Placeholders stand only for placeholders.
        match_output: The output node is part of the pattern.
        name_contains: Anchors also match nodes whose name contains this text.
        outputs: The nodes of the graph that count as returned, instead of what its output node returns.
        origin: The module that the graph was traced from: it tells state from constants.

    Raises:
        PatternError: The pattern is empty, holds no call, has an unused input or dead code, or cannot be traced.
    """
    if isinstance(pattern, CompiledPattern):
        return pattern
    if isinstance(pattern, Pattern | Outputs):
        return _compile_terms(pattern)
    graph = graph_of(pattern, "pattern")
    if isinstance(pattern, torch.nn.Module) and not isinstance(pattern, GraphModule):
        origin = pattern
    options = _GraphOptions(
        inputs or {}, commutes, normalize, ignore_literals, match_placeholder, name_contains, origin
    )
    return _compile_graph(graph, options, match_output, outputs)


def graph_of(form: Any, what: str) -> Graph:
    """The graph of a callable, module, graph or exported program.

    Raises:
        PatternError: It is none of these, or cannot be traced (also catchable as the tracer's own error).
    """
    if isinstance(form, Graph):
        return form
    if isinstance(form, GraphModule):
        return form.graph
    if isinstance(form, ExportedProgram):
        module = form.module()
        assert isinstance(module, GraphModule)  # what torch.export documents
        return module.graph
    if not callable(form):
        raise PatternError(
            f"the {what} is a {type(form).__name__}; give a callable, Graph, GraphModule, ExportedProgram or a term"
        )
    try:
        if isinstance(form, torch._ops.OpOverload):
            return _graph_of_operator(form)
        return symbolic_trace(form).graph
    except Exception as error:
        name = getattr(form, "__name__", type(form).__name__)
        raise also_as(PatternError, error)(
            f"the {what} {name} cannot be traced: {type(error).__name__}: {error}"
        ) from error


def _graph_of_operator(operator: Any) -> Graph:
    """A graph that calls one operator with its required arguments."""
    if (signature := signature_of(operator)) is None:
        raise PatternError("it has no signature; wrap it in a function")
    graph = Graph()
    given = [graph.placeholder(p.name) for p in signature.positional if p.default is REQUIRED]
    graph.output(graph.call_function(operator, tuple(given)))
    return graph


def output_leaves(graph: Graph) -> list[Any]:
    """What a graph returns, flattened, without ``None``.

    Raises:
        PatternError: The graph has no output node.
    """
    output = next(iter(reversed(graph.nodes)), None)
    if output is None or output.op != "output":
        raise PatternError("the graph has no output node")
    return [leaf for leaf in pytree.tree_leaves(output.args[0]) if leaf is not None]


# ---------------------------------------------------------------------------------------------------- from terms
def _compile_terms(pattern: Pattern | Outputs) -> CompiledPattern:
    results = pattern.patterns if isinstance(pattern, Outputs) else (pattern,)
    patterns = _reachable(results)
    if not any(isinstance(each, Call) for each in patterns):
        raise PatternError(f"the pattern {results[0]!r} holds no call, so it would match everything")
    inner = {child for each in patterns for child in each.children()}
    roots = tuple(dict.fromkeys(result for result in results if result not in inner))
    for root in roots:
        if not isinstance(root, Call | Either | Both):
            raise PatternError(f"the result {root!r} is no call: a result is what the replacement replaces")
    return CompiledPattern(roots=roots, results=tuple(results), inputs=(), patterns=patterns)


def _reachable(results: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """All patterns in and under the results, parents first."""
    seen: dict[Pattern, None] = {}
    waiting = list(reversed(results))
    while waiting:
        pattern = waiting.pop()
        if pattern not in seen:
            seen[pattern] = None
            waiting.extend(reversed(list(pattern.children())))
    return tuple(seen)


def _roles(patterns: Sequence[Pattern]) -> dict[Pattern, Role]:
    """A pattern inside ``Both`` beside one that owns the node does not also take it as an input."""
    roles = {pattern: pattern.role for pattern in patterns}
    for pattern in patterns:
        if isinstance(pattern, Both) and any(roles[d] is Role.OWNS or isinstance(d, Either) for d in pattern.demands):
            roles.update({d: Role.NOTES for d in pattern.demands if roles[d] is Role.TAKES})
    return roles


def _scoped(roots: Sequence[Pattern]) -> frozenset[Pattern]:
    """The patterns that occur only inside a ``Repeat``: each item has a value of its own for them."""
    outside: set[Pattern] = set()
    waiting = list(roots)
    while waiting:
        pattern = waiting.pop()
        if pattern not in outside:
            outside.add(pattern)
            if not isinstance(pattern, Repeat):
                waiting.extend(pattern.children())
    return frozenset(_reachable(roots)) - outside


def _with_choices(patterns: Sequence[Pattern]) -> frozenset[Pattern]:
    """The patterns in or under which the search has something to choose; none if there is a single choice in all.

    With a single choice, trying both ways costs no more than asking beforehand which of them can work.
    """
    if sum(map(_chooses, patterns)) < 2:
        return frozenset()
    found: set[Pattern] = set()
    for pattern in _children_first(patterns):
        if _chooses(pattern) or any(child in found for child in pattern.children()):
            found.add(pattern)
    return frozenset(found)


def _children_first(patterns: Sequence[Pattern]) -> Iterator[Pattern]:
    done: set[Pattern] = set()
    for start in patterns:
        waiting = [(start, False)]
        while waiting:
            pattern, is_ready = waiting.pop()
            if pattern in done:
                continue
            if is_ready:
                done.add(pattern)
                yield pattern
                continue
            waiting.append((pattern, True))
            waiting.extend((child, False) for child in reversed(list(pattern.children())))


def _turns(
    patterns: Sequence[Pattern], source: Mapping[Pattern, Node], graph: Graph | None
) -> dict[Pattern, tuple[int, int]]:
    """When each part runs: as its graph says, or as Python evaluates the terms, arguments first and left to right.

    What an input of a graph must look like (``inputs=``) runs before all of the graph.
    """
    places = {node: place for place, node in enumerate(graph.nodes)} if graph is not None else {}
    return {
        pattern: (places[source[pattern]] if pattern in source else -1, count)
        for count, pattern in enumerate(_children_first(patterns))
    }


def _chooses(pattern: Pattern) -> bool:
    if isinstance(pattern, Call):
        may_swap = pattern.commutes and any(target_commutes(pattern.op, t) for t in pattern.targets)
        return may_swap or sum(isinstance(a, Repeat) for a in pattern.args) > 1
    if isinstance(pattern, Items):
        return sum(isinstance(a, Repeat) for a in pattern.items) > 1
    return isinstance(pattern, Not) or (isinstance(pattern, Either) and len(pattern.options) > 1)


def _height(patterns: Sequence[Pattern], root: Pattern) -> int:
    """The length of the longest chain of calls that every match below ``root`` must have."""
    heights: dict[Pattern, int] = {}
    for pattern in _children_first(patterns):
        below = [heights[child] for child in pattern.children()]
        if isinstance(pattern, Call):
            heights[pattern] = 1 + max(below, default=0)
        elif isinstance(pattern, Either):
            heights[pattern] = min(below)
        elif isinstance(pattern, Both | Items):
            heights[pattern] = max(below, default=0)
        else:
            heights[pattern] = 0
    return heights[root]


def _captures(patterns: Sequence[Pattern]) -> dict[str, tuple[Pattern, ...]]:
    """The named patterns; alternatives may share a name."""
    named: dict[str, tuple[Pattern, ...]] = {}
    for pattern in patterns:
        if pattern.name is not None:
            named[pattern.name] = (*named.get(pattern.name, ()), pattern)
    return named


def _bridges(roots: Sequence[Pattern], place: int) -> tuple[Bridge, ...]:
    """Shortest ways from what the earlier roots bind up to this root; none for the first root and disconnected ones."""
    if place == 0:
        return ()
    known = set(_reachable(roots[:place]))
    root = roots[place]
    found: list[Bridge] = []
    waiting: list[tuple[Pattern, tuple[Call, ...]]] = [(root, ())]
    seen = {root}
    for pattern, above in waiting:  # grows while it is walked: breadth first
        if isinstance(pattern, Not | Repeat):
            continue
        steps = (pattern, *above) if isinstance(pattern, Call) else above
        for child in pattern.children():
            if child in seen:
                continue
            seen.add(child)
            if child in known and child.role is not Role.NOTES:
                found.append(Bridge(child, steps))
            else:
                waiting.append((child, steps))
    return tuple(found)


# ---------------------------------------------------------------------------------------------------- from graphs
@attrs.frozen
class _GraphOptions:
    inputs: Mapping[str, Pattern]
    commutes: bool
    normalize: bool
    ignore_literals: bool
    match_placeholder: bool
    name_contains: str
    origin: torch.nn.Module | None = None


def _compile_graph(
    graph: Graph, options: _GraphOptions, match_output: bool, outputs: Sequence[Node] | None
) -> CompiledPattern:
    if len(graph.nodes) == 0:
        raise PatternError("the pattern graph is empty")
    nodes = [node for node in graph.nodes if not is_bookkeeping(node)]
    leaves = list(outputs) if outputs is not None else output_leaves(graph)
    returned = [leaf for leaf in leaves if isinstance(leaf, Node)]
    _refuse_useless(nodes, returned)
    anchors = _anchors(nodes, returned, match_output)
    terms: dict[Node, Pattern] = {}
    for node in nodes:
        if node.op != "output" or match_output:
            terms[node] = _term_of(node, terms, options, is_anchor=node in anchors)
    roots = tuple(terms[node] for node in anchors)
    return CompiledPattern(
        roots=roots,
        results=tuple(terms[node] for node in returned),
        inputs=tuple(terms[node] for node in nodes if node.op == "placeholder"),
        patterns=_reachable(roots),
        source={term: node for node, term in terms.items()},
        graph=graph,
    )


def _anchors(nodes: Sequence[Node], returned: Sequence[Node], match_output: bool) -> dict[Node, None]:
    if match_output:
        return {nodes[-1]: None}
    computed = dict.fromkeys(node for node in returned if node.op not in ("placeholder", "get_attr"))
    sinks = [node for node in computed if all(user.op == "output" or is_bookkeeping(user) for user in node.users)]
    writes = [node for node in nodes if node.op not in ("placeholder", "output") and not node.users]
    return dict.fromkeys([*sinks, *writes])


def _refuse_useless(nodes: Sequence[Node], returned: Sequence[Node]) -> None:
    if all(node.op in ("placeholder", "get_attr", "output") for node in nodes):
        raise also_as(PatternError, AssertionError())(
            "the pattern computes nothing: it only hands its inputs on, so there is nothing to find"
        )
    for node in nodes:
        users = [user for user in node.users if not is_bookkeeping(user)]
        if users or node.op == "output" or node in returned:
            continue
        if node.op == "placeholder":
            raise also_as(PatternError, AssertionError())(
                f"the pattern does not use its input {node.name!r}: nothing would tell what it is; remove it",
                node=node,
            )
        if not is_impure(node):
            raise also_as(PatternError, AssertionError())(
                f"the pattern has dead code: nothing uses {node.name!r} ({node.format_node()})", node=node
            )


def _term_of(node: Node, terms: Mapping[Node, Pattern], options: _GraphOptions, *, is_anchor: bool) -> Pattern:
    if node.op == "placeholder":
        return _input_term(node, options)
    if node.op == "get_attr":
        return _attribute_term(node, options)
    args = _replace_nodes(node.args, terms, options.ignore_literals)
    kwargs = _replace_nodes(dict(node.kwargs), terms, options.ignore_literals)
    targets: tuple[Any, ...] = node.target.targets if isinstance(node.target, OneOf) else (node.target,)
    return Call(
        targets,
        args,
        kwargs,
        op=node.op,
        commutes=options.commutes,
        normalize=options.normalize,
        name_contains=options.name_contains if is_anchor else "",
    )


def _input_term(node: Node, options: _GraphOptions) -> Pattern:
    name = str(node.target).lstrip("*")
    if name in options.inputs:
        return options.inputs[name].named(name)
    if options.match_placeholder:
        return Value(op="placeholder", name=name)
    return Input(name=name)


def _attribute_term(node: Node, options: _GraphOptions) -> Pattern:
    """A parameter or buffer of a pattern stands for any; a tensor constant stands for itself."""
    path = str(node.target)
    held = _get(node.graph.owning_module, path)
    if isinstance(held, torch.Tensor):
        is_any = options.ignore_literals or _is_state(options.origin or node.graph.owning_module, path, held)
        return Weight() if is_any else Constant(held)
    if isinstance(held, GraphModule):
        code = held.code
        same = conditions_from({"check": lambda found: _code_of(found) == code})
        return Value(op="get_attr", conditions=same)
    same = conditions_from({"check": lambda found: same_literal(held, _held(found))})
    return Value(op="get_attr", conditions=same)


def _is_state(root: Any, path: str, held: torch.Tensor) -> bool:
    """Whether a tensor of a pattern is state, which may have any value, and not a constant.

    Tracing turns plain tensor attributes into buffers, so buffers that the tracer named and single numbers count as
    constants, too.
    """
    prefix, _, name = path.rpartition(".")
    owner = _get(root, prefix)
    if isinstance(held, torch.nn.Parameter):
        return True
    if name not in getattr(owner, "_buffers", {}) or name in getattr(owner, "_non_persistent_buffers_set", ()):
        return False
    return held.numel() != 1 and not name.startswith(_NAMED_BY_TRACERS)


def _get(root: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        root = getattr(root, part, None)
    return root


def _held(node: Node) -> Any:
    return _get(node.graph.owning_module, str(node.target))


def _code_of(node: Node) -> str | None:
    held = _held(node)
    return held.code if isinstance(held, GraphModule) else None


def _replace_nodes(term: Any, terms: Mapping[Node, Pattern], ignore_literals: bool) -> Any:
    """The arguments of a pattern node with patterns in place of nodes."""
    if isinstance(term, Node):
        return terms[term]
    if isinstance(term, tuple | list):
        items: Iterable[Any] = (_replace_nodes(item, terms, ignore_literals) for item in term)
        return tuple(items)
    if isinstance(term, dict):
        return {key: _replace_nodes(item, terms, ignore_literals) for key, item in term.items()}
    if isinstance(term, slice):
        bounds = (term.start, term.stop, term.step)
        return slice(*(_replace_nodes(bound, terms, ignore_literals) for bound in bounds))
    return Anything(counts=False) if ignore_literals else term
