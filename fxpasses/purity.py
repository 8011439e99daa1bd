"""What one call does, told in its own operands: which it writes, which its result may share memory with, and whether it
draws random numbers, touches the world, or opens and closes a region.

This file answers for one node at a time and knows no graph; :mod:`fxpasses.effects` puts the answers together. The
facts come from operator schemas (PyTorch's alias annotations), from operator tags, and from small tables for what
schemas do not say. A target nobody knows is *opaque*: it may do anything to its operands and to the world.
"""

from __future__ import annotations

import builtins
import enum
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import attrs
import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Node
from torch.fx.operator_schemas import get_signature_for_torch_op

__all__ = ["PLAIN", "CallEffects", "RegionKind", "Registry", "flat_nodes", "opaque", "rule_for_target"]


class RegionKind(enum.Enum):
    """The kinds of state that a marker switches for every node behind it."""

    AUTOCAST = "autocast"
    GRAD_MODE = "grad mode"
    INFERENCE_MODE = "inference mode"
    EFFECT_TOKEN = "effect token"
    GLOBAL_STATE = "global state"

    @property
    def is_barrier(self) -> bool:
        """Whether no compute node may cross a marker of this kind; tokens order by data instead."""
        return self is not RegionKind.EFFECT_TOKEN


@attrs.frozen(slots=True)
class CallEffects:
    """What one call does to its operands and to the world.

    Attributes:
        reads: Operands whose contents are read; None means all of them.
        writes: Operands whose contents change.
        returns: How many tensors come back; 0 for none, 1 also for a list of unknown length.
        aliases: For each of the returns, the operands it may share memory with (missing entries: fresh memory).
        state_reads: Tensors beside the operands that are read, such as the parameters of a called module.
        state_writes: Tensors beside the operands that change, such as running statistics.
        state_aliases: Tensors beside the operands that the result may share memory with.
        random: Draws from a random number generator.
        world: Has an effect that no value shows: an assert, a print, a collective.
        region: The kind of state it switches, if it is a marker.
        opens: For a marker: True if it opens a region, False if it closes one.
        changes_shape: Changes the shape or strides of an operand in place (``t_``, ``resize_``).
        looks_only: Reads shapes and strides but no contents, as views do.
        guards: Operands whose symbols an assertion constrains.
        reason: Why it is not pure, in a few words; "" if it is pure.
    """

    reads: tuple[Node, ...] | None = None
    writes: tuple[Node, ...] = ()
    returns: int = 1
    aliases: tuple[tuple[Node, ...], ...] = ()
    state_reads: tuple[torch.Tensor, ...] = ()
    state_writes: tuple[torch.Tensor, ...] = ()
    state_aliases: tuple[torch.Tensor, ...] = ()
    random: bool = False
    world: bool = False
    region: RegionKind | None = None
    opens: bool = True
    changes_shape: bool = False
    looks_only: bool = False
    guards: tuple[Node, ...] = ()
    reason: str = ""

    @property
    def is_pure(self) -> bool:
        """Whether the call only computes its result."""
        return not (self.writes or self.state_writes or self.random or self.world or self.region)


PLAIN = CallEffects()
"""Reads all operands, gives one fresh result."""

NO_TENSOR = CallEffects(returns=0)
"""Reads all operands, gives something that holds no memory (a number, a shape)."""

SHAPE_ONLY = CallEffects(returns=0, looks_only=True)
"""Asks an operand for its shape, strides, type or device."""

Rule = Callable[[Node], CallEffects]
TargetT = TypeVar("TargetT")


