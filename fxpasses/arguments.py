"""Ask a call for its arguments by name: defaults filled in, keywords and positions treated alike.

A node stores its arguments as they were written: ``sum(x, 1)`` and ``sum(x, dim=1)`` differ as graphs and mean the
same. Here the operator's schema (or the Python signature of a function or module) names every argument, so that a
pass says ``get_argument(node, "dim")`` and is right either way.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from fxpasses.errors import GraphError

__all__ = [
    "REQUIRED",
    "Parameter",
    "Signature",
    "bind_arguments",
    "canonical_arguments",
    "coerce_scalars",
    "get_argument",
    "getitem_of",
    "getitem_users",
    "is_call_to",
    "is_getitem",
    "map_arguments_by_schema",
    "normalized_arguments",
    "only_user",
    "producer_and_index",
    "set_argument",
    "signature_for",
    "signature_of",
    "target_name",
    "tensor_arguments",
]


class _Required:
    """The type of ``REQUIRED``."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
"""What stands in place of a default value where there is none."""


@attrs.frozen
class Parameter:
    """One formal argument of an operator, function, method or module.

    Args:
        name: Its name in the schema or the Python signature.
        default: The value it has when it is not given; ``REQUIRED`` if it must be.
        keyword_only: It cannot be given by position.
        variadic: It takes the rest of the positions (``*args``) or keywords (``**kwargs``).
        type: The schema's type (``torch.TensorType`` and so on); None for Python signatures.
    """

    name: str
    default: Any = REQUIRED
    keyword_only: bool = False
    variadic: bool = False
    type: Any = None

    @property
    def is_list(self) -> bool:
        """It takes a list of numbers, which Python callers may spread: ``x.view(2, 3)``."""
        kind = self.type
        return kind is not None and kind.kind() == "ListType" and kind.getElementType().kind() == "IntType"


@attrs.frozen
class Signature:
    """The formal arguments of something that can be called, in order.

    Args:
        parameters: The arguments.
        aliases: Other keywords that Python callers may use, as ``(alias, name)``: ``axis`` for ``dim``.
    """

    parameters: tuple[Parameter, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """The arguments that can be given by position."""
        return tuple(p for p in self.parameters if not p.keyword_only and not p.variadic)

    def __getitem__(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise GraphError(f"no argument named {name!r}; there are: {', '.join(self.names) or 'none'}")

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, defaults: bool = True) -> dict[str, Any]:
        """Name every argument.

        Args:
            args: The positional arguments.
            kwargs: The keyword arguments.
            defaults: Also name those that were not given, with their default values.

        Returns:
            Name to value, in the order of the signature.

        Raises:
            GraphError: Too many positions, an unknown name, a name given twice, or a required one missing.
        """
        given = self._given_by_position(args)
        aliases = dict(self.aliases)
        kwargs = {aliases.get(name, name): value for name, value in kwargs.items()}
        rest = {name: value for name, value in kwargs.items() if name not in self.names}
        for name, value in kwargs.items():
            if name in given:
                raise GraphError(f"argument {name!r} is given by position and by keyword")
            if name not in rest:
                given[name] = value
        if rest:
            given[self._rest_keyword(rest)] = rest
        return self._in_order(given, defaults)

    def _given_by_position(self, args: Sequence[Any]) -> dict[str, Any]:
        formal = self.positional
        if len(args) <= len(formal):
            given = {p.name: value for p, value in zip(formal, args, strict=False)}
            if len(args) > 1 and formal[len(args) - 1].is_list and _is_number(args[-1]):
                given[formal[len(args) - 1].name] = (args[-1],)
            return given
        last = self._spread_at(args)
        if last is None:
            raise GraphError(f"{len(args)} positional arguments for ({', '.join(self.names)})")
        given = {p.name: value for p, value in zip(formal, args[:last], strict=False)}
        name = formal[last].name if last < len(formal) else self._rest_positions()
        given[name] = tuple(args[last:])
        return given

    def _spread_at(self, args: Sequence[Any]) -> int | None:
        """The position from which on the arguments belong to one list."""
        if any(p.variadic and not p.keyword_only for p in self.parameters):
            return len(self.positional)
        for position, parameter in enumerate(self.positional):
            if parameter.is_list and position > 0:
                return position if all(_is_number(value) for value in args[position:]) else None
        return None

    def _rest_positions(self) -> str:
        return next(p.name for p in self.parameters if p.variadic and not p.keyword_only)

    def _rest_keyword(self, rest: Mapping[str, Any]) -> str:
        for parameter in self.parameters:
            if parameter.variadic and parameter.keyword_only:
                return parameter.name
        raise GraphError(f"no argument named {next(iter(rest))!r}; there are: {', '.join(self.names) or 'none'}")

    def _in_order(self, given: Mapping[str, Any], defaults: bool) -> dict[str, Any]:
        named = {}
        for parameter in self.parameters:
            if parameter.name in given:
                named[parameter.name] = given[parameter.name]
            elif parameter.variadic:
                continue
            elif parameter.default is REQUIRED:
                raise GraphError(f"argument {parameter.name!r} is missing")
            elif defaults:
                named[parameter.name] = parameter.default
        return named


def _is_number(value: Any) -> bool:
    if isinstance(value, Node):
        value = value.meta.get("val", 0)
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _signature_of_schema(schema: torch.FunctionSchema) -> Signature:
    return Signature(
        tuple(
            Parameter(
                argument.name,
                default=argument.default_value if argument.has_default_value() else REQUIRED,
                keyword_only=argument.kwarg_only,
                type=argument.type,
            )
            for argument in schema.arguments
        )
    )


def _signature_of_python(function: Callable[..., Any]) -> Signature | None:
    try:
        formal = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    if formal and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in formal):
        return None  # (*args, **kwargs) names nothing
    return Signature(
        tuple(
            Parameter(
                p.name,
                default=REQUIRED if p.default is p.empty else p.default,
                keyword_only=p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD),
                variadic=p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD),
            )
            for p in formal
        )
    )


