"""What a backend can run: objects that are asked once about each call of a graph, and say why where they say no.

The names and results are those of ``torch.fx.passes.operator_support``; support objects of either world work in both.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import _get_qualified_name
from torch.fx.passes.operator_support import OperatorSupportBase as _TorchOperatorSupportBase

from fxpasses.errors import PartitionError, PatternError, also_as
from fxpasses.metadata import module_stack

AnyOperatorSupport = _TorchOperatorSupportBase
"""What may be asked: a support object of this package, or one written for torch."""

__all__ = [
    "AnyOperatorSupport",
    "IsNodeSupported",
    "OpSupports",
    "OperatorSupport",
    "OperatorSupportBase",
    "SupportDict",
    "Verdicts",
    "any_chain",
    "ask_support",
    "chain",
    "check_support",
    "create_op_support",
    "create_pattern_support",
    "dtype_of",
    "function_name",
    "module_paths",
    "plain_path",
    "target_name",
]

CALLS = ("call_function", "call_method", "call_module")
"""The node kinds that compute; only about these is a support object ever asked."""

Submodules = Mapping[str, torch.nn.Module]
IsNodeSupported = Callable[[Submodules, Node], bool]
DtypesOfArguments = tuple[Sequence[Sequence[torch.dtype] | None], Mapping[str, Sequence[torch.dtype]]] | None
SupportDict = Mapping[str, DtypesOfArguments]


class OperatorSupportBase(_TorchOperatorSupportBase):
    """Tells whether a backend can run a node; subclass it and write ``is_node_supported``.

    A subclass may also write ``why_not``; partitioners then ask that one instead, and show its answer to the user.
    """

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        """The reason why the node is not supported; None if it is."""
        return None if self.is_node_supported(submodules, node) else f"unsupported by {type(self).__name__}"


class _Explained(OperatorSupportBase):
    """A support whose one answer is the reason."""

    def is_node_supported(self, submodules: Submodules, node: Node) -> bool:
        return self.why_not(submodules, node) is None

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        raise NotImplementedError


class OperatorSupport(_Explained):
    """Support read from a table: target name to the dtypes that its arguments may have.

    Args:
        support_dict: Keys are names as :func:`target_name` gives them. A value of None takes any dtype; else it is
            ``(args, kwargs)``: for each positional argument the allowed dtypes (None: any), and the same by keyword.
            Arguments that are not nodes are not looked at.
    """

    def __init__(self, support_dict: SupportDict | None = None) -> None:
        self._support_dict: SupportDict = support_dict or {}

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        """The target is not in the table, or an argument has a dtype that it does not list."""
        if node.op not in CALLS:
            return None
        name = target_name(node, submodules)
        if name not in self._support_dict:
            return f"{name} is not in the table of supported operators"
        if (allowed := self._support_dict[name]) is None:
            return None
        by_position, by_keyword = allowed
        checks = [
            *(
                (argument, dtypes)
                for argument, dtypes in zip(node.args, by_position, strict=False)
                if dtypes is not None
            ),
            *((node.kwargs[key], dtypes) for key, dtypes in by_keyword.items() if key in node.kwargs),
        ]
        for argument, dtypes in checks:
            if isinstance(argument, Node) and (dtype := dtype_of(argument)) not in dtypes:
                listed = ", ".join(str(each) for each in dtypes)
                return f"{name} takes {listed or 'no dtype'} there, but {argument.name} is {dtype}"
        return None


class _FunctionSupport(OperatorSupportBase):
    def __init__(self, function: IsNodeSupported) -> None:
        self._function = function
        self._reason = f"unsupported by {_described(function)}"

    def is_node_supported(self, submodules: Submodules, node: Node) -> bool:
        return bool(self._function(submodules, node))

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        """Name the function that said no."""
        return None if self._function(submodules, node) else self._reason


def _described(function: Any) -> str:
    """The name of a function; for a lambda where it stands."""
    name = str(getattr(function, "__name__", type(function).__name__))
    code = getattr(function, "__code__", None)
    return (
        f"the lambda in line {code.co_firstlineno} of {Path(code.co_filename).name}" if "<" in name and code else name
    )


@attrs.frozen
class _Rule(_Explained):
    rule: Callable[[Submodules, Node], str | None]

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        return self.rule(submodules, node)


@attrs.frozen
class _Chain(_Explained):
    supports: tuple[Any, ...]

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        for support in self.supports:
            if (reason := _ask(support, submodules, node)) is not None:
                return reason
        return None


@attrs.frozen
class _AnyChain(_Explained):
    supports: tuple[Any, ...]

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        reasons: dict[str, None] = {}
        for support in self.supports:
            if (reason := _ask(support, submodules, node)) is None:
                return None
            reasons[reason] = None
        return "; ".join(reasons) or "no support to choose from"


def create_op_support(is_node_supported: IsNodeSupported) -> OperatorSupportBase:
    """Make a support object from a function ``(submodules, node) -> bool``.

    Raises:
        PartitionError: The argument cannot be called (also a TypeError).
    """
    if not callable(is_node_supported):
        raise also_as(PartitionError, TypeError())(
            f"create_op_support takes a function (submodules, node) -> bool, not {type(is_node_supported).__name__}"
        )
    return _FunctionSupport(is_node_supported)


def chain(*op_support: _TorchOperatorSupportBase) -> OperatorSupportBase:
    """Support what all of the given ones support; they are asked in order, until one says no."""
    return _Chain(tuple(check_support(each) for each in op_support))


def any_chain(*op_support: _TorchOperatorSupportBase) -> OperatorSupportBase:
    """Support what at least one of the given ones supports; they are asked in order, until one says yes."""
    return _AnyChain(tuple(check_support(each) for each in op_support))


class OpSupports:
    """Small rules to :func:`chain` with others."""

    @classmethod
    def decline_if_input_dtype(cls, dtype: torch.dtype) -> OperatorSupportBase:
        """Decline a node if one of its inputs has this dtype."""

        def decline_if_input_dtype(_: Submodules, node: Node) -> str | None:
            wrong = next((used for used in node.all_input_nodes if dtype_of(used) == dtype), None)
            return None if wrong is None else f"input {wrong.name} is {dtype}"

        return _Rule(decline_if_input_dtype)

    @classmethod
    def decline_if_node_in_names(cls, disallow_set: Collection[str]) -> OperatorSupportBase:
        """Decline the nodes with these names."""
        names = frozenset(disallow_set)

        def decline_if_node_in_names(_: Submodules, node: Node) -> str | None:
            return f"denied by name: {node.name}" if node.name in names else None

        return _Rule(decline_if_node_in_names)

    @classmethod
    def decline_if_target(cls, targets: Iterable[Any]) -> OperatorSupportBase:
        """Decline calls of these functions, methods or targets, given as objects or by :func:`target_name`."""
        wanted = tuple(targets)

        def decline_if_target(submodules: Submodules, node: Node) -> str | None:
            denied = any(each is node.target or each == target_name(node, submodules) for each in wanted)
            return f"denied by target: {target_name(node, submodules)}" if denied else None

        return _Rule(decline_if_target)

    @classmethod
    def decline_if_module_path(cls, paths: Iterable[str]) -> OperatorSupportBase:
        """Decline the nodes that come from a module at one of these paths, or from below it."""
        wanted = tuple(path.strip(".") for path in paths)

        def decline_if_module_path(_: Submodules, node: Node) -> str | None:
            for path in module_paths(node):
                for denied in wanted:
                    if path == denied or path.startswith(f"{denied}."):
                        return f"denied by module path: {denied}"
            return None

        return _Rule(decline_if_module_path)

    @classmethod
    def decline_if_module_type(cls, types: Iterable[type[torch.nn.Module]]) -> OperatorSupportBase:
        """Decline the nodes that come from a module of one of these types."""
        wanted = tuple(types)
        names = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in wanted}

        def decline_if_module_type(submodules: Submodules, node: Node) -> str | None:
            called = submodules.get(node.target) if node.op == "call_module" and isinstance(node.target, str) else None
            kinds = [kind for _, kind in module_stack(node).values()]
            for kind in [*([] if called is None else [type(called)]), *kinds]:
                resolved = names.get(kind) if isinstance(kind, str) else kind
                if resolved is not None and issubclass(resolved, wanted):
                    return f"denied by module type: {resolved.__name__}"
            return None

        return _Rule(decline_if_module_type)


class _PatternSupport(_Explained):
    """Supports the nodes that a pattern matches; each graph is searched once."""

    def __init__(self, patterns: Sequence[Any], ignore_literals: bool) -> None:
        self._patterns = patterns
        self._ignore_literals = ignore_literals
        self._matched: weakref.WeakKeyDictionary[Graph, frozenset[Node]] = weakref.WeakKeyDictionary()

    def why_not(self, submodules: Submodules, node: Node) -> str | None:
        if node.graph not in self._matched:
            from fxpasses.partitioners.by_pattern import match_groups

            groups = match_groups(node.graph, self._patterns, ignore_literals=self._ignore_literals)
            self._matched[node.graph] = frozenset(each for group in groups for each in group)
        return None if node in self._matched[node.graph] else "in no match of the given patterns"


def create_pattern_support(patterns: Sequence[Any], *, ignore_literals: bool = False) -> OperatorSupportBase:
    """Support the nodes that are part of a match of one of the patterns.

    Args:
        patterns: Graphs, graph modules or callables, as :mod:`fxpasses.partitioners.matching` takes them.
        ignore_literals: Whether numbers and other literals in the pattern match any literal.

    Raises:
        PatternError: The list is empty.
    """
    if not len(patterns):
        raise PatternError("create_pattern_support got an empty list of patterns; give at least one")
    return _PatternSupport(tuple(patterns), ignore_literals)


class Verdicts(NamedTuple):
    """What a support object said about a graph."""

    supported: dict[Node, None]
    reasons: dict[Node, str]


def ask_support(graph_module: GraphModule, operator_support: Any) -> Verdicts:
    """Ask once about each call of a graph, in graph order; never about placeholders, outputs and ``get_attr``.

    An exception of the support object makes the node unsupported; what it said is kept as the reason.
    """
    support = check_support(operator_support)
    submodules = dict(graph_module.named_modules())
    verdicts = Verdicts({}, {})
    for node in graph_module.graph.nodes:
        if node.op not in CALLS:
            continue
        try:
            reason = _ask(support, submodules, node)
        except Exception as error:  # foreign code; whatever it raises is its answer
            reason = f"its support check raised {type(error).__name__}: {error}"
        if reason is None:
            verdicts.supported[node] = None
        else:
            verdicts.reasons[node] = reason
    return verdicts


def check_support(operator_support: Any) -> Any:
    """Give the object back if it can be asked.

    Raises:
        PartitionError: It has no ``is_node_supported`` method (also a TypeError).
    """
    if isinstance(operator_support, type) or not callable(getattr(operator_support, "is_node_supported", None)):
        what = (
            f"the class {operator_support.__name__}" if isinstance(operator_support, type) else repr(operator_support)
        )
        raise also_as(PartitionError, TypeError())(
            f"an operator support must be an object with a method is_node_supported(submodules, node); got {what}; "
            "subclass OperatorSupportBase, or wrap a function in create_op_support"
        )
    return operator_support


def _ask(support: Any, submodules: Submodules, node: Node) -> str | None:
    """The reason why not, from the most special method that the object's class defines; asks it exactly once."""
    for kind in type(support).__mro__:
        if "is_node_supported" in vars(kind) and "why_not" not in vars(kind):
            break
        if "why_not" in vars(kind):
            reason: str | None = support.why_not(submodules, node)
            return reason
    if support.is_node_supported(submodules, node):
        return None
    return f"unsupported by {type(support).__name__}"