def flat_nodes(value: Any) -> Iterator[Node]:
    """The nodes in an argument, however deep in lists, tuples, dicts and slices."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat_nodes(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from flat_nodes(item)
    elif isinstance(value, slice):
        yield from flat_nodes((value.start, value.stop, value.step))


def opaque(node: Node, reason: str, *, state: Iterable[torch.Tensor] = ()) -> CallEffects:
    """The answer for a call that nobody can look into: it may do anything to what it can reach."""
    operands = tuple(node.all_input_nodes)
    tensors = tuple(state)
    return CallEffects(
        reads=operands,
        writes=operands,
        aliases=(operands,),
        state_reads=tensors,
        state_writes=tensors,
        state_aliases=tensors,
        random=True,
        world=True,
        reason=reason,
    )


class Registry:
    """What users say about targets that the schemas and tables do not know.

    A target is a callable, an operator, a method name (for ``call_method``) or a module class (for ``call_module``).

    >>> registry = Registry()
    >>> @registry.pure
    ... def my_kernel(x):
    ...     return x + 1
    >>> registry.rule_for(my_kernel) is not None
    True
    """

    def __init__(self, parent: Registry | None = None) -> None:
        self._rules: dict[Any, Rule] = {}
        self._parent = parent

    def pure(self, target: TargetT, *, may_alias: bool = False) -> TargetT:
        """Declare that calls of ``target`` only compute their result; usable as a decorator.

        Args:
            target: What is called.
            may_alias: Whether the result may share memory with an operand, as a view does.
        """
        self._rules[target] = _aliasing_rule if may_alias else _plain_rule
        return target

    def effects(self, target: Any, rule: Rule | None = None) -> Any:
        """Declare what calls of ``target`` do: ``rule`` takes the node and answers with :class:`CallEffects`.

        Without ``rule`` it is a decorator for the rule.
        """
        if rule is None:
            return functools.partial(self._decorate, target)
        self._rules[target] = rule
        return rule

    def _decorate(self, target: Any, rule: Rule) -> Rule:
        self._rules[target] = rule
        return rule

    def forget(self, target: Any) -> None:
        """Take back what was declared for ``target``."""
        self._rules.pop(target, None)

    def rule_for(self, target: Any) -> Rule | None:
        """The rule declared for ``target``, here or in the parent registry."""
        try:
            rule = self._rules.get(target)
        except TypeError:  # an unhashable callable object
            return None
        if rule is None and self._parent is not None:
            return self._parent.rule_for(target)
        return rule


@attrs.frozen(slots=True)
class _Constant:
    """A rule that gives the same answer for every call."""

    always: CallEffects

    def __call__(self, _node: Node) -> CallEffects:
        return self.always


_plain_rule = _Constant(PLAIN)
_no_tensor_rule = _Constant(NO_TENSOR)
_shape_rule = _Constant(SHAPE_ONLY)


def _aliasing_rule(node: Node) -> CallEffects:
    return CallEffects(aliases=(tuple(node.all_input_nodes),))


def _first_operand_rule(node: Node) -> CallEffects:
    return CallEffects(aliases=(tuple(flat_nodes(node.args[:1])),))


def _world_rule(node: Node) -> CallEffects:
    return CallEffects(
        returns=0, world=True, guards=tuple(node.all_input_nodes), reason=f"{_name(node.target)} acts on the world"
    )


def _seed_rule(node: Node) -> CallEffects:
    return CallEffects(returns=1, random=True, world=True, reason=f"{_name(node.target)} sets the random state")


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", None) or str(target)


# --------------------------------------------------------------------------------------------------------------------
# Operators with schemas
# --------------------------------------------------------------------------------------------------------------------

# Composite operators that may hand back their input though their schema does not say so.
_UNANNOTATED_VIEWS = frozenset(
    [
        "type_as",
        "broadcast_tensors",
        "meshgrid",
        "align_tensors",
        "einsum",
        "chain_matmul",
        "cartesian_prod",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "unsafe_split",
        "unsafe_chunk",
        "unsafe_split_with_sizes",
        "_unsafe_view",
        "conj_physical",
        "sum_to_size",
        "flatten_dense_tensors",
        "unflatten_dense_tensors",
        "to_dense",
        "dequantize",
        "_cast_Float",
        "_cast_Double",
        "_cast_Half",
        "_cast_Long",
        "_cast_Int",
        "_cast_Short",
        "_cast_Byte",
        "_cast_Char",
        "wait_tensor",
        "_lazy_clone",
        "as_tensor",
        "from_numpy",
        "_reshape_alias",
    ]
)
# The same, but only while they are switched off (argument names).
_DROPOUTS = {
    "dropout": ("p", "train"),
    "alpha_dropout": ("p", "train"),
    "feature_dropout": ("p", "train"),
    "feature_alpha_dropout": ("p", "train"),
    "native_dropout": ("p", "train"),
    "dropout_": ("p", "train"),
    "alpha_dropout_": ("p", "train"),
    "feature_dropout_": ("p", "train"),
    "feature_alpha_dropout_": ("p", "train"),
}
# Random only if this argument is not zero.
_RANDOM_BY_PROBABILITY = {
    "scaled_dot_product_attention": "dropout_p",
    "_scaled_dot_product_flash_attention": "dropout_p",
    "_scaled_dot_product_flash_attention_for_cpu": "dropout_p",
    "_scaled_dot_product_efficient_attention": "dropout_p",
    "_scaled_dot_product_cudnn_attention": "dropout_p",
    "_scaled_dot_product_attention_math": "dropout_p",
    "_fused_sdp_choice": "dropout_p",
    "lstm": "dropout",
    "gru": "dropout",
    "rnn_tanh": "dropout",
    "rnn_relu": "dropout",
}
# Random only if this argument is true.
_RANDOM_BY_FLAG = {"rrelu": "training", "rrelu_": "training", "rrelu_with_noise": "training"}
# Tagged as seeded, but nothing is drawn.
_NOT_RANDOM = frozenset({"native_batch_norm", "batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"})
# Running statistics that change although the schema does not say so: argument names, and the switch.
_HIDDEN_STATISTICS = {
    "batch_norm": ("running_mean", "running_var", "training"),
    "native_batch_norm": ("running_mean", "running_var", "training"),
    "cudnn_batch_norm": ("running_mean", "running_var", "training"),
    "miopen_batch_norm": ("running_mean", "running_var", "training"),
    "_batch_norm_impl_index": ("running_mean", "running_var", "training"),
    "instance_norm": ("running_mean", "running_var", "use_input_stats"),
}
_WORLD_NAMES = frozenset(
    [
        "_assert_async",
        "_functional_assert_async",
        "_assert_scalar",
        "_functional_assert_scalar",
        "_assert_tensor_metadata",
        "_assert",
        "_print",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_functional_sym_constrain_range",
        "_functional_sym_constrain_range_for_size",
        "_check",
        "_check_is_size",
        "_check_index",
        "_check_value",
        "_check_type",
        "_check_with",
        "_check_tensor_all",
        "_record_function_enter",
        "_record_function_enter_new",
        "_record_function_exit",
        "set_vital",
        "_foobar",
        "is_compiling_error",
    ]
)
_COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem"})
_WORLD_NAMESPACES = _COLLECTIVES | {"profiler"}
_LOOKS_ONLY = frozenset(
    [
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "size",
        "stride",
        "numel",
        "dim",
        "storage_offset",
        "is_contiguous",
        "sym_is_contiguous",
        "is_non_overlapping_and_dense",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "get_device",
        "is_same_size",
        "result_type",
        "can_cast",
        "is_conj",
        "is_neg",
        "is_inference",
        "device",
        "layout",
        "is_strides_like_format",
        "_assert_tensor_metadata",
        "is_nonzero_shape",
    ]
)


@attrs.frozen(slots=True)
class _Operand:
    """Where an argument stands: by position, or by keyword."""

    position: int
    name: str

    def nodes(self, node: Node) -> Iterator[Node]:
        if self.name in node.kwargs:
            yield from flat_nodes(node.kwargs[self.name])
        elif 0 <= self.position < len(node.args):
            yield from flat_nodes(node.args[self.position])


@attrs.frozen(slots=True)
class _SchemaRule:
    """What one or more overloads say together; the union of their effects."""

    name: str
    writes: tuple[_Operand, ...]
    aliases: tuple[tuple[_Operand, ...], ...]
    returns: int
    random: bool
    world: bool
    looks_only: bool
    changes_shape: bool

    def __call__(self, node: Node) -> CallEffects:
        writes = _nodes(self.writes, node)
        return CallEffects(
            reads=_contents_read(self, node, writes),
            writes=writes,
            returns=self.returns,
            aliases=tuple(_nodes(operands, node) for operands in self.aliases),
            random=self.random,
            world=self.world,
            changes_shape=self.changes_shape,
            looks_only=self.looks_only,
            guards=tuple(node.all_input_nodes) if self.world else (),
            reason=self._reason(writes),
        )

    def _reason(self, writes: tuple[Node, ...]) -> str:
        if writes:
            return f"{self.name} writes {', '.join(written.name for written in writes)}"
        if self.random:
            return f"{self.name} draws random numbers"
        return f"{self.name} acts on the world" if self.world else ""

    @property
    def is_plain(self) -> bool:
        return not (self.writes or any(self.aliases) or self.random or self.world or self.looks_only)


def _nodes(operands: tuple[_Operand, ...], node: Node) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(found for operand in operands for found in operand.nodes(node)))


def _contents_read(rule: _SchemaRule, node: Node, writes: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """Views look at strides only, so they read no contents; everything else reads all that it does not just overwrite."""
    if rule.looks_only:
        return ()
    if rule.name in ("out", "copy_", "fill_", "zero_") and writes:
        return tuple(operand for operand in node.all_input_nodes if operand not in writes)
    return None


def _overload_parts(overload: OpOverload) -> tuple[list[_Operand], list[list[_Operand]]]:
    """The written arguments of an overload, and for each return the arguments it may alias."""
    written: list[_Operand] = []
    by_set: dict[str, list[_Operand]] = {}
    for position, argument in enumerate(overload._schema.arguments):
        if (info := argument.alias_info) is None:
            continue
        operand = _Operand(-1 if argument.kwarg_only else position, argument.name)
        if info.is_write:
            written.append(operand)
        for label in sorted(info.before_set):
            by_set.setdefault(label, []).append(operand)
    returned = []
    for result in overload._schema.returns:
        labels = sorted(result.alias_info.before_set | result.alias_info.after_set) if result.alias_info else []
        returned.append([operand for label in labels for operand in by_set.get(label, [])])
    return written, returned


def _holds_tensor(kind: Any) -> bool:
    text = str(kind)
    return not any(text == word for word in _SCALAR_TYPES) and not text.startswith(("List[int]", "List[float]"))


_SCALAR_TYPES = (
    "int",
    "float",
    "bool",
    "number",
    "Scalar",
    "SymInt",
    "SymFloat",
    "SymBool",
    "NoneType",
    "str",
    "Device",
)


def _unique(operands: Iterable[_Operand]) -> tuple[_Operand, ...]:
    return tuple(dict.fromkeys(operands))


def _merged_rule(name: str, overloads: list[OpOverload]) -> _SchemaRule:
    """The union of what ``overloads`` say."""
    writes: list[_Operand] = []
    returned: list[list[list[_Operand]]] = []
    for overload in overloads:
        written, aliases = _overload_parts(overload)
        writes.extend(written)
        returned.append(aliases)
    counts = {len(aliases) for aliases in returned}
    returns = counts.pop() if len(counts) == 1 else 1
    if returns and not any(_holds_tensor(result.real_type) for one in overloads for result in one._schema.returns):
        returns = 0
    if len({len(aliases) for aliases in returned}) == 1:
        merged = [_unique(operand for one in returned for operand in one[slot]) for slot in range(len(returned[0]))]
    else:
        merged = [_unique(operand for one in returned for slot in one for operand in slot)]
    if name in _UNANNOTATED_VIEWS:
        every = _unique(
            _Operand(position, argument.name)
            for one in overloads
            for position, argument in enumerate(one._schema.arguments)
        )
        merged = [every] * max(returns, 1)
    tags = [tag for overload in overloads for tag in overload.tags]
    namespace = overloads[0].namespace
    view = any(merged) and not writes
    return _SchemaRule(
        name=name,
        writes=_unique(writes),
        aliases=tuple(merged),
        returns=returns,
        random=torch.Tag.nondeterministic_seeded in tags and name not in _NOT_RANDOM,
        world=name in _WORLD_NAMES or namespace in _WORLD_NAMESPACES,
        looks_only=name in _LOOKS_ONLY or (view and name not in _MAY_COPY),
        changes_shape=torch.Tag.inplace_view in tags or name in _CHANGES_SHAPE,
    )


# Annotated as views, but they may copy the contents (and so read them).
_MAY_COPY = frozenset(
    [
        "reshape",
        "contiguous",
        "to",
        "flatten",
        "reshape_as",
        "resolve_conj",
        "resolve_neg",
        "pin_memory",
        "ravel",
        "type_as",
        "to_dense",
        "dequantize",
        "einsum",
        "chain_matmul",
        "cartesian_prod",
        "conj_physical",
        "sum_to_size",
        "wait_tensor",
        "_lazy_clone",
        "as_tensor",
        "meshgrid",
        "positive",
        "flatten_dense_tensors",
        "lift",
        "lift_fresh",
        "broadcast_tensors",
    ]
)
_CHANGES_SHAPE = frozenset({"resize_", "resize_as_", "set_", "as_strided_", "resize", "set_data", "_resize_output_"})


def _argument(node: Node, overloads: list[OpOverload], name: str, default: Any = None) -> Any:
    """The value a call gives for the argument ``name``, by any of its overloads; their default if it gives none."""
    if name in node.kwargs:
        return node.kwargs[name]
    for overload in overloads:
        for position, argument in enumerate(overload._schema.arguments):
            if argument.name != name:
                continue
            if not argument.kwarg_only and position < len(node.args):
                return node.args[position]
            if argument.has_default_value():
                default = argument.default_value
    return default


def _is_off(value: Any) -> bool:
    return value is False or (isinstance(value, (int, float)) and value == 0)


def _refine(name: str, overloads: list[OpOverload], base: _SchemaRule) -> Rule | None:
    """The rule of an operator whose effects depend on the values of its arguments; None for all others."""
    if switches := _DROPOUTS.get(name):
        return functools.partial(_dropout_rule, base, overloads, switches)
    if (flag := _RANDOM_BY_PROBABILITY.get(name) or _RANDOM_BY_FLAG.get(name)) is not None:
        return functools.partial(_switched_rule, base, overloads, flag)
    if statistics := _HIDDEN_STATISTICS.get(name):
        return functools.partial(_statistics_rule, base, overloads, statistics)
    return None


def _dropout_rule(base: _SchemaRule, overloads: list[OpOverload], switches: tuple[str, ...], node: Node) -> CallEffects:
    if any(_is_off(_argument(node, overloads, switch, True)) for switch in switches):
        answer = attrs.evolve(base(node), random=False)
        source = tuple(flat_nodes(node.args[:1])) or tuple(node.all_input_nodes[:1])
        aliases = (source, *answer.aliases[1:]) if base.returns > 1 else (source,)
        return attrs.evolve(answer, aliases=aliases, reason=base._reason(answer.writes) if answer.writes else "")
    return base(node)


def _switched_rule(base: _SchemaRule, overloads: list[OpOverload], flag: str, node: Node) -> CallEffects:
    answer = base(node)
    if _is_off(_argument(node, overloads, flag, True)):
        return attrs.evolve(answer, random=False, reason=answer.reason if answer.writes else "")
    return answer


def _statistics_rule(
    base: _SchemaRule, overloads: list[OpOverload], names: tuple[str, str, str], node: Node
) -> CallEffects:
    *statistics, switch = names
    if _is_off(_argument(node, overloads, switch, True)):
        return base(node)
    found = (_argument(node, overloads, name) for name in statistics)
    writes = tuple(dict.fromkeys(written for value in found for written in flat_nodes(value)))
    return attrs.evolve(base(node), writes=writes, reason=base._reason(writes))


def _split_by_out(overloads: list[OpOverload]) -> tuple[list[OpOverload], list[OpOverload]]:
    """The overloads without and with ``out=`` arguments."""
    with_out = [one for one in overloads if any(argument.is_out for argument in one._schema.arguments)]
    return [one for one in overloads if one not in with_out], with_out


def _overloads_rule(name: str, overloads: list[OpOverload]) -> Rule:
    """The rule of a name that stands for several overloads: those with ``out=`` only count if it is given."""
    plain, with_out = _split_by_out(overloads)
    base = _merged_rule(name, plain) if plain else _merged_rule(name, with_out)
    ordinary = _refine(name, plain, base) or base if plain else base
    if not with_out or not plain:
        return ordinary if not (base.is_plain and ordinary is base) else _plain_rule_of(base)
    writing = _merged_rule(name, with_out)
    out_names = frozenset(argument.name for one in with_out for argument in one._schema.arguments if argument.is_out)
    return functools.partial(_out_rule, ordinary, writing, out_names)


def _out_rule(ordinary: Rule, writing: Rule, out_names: frozenset[str], node: Node) -> CallEffects:
    if node.kwargs and any(node.kwargs.get(name) is not None for name in out_names):
        return writing(node)
    return ordinary(node)


def _plain_rule_of(base: _SchemaRule) -> Rule:
    if base.returns == 1:
        return _plain_rule
    if base.returns == 0:
        return _no_tensor_rule
    return _Constant(CallEffects(returns=base.returns))


def _packet_overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    return [getattr(packet, name) for name in packet.overloads()]


def _aten_overloads(name: str) -> list[OpOverload]:
    """The overloads of ``aten::name``; empty if there is no such operator."""
    packet = getattr(torch.ops.aten, name, None)
    return _packet_overloads(packet) if isinstance(packet, OpOverloadPacket) else []


# --------------------------------------------------------------------------------------------------------------------
# Functions, methods and operators of Python
# --------------------------------------------------------------------------------------------------------------------

_PURE_BUILTINS = frozenset(
    [
        "len",
        "max",
        "min",
        "sum",
        "abs",
        "round",
        "divmod",
        "pow",
        "range",
        "slice",
        "isinstance",
        "issubclass",
        "type",
        "int",
        "float",
        "bool",
        "complex",
        "str",
        "repr",
        "hash",
        "id",
        "callable",
        "hasattr",
        "all",
        "any",
        "bin",
        "hex",
        "oct",
        "ord",
        "chr",
        "format",
    ]
)
_CONTAINER_BUILTINS = frozenset(
    {"tuple", "list", "dict", "zip", "enumerate", "reversed", "sorted", "map", "filter", "set"}
)
_TENSORLESS_ATTRIBUTES = frozenset(
    [
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "requires_grad",
        "is_cuda",
        "is_cpu",
        "is_meta",
        "is_sparse",
        "is_quantized",
        "is_leaf",
        "itemsize",
        "nbytes",
        "names",
        "output_nr",
        "_version",
        "__class__",
        "__name__",
        "training",
    ]
)
_SHAPE_METHODS = frozenset(
    [
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "stride",
        "is_contiguous",
        "get_device",
        "is_floating_point",
        "is_complex",
        "storage_offset",
        "__len__",
        "is_signed",
        "is_inference",
        "is_shared",
        "is_pinned",
        "type_name",
        "dtype",
        "has_names",
    ]
)
_NUMBER_METHODS = frozenset({"item", "tolist", "__contains__", "__bool__", "__int__", "__float__", "__index__"})
_CASTING_METHODS = frozenset(
    [
        "float",
        "double",
        "half",
        "bfloat16",
        "int",
        "long",
        "short",
        "byte",
        "bool",
        "char",
        "cfloat",
        "cdouble",
        "chalf",
        "cpu",
        "cuda",
        "xpu",
        "mps",
        "type",
        "numpy",
        "storage",
        "untyped_storage",
        "requires_grad",
        "retain_grad",
        "new_tensor",
        "values",
        "keys",
        "items",
        "get",
        "__getitem__",
        "as_subclass",
        "__iter__",
        "reinforce",
        "to",
        "data",
    ]
)
_FRESH_METHODS = frozenset(
    [
        "new",
        "new_tensor",
        "unique",
        "unique_consecutive",
        "norm",
        "stft",
        "istft",
        "split_copy",
        "__deepcopy__",
        "__reversed__",
        "__rsub__",
        "__rdiv__",
        "__rtruediv__",
        "__rpow__",
        "__rmatmul__",
        "__rfloordiv__",
        "format",
        "join",
        "startswith",
        "endswith",
        "lower",
        "upper",
        "strip",
    ]
)
_WORLD_METHODS = frozenset({"backward", "register_hook", "register_post_accumulate_grad_hook", "share_memory_"})
_RANDOM_FUNCTIONALS = frozenset({"gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d"})
_DROPOUT_FUNCTIONALS = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
)
_PYTHON_MODULES = ("torch.nn.functional", "torch.functional", "torch._jit_internal", "torch._tensor", "torch.overrides")


def _setitem_rule(node: Node) -> CallEffects:
    written = tuple(flat_nodes(node.args[:1]))
    return CallEffects(writes=written, returns=0, reason=f"{_name(node.target)} writes {_names(written)}")


def _inplace_rule(node: Node) -> CallEffects:
    """``operator.iadd`` and its kind; on numbers they are ordinary arithmetic."""
    written = tuple(flat_nodes(node.args[:1]))
    if all(_is_number(operand) for operand in written):
        return NO_TENSOR
    return CallEffects(writes=written, aliases=(written,), reason=f"{_name(node.target)} writes {_names(written)}")


def _is_number(node: Node) -> bool:
    value = node.meta.get("val", node.meta.get("example_value"))
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool))


def _names(nodes: Iterable[Node]) -> str:
    return ", ".join(node.name for node in nodes)


def _getattr_rule(node: Node) -> CallEffects:
    name = node.args[1] if len(node.args) > 1 else node.kwargs.get("name")
    return SHAPE_ONLY if name in _TENSORLESS_ATTRIBUTES else _first_operand_view(node)


def _first_operand_view(node: Node) -> CallEffects:
    return CallEffects(aliases=(tuple(flat_nodes(node.args[:1])),), looks_only=True, reads=())


def _getitem_rule(node: Node) -> CallEffects:
    """A slice is a view; an index that holds tensors may copy, and then it reads."""
    if len(node.args) > 1 and any(True for _ in flat_nodes(node.args[1])):
        return CallEffects(aliases=(tuple(flat_nodes(node.args[:1])),))
    return _first_operand_view(node)


def _functional_rule(node: Node) -> CallEffects:
    """The Python functions of ``torch.nn.functional``: told by their ``inplace``, ``training`` and ``p`` arguments."""
    name = _name(node.target)
    given = _bound_arguments(node)
    source = tuple(flat_nodes(node.args[:1])) or tuple(flat_nodes(node.kwargs.get("input")))
    if name in ("batch_norm", "instance_norm") and not _is_off(
        given.get("training", given.get("use_input_stats", True))
    ):
        writes = tuple(flat_nodes([given.get("running_mean"), given.get("running_var")]))
    elif name in ("embedding", "embedding_bag") and given.get("max_norm") is not None:
        writes = tuple(flat_nodes(given.get("weight")))
    else:
        writes = source if given.get("inplace") else ()
    probability = given.get("p", given.get("dropout_p", 1.0))
    drops = name in _DROPOUT_FUNCTIONALS or name in ("multi_head_attention_forward", "rrelu")
    random = name in _RANDOM_FUNCTIONALS or (
        drops and not _is_off(given.get("training", True)) and not _is_off(probability)
    )
    return CallEffects(
        writes=writes,
        aliases=(source,),
        random=random,
        reason=f"{name} writes {_names(writes)}" if writes else f"{name} draws random numbers" if random else "",
    )


def _bound_arguments(node: Node) -> Mapping[str, Any]:
    """The arguments of a call by name, defaults filled; only the keywords if the signature cannot be read."""
    try:
        bound = _signature(node.target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return dict(node.kwargs)
    bound.apply_defaults()
    return bound.arguments


@functools.lru_cache(maxsize=1024)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def _module_of(function: Any) -> str:
    return getattr(function, "__module__", None) or ""


def _is_torch_function(function: Any) -> bool:
    return _module_of(function).split(".")[0] in ("torch", "") or inspect.isbuiltin(function)


_REGION_FUNCTIONS: dict[str, tuple[RegionKind, bool]] = {
    "_enter_autocast": (RegionKind.AUTOCAST, True),
    "_exit_autocast": (RegionKind.AUTOCAST, False),
    "set_autocast_enabled": (RegionKind.AUTOCAST, True),
    "set_autocast_dtype": (RegionKind.AUTOCAST, True),
    "set_autocast_cache_enabled": (RegionKind.AUTOCAST, True),
    "_set_grad_enabled": (RegionKind.GRAD_MODE, True),
    "set_grad_enabled": (RegionKind.GRAD_MODE, True),
    "_enter_inference_mode": (RegionKind.INFERENCE_MODE, True),
    "_exit_inference_mode": (RegionKind.INFERENCE_MODE, False),
    "_make_token": (RegionKind.EFFECT_TOKEN, True),
    "_sink_tokens": (RegionKind.EFFECT_TOKEN, False),
    "_enter_dual_level": (RegionKind.GLOBAL_STATE, True),
    "_exit_dual_level": (RegionKind.GLOBAL_STATE, False),
    "_saved_tensors_hooks_disable": (RegionKind.GLOBAL_STATE, True),
    "_saved_tensors_hooks_enable": (RegionKind.GLOBAL_STATE, False),
}
_STATE_SWITCHES = (
    "set_default_",
    "set_deterministic",
    "use_deterministic",
    "set_float32",
    "set_flush",
    "set_num_",
    "_set_",
)


def _region_of(function: Any) -> tuple[RegionKind, bool] | None:
    """The kind of region that a torch function switches, and whether it opens one."""
    name = _name(function)
    if found := _REGION_FUNCTIONS.get(name):
        return found
    if "increment_nesting" in name or "decrement_nesting" in name:
        return RegionKind.GLOBAL_STATE, "increment" in name
    return (RegionKind.GLOBAL_STATE, True) if name.startswith(_STATE_SWITCHES) else None


def _region_rule(kind: RegionKind, opens: bool, node: Node) -> CallEffects:
    verb = "opens" if opens else "closes"
    return CallEffects(
        returns=0,
        world=not kind.is_barrier,
        region=kind,
        opens=opens,
        reason=f"{_name(node.target)} {verb} a region ({kind.value})",
    )


def _method_rule(name: str) -> Rule | None:
    """The rule of ``call_method``; None for a name that nobody knows."""
    if name in _WORLD_METHODS:
        return functools.partial(_opaque_rule, f"method {name} acts on the world")
    if name in ("__setitem__", "__delitem__"):
        return _setitem_rule
    if name == "__getitem__":
        return _getitem_rule
    if name.startswith("__i") and name.endswith("__") and hasattr(operator, name):
        return _inplace_rule
    if name in _SHAPE_METHODS:
        return _shape_rule
    if name in _NUMBER_METHODS:
        return _no_tensor_rule
    if name in _CASTING_METHODS:
        return _first_operand_rule
    if overloads := _aten_overloads(name):
        return _overloads_rule(name, overloads)
    if name in _FRESH_METHODS or (name.startswith("__") and hasattr(operator, name)):
        return _plain_rule
    if name.endswith("_") and not name.startswith("_"):
        return _inplace_rule
    return None


def _opaque_rule(reason: str, node: Node) -> CallEffects:
    return opaque(node, reason)


def _operator_rule(function: Any) -> Rule:
    name = function.__name__
    if name in ("setitem", "delitem"):
        return _setitem_rule
    if name == "getitem":
        return _getitem_rule
    if name == "pos":
        return _first_operand_rule
    return (
        _inplace_rule
        if name.startswith("i") and hasattr(operator, f"__{name}__") and name not in _NOT_INPLACE
        else _plain_rule
    )


_NOT_INPLACE = frozenset({"invert", "inv", "index", "is_", "is_not", "indexOf", "itemgetter"})


def _builtin_rule(function: Any) -> Rule | None:
    name = function.__name__
    if name == "getattr":
        return _getattr_rule
    if name == "print":
        return _world_rule
    if name in _PURE_BUILTINS:
        return _plain_rule
    return _aliasing_rule if name in _CONTAINER_BUILTINS else None


def _torch_function_rule(function: Any) -> Rule | None:
    """The rule of a function of torch that is no operator object: by its schemas, or by its Python signature."""
    name = _name(function)
    if (region := _region_of(function)) is not None:
        return functools.partial(_region_rule, *region)
    if name in _WORLD_NAMES:
        return _world_rule
    if name in ("manual_seed", "seed", "set_rng_state"):
        return _seed_rule
    if name.startswith("sym_") or name.startswith("_sym_"):
        return _no_tensor_rule
    if _module_of(function) in _PYTHON_MODULES and not inspect.isbuiltin(function):
        overloads = _schema_overloads(function)
        return _overloads_rule(name, overloads) if overloads else _functional_rule
    if overloads := _schema_overloads(function):
        return _overloads_rule(overloads[0]._schema.name.partition("::")[2], overloads)
    return _aliasing_rule if name in ("tensor", "as_tensor", "from_numpy", "asarray") else None


def _schema_overloads(function: Any) -> list[OpOverload]:
    """The operators behind a function such as ``torch.add``, as :mod:`torch.fx.operator_schemas` tells them."""
    found = get_signature_for_torch_op(function, return_schemas=True)
    schemas = found[1] if isinstance(found, tuple) else None
    names = dict.fromkeys(schema.name.partition("::")[2] for schema in schemas or ())
    return [overload for name in names for overload in _aten_overloads(name)]


def rule_for_target(op: str, target: Any) -> Rule | None:
    """The rule for the calls of ``target``; None if nobody knows what they do.

    Args:
        op: ``"call_function"`` or ``"call_method"``.
        target: What is called. Higher-order operators and modules are looked into by :mod:`fxpasses.effects`.
    """
    if op == "call_method":
        return _method_rule(target)
    if isinstance(target, OpOverload):
        name = target._schema.name.partition("::")[2]
        if name in _REGION_FUNCTIONS:
            return functools.partial(_region_rule, *_REGION_FUNCTIONS[name])
        base = _merged_rule(name, [target])
        refined = _refine(name, [target], base)
        return refined or (_plain_rule_of(base) if base.is_plain else base)
    if isinstance(target, OpOverloadPacket):
        return _overloads_rule(target.__name__, _packet_overloads(target))
    if isinstance(target, HigherOrderOperator):
        return None
    return _python_rule(target)


def _python_rule(target: Any) -> Rule | None:
    module = _module_of(target)
    if module in ("_operator", "operator") and hasattr(target, "__name__"):
        return _operator_rule(target)
    if getattr(builtins, _name(target), None) is target:
        return _builtin_rule(target)
    if getattr(math, _name(target), None) is target:
        return _plain_rule
    if inspect.ismethoddescriptor(target) and issubclass(getattr(target, "__objclass__", object), torch._C.TensorBase):
        return _method_rule(_name(target))
    return _torch_function_rule(target) if _is_torch_function(target) else None