@lru_cache(maxsize=4096)
def _candidates(target: Any) -> tuple[Signature, ...]:
    """Every signature that ``target`` may be called with; several for an operator with overloads."""
    if isinstance(target, torch._ops.OpOverload):
        return (_signature_of_schema(target._schema),)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return tuple(_signature_of_schema(getattr(target, name)._schema) for name in _overloads(target))
    if isinstance(target, torch._ops.HigherOrderOperator):
        own = type(target).__call__
        found = None if own is torch._ops.HigherOrderOperator.__call__ else _signature_of_python(target.__call__)
        return (found,) if found else ()
    schema = getattr(target, "_schema", None)  # dialects wrap an OpOverload and keep its schema
    if schema is not None and hasattr(schema, "arguments"):
        return (_signature_of_schema(schema),)
    if isinstance(target, str):
        return _aten_signatures(target)
    if found := _signature_of_python(target):
        return (found,)
    return _aten_signatures(getattr(target, "__name__", ""))


def _overloads(packet: torch._ops.OpOverloadPacket) -> list[str]:
    return list(packet.overloads())  # type: ignore[no-untyped-call]  # torch has not annotated it


def _aten_signatures(name: str) -> tuple[Signature, ...]:
    found = [_signature_of_schema(schema) for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}")]
    return tuple(attrs.evolve(s, aliases=tuple(a for a in _ALIASES if a[1] in s.names)) for s in found)


_ALIASES = (("input", "self"), ("axis", "dim"), ("keepdims", "keepdim"))


def signature_of(target: Any) -> Signature | None:
    """The signature of a target that has exactly one.

    Args:
        target: An ``OpOverload`` or anything with a ``_schema``, an ``OpOverloadPacket`` or torch function with one
            overload, a higher-order operator, a Python function, or a method's name.

    Returns:
        The signature, or None where there is none or one cannot choose without arguments (see ``signature_for``).
    """
    found = _candidates(target)
    return found[0] if len(found) == 1 else None


def signature_for(node: Node) -> Signature | None:
    """The signature that the call ``node`` uses: of several overloads, the first that takes its arguments.

    Returns:
        None for a node that calls nothing, and for a callable that does not tell its arguments.
    """
    if node.op == "call_module":
        root = node.graph.owning_module
        return None if root is None else _signature_of_python(root.get_submodule(str(node.target)).forward)
    if node.op not in ("call_function", "call_method"):
        return None
    found = _candidates(node.target)
    if len(found) <= 1:
        return found[0] if found else None
    return next((signature for signature in found if _accepts(signature, node)), None)


def _accepts(signature: Signature, node: Node) -> bool:
    try:
        bound = signature.bind(node.args, node.kwargs, defaults=False)
    except GraphError:
        return False
    return all(_fits(bound[p.name], p.type) for p in signature.parameters if p.name in bound)


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "TensorType": (torch.Tensor,),
    "NumberType": (int, float, complex, bool, torch.SymInt, torch.SymFloat, torch.SymBool),
    "IntType": (int, torch.SymInt, torch.dtype, torch.layout, torch.memory_format),
    "SymIntType": (int, torch.SymInt),
    "FloatType": (float, int, torch.SymFloat),
    "BoolType": (bool, torch.SymBool),
    "StringType": (str,),
    "DeviceObjType": (torch.device, str),
}


