"""What a program was before a pass: did it change, how, and back to exactly that.

A :class:`Snapshot` keeps references and shallow copies, never a tensor. Asking whether something changed compares
columns of references at C speed (about 0.15 us a node); what changed is worked out only when somebody asks; going back
puts the same node objects, metadata, attributes, names and order in place again.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, is_, lt
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

__all__ = ["Changes", "Snapshot"]

_FACTS = ("_args", "_kwargs", "target", "name", "op", "type")
_facts = attrgetter(*_FACTS)
_each_fact = tuple(map(attrgetter, _FACTS))
_meta = attrgetter("meta")
_users = attrgetter("users")
_inputs = attrgetter("_input_nodes")
_rest = attrgetter("_sort_key", "_repr_fn", "__dict__")
_set = object.__setattr__  # torch's own setter calls hooks and keeps tables; those are put back as a whole

_GENERATED = frozenset({"_code", "_lineno_map", "_prologue_start", "_in_spec", "_out_spec", "_graph", "meta"})
_MISSING: Any = object()


@attrs.frozen
class Changes:
    """What is different between a snapshot and now. Names only, so that a record keeps no graph alive.

    Nodes of nested graphs are written as ``path.to.graph/name``.

    Attributes:
        added: Nodes that are new, in graph order.
        removed: Nodes that are gone, in their former order.
        altered: Nodes whose target, arguments, name or type changed, by what changed.
        moved: The fewest nodes that explain the new order.
        attributes: Parameters, buffers, modules, signature entries and the like that were set, removed or replaced.
        written_in_place: Tensors whose content was written; a rollback cannot undo that.
        metadata: Nodes whose ``meta`` was written; this alone does not count as a change of the graph.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    altered: Mapping[str, str] = attrs.field(factory=dict)
    moved: tuple[str, ...] = ()
    attributes: Mapping[str, str] = attrs.field(factory=dict)
    written_in_place: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether the program changed; metadata alone does not count."""
        parts = (self.added, self.removed, self.altered, self.moved, self.attributes, self.written_in_place)
        return any(map(bool, parts))

    def __str__(self) -> str:
        """One line, such as ``2 added, 1 removed``; ``no changes`` when there are none."""
        counts = [
            (len(self.added), "added"),
            (len(self.removed), "removed"),
            (len(self.altered), "altered"),
            (len(self.moved), "moved"),
            (len(self.attributes), "attributes"),
            (len(self.written_in_place), "tensors written in place"),
        ]
        return ", ".join(f"{count} {what}" for count, what in counts if count) or "no changes"


class Snapshot:
    """The state of a program at one moment; made by :meth:`take`.

    >>> from torch.fx import symbolic_trace
    >>> graph_module = symbolic_trace(torch.nn.ReLU())
    >>> before = Snapshot.take(graph_module)
    >>> before.changed()
    False
    >>> relu = list(graph_module.graph.nodes)[1]
    >>> relu.replace_all_uses_with(relu.args[0])
    [output]
    >>> before.changed()
    True
    >>> before.restore()
    >>> before.changed()
    False
    """

    def __init__(self, root: GraphModule | ExportedProgram) -> None:
        self._root = root
        graph_module = root.graph_module if isinstance(root, ExportedProgram) else root
        self._modules = _ModuleTree(graph_module)
        self._graphs = [_GraphState(path, graph) for path, graph in _graphs_of(self._modules.paths())]
        self._program = _ProgramState(root) if isinstance(root, ExportedProgram) else None

    @classmethod
    def take(cls, root: GraphModule | ExportedProgram) -> Snapshot:
        """Remember ``root`` as it is now: nested graphs, submodules and, for a program, its signature included.

        Costs about 1.5 us a node; no tensor is copied.
        """
        with _collector_paused():
            return cls(root)

    @property
    def root(self) -> GraphModule | ExportedProgram:
        """The program that was looked at."""
        return self._root

    def changed(self) -> bool:
        """Whether nodes, their order, names, arguments, output, attributes, submodules or signature are different.

        Exact: an edit that was undone again does not count, and neither does metadata.
        """
        if self._program is not None and self._program.changed():
            return True
        return self._modules.changed() or any(state.changed() for state in self._graphs)

    def metadata_changed(self) -> bool:
        """Whether some ``node.meta``, ``graph_module.meta`` or the like was written since."""
        return self._modules.metadata_changed() or any(state.metadata_changed() for state in self._graphs)

    def renewed(self) -> Snapshot:
        """A snapshot of now: this one if nothing was touched, a new one otherwise."""
        return Snapshot.take(self._root) if self.changed() or self.metadata_changed() else self

    def changes(self, now: Snapshot | None = None) -> Changes:
        """What is different now; linear in the nodes, for records.

        Args:
            now: A snapshot of now, if the caller has one already.
        """
        now = Snapshot.take(self._root) if now is None else now
        before_states = {state.path: state for state in self._graphs}
        after_states = {state.path: state for state in now._graphs}
        parts = _ChangeParts()
        for path in dict.fromkeys([*before_states, *after_states]):
            _compare_graphs(path, before_states.get(path), after_states.get(path), parts)
        self._modules.describe(now._modules, parts)
        if self._program is not None and now._program is not None:
            self._program.describe(now._program, parts)
        return parts.frozen()

    def restore(self) -> None:
        """Put everything back: the same nodes in the same order, their metadata, names, attributes, code.

        Only what was written into a tensor in place stays; :meth:`changes` names those tensors.
        """
        if self._program is not None:
            self._program.restore()
        self._modules.restore()
        for state in self._graphs:
            state.restore()


class _ChangeParts:
    def __init__(self) -> None:
        self.added: list[str] = []
        self.removed: list[str] = []
        self.altered: dict[str, str] = {}
        self.moved: list[str] = []
        self.attributes: dict[str, str] = {}
        self.written: list[str] = []
        self.metadata: list[str] = []

    def frozen(self) -> Changes:
        return Changes(
            tuple(self.added),
            tuple(self.removed),
            self.altered,
            tuple(self.moved),
            self.attributes,
            tuple(self.written),
            tuple(self.metadata),
        )


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Everything allocated inside is kept, so the garbage collector would walk the heap again and again for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- graphs --------------------------------------------------------------------------------------------------------


def _graphs_of(modules: Iterable[tuple[str, torch.nn.Module]]) -> Iterator[tuple[str, Graph]]:
    seen: set[int] = set()
    for path, module in modules:
        if isinstance(module, GraphModule) and id(module.graph) not in seen:
            seen.add(id(module.graph))
            yield path, module.graph


_DICTS: frozenset[Any] = frozenset({dict, OrderedDict, defaultdict})
_CONTAINERS: frozenset[Any] = _DICTS | {list, set}


def _copied(entry: Any) -> Any:
    """The entry itself, or a copy if it is a container, so that what is written into it later is not seen here."""
    kind = type(entry)
    if kind not in _CONTAINERS:
        return entry
    copied = entry.copy()
    parts = copied.items() if kind in _DICTS else enumerate(copied) if kind is list else ()
    for key, part in parts:
        if type(part) in _CONTAINERS:
            copied[key] = _copied(part)
    return copied


def _copied_meta(meta: dict[str, Any]) -> dict[str, Any]:
    copied = meta.copy()
    for key, entry in meta.items():
        if type(entry) in _CONTAINERS:
            copied[key] = _copied(entry)
    return copied


def _put_back(live: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Make ``live`` equal to ``saved``; containers in it keep their identity where they are still there."""
    for key, entry in saved.items():
        now = live.get(key, _MISSING)
        if type(entry) in _DICTS and type(now) is type(entry):
            _put_back(now, entry)
        elif type(entry) is list and type(now) is list:
            now[:] = _copied(entry)
        elif now is not entry:
            live[key] = _copied(entry)
    if list(live) != list(saved):
        ordered = {key: live[key] for key in saved}
        live.clear()
        live.update(ordered)


