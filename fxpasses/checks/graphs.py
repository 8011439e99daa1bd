"""Checks of what is in a graph: its ops, its metadata, its effects, its parts and their devices."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.dependencies import Dependencies
from fxpasses.effects import analyze_effects
from fxpasses.errors import CycleError, FakeValueError, GraphError, PipelineError, also_as, came_from
from fxpasses.guards import is_guard
from fxpasses.metadata import value_of
from fxpasses.pass_base.naming import pass_name
from fxpasses.values import compute_value, same_value
from fxpasses.values.recorded_values import finds_sizes, value_leaves

__all__ = [
    "carry_legality",
    "fake_values_agree",
    "graphs_of",
    "is_functional",
    "metadata_is_complete",
    "no_call_modules",
    "obeys_its_stage",
    "one_device_per_part",
    "only_ops",
    "op_names",
    "partitions_are_convex",
]

SHOWN = 5
LEGALITY_KEY = "fxpasses.legality"
_COMPUTES = ("call_function", "call_method", "call_module")


def graphs_of(subject: GraphModule | ExportedProgram) -> Iterator[tuple[str, GraphModule]]:
    """The graph modules of a module or program with their paths, outermost first, each once.

    Raises:
        GraphError: It is neither (also a ``TypeError``).
    """
    if not isinstance(subject, (GraphModule, ExportedProgram)):
        raise also_as(GraphError, TypeError())(
            f"a check looks at a GraphModule or an ExportedProgram, not at {type(subject).__name__}; trace or export "
            "the model first"
        )
    root = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    for path, module in root.named_modules():
        if isinstance(module, GraphModule):
            yield path, module


def metadata_is_complete(subject: GraphModule | ExportedProgram, *, keys: Iterable[str] = ("val",)) -> None:
    """Refuse a graph with a node that computes a value and has none recorded.

    Args:
        subject: What to look at; nested graphs too.
        keys: The entries of ``node.meta`` to ask for; torch 2's dynamo graphs may have ``example_value`` for ``val``.

    Raises:
        GraphError: Names the nodes, and the first one's source line.
    """
    keys = tuple(keys)
    missing = []
    for path, module in graphs_of(subject):
        for node in module.graph.nodes:
            if node.op in ("output", "get_attr") or _gives_nothing(node):
                continue
            for key in keys:
                if key not in node.meta and not (key == "val" and "example_value" in node.meta):
                    missing.append((path, node, key))  # noqa: PERF401 - flatter than a comprehension with three loops
    if missing:
        told = [f"{_where(path, node)} has no {key!r}" for path, node, key in missing]
        raise _error(
            "metadata is not complete",
            told,
            missing[0][1],
            "create nodes with fxpasses.create_node(), which computes it, or refresh_values() after an edit by hand",
        )


def fake_values_agree(subject: GraphModule | ExportedProgram) -> None:
    """Refuse a graph whose recorded values are not what a fresh computation on fake tensors gives.

    Each node is computed from the recorded values of its inputs, so the first wrong node is named, not what follows.

    Raises:
        GraphError: Names the nodes, what is recorded, and what it should be (also a ``FakeValueError`` where an
            operator does not fit its arguments at all).
    """
    wrong: list[tuple[Node, str]] = []
    for path, module in graphs_of(subject):
        for node in module.graph.nodes:
            if node.op not in _COMPUTES or value_of(node) is None or node.meta.get("unbacked_bindings"):
                continue
            try:
                fresh = compute_value(node)
            except FakeValueError as error:
                raise FakeValueError(f"fake values do not agree: {error}", node=node, reason=error.reason) from error
            if fresh is not None and not same_value(value_of(node), fresh) and not _finds_as_much(node, fresh):
                told = f"{_where(path, node)} records {_short(value_of(node))}, but gives {_short(fresh)}"
                wrong.append((node, told))
    if wrong:
        raise _error(
            "fake values do not agree with the graph",
            [told for _, told in wrong],
            wrong[0][0],
            "call fxpasses.editing.refresh_values() on the nodes that were edited",
        )


def _finds_as_much(node: Node, fresh: Any) -> bool:
    """Whether both values have sizes that data say: of the second that picks by one mask a new symbol is computed."""
    recorded = value_of(node)
    if not finds_sizes(node, recorded) or not finds_sizes(node, fresh):
        return False
    kinds = [[_kind(leaf) for leaf in value_leaves(value)] for value in (recorded, fresh)]
    return kinds[0] == kinds[1]


def _kind(leaf: Any) -> Any:
    return (leaf.dtype, leaf.device, leaf.layout, leaf.dim()) if isinstance(leaf, torch.Tensor) else type(leaf)


@attrs.frozen(repr=False)
class _OnlyOps:
    allowed: tuple[Any, ...] | None
    denied: tuple[Any, ...]

    @property
    def pass_name(self) -> str:
        return "only_ops"

    def __repr__(self) -> str:
        allowed = None if self.allowed is None else list(map(str, self.allowed))
        return f"only_ops(allowed={allowed!r}, denied={list(map(str, self.denied))!r})"

    def __call__(self, subject: GraphModule | ExportedProgram) -> None:
        bad: list[tuple[str, Node, str]] = []
        for path, module in graphs_of(subject):
            for node in module.graph.nodes:
                if node.op in _COMPUTES and (why := self._refusal(module, node)) is not None:
                    bad.append((path, node, why))  # noqa: PERF401 - as above
        if bad:
            told = [f"{_where(path, node)} calls {op_names(node)[0]}, which is {why}" for path, node, why in bad]
            raise _error("the graph has ops that are not legal here", told, bad[0][1], self._advice())

    def _refusal(self, module: GraphModule, node: Node) -> str | None:
        if _matches(module, node, self.denied):
            return "denied"
        if self.allowed is None or _is_glue(node) or _matches(module, node, self.allowed):
            return None
        return "not among the allowed ops"

    def _advice(self) -> str:
        if self.allowed is None:
            return "replace or decompose them"
        names = sorted(str(one) for one in self.allowed)
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        return f"replace or decompose them, or allow them; allowed are {listed or 'none'}"


def only_ops(
    allowed: Iterable[Any] | None = None, denied: Iterable[Any] = ()
) -> Callable[[GraphModule | ExportedProgram], None]:
    """The check that a graph calls only what is allowed, and nothing that is denied.

    Args:
        allowed: Ops (an overload, or a packet for all its overloads), functions, module classes, or names with
            wildcards (``"aten.add.Tensor"``, ``"aten.*"``, a method's name); None allows everything.
        denied: The same, for what may not be there. It wins over ``allowed``.

    Returns:
        A check. ``getitem`` and the guards of ``ep.module()`` are always allowed unless they are denied.

    Raises:
        PipelineError: A lone string or op was given for a list (also a ``TypeError``).
    """
    for name, given in (("allowed", allowed), ("denied", denied)):
        single = isinstance(given, str) or callable(given)  # an op packet could be walked, but is one op
        if given is not None and (single or not isinstance(given, Iterable)):
            raise also_as(PipelineError, TypeError())(
                f"only_ops({name}=...) takes a list, not {given!r}; write [{given!r}]"
            )
    return _OnlyOps(None if allowed is None else tuple(allowed), tuple(denied))


def carry_legality(module: GraphModule, stage: str, allowed: Iterable[Any] | None, denied: Iterable[Any]) -> None:
    """Note on a module what its stage allows, in names, so that copies and later pipelines know."""
    module.meta[LEGALITY_KEY] = {
        "stage": stage,
        "allowed": None if allowed is None else [_op_text(one) for one in allowed],
        "denied": [_op_text(one) for one in denied],
    }


def obeys_its_stage(subject: GraphModule | ExportedProgram) -> None:
    """Refuse a graph with ops that the last :class:`~fxpasses.Stage` it went through does not allow.

    Raises:
        GraphError: Names the nodes and the stage. A graph that went through no stage passes.
    """
    root = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    legality = root.meta.get(LEGALITY_KEY)
    if legality is None:
        return
    try:
        _OnlyOps(None if legality["allowed"] is None else tuple(legality["allowed"]), tuple(legality["denied"]))(
            subject
        )
    except GraphError as error:
        raise GraphError(f"in stage {legality['stage']!r}, {error}", node=error.node, reason=error.reason) from None


def _op_text(op: Any) -> str:
    if isinstance(op, torch._ops.OpOverloadPacket):
        return f"{op}*"
    return op.__name__ if isinstance(op, type) or inspect.isroutine(op) else str(op)


def no_call_modules(subject: GraphModule | ExportedProgram) -> None:
    """Refuse a graph that calls modules (the guards of ``ep.module()`` aside).

    Raises:
        GraphError: Names the nodes.
    """
    calls = [
        (path, node)
        for path, module in graphs_of(subject)
        for node in module.graph.find_nodes(op="call_module")
        if not _is_glue(node)
    ]
    if calls:
        told = [f"{_where(path, node)} calls module {node.target!r}" for path, node in calls]
        raise _error("the graph calls modules", told, calls[0][1], "inline them with fxpasses.inline_submodule()")


def is_functional(subject: GraphModule | ExportedProgram) -> None:
    """Refuse a graph in which a node writes to a value: in-place ops, ``out=``, ``copy_`` and what hides them.

    Raises:
        GraphError: Names the nodes and what each of them writes.
    """
    writers: list[tuple[str, Node, str]] = []
    for path, module in graphs_of(subject):
        effects = analyze_effects(module)
        for node in module.graph.nodes:
            if (found := effects.of(node)).writes:
                writers.append((path, node, found.reason))  # noqa: PERF401 - as above
    if writers:
        told = [f"{_where(path, node)} is not functional: {reason}" for path, node, reason in writers]
        advice = "use the functional op, or run ExportedProgram.run_decompositions()"
        raise _error("the graph is not functional", told, writers[0][1], advice)


@attrs.frozen(eq=False)
class _Convex:
    of: Any

    @property
    def pass_name(self) -> str:
        return "partitions_are_convex"

    def __call__(self, subject: GraphModule | ExportedProgram) -> None:
        module = next(module for _, module in graphs_of(subject))
        dependencies = Dependencies.of(module)
        names: dict[Hashable, int] = {}
        labels = []
        for node in dependencies.nodes:
            name = self._partition(node)
            labels.append(-1 if name is None else names.setdefault(name, len(names)))
        path = dependencies.cycle(labels)
        if path is not None:
            nodes = [dependencies.nodes[index] for index in path]
            parts = list(dict.fromkeys(str(found) for node in nodes if (found := self._partition(node)) is not None))
            raise CycleError(
                f"partitions are not convex: {dependencies.describe(path)}, so {' and '.join(parts)} would wait for "
                "each other; drop a node of the path from its partition, or split the partition",
                path=nodes,
                node=nodes[0],
            )

    def _partition(self, node: Node) -> Hashable | None:
        if isinstance(self.of, str):
            found: Hashable | None = node.meta.get(self.of)
            return found
        if isinstance(self.of, Mapping):
            listed: Hashable | None = self.of.get(node)
            return listed
        told: Hashable | None = self.of(node) if callable(self.of) else self.of.partition_of.get(node)
        return told


def partitions_are_convex(of: Any = "partition") -> Callable[[GraphModule | ExportedProgram], None]:
    """The check that partitions can run one after the other: no path leaves one and comes back to it.

    Args:
        of: Who is where: an :class:`~fxpasses.Assignment`, a mapping of nodes, a function of a node, or the key of
            ``node.meta`` that holds the partition (such as ExecuTorch's ``"delegation_tag"``).

    Raises:
        CycleError: From the check: shows the path.
    """
    if isinstance(of, GraphModule | ExportedProgram):  # used as a plain check
        _Convex("partition")(of)
    return _Convex(of)


def one_device_per_part(subject: GraphModule | ExportedProgram) -> None:
    """Refuse a graph one of whose parts (the graph modules it calls) works on more than one device.

    Scalars on the CPU may go anywhere, as torch lets them.

    Raises:
        GraphError: Names the part, its devices, and a node on each of them.
    """
    root = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    for call in root.graph.find_nodes(op="call_module"):
        part = root.get_submodule(str(call.target))
        if not isinstance(part, GraphModule):
            continue
        first_on: dict[str, tuple[str, Node]] = {}
        for path, module in graphs_of(part):
            for node in module.graph.nodes:
                for device in _devices_of(module, node):
                    first_on.setdefault(device, (path, node))
        if len(first_on) > 1:
            told = [f"{_where(path, node)} is on {device}" for device, (path, node) in first_on.items()]
            advice = "split the part at the border, so that a copy stands between two parts"
            raise _error(f"part {call.target!r} works on {len(first_on)} devices", told, call, advice)


# --- helpers --------------------------------------------------------------------------------------------------------


def op_names(node: Node) -> list[str]:
    """The names an op goes by, the most telling first: ``aten.add.Tensor``, ``aten.add``, ``aten::add``."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return [str(target), str(target.overloadpacket), target._schema.name]
    if isinstance(target, str):
        return [target]
    name = pass_name(target)
    module = getattr(target, "__module__", None) or ""
    public = "torch" if getattr(torch, name, None) is target else module
    return [f"{public}.{name}".removeprefix("."), f"{module}.{name}", name, str(target)]


def _matches(module: GraphModule, node: Node, wanted: Iterable[Any]) -> bool:
    called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    names: list[str] | None = None
    for one in wanted:
        if isinstance(one, str):
            if names is None:
                names = [*op_names(node), *([] if called is None else [type(called).__name__])]
            if any(fnmatch.fnmatchcase(name, one) for name in names):
                return True
        elif called is not None:
            if isinstance(one, type) and isinstance(called, one):
                return True
        elif node.target == one or getattr(node.target, "overloadpacket", None) is one:
            return True
    return False


def _is_glue(node: Node) -> bool:
    """Whether the node computes nothing: a getitem, or the guards that ``ep.module()`` puts first."""
    return is_guard(node) or (node.op != "call_module" and getattr(node.target, "__name__", "") == "getitem")


def _gives_nothing(node: Node) -> bool:
    """Whether the node has no value by its kind: guards, markers of regions, ops that return nothing."""
    if _is_glue(node) and node.op == "call_module":
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is not None and not schema.returns:
        return True
    module = getattr(node.target, "__module__", "") or ""
    return not node.users and (
        module.startswith(("torch.amp", "torch._C")) or "builtin_function" in type(node.target).__name__
    )


def _devices_of(module: GraphModule, node: Node) -> Iterator[str]:
    value = value_of(node)
    if node.op == "get_attr":
        value = module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and not (leaf.device.type == "cpu" and leaf.dim() == 0):
            yield str(leaf.device)


def _where(path: str, node: Node) -> str:
    line = came_from(node)
    return f"node {(path + '/' if path else '') + node.name!r}{line}"


def _error(what: str, told: list[str], node: Node, advice: str) -> GraphError:
    more = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    return GraphError(f"{what}: {'; '.join(told[:SHOWN])}{more}; {advice}", node=node, reason=told[0])


def _short(value: Any) -> str:
    told = [
        f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)} on {one.device}"
        if isinstance(one, torch.Tensor)
        else repr(one)
        for one in pytree.tree_leaves(value)
    ]
    return ", ".join(told) or repr(value)
