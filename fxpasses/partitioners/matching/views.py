"""What matching needs to know about one graph, computed once: who calls what, arguments by schema, constants, order.

A view describes the graph as it is; whoever edits the graph makes a new view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fxpasses.arguments import REQUIRED, Parameter, Signature, signature_for
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import GraphError
from fxpasses.partitioners.matching.commuting import commutes
from fxpasses.partitioners.matching.literals import show_target
from fxpasses.partitioners.matching.quiet import is_quiet
from fxpasses.partitioners.matching.terms import Both, Call, Either, Items, Maybe, Pattern

__all__ = ["GraphView"]

Key = tuple[str, Any]
Pairs = list[tuple[Any, Any]]
_LIFTED = ("p_", "b_", "c_")  # how torch.export names the inputs that it makes of parameters, buffers and constants


class GraphView:
    """One graph, seen by the matcher.

    Args:
        graph: The graph, or the module around it.
        effects: An analysis to use instead of a new one; False to look at data dependencies only.
        constants: Values of placeholders that stand for tensor constants (an exported program's), by placeholder name.
    """

    def __init__(
        self,
        graph: Graph | GraphModule,
        *,
        effects: EffectAnalysis | bool | None = None,
        constants: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.graph = graph.graph if isinstance(graph, GraphModule) else graph
        self.root = graph if isinstance(graph, GraphModule) else graph.owning_module
        self.effects_wanted = effects
        self.lifted_constants = constants or {}
        self.nodes: list[Node] = list(self.graph.nodes)
        self.position: dict[Node, int] = {node: place for place, node in enumerate(self.nodes)}
        self.feasible: dict[tuple[Pattern, Any], bool] = {}
        self._bound: dict[Node, tuple[Signature, dict[str, Any], frozenset[str]] | None] = {}
        self._terms: dict[tuple[Pattern, int], tuple[Signature, dict[str, Any] | None]] = {}

    @cached_property
    def index(self) -> dict[Key, list[Node]]:
        """The nodes by opcode and target, in graph order."""
        found: dict[Key, list[Node]] = {}
        for node in self.nodes:
            key = (node.op, node.target)
            if key in found:
                found[key].append(node)
            else:
                found[key] = [node]
        return found

    def candidates(self, root: Pattern) -> list[Node]:
        """The nodes that ``root`` may stand for as far as their targets tell, in graph order."""
        keys = self._keys(root)
        if keys is None:
            return [node for node in self.nodes if node.op != "output"]
        if len(keys) == 1:
            return self.index[keys[0]]
        return sorted((n for key in keys for n in self.index[key]), key=self.position.__getitem__)

    def _keys(self, root: Pattern) -> list[Key] | None:
        """The keys of the index that hold candidates; None for all."""
        waiting, keys = [root], dict[Key, None]()
        while waiting:
            pattern = waiting.pop()
            if isinstance(pattern, Either):
                waiting.extend(pattern.options)
            elif isinstance(pattern, Both):
                narrow = next((d for d in pattern.demands if self._keys(d) is not None), None)
                if narrow is None:
                    return None
                waiting.append(narrow)
            elif isinstance(pattern, Call) and not pattern.name_contains:
                keys.update(dict.fromkeys(self._keys_of_call(pattern)))
            else:
                return None
        return list(keys)

    def _keys_of_call(self, pattern: Call) -> Iterable[Key]:
        if pattern.op == "output" or any(isinstance(t, type | torch._ops.OpOverloadPacket) for t in pattern.targets):
            return [key for key, nodes in self.index.items() if pattern.calls(nodes[0], self)]
        return [key for key in ((pattern.op, t) for t in pattern.targets) if key in self.index]

    def module(self, node: Node) -> torch.nn.Module | None:
        """The submodule that a ``call_module`` node calls; None if there is none."""
        held = self._attribute(node) if node.op == "call_module" else None
        return held if isinstance(held, torch.nn.Module) else None

    def _attribute(self, node: Node) -> Any:
        held: Any = self.root
        for part in str(node.target).split("."):
            held = getattr(held, part, None)
        return held

    def constant(self, node: Node) -> torch.Tensor | None:
        """The tensor that a node always holds: an attribute that is no parameter, or a lifted constant."""
        if node.op == "placeholder":
            return self.lifted_constants.get(node.name)
        held = self._attribute(node) if node.op == "get_attr" else None
        is_constant = isinstance(held, torch.Tensor) and not isinstance(held, torch.nn.Parameter)
        return held if is_constant else None

    def is_weight(self, node: Node) -> bool:
        """Whether the node holds a parameter, a buffer or another tensor of the module."""
        if node.op == "get_attr":
            return isinstance(self._attribute(node), torch.Tensor)
        return node.op == "placeholder" and str(node.target).startswith(_LIFTED)

    def same_tensor(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """Equal in value; fake and meta tensors equal only themselves."""
        if first is second:
            return True
        if not (_has_data(first) and _has_data(second)) or first.numel() != second.numel():
            return False
        a, b = first.detach().cpu(), second.detach().cpu()
        if a.shape != b.shape:
            a, b = a.reshape(-1), b.reshape(-1)
        if a.dtype != b.dtype:
            a, b = a.double(), b.double()
        return bool(torch.all((a == b) | ((a != a) & (b != b))))

    def all_equal(self, tensor: torch.Tensor, number: Any) -> bool:
        """Every element equals the number."""
        return _has_data(tensor) and tensor.numel() > 0 and bool(torch.all(tensor == number))

    def commutes(self, node: Node) -> bool:
        """Whether the first two operands may be swapped."""
        return commutes(node)

    def describe(self, node: Node) -> str:
        """A node for a message: its name and what it calls."""
        if node.op in ("call_function", "call_method", "call_module"):
            return f"{node.name} ({show_target(node.op, node.target)})"
        return f"{node.name} ({node.op})"

    # ------------------------------------------------------------------------------------------------ arguments
    def aligned(self, pattern: Call, node: Node) -> Pairs | None:
        """The terms of a call pattern beside the arguments of a node; None if they cannot be laid side by side."""
        terms, given = pattern.args, node.args
        if pattern.is_variadic:
            return self._with_repeats(pattern, node)
        if len(terms) == len(given) and not pattern.kwargs and not node.kwargs:
            return list(zip(terms, given, strict=True))
        is_same_spelling = len(terms) == len(given) and pattern.kwargs.keys() == node.kwargs.keys()
        if is_same_spelling and not (pattern.commutes and len(given) < 2):
            return [*zip(terms, given, strict=True), *((t, node.kwargs[name]) for name, t in pattern.kwargs.items())]
        by_name = self._aligned_by_name(pattern, node) if pattern.normalize else None
        return by_name if by_name is not None else self._aligned_by_place(pattern, node)

    def argument_names(self, pattern: Call, node: Node) -> list[str]:
        """How to call the pairs of :meth:`aligned` in a message."""
        count = len(self.aligned(pattern, node) or ())
        bound = self._bound_arguments(node)
        names = list(bound[1]) if bound is not None else []
        plain = [*range(len(pattern.args)), *pattern.kwargs]
        if len(names) != count and len(plain) == count:
            named = dict(enumerate(names))
            return [repr(named.get(key, key)) if isinstance(key, int) else repr(key) for key in plain]
        return [repr(names[place]) if place < len(names) else str(place) for place in range(count)]

    def misaligned(self, pattern: Call, node: Node) -> str:
        """Why :meth:`aligned` found no way."""
        return (
            f"it has {len(node.args)} positional arguments and {_words(node.kwargs)}, "
            f"the pattern has {len(pattern.args)} and {_words(pattern.kwargs)}"
        )

    def _with_repeats(self, pattern: Call, node: Node) -> Pairs | None:
        if not pattern.open and pattern.kwargs.keys() != node.kwargs.keys():
            return None
        if not pattern.kwargs.keys() <= node.kwargs.keys():
            return None
        items = self._terms.get((pattern, 0))
        if items is None:
            items = self._terms[pattern, 0] = (Signature(()), {"": Items(pattern.args)})
        assert items[1] is not None  # written one line above
        return [(items[1][""], node.args), *((t, node.kwargs[name]) for name, t in pattern.kwargs.items())]

    def _aligned_by_place(self, pattern: Call, node: Node) -> Pairs | None:
        """Without a schema: the same places and keywords; optional terms at the end may be missing."""
        terms = list(pattern.args)
        while len(terms) > len(node.args) and isinstance(terms[-1], Maybe):
            terms.pop()
        wanted = {n: t for n, t in pattern.kwargs.items() if n in node.kwargs or not isinstance(t, Maybe)}
        if pattern.open:
            if len(terms) > len(node.args) or not wanted.keys() <= node.kwargs.keys():
                return None
        elif len(terms) != len(node.args) or wanted.keys() != node.kwargs.keys():
            return None
        return [*zip(terms, node.args, strict=False), *((t, node.kwargs[name]) for name, t in wanted.items())]

    def _aligned_by_name(self, pattern: Call, node: Node) -> Pairs | None:
        bound = self._bound_arguments(node)
        if bound is None:
            return None
        signature, values, given = bound
        terms = self._terms_by_name(pattern, signature)
        if terms is None:
            return None
        pairs: Pairs = []
        for parameter in signature.parameters:
            name = parameter.name
            if name in terms:
                term = terms[name]
                if isinstance(term, Maybe) and name not in given:
                    continue
                if name not in values:
                    return None
                pairs.append((term, _as_list(parameter, values[name])))
            elif name in given and not pattern.open:
                if parameter.default is REQUIRED:
                    return None
                pairs.append((_as_list(parameter, parameter.default), _as_list(parameter, values[name])))
        return pairs

    def _bound_arguments(self, node: Node) -> tuple[Signature, dict[str, Any], frozenset[str]] | None:
        if node not in self._bound:
            self._bound[node] = _bind(node)
        return self._bound[node]

    def _terms_by_name(self, pattern: Call, signature: Signature) -> dict[str, Any] | None:
        key = (pattern, id(signature))
        if key not in self._terms:
            self._terms[key] = (signature, _bind_terms(pattern, signature))
        return self._terms[key][1]

    # ------------------------------------------------------------------------------------------------ order
    @cached_property
    def effects(self) -> EffectAnalysis | None:
        """What the nodes read and write; None if nothing is written, or if the view looks at data only."""
        if self.effects_wanted is False:
            return None
        if self.effects_wanted is not None and self.effects_wanted is not True:
            return self.effects_wanted
        if is_quiet(self.nodes):
            return None
        return analyze_effects(self.root if isinstance(self.root, GraphModule) else self.graph)

    def analyze(self) -> None:
        """Look at the effects of a graph even if it is functional."""
        self.effects = analyze_effects(self.root if isinstance(self.root, GraphModule) else self.graph)

    @cached_property
    def later(self) -> dict[Node, list[Node]]:
        """For a node: those that effects keep behind it, beside its users."""
        found: dict[Node, list[Node]] = {}
        for first, second in self._order_edges():
            found.setdefault(first, []).append(second)
        return found

    @cached_property
    def earlier(self) -> dict[Node, list[Node]]:
        """For a node: those that effects keep in front of it, beside its inputs."""
        found: dict[Node, list[Node]] = {}
        for first, second in self._order_edges():
            found.setdefault(second, []).append(first)
        return found

    def _order_edges(self) -> Sequence[tuple[Node, Node]]:
        return () if self.effects is None else self.effects.order_edges

    def why_ordered(self, first: Node, second: Node) -> str:
        """Why ``first`` must stay before ``second``."""
        if second in first.users:
            return f"{second.name} uses {first.name}"
        return "" if self.effects is None else self.effects.why_ordered(first, second)


def _has_data(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and not isinstance(tensor, torch._subclasses.FakeTensor)


def _words(kwargs: Mapping[str, Any]) -> str:
    return f"keywords {', '.join(kwargs)}" if kwargs else "no keywords"


def _bind(node: Node) -> tuple[Signature, dict[str, Any], frozenset[str]] | None:
    try:
        signature = signature_for(node)
        if signature is None:
            return None
        given = signature.bind(node.args, node.kwargs, defaults=False)
        return signature, signature.bind(node.args, node.kwargs), frozenset(given)
    except (GraphError, AttributeError):
        return None


def _bind_terms(pattern: Call, signature: Signature) -> dict[str, Any] | None:
    """The pattern's terms by the names of a signature; None if they do not fit it."""
    formal = signature.positional
    named: dict[str, Any] = {p.name: _as_list(p, term) for p, term in zip(formal, pattern.args, strict=False)}
    if formal and _is_list(formal[-1]):
        tail = pattern.args[len(formal) - 1 :]
        if len(tail) > 1 or (len(tail) == 1 and isinstance(tail[0], int)):
            named[formal[-1].name] = tuple(tail)
    elif len(pattern.args) > len(formal):
        return None
    aliases = dict(signature.aliases)
    for written, term in pattern.kwargs.items():
        name = aliases.get(written, written)
        if name in named or name not in signature.names:
            return None
        named[name] = _as_list(signature[name], term)
    return named


def _is_list(parameter: Parameter) -> bool:
    kind = parameter.type
    if kind is not None and kind.kind() == "OptionalType":
        kind = kind.getElementType()
    return kind is not None and kind.kind() == "ListType" and kind.getElementType().kind() == "IntType"


def _as_list(parameter: Parameter, value: Any) -> Any:
    """Python callers may leave out the brackets: ``sum(x, dim=1)``."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return (value,) if is_number and _is_list(parameter) else value
