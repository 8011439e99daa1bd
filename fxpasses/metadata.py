"""Typed entries of ``node.meta``: who writes them, how they are read, how provenance is merged.

A pass leaves a fact for a later one under a :class:`MetaKey`; reading a missing entry is an error that names the pass
to run first. Entries live in ``node.meta`` under the key's own name, so whatever copies ``node.meta`` keeps them; a key
that ``depends_on_value`` is dropped by :mod:`fxpasses.editing` as soon as the value of its node changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, overload
from weakref import WeakKeyDictionary

from torch.fx import Node
from torch.fx.traceback import NodeSource, NodeSourceAction

from fxpasses.errors import GraphError, MissingMetadataError, came_from

__all__ = [
    "TRACE_KEYS",
    "VALUE_KEYS",
    "MetaKey",
    "copy_metadata",
    "current_pass",
    "drop_stale_entries",
    "merge_provenance",
    "module_stack",
    "registered_keys",
    "running_pass",
    "source_of",
    "value_of",
]

T = TypeVar("T")
D = TypeVar("D")

VALUE_KEYS = ("val", "example_value", "tensor_meta", "unbacked_bindings", "eager_input_vals")
"""What torch itself writes about the value of a node; wrong as soon as that value changes."""

TRACE_KEYS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")
"""What torch writes about where a node comes from."""

_TARGET_KEY = "is_wrapped"  # torch's, of calls of functions of torch.fx.wrap: the code of the graph wraps them, too
_NO_PASS = "fxpasses"
_NO_MODULE = "empty_nn_module_stack_from_metadata_hook"  # torch.export, of what it adds itself; at times after an _
_HISTORY_LIMIT = 64
_SOURCES_LIMIT = 8192  # each merge copies the list, so that thousands into one node would take quadratic time
_MISSING: Any = object()
_CURRENT_PASS: ContextVar[str | None] = ContextVar("fxpasses_current_pass", default=None)
_KEYS: dict[str, MetaKey[Any]] = {}  # filled by MetaKey(...) alone, so that copies and saved files know every key
_Listed = tuple[list[NodeSource], int, set[tuple[str, int]]]  # from_node, its length then, what it names
_LISTED: WeakKeyDictionary[Node, _Listed] = WeakKeyDictionary()  # of nodes that stand for many others
_NOTHING_LISTED: _Listed = ([], 0, set())


class MetaKey(Generic[T]):
    """A typed entry of ``node.meta`` that one pass writes and others read.

    >>> SIZE = MetaKey[int]("doctest.size_bytes", made_by="MeasureSizes()")
    >>> from torch.fx import Graph
    >>> x = Graph().placeholder("x")
    >>> SIZE.write(x, 4)
    >>> SIZE.read(x)
    4

    Args:
        name: The key in ``node.meta``; dotted names (``"mypackage.size"``) keep out of the way of torch's own.
        made_by: The pass that writes it, as the user would spell it; named when the entry is missing.
        depends_on_value: Whether the entry is about the value of the node (its shape, its dtype), and so is dropped
            when that value changes. Entries about anything else (a name, a tag) stay.
        to_json: How the entry is written to a file; the default suits ints, floats, strings, lists and dicts of them.
        from_json: The inverse of ``to_json``.

    Raises:
        GraphError: The name is one of torch's, or is taken by a key that another pass writes.
    """

    def __init__(
        self,
        name: str,
        *,
        made_by: str,
        depends_on_value: bool = True,
        to_json: Callable[[T], Any] | None = None,
        from_json: Callable[[Any], T] | None = None,
    ) -> None:
        if name in VALUE_KEYS or name in TRACE_KEYS or name in ("from_node", "custom"):
            raise GraphError(
                f"node.meta[{name!r}] is torch's own entry; choose another name, such as 'mypackage.{name}'"
            )
        other = _KEYS.get(name)
        if other is not None and other.made_by != made_by:
            raise GraphError(
                f"the key {name!r} is already written by {other.made_by}; {made_by} needs a key of its own"
            )
        self.name = name
        self.made_by: str = made_by
        self.depends_on_value = depends_on_value
        self.to_json = to_json
        self.from_json = from_json
        _KEYS[name] = self

    def __repr__(self) -> str:
        return f"MetaKey({self.name!r}, made_by={self.made_by!r}, depends_on_value={self.depends_on_value})"

    def has(self, node: Node) -> bool:
        """Whether the entry is there."""
        return self.name in node.meta

    @overload
    def get(self, node: Node) -> T | None: ...
    @overload
    def get(self, node: Node, default: D) -> T | D: ...
    def get(self, node: Node, default: Any = None) -> Any:
        """The entry, or ``default``."""
        return node.meta.get(self.name, default)

    def read(self, node: Node) -> T:
        """The entry.

        Raises:
            MissingMetadataError: It is not there; the message names the pass that writes it.
        """
        value = node.meta.get(self.name, _MISSING)
        if value is _MISSING:
            where = came_from(node)
            raise MissingMetadataError(
                f"node {node.name!r}{where} has no {self.name!r}; run {self.made_by} first",
                node=node,
                pass_name=current_pass(),
                reason=f"{self.name!r} is missing",
            )
        found: T = value
        return found

    def write(self, node: Node, value: T) -> None:
        """Set the entry."""
        node.meta[self.name] = value

    def drop(self, node: Node) -> None:
        """Remove the entry, if it is there."""
        node.meta.pop(self.name, None)


def registered_keys() -> tuple[MetaKey[Any], ...]:
    """All keys that were made in this process, sorted by name."""
    return tuple(_KEYS[name] for name in sorted(_KEYS))


def value_of(node: Node) -> Any:
    """The fake value recorded for ``node`` (``val``, or dynamo's ``example_value``), None when there is none."""
    found = node.meta.get("val", _MISSING)
    return node.meta.get("example_value") if found is _MISSING else found


def current_pass() -> str | None:
    """The name of the pass that is running, None outside of passes."""
    return _CURRENT_PASS.get()


@contextlib.contextmanager
def running_pass(name: str) -> Iterator[None]:
    """Everything edited inside carries ``name`` in its provenance."""
    token = _CURRENT_PASS.set(name)
    try:
        yield
    finally:
        _CURRENT_PASS.reset(token)


def source_of(node: Node, pass_name: str | None = None, *, action: NodeSourceAction | None = None) -> NodeSource:
    """Say that something was made from ``node`` by a pass, in torch's own form.

    torch's constructor deep-copies the whole history at each step; histories are never edited, so here they are
    shared, and one that has grown past 64 entries is cut down to where it began.
    """
    source = NodeSource(None, pass_name or current_pass() or _NO_PASS, [action or NodeSourceAction.REPLACE])
    source.node_info = NodeSource.NodeInfo(node.name, str(node.target), id(node.graph))
    source.from_node = _bounded_history(node.meta.get("from_node") or [])
    return source


def merge_provenance(new: Node, replaced: Sequence[Node], pass_name: str | None = None) -> None:
    """Give ``new`` the origin of the nodes it stands for; what it already has stays.

    ``stack_trace``, ``source_fn_stack`` and ``torch_fn`` come from the last node that has them (the one whose value is
    replaced); ``nn_module_stack`` is the innermost module that holds all of them; ``from_node`` lists every one of
    them with the pass's name (no more once there are 8192); ``custom`` and other entries that do not depend on the
    value are merged.

    Args:
        new: The node that gets the metadata.
        replaced: The nodes it stands for, in graph order.
        pass_name: Who did it; the running pass if None.
    """
    if not replaced:
        return
    metas = [node.meta for node in replaced]
    for key in ("stack_trace", "source_fn_stack", "torch_fn"):
        if new.meta.get(key) is None and (found := _last(metas, key)) is not None:
            new.meta[key] = _copied(found)
    if not new.meta.get("nn_module_stack") and (stack := _common_stack(metas)) is not None:
        new.meta["nn_module_stack"] = stack
    _merge_other_entries(new.meta, metas)
    _list_sources(new, replaced, pass_name)


def copy_metadata(source: Node, target: Node, *, values: bool = True, provenance: bool = False) -> None:
    """Copy all entries of ``source.meta`` to ``target``, never sharing the dicts and lists in it.

    Args:
        source: Where they are read.
        target: Where they are written; entries of its own under other keys stay.
        values: Also copy ``val`` and what else describes the value.
        provenance: Add ``source`` to ``target.meta["from_node"]``, as for a node made from it.
    """
    stale = () if values else _value_keys()
    for key, entry in source.meta.items():
        if key not in stale and (key != _TARGET_KEY or source.target is target.target):
            target.meta[key] = _copied(entry)
    if provenance:
        target.meta["from_node"] = [source_of(source, action=NodeSourceAction.CREATE)]


def module_stack(node: Node | Mapping[str, Any]) -> dict[str, Any]:
    """The modules that a node comes from, outermost first: for each call its path and class.

    Torch marks operators that it made itself, such as sizes of inputs, with a module that there is not; that is left
    out.

    >>> module_stack({"nn_module_stack": {_NO_MODULE: (_NO_MODULE, _NO_MODULE), "norm": ("norm", "LayerNorm")}})
    {'norm': ('norm', 'LayerNorm')}

    Args:
        node: A node, or its ``meta``.

    Returns:
        ``nn_module_stack``; empty where there is none.
    """
    meta = node.meta if isinstance(node, Node) else node
    stack: dict[str, Any] = meta.get("nn_module_stack") or {}
    return {key: entry for key, entry in stack.items() if not _is_no_module(entry)}


def _is_no_module(entry: Any) -> bool:
    path = entry[0] if isinstance(entry, tuple) else entry
    return isinstance(path, str) and path.endswith(_NO_MODULE)


def drop_stale_entries(node: Node) -> None:
    """Drop every typed entry that depends on the value of ``node``, because that value has changed."""
    meta = node.meta
    for name, key in list(_KEYS.items()):
        if key.depends_on_value and name in meta:
            del meta[name]


def _value_keys() -> set[str]:
    return {*VALUE_KEYS, *(name for name, key in list(_KEYS.items()) if key.depends_on_value)}


def _last(metas: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((meta[key] for meta in reversed(metas) if meta.get(key) is not None), None)


def _copied(entry: Any) -> Any:
    return entry.copy() if isinstance(entry, (dict, list, set)) else entry


def _common_stack(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    stacks = [stack for meta in metas if (stack := module_stack(meta))]
    if not stacks:
        return None
    common = list(stacks[-1].items())
    for stack in stacks[:-1]:
        others = list(stack.items())
        agree = 0
        while agree < min(len(common), len(others)) and common[agree] == others[agree]:
            agree += 1
        common = common[:agree]
    return dict(common or stacks[-1].items())


def _merge_other_entries(meta: dict[str, Any], metas: Sequence[Mapping[str, Any]]) -> None:
    skipped = {*_value_keys(), *TRACE_KEYS, _TARGET_KEY, "from_node", "custom"}
    for other in reversed(metas):
        for key, entry in other.items():
            if key not in skipped and key not in meta:
                meta[key] = _copied(entry)
    custom: dict[str, Any] = {}
    for other in metas:
        custom.update(other.get("custom") or {})
    if custom:
        meta["custom"] = {**custom, **(meta.get("custom") or {})}


def _list_sources(new: Node, replaced: Sequence[Node], pass_name: str | None) -> None:
    """Add to ``from_node`` what is not listed yet, in a new list: a copy of the node may hold the old one."""
    known: list[NodeSource] = new.meta.get("from_node") or []
    if len(known) >= _SOURCES_LIMIT:
        return
    listed = _listed(new, known)
    going = [node for node in dict.fromkeys(replaced) if node is not new and (node.name, id(node.graph)) not in listed]
    if not going:
        return
    new.meta["from_node"] = sources = [*known, *(source_of(node, pass_name) for node in going)]
    if len(sources) > _HISTORY_LIMIT:
        listed.update((node.name, id(node.graph)) for node in going)
        _LISTED[new] = (sources, len(sources), listed)


def _listed(node: Node, sources: Sequence[NodeSource]) -> set[tuple[str, int]]:
    """What ``sources`` name; many are read once, not again for each node that is merged into the same one."""
    found, length, listed = _LISTED.get(node, _NOTHING_LISTED)
    if found is sources and length == len(sources):
        return listed
    return {(source.name, source.graph_id) for source in sources}


def _bounded_history(sources: Sequence[NodeSource]) -> list[NodeSource]:
    seen = 0
    roots: dict[tuple[str, str, int], NodeSource] = {}
    waiting = list(reversed(sources[: _HISTORY_LIMIT * 4 + 1]))  # a node may stand for many; no more are looked at
    while waiting and seen <= _HISTORY_LIMIT * 4:
        source = waiting.pop()
        seen += 1
        if source.from_node:
            waiting.extend(reversed(source.from_node))
        else:
            roots.setdefault((source.name, source.target, source.graph_id), source)
    if seen <= _HISTORY_LIMIT:
        return list(sources)
    return list(roots.values())[:_HISTORY_LIMIT]
