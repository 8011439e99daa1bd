"""Put the replacement of one match into the graph, or say why not and leave the graph as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fxpasses.editing import create_node
from fxpasses.editing.submodules import get_attribute, set_attribute
from fxpasses.errors import FakeValueError, GraphError, PatternError
from fxpasses.instruments.events import rewrite_allowed
from fxpasses.metadata import merge_provenance
from fxpasses.partitioners.matching import GraphView, PatternMatch
from fxpasses.partitioners.matching.bookkeeping import is_bookkeeping
from fxpasses.passes.rewriting.placing import Neighbours, Place, find_place
from fxpasses.passes.rewriting.replacements import BoundReplacement
from fxpasses.passes.rewriting.safety import MemoryUse
from fxpasses.passes.rewriting.uses import Uses
from fxpasses.values import has_value, refresh_values, same_value

__all__ = ["Refused", "Replacer"]

_VALUES = ("val", "example_value", "tensor_meta", "unbacked_bindings", "eager_input_vals")
_TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "original_aten", "seq_nr")
_NOT_COPIED = frozenset((*_VALUES, *_TRACES))


class Refused(Exception):  # noqa: N818 - it is no error: the match is left alone and the reason is reported
    """A match that is not replaced; ``reason`` says why, ``is_wrong`` whether the rule itself is at fault."""

    def __init__(self, reason: str, *, is_wrong: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.is_wrong = reason, is_wrong


@attrs.define(eq=False)
class Replacer:
    """Replaces matches that were all found in one graph before the first of them was replaced.

    Args:
        graph_module: The module around the graph.
        view: The graph as it was when the matches were found.
        check_values: Refuse a replacement whose results have another dtype, shape or device than what they replace.
        holds_for_shared: Two inputs that are one memory may be read and written in another order than in the pattern.
    """

    graph_module: GraphModule
    view: GraphView
    check_values: bool = True
    holds_for_shared: bool = False
    uses: Uses = attrs.field(factory=Uses, init=False)
    stale: dict[Node, None] = attrs.field(factory=dict, init=False)  # whose value looks different now
    near: Neighbours = attrs.field(init=False)
    memory: MemoryUse = attrs.field(init=False)
    _installed: dict[tuple[int, str], str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.near = Neighbours(self.view, self.uses)
        self.memory = MemoryUse(self.view)

    @property
    def graph(self) -> Graph:
        """The graph that is edited."""
        return self.graph_module.graph

    def current(self, value: Any) -> Any:
        """What stands for a node now; everything else is itself."""
        return self.uses.current(value)

    def prepare(self, bound: Iterable[BoundReplacement]) -> None:
        """Say what is going to be put in, before anything is: a functional graph may get its first write."""
        if self.view.effects is None and any(each.graph.written_inputs for each in bound):
            self.view.analyze()
        self.memory.look()

    def replace(self, match: PatternMatch, bound: BoundReplacement) -> list[Node]:
        """Replace one match; :meth:`finish` is called after the last one.

        Returns:
            The new nodes, in order.

        Raises:
            Refused: The graph is as it was.
        """
        if not rewrite_allowed(match.anchors[0]):
            raise Refused("a rewrite limit is in force")
        if (reason := self.memory.objection(match, bound, self.holds_for_shared)) is not None:
            raise Refused(reason)
        values = {p: self.current(value) for p, value in bound.values.items()}
        read = [values[p] for p in bound.values if p in bound.graph.used and isinstance(values[p], Node)]
        inside = set(match.nodes)
        results = [result for result in dict.fromkeys(match.results) if result in inside]
        place = find_place(match, read, results, self.near)
        if place.refused is not None:
            raise Refused(place.refused)
        _move(place)
        made, by = self._copy(match, bound, values, place)
        self.hand_over(match, made, by)
        if bound.graph.written_inputs and made:
            self.memory.note_writes(match, bound, made)
        return made

    def finish(self) -> None:
        """Let the users of what was replaced have what stands for it, with values that are up to date."""
        self.uses.settle()
        refresh_values([node for node in self.stale if not node._erased])

    # ------------------------------------------------------------------------------------------------ new nodes
    def _copy(
        self, match: PatternMatch, bound: BoundReplacement, values: Mapping[Node, Any], place: Place
    ) -> tuple[list[Node], dict[Node, Any]]:
        """Create the nodes of the replacement; give them, and what stands for each result."""
        env: dict[Node, Any] = dict(values)
        made: list[Node] = []
        replaces = sorted(match.nodes)
        origin = None if any(has_value(node) for node in replaces) else _origin(replaces)
        try:
            with self.graph.inserting_before(place.before):
                for node in bound.graph.body:
                    env[node] = self._create(node, env, match, replaces, origin)
                    made.append(env[node])
            by = self._results(match, bound, env)
        except (Refused, FakeValueError, GraphError, PatternError) as error:
            for node in reversed(made):
                self.graph.erase_node(node)
            if isinstance(error, Refused | PatternError):
                raise
            raise Refused(f"the replacement does not fit: {error.reason}", is_wrong=True) from error
        return made, by

    def _create(
        self,
        node: Node,
        env: Mapping[Node, Any],
        match: PatternMatch,
        replaces: Sequence[Node],
        origin: Mapping[str, Any] | None,
    ) -> Node:
        args = map_arg(node.args, env.__getitem__)
        kwargs = map_arg(node.kwargs, env.__getitem__)
        target: Any = node.target
        if node.op in ("get_attr", "call_module"):
            target = self._attribute(node, match)
        if origin is None:
            new = create_node(self.graph, node.op, target, args, dict(kwargs), name=node.name, replaces=replaces)
        else:
            new = self.graph.create_node(node.op, target, args, dict(kwargs), name=node.name)
            new.meta.update({key: copy.copy(entry) for key, entry in origin.items()})
        new.type = node.type
        for key, entry in node.meta.items():
            if key not in _NOT_COPIED and key not in new.meta:
                new.meta[key] = copy.copy(entry)
        return new

    def _results(self, match: PatternMatch, bound: BoundReplacement, env: Mapping[Node, Any]) -> dict[Node, Any]:
        given = bound.graph.results
        old = match.results if len(given) == len(match.results) else list(dict.fromkeys(match.results))
        by: dict[Node, Any] = {}
        inside = set(match.nodes)
        for result, new in zip(old, given, strict=True):
            value = env[new] if isinstance(new, Node) else new
            if result not in inside:
                if value is self.current(result):
                    continue  # both sides hand the same input on
                raise Refused(
                    f"the pattern returns its input {result} as it is, the replacement returns something else",
                    is_wrong=True,
                )
            if result in by and by[result] is not value:
                raise Refused(
                    f"the pattern returns {result} twice, the replacement two different values", is_wrong=True
                )
            by[result] = value
        if self.check_values:
            for result, value in by.items():
                _check_value(result, value)
        return by

    def _attribute(self, node: Node, match: PatternMatch) -> str:
        """Where an attribute of the replacement is to be found in the module: brought along if it is not there.

        A path that the pattern uses too means what the pattern matched. A module of the same type under the same path
        is taken to be the one meant, as torch does. Everything else gets a path of its own if the wished one is taken.
        """
        path = str(node.target)
        for term, theirs in match.pattern.source.items():
            if theirs.op == node.op and theirs.target == node.target and theirs.graph.owning_module is not None:
                found = match.bound.get(term)
                if isinstance(found, Node) and found.op == node.op:
                    return str(found.target)
        source = node.graph.owning_module
        if source is None:
            raise Refused(f"the replacement reads {path!r}, but its graph belongs to no module", is_wrong=True)
        key = (id(source), path)
        if key not in self._installed:
            self._installed[key] = self._install(source, path)
        return self._installed[key]

    def _install(self, source: torch.nn.Module, path: str) -> str:
        wanted = get_attribute(source, path, None)
        if wanted is None:
            raise Refused(f"the replacement reads {path!r}, which its module does not have", is_wrong=True)
        here = get_attribute(self.graph_module, path, None)
        if here is not None and _is_meant(here, wanted):
            return path
        free, count = path, 0
        while get_attribute(self.graph_module, free, None) is not None:
            count += 1
            free = f"{path}_{count}"
        entry = _copied(wanted) if isinstance(wanted, torch.nn.Module) else wanted
        set_attribute(self.graph_module, free, entry, like=source if free == path else None)
        return free

    # ------------------------------------------------------------------------------------------------ old nodes
    def hand_over(self, match: PatternMatch, made: list[Node], by: Mapping[Node, Any]) -> None:
        """Let everybody use the new results, and erase what nobody uses any more."""
        for result, value in by.items():
            users = self.uses.replace(result, value)
            is_known = isinstance(value, Node) and has_value(result) and has_value(value)
            if is_known and not same_value(_value(result), _value(value)):
                self.stale.update(dict.fromkeys(users))
        gone = self._erase(match)
        self.near.replace(gone, made)
        for node in gone:
            self.stale.pop(node, None)

    def _erase(self, match: PatternMatch) -> list[Node]:
        gone: list[Node] = []
        inside = dict.fromkeys(match.nodes)
        for node in sorted(inside, reverse=True):
            for user in [user for user in self.uses.users(node) if is_bookkeeping(user) and not user.users]:
                self.graph.erase_node(user)
            if not self.uses.users(node):
                self.uses.erase(node)
                gone.append(node)
        inputs = dict.fromkeys(
            value for value in match.bound.values() if isinstance(value, Node) and value.op == "get_attr"
        )
        for node in inputs:
            if not node._erased and not self.uses.users(node):
                self.uses.erase(node)
        return gone


def _origin(replaced: Sequence[Node]) -> dict[str, Any]:
    """The metadata that every node has which stands for these; for graphs without values, where it is all there is."""
    new = Graph().placeholder("new")
    merge_provenance(new, replaced)
    return new.meta


def _move(place: Place) -> None:
    for node in place.moved:
        place.before.prepend(node)


def _value(node: Node) -> Any:
    return node.meta.get("val", node.meta.get("example_value"))


def _check_value(old: Node, new: Any) -> None:
    """Refuse a result that looks different from what it replaces; both sides are printed."""
    if not has_value(old):
        return
    before = _value(old)
    if not isinstance(new, Node):
        if isinstance(before, torch.Tensor):
            raise Refused(f"{old.name} is {_looks(before)}, the replacement gives the literal {new!r}", is_wrong=True)
        return
    if has_value(new) and not _alike(before, _value(new)):
        raise Refused(f"{old.name} is {_looks(before)}, the replacement gives {_looks(_value(new))}", is_wrong=True)


def _alike(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        if before.dtype != after.dtype or before.device != after.device or before.dim() != after.dim():
            return False
        return not any(_known_different(a, b) for a, b in zip(before.shape, after.shape, strict=True))
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) == len(after) and all(map(_alike, before, after))
    return isinstance(before, torch.Tensor) == isinstance(after, torch.Tensor)


def _known_different(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    return bool(statically_known_true(a != b))


def _looks(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}] on {value.device}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_looks, value))})"
    return repr(value)


def _is_meant(here: Any, wanted: Any) -> bool:
    """Whether what the module already has under a path is what the replacement asks for."""
    if here is wanted:
        return True
    if isinstance(wanted, torch.nn.Module):
        return type(here) is type(wanted)
    if isinstance(wanted, torch.Tensor) and isinstance(here, torch.Tensor):
        return here.dtype == wanted.dtype and here.shape == wanted.shape and bool(torch.equal(here, wanted))
    return type(here) is type(wanted) and not isinstance(here, torch.Tensor) and bool(here == wanted)


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the modules that shares their tensors."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