def _fits(value: Any, kind: Any) -> bool:
    """May ``value`` be given where the schema says ``kind``? A node without a recorded value may be anything."""
    name = kind.kind()
    if name == "OptionalType":
        return value is None or _fits(value, kind.getElementType())
    if isinstance(value, Node):
        if "val" not in value.meta:
            return name in ("TensorType", "ListType", "IntType", "NumberType")
        value = value.meta["val"]
    if name == "ListType":
        if _is_number(value) and kind.getElementType().kind() == "IntType":
            return True  # Python callers may leave the brackets out: torch.sum(x, dim=1)
        return isinstance(value, list | tuple) and all(_fits(item, kind.getElementType()) for item in value)
    return isinstance(value, _PYTHON_TYPES.get(name, (object,)))


def target_name(node: Node) -> str:
    """How to call a node's target in a message: ``aten.add.Tensor``, ``torch.relu``, ``.view()``, ``layer.0``."""
    target: Any = node.target
    if node.op == "call_method":
        return f".{target}()"
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    return str(getattr(target, "__name__", target))


def bind_arguments(node: Node, *, defaults: bool = True) -> dict[str, Any]:
    """Name the arguments of a call, with or without the defaults of those that were not given.

    Raises:
        GraphError: The node calls nothing, its target does not tell its arguments, or they do not fit.
    """
    signature = signature_for(node)
    if signature is None:
        raise GraphError(f"{node.op} node {node.name!r}: no schema is known for {target_name(node)}", node=node)
    try:
        return signature.bind(node.args, node.kwargs, defaults=defaults)
    except GraphError as error:
        raise GraphError(f"node {node.name!r} ({target_name(node)}): {error}", node=node, reason=error.reason) from None


def normalized_arguments(node: Node) -> dict[str, Any]:
    """All arguments of a call by name, in schema order, with defaults filled in.

    Two calls that mean the same have equal normalized arguments, whichever way they were written.

    Raises:
        GraphError: The node calls nothing, its target does not tell its arguments, or they do not fit.
    """
    return bind_arguments(node, defaults=True)


def canonical_arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The shortest spelling of a call: by position where possible, trailing defaults left out.

    Raises:
        GraphError: As ``normalized_arguments``.
    """
    signature = signature_for(node)
    named = bind_arguments(node, defaults=True)
    assert signature is not None  # bind_arguments has refused it already
    positions = [p.name for p in signature.positional]
    while positions and _is_default(signature[positions[-1]], named[positions[-1]]):
        positions.pop()
    args = tuple(named[name] for name in positions)
    kwargs: dict[str, Any] = {}
    for parameter in signature.parameters:
        if parameter.name not in named or parameter in signature.positional:
            continue
        if parameter.variadic and not parameter.keyword_only:
            args += tuple(named[parameter.name])
        elif parameter.variadic:
            kwargs.update(named[parameter.name])
        elif not _is_default(parameter, named[parameter.name]):
            kwargs[parameter.name] = named[parameter.name]
    return args, kwargs


def _is_default(parameter: Parameter, value: Any) -> bool:
    default = parameter.default
    return default is not REQUIRED and type(value) is type(default) and bool(value == default)


def get_argument(node: Node, name: str) -> Any:
    """One argument of a call, by its schema name; the default if it was not given.

    >>> import torch
    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> node = graph.call_function(torch.ops.aten.sum.dim_IntList, (x, [1]))
    >>> get_argument(node, "dim"), get_argument(node, "keepdim")
    ([1], False)

    Raises:
        GraphError: There is no such argument; the message lists those there are.
    """
    named = normalized_arguments(node)
    if name not in named:
        message = (
            f"node {node.name!r} ({target_name(node)}) has no argument {name!r}; it has: {', '.join(named) or 'none'}"
        )
        raise GraphError(message, node=node)
    return named[name]


def set_argument(node: Node, name: str, value: Any) -> None:
    """Set one argument of a call by its schema name, where it stands or where it belongs.

    Positions between the last one given and this one are filled with their defaults. ``val`` is not touched: call
    ``editing.refresh_values([node])`` afterwards.

    Raises:
        GraphError: There is no such argument; the message lists those there are.
    """
    get_argument(node, name) if name not in node.kwargs else None
    if name in node.kwargs:
        node.kwargs = {**node.kwargs, name: value}
        return
    signature = signature_for(node)
    assert signature is not None  # get_argument has refused it already
    positions = [p.name for p in signature.positional]
    if name not in positions:
        node.kwargs = {**node.kwargs, name: value}
        return
    given = bind_arguments(node, defaults=False)
    named = {**bind_arguments(node, defaults=True), name: value}
    last = max(positions.index(n) for n in positions if n == name or (n in given and n not in node.kwargs))
    wanted = positions[: last + 1]
    if any(n in node.kwargs for n in wanted):
        node.kwargs = {**node.kwargs, name: value}
        return
    rest = [p.name for p in signature.parameters if p.variadic and not p.keyword_only]
    node.args = tuple(named[n] for n in wanted) + tuple(value for n in rest for value in named.get(n, ()))


def map_arguments_by_schema(
    op: Any, fn: Callable[[Any, Any], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pass each given argument through ``fn(value, schema_argument)``, keeping positions and keywords as they are.

    ``schema_argument`` is the operator's own: ``.name``, ``.type``, ``.kwarg_only``. Arguments that are not given are
    not visited; a list argument is visited as a whole.

    Raises:
        GraphError: ``op`` has no schema, or more than one.
    """
    schema = _the_schema(op)
    new_args, new_kwargs = list(args), dict(kwargs)
    for position, argument in enumerate(schema.arguments):
        if argument.name in new_kwargs:
            new_kwargs[argument.name] = fn(new_kwargs[argument.name], argument)
        elif not argument.kwarg_only and position < len(new_args):
            new_args[position] = fn(new_args[position], argument)
    return tuple(new_args), new_kwargs