def target_name(node: Node, submodules: Submodules) -> str:
    """The name of what a node calls, as support tables write it.

    A function gives its qualified name (``torch.ops.aten.add.Tensor``, ``torch.relu``, ``_operator.getitem``), a
    module its class (``torch.nn.modules.linear.Linear``), a method its bare name.

    Raises:
        PartitionError: The node calls nothing.
    """
    if node.op == "call_function":
        return function_name(node.target)
    if node.op == "call_method":
        return str(node.target)
    if node.op == "call_module":
        module = submodules[str(node.target)]
        return function_name(getattr(module, "_base_class_origin", type(module)))
    raise PartitionError(f"{node.name} is of kind {node.op} and calls nothing that could be supported", node=node)


def function_name(target: Any) -> str:
    """The qualified name of a function, an operator or a class, as support tables write it."""
    home = getattr(target, "__module__", None) or ""
    if "acc_ops" in home:
        return f"acc_ops.{target.__name__}"
    if isinstance(target, type):
        return f"{home.replace('torch._ops', 'torch.ops')}.{target.__name__}"
    try:
        return _get_qualified_name(target)
    except (AttributeError, RuntimeError):  # no __name__, or a lambda without source
        return repr(target)


def dtype_of(node: Node) -> Any:
    """The dtype of a node's tensor; for other values their type; None where nothing is known.

    Read from ``meta["tensor_meta"]``, ``meta["val"]`` or ``meta["type"]``, whichever is there first.
    """
    for key in ("tensor_meta", "val", "example_value"):
        value = node.meta.get(key)
        if isinstance(dtype := getattr(value, "dtype", None), torch.dtype):
            return dtype
    value = node.meta.get("val")
    return node.meta.get("type", None if value is None else type(value))


def module_paths(node: Node) -> list[str]:
    """The paths of the modules that a node comes from, outermost first, without the root's empty one."""
    paths = [plain_path(path) for path, _ in module_stack(node).values()]
    if node.op == "call_module":
        paths.append(str(node.target))
    return [path for path in dict.fromkeys(paths) if path]


_PREFIXES: tuple[str, ...] = ("L['self'].", "L__self___", "self.")
_GETATTR = re.compile(r"getattr\(([^()]*), '([^']*)'\)")


@functools.lru_cache(maxsize=8192)
def plain_path(path: str) -> str:
    """A module path as ``named_modules`` has it, without what dynamo and strict export write around it.

    Generated code reads a child whose name is a number with ``getattr``, and strict export writes down what it reads.

    >>> plain_path("L['self'].layers"), plain_path("getattr(L['self'].layers, '0').linear")
    ('layers', 'layers.0.linear')
    """
    while (shorter := _GETATTR.sub(r"\1.\2", path)) != path:
        path = shorter
    if path in ("L['self']", "L__self__", "self"):
        return ""
    for prefix in _PREFIXES:
        path = path.removeprefix(prefix)
    return path.partition("@")[0]