def _equal_meta(left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> bool:
    try:
        return bool(left == right)  # identical entries are not compared, so tensors in there cost nothing
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False  # two different tensors under one key: the comparison gives a tensor, and the entry was replaced


class _GraphState:
    """One graph: its nodes in order, and for each what ``_facts`` reads."""

    def __init__(self, path: str, graph: Graph) -> None:
        self.path = path
        self.graph = graph
        self.nodes: list[Node] = list(graph.nodes)
        self.facts: list[tuple[Any, ...]] = list(map(_facts, self.nodes))
        self.columns = [list(map(get, self.nodes)) for get in _each_fact]
        self.metas: list[dict[str, Any]] = list(map(_meta, self.nodes))
        self.meta_copies = list(map(_copied_meta, self.metas))
        self.users = list(map(dict.copy, map(_users, self.nodes)))
        self.inputs = list(map(dict.copy, map(_inputs, self.nodes)))
        self.rest = [(key, show, own.copy() if own else None) for key, show, own in map(_rest, self.nodes)]
        self.fields = dict(graph.__dict__)
        self.field_copies = {key: dict(entry) for key, entry in self.fields.items() if type(entry) is dict}
        self.codegen_fields = dict(getattr(graph._codegen, "__dict__", {}))
        self.root_key = graph._root._sort_key
        namespace = graph._graph_namespace
        self.names = (namespace._obj_to_name.copy(), namespace._used_names.copy(), namespace._base_count.copy())
        self.table = {key: entry.copy() for key, entry in graph._find_nodes_lookup_table.table.items()}

    def changed(self) -> bool:
        nodes: list[Node] = list(self.graph.nodes)
        if len(nodes) != len(self.nodes) or nodes != self.nodes:
            return True
        if self.graph.__dict__.get("_codegen") is not self.fields["_codegen"]:
            return True
        if not _same_fields(getattr(self.graph._codegen, "__dict__", {}), self.codegen_fields):
            return True
        try:  # column by column: a tuple per node would have the garbage collector walk the whole heap
            for get, column in zip(_each_fact, self.columns, strict=True):
                now = list(map(get, nodes))
                if now != column:
                    return True
                if not all(map(is_, now, column)) and not all(map(_same_kinds, now, column)):
                    return True
            return False
        except (RuntimeError, ValueError, TypeError):  # arguments that hold two different tensors cannot be compared
            return True

    def metadata_changed(self) -> bool:
        if not _equal_meta(list(map(_meta, self.graph.nodes)), self.meta_copies):
            return True
        saved = self.field_copies.get("meta")
        return saved is not None and not _equal_meta([self.graph.__dict__.get("meta") or {}], [saved])

    def restore(self) -> None:
        graph = self.graph
        kept = set(self.nodes)
        for node in list(graph.nodes):
            if node not in kept:
                _retire(node)
        previous = graph._root
        _set(previous, "_sort_key", self.root_key)
        columns = zip(
            self.nodes, self.facts, self.metas, self.meta_copies, self.users, self.inputs, self.rest, strict=True
        )
        for node, facts, meta, meta_copy, users, inputs, rest in columns:
            _set(node, "graph", graph)
            _set(node, "_erased", False)
            for field, fact in zip(_FACTS, facts, strict=True):
                if getattr(node, field) is not fact:
                    _set(node, field, fact)
            _put_back(meta, meta_copy)
            if node.meta is not meta:
                _set(node, "meta", meta)
            _refill(node.users, users)
            _refill(node._input_nodes, inputs)
            self._restore_rest(node, rest)
            _set(node, "_prev", previous)
            _set(previous, "_next", node)
            previous = node
        _set(graph._root, "_prev", previous)
        _set(previous, "_next", graph._root)
        self._restore_tables()

    @staticmethod
    def _restore_rest(node: Node, rest: tuple[Any, Any, dict[str, Any] | None]) -> None:
        sort_key, show, own = rest
        _set(node, "_sort_key", sort_key)
        _set(node, "_repr_fn", show)
        if own or node.__dict__:
            node.__dict__.clear()
            node.__dict__.update(own or {})

    def _restore_tables(self) -> None:
        graph = self.graph
        graph.__dict__.clear()
        graph.__dict__.update(self.fields)
        for key, saved in self.field_copies.items():
            _refill(graph.__dict__[key], saved)
        codegen = getattr(graph._codegen, "__dict__", None)
        if codegen is not None and not _same_fields(codegen, self.codegen_fields):
            codegen.clear()
            codegen.update(self.codegen_fields)
        namespace = graph._graph_namespace
        objects, used, counts = self.names
        _refill(namespace._obj_to_name, objects)
        namespace._used_names.clear()
        namespace._used_names.update(used)
        _refill(namespace._base_count, counts)
        table = graph._find_nodes_lookup_table.table
        table.clear()
        table.update({key: entry.copy() for key, entry in self.table.items()})


def _retire(node: Node) -> None:
    """Leave a node that was added as torch leaves an erased one: no inputs, no users."""
    _set(node, "_erased", True)
    node.users.clear()
    node._input_nodes.clear()


def _refill(live: dict[Any, Any], saved: Mapping[Any, Any]) -> None:
    if live != saved or list(live) != list(saved):
        live.clear()
        live.update(saved)


def _same_fields(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return list(left) == list(right) and all(map(is_, left.values(), right.values()))


def _compare_graphs(path: str, before: _GraphState | None, after: _GraphState | None, parts: _ChangeParts) -> None:
    def label(name: str) -> str:
        return f"{path}/{name}" if path else name

    old: dict[Node, int] = {} if before is None else {node: index for index, node in enumerate(before.nodes)}
    new: dict[Node, int] = {} if after is None else {node: index for index, node in enumerate(after.nodes)}
    if before is not None:
        parts.removed += [label(before.facts[index][3]) for node, index in old.items() if node not in new]
    if after is None:
        return
    parts.added += [label(after.facts[index][3]) for node, index in new.items() if node not in old]
    if before is None:
        return
    both = [node for node in new if node in old]
    for node in both:
        left, right = before.facts[old[node]], after.facts[new[node]]
        same = _equal(left, right) and (left[0] is right[0] or _same_kinds(left[:2], right[:2]))
        if not same and (fields := _different_facts(left, right)):
            was = f" (was {left[3]})" if "name" in fields else ""
            parts.altered[label(right[3])] = ", ".join(fields) + was
        if not _equal(before.meta_copies[old[node]], node.meta):
            parts.metadata.append(label(right[3]))
    places = [old[node] for node in both]
    if not all(map(lt, places, places[1:])):
        steady = _longest_increasing(places)
        parts.moved += [label(node.name) for index, node in enumerate(both) if index not in steady]
    if before.fields["_codegen"] is not after.fields["_codegen"] or not _same_fields(
        before.codegen_fields, after.codegen_fields
    ):
        parts.attributes[label("<calling convention>")] = "replaced"


def _different_facts(left: tuple[Any, ...], right: tuple[Any, ...]) -> list[str]:
    names = ("args", "kwargs", "target", "name", "op", "type")
    return [
        name
        for name, one, other in zip(names, left, right, strict=True)
        if one is not other and not (_equal(one, other) and _same_kinds(one, other))
    ]


def _same_kinds(left: Any, right: Any) -> bool:
    """Whether two equal arguments are also of the same types: ``1``, ``1.0`` and ``True`` are equal, and differ."""
    if left is right:
        return True
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return all(map(_same_kinds, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return all(_same_kinds(entry, right[key]) for key, entry in left.items())
    if isinstance(left, slice) and isinstance(right, slice):
        return _same_kinds((left.start, left.stop, left.step), (right.start, right.stop, right.step))
    return type(left) is type(right)


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):  # tensors among them
        return False


def _longest_increasing(positions: Sequence[int]) -> set[int]:
    """Indices of one longest increasing subsequence, in O(n log n) (patience sorting; Fredman 1975)."""
    tails: list[int] = []
    tail_indices: list[int] = []
    came_from: list[int] = []
    for index, position in enumerate(positions):
        place = bisect.bisect_left(tails, position)
        came_from.append(tail_indices[place - 1] if place else -1)
        if place == len(tails):
            tails.append(position)
            tail_indices.append(index)
        else:
            tails[place] = position
            tail_indices[place] = index
    found: set[int] = set()
    index = tail_indices[-1] if tail_indices else -1
    while index >= 0:
        found.add(index)
        index = came_from[index]
    return found


# --- modules and their attributes ----------------------------------------------------------------------------------


class _ModuleState:
    """One module: what hangs on it, in order."""

    def __init__(self, path: str, module: torch.nn.Module) -> None:
        self.path = path
        self.module = module
        self.fields = dict(module.__dict__)
        self.containers = {key: entry.copy() for key, entry in self.fields.items() if type(entry) in _CONTAINERS}
        self.plain = {key: entry for key, entry in self.fields.items() if key not in _GENERATED}
        self.meta = _copied_meta(self.fields["meta"]) if type(self.fields.get("meta")) is dict else None
        self.graph = self.fields.get("_graph")
        self.versions = {name: _version(tensor) for name, tensor in _tensors(self.fields)}
        kind = type(module)
        self.forward = vars(kind).get("forward") if isinstance(module, GraphModule) else None

    def changed(self) -> bool:
        now = self.module.__dict__
        if now.get("_graph") is not self.graph:
            return True
        if len(now) != len(self.fields) or not _same_fields(
            {key: entry for key, entry in now.items() if key not in _GENERATED}, self.plain
        ):
            return True
        for key, saved in self.containers.items():
            if key not in _GENERATED and not _same_container(now[key], saved):
                return True
        return any(_version(tensor) != self.versions.get(name) for name, tensor in _tensors(now))

    def metadata_changed(self) -> bool:
        if self.meta is None:
            return type(self.module.__dict__.get("meta")) is dict
        return not _equal_meta([self.module.__dict__.get("meta") or {}], [self.meta])

    def restore(self) -> None:
        module = self.module
        own = module.__dict__
        if not _same_fields(own, self.fields):
            own.clear()
            own.update(self.fields)
        for key, saved in self.containers.items():
            if key == "meta":
                continue
            live = own[key]
            if not _same_container(live, saved):
                live.clear()
                live.extend(saved) if isinstance(live, list) else live.update(saved)
        if self.meta is not None:
            _put_back(own["meta"], self.meta)
        if self.forward is not None and vars(type(module)).get("forward") is not self.forward:
            type(module).forward = self.forward  # what recompile() had put there


def _same_container(left: Any, right: Any) -> bool:
    if type(left) is not type(right) or len(left) != len(right):
        return False
    if isinstance(left, dict):
        return _same_fields(left, right)
    if isinstance(left, list):
        return all(map(is_, left, right))
    return bool(left == right)


def _tensors(fields: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for group in ("_parameters", "_buffers"):
        for name, tensor in fields.get(group, {}).items():
            if tensor is not None:
                yield name, tensor
    for name, entry in fields.items():
        if isinstance(entry, torch.Tensor):
            yield name, entry


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version  # inference tensors do not count their writes


class _ModuleTree:
    """All modules under a root, each once."""

    def __init__(self, root: GraphModule) -> None:
        self.root = root
        self.states = [_ModuleState(path, module) for path, module in root.named_modules()]

    def paths(self) -> list[tuple[str, torch.nn.Module]]:
        return [(state.path, state.module) for state in self.states]

    def changed(self) -> bool:
        return any(state.changed() for state in self.states)

    def metadata_changed(self) -> bool:
        return any(state.metadata_changed() for state in self.states)

    def restore(self) -> None:
        for state in self.states:
            state.restore()

    def describe(self, now: _ModuleTree, parts: _ChangeParts) -> None:
        after = {id(state.module): state for state in now.states}
        for state in self.states:
            other = after.get(id(state.module))
            if other is not None:
                _compare_modules(state, other, parts)


def _compare_modules(before: _ModuleState, after: _ModuleState, parts: _ChangeParts) -> None:
    prefix = f"{before.path}." if before.path else ""
    for group in (None, "_parameters", "_buffers", "_modules"):
        left = before.plain if group is None else before.containers.get(group, {})
        right = after.plain if group is None else after.containers.get(group, {})
        for key in dict.fromkeys([*left, *right]):
            if group is None and key in before.containers and key in after.containers:
                if key in ("_parameters", "_buffers", "_modules") or _same_container(
                    before.containers[key], after.containers[key]
                ):
                    continue
                parts.attributes[prefix + key] = "changed"
            elif (verb := _verb(left, right, key)) is not None:
                parts.attributes[prefix + key] = verb
    if before.graph is not after.graph:
        parts.attributes[prefix + "graph"] = "replaced"
    same = dict(_tensors(before.fields)), dict(_tensors(after.fields))
    for name, version in before.versions.items():
        if name in same[1] and same[0][name] is same[1][name] and after.versions[name] != version:
            parts.written.append(prefix + name)


def _verb(left: Mapping[str, Any], right: Mapping[str, Any], key: str) -> str | None:
    if key not in left:
        return "added"
    if key not in right:
        return "removed"
    return None if left[key] is right[key] else "replaced"


# --- exported programs ---------------------------------------------------------------------------------------------


class _ProgramState:
    """What an ExportedProgram knows beside its graph module."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.fields = dict(program.__dict__)
        self.containers = {key: entry.copy() for key, entry in self.fields.items() if type(entry) in _CONTAINERS}
        self.versions = _tensor_versions(self.fields)
        self.records = list(_records(program))
        self.record_fields = [_record_fields(record) for record in self.records]
        self.fingerprint = _fingerprint(program)

    def changed(self) -> bool:
        now = self.program.__dict__
        if not _same_fields(now, self.fields) or _tensor_versions(now) != self.versions:
            return True
        tables = {key: saved for key, saved in self.containers.items() if key != "_module_call_graph"}
        if any(not _same_container(now[key], saved) for key, saved in tables.items()):
            return True
        return _fingerprint(self.program) != self.fingerprint

    def restore(self) -> None:
        own = self.program.__dict__
        own.clear()
        own.update(self.fields)
        for key, saved in self.containers.items():
            if not _same_container(own[key], saved):
                own[key].clear()
                own[key].extend(saved) if isinstance(saved, list) else own[key].update(saved)
        for record, saved in zip(self.records, self.record_fields, strict=True):
            for name, entry in saved.items():
                if type(entry) is list:
                    live = record.__dict__[name]
                    if type(live) is not list:
                        object.__setattr__(record, name, list(entry))
                    elif len(live) != len(entry) or not all(map(is_, live, entry)):
                        live[:] = entry
                elif record.__dict__.get(name, _MISSING) is not entry:
                    object.__setattr__(record, name, entry)

    def describe(self, now: _ProgramState, parts: _ChangeParts) -> None:
        for key in ("_state_dict", "_constants", "_range_constraints"):
            left, right = self.containers.get(key, {}), now.containers.get(key, {})
            for name in dict.fromkeys([*left, *right]):
                if (verb := _verb(left, right, name)) is not None:
                    parts.attributes[f"{key.removeprefix('_')}[{str(name)!r}]"] = verb
        if self.fingerprint != now.fingerprint:
            parts.attributes["graph_signature"] = "changed"
        for key in dict.fromkeys([*self.fields, *now.fields]):
            known = key in self.containers and key in now.containers
            if not known and key != "_graph_signature" and (verb := _verb(self.fields, now.fields, key)) is not None:
                parts.attributes[key.removeprefix("_")] = verb
        for name, version in self.versions.items():
            if name in now.versions and now.versions[name] != version:
                parts.written.append(name)


def _tensor_versions(fields: Mapping[str, Any]) -> dict[str, int | None]:
    return {
        f"{key.removeprefix('_')}[{name!r}]": _version(tensor)
        for key in ("_state_dict", "_constants")
        for name, tensor in fields.get(key, {}).items()
        if isinstance(tensor, torch.Tensor)
    }


def _records(program: ExportedProgram) -> Iterator[Any]:
    """The small mutable objects that make up the signature and the module call graph."""
    signature = program.graph_signature
    yield signature
    for spec in (*signature.input_specs, *signature.output_specs):
        yield spec
        yield spec.arg
    for entry in program.module_call_graph:
        yield entry
        if entry.signature is not None:
            yield entry.signature


def _record_fields(record: Any) -> dict[str, Any]:
    return {key: list(entry) if type(entry) is list else entry for key, entry in record.__dict__.items()}


def _fingerprint(program: ExportedProgram) -> tuple[Any, ...]:
    """What signature and module call graph say, as plain data; equal for records that were replaced by equal ones."""
    signature = program.graph_signature
    specs = tuple(
        (spec.kind, spec.target, getattr(spec, "persistent", None), type(spec.arg), *spec.arg.__dict__.values())
        for spec in (*signature.input_specs, *signature.output_specs)
    )
    calls = tuple((entry.fqn, None if entry.signature is None else _call(entry.signature)) for entry in _calls(program))
    return len(signature.input_specs), specs, calls


def _calls(program: ExportedProgram) -> list[Any]:
    return list(program.module_call_graph)


def _call(signature: Any) -> tuple[Any, ...]:
    arguments = [
        tuple((type(each), *each.__dict__.values()) for each in part) for part in (signature.inputs, signature.outputs)
    ]
    names = signature.forward_arg_names
    return *arguments, signature.in_spec, signature.out_spec, None if names is None else tuple(names)