def _the_schema(op: Any) -> torch.FunctionSchema:
    if isinstance(op, torch._ops.OpOverloadPacket) and len(_overloads(op)) == 1:
        op = getattr(op, _overloads(op)[0])
    schema = getattr(op, "_schema", None)
    if schema is None or not hasattr(schema, "arguments"):
        raise GraphError(f"{op!r} has no schema of its own: give an OpOverload such as torch.ops.aten.add.Tensor")
    return schema  # type: ignore[no-any-return]  # attribute of a duck-typed operator


def coerce_scalars(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn Python numbers into tensors where the schema asks for a tensor.

    The tensors have no dimensions, so they take part in type promotion just as the numbers did; a float stays exact
    next to a float64 tensor.

    Raises:
        GraphError: ``op`` has no schema, or more than one.
    """
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    wide = any(_dtype_of(leaf) in (torch.float64, torch.complex128) for leaf in leaves)

    def coerce(value: Any, argument: Any) -> Any:
        if not isinstance(value, bool | int | float | complex) or _plain(argument.type).kind() != "TensorType":
            return value
        dtype = {float: torch.float64, complex: torch.complex128}.get(type(value)) if wide else None
        return torch.tensor(value, dtype=dtype)

    return map_arguments_by_schema(op, coerce, args, kwargs)


def _plain(kind: Any) -> Any:
    return kind.getElementType() if kind.kind() == "OptionalType" else kind


def _dtype_of(value: Any) -> torch.dtype | None:
    if isinstance(value, Node):
        value = value.meta.get("val")
    value = getattr(value, "data", value) if not isinstance(value, torch.Tensor) else value
    return value.dtype if isinstance(value, torch.Tensor) else None


def tensor_arguments(node: Node) -> dict[str, Node | list[Node]]:
    """The tensor arguments of a call by schema name: a node, or the list of nodes of a ``Tensor[]`` argument.

    Raises:
        GraphError: As ``normalized_arguments``.
    """
    found: dict[str, Node | list[Node]] = {}
    for name, value in bind_arguments(node, defaults=False).items():
        nodes = [item for item in value if isinstance(item, Node)] if isinstance(value, list | tuple) else []
        if isinstance(value, Node) and _may_be_tensor(value):
            found[name] = value
        elif nodes and all(_may_be_tensor(item) for item in nodes):
            found[name] = nodes
    return found


def _may_be_tensor(node: Node) -> bool:
    return "val" not in node.meta or isinstance(node.meta["val"], torch.Tensor)


def is_call_to(node: Any, *targets: Any) -> bool:
    """Does the node call one of these: operators, overload packets (any overload), functions, or method names?"""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return False
    target = node.target
    return target in targets or getattr(target, "overloadpacket", None) in targets


def is_getitem(node: Any) -> bool:
    """Does the node take one element out of a tuple or list of another node?"""
    return isinstance(node, Node) and node.op == "call_function" and node.target is operator.getitem


def getitem_users(node: Node) -> dict[Any, list[Node]]:
    """The ``getitem`` users of a node by their index, in order of their first use."""
    found: dict[Any, list[Node]] = {}
    for user in node.users:
        if is_getitem(user) and user.args[0] is node and isinstance(user.args[1], int):
            found.setdefault(user.args[1], []).append(user)
    return found


def getitem_of(node: Node, index: int) -> Node | None:
    """The first ``getitem`` of ``node`` with this index; None if nothing takes that element."""
    return next(iter(getitem_users(node).get(index, [])), None)


def producer_and_index(node: Node) -> tuple[Node, tuple[Any, ...]]:
    """Look through ``getitem`` nodes: the node that makes the value, and the path of indices into it."""
    path: list[Any] = []
    while is_getitem(node) and isinstance(node.args[0], Node):
        path.append(node.args[1])
        node = node.args[0]
    return node, tuple(reversed(path))


def only_user(node: Node) -> Node | None:
    """The node's user, if it has exactly one."""
    return next(iter(node.users)) if len(node.users) == 1 else None
