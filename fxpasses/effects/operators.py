"""What operators do, read from their schemas (PyTorch's alias annotations), their tags, and tables for the rest."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node

from fxpasses.effects.calls import (
    NO_TENSOR_RULE,
    PLAIN_RULE,
    CallEffects,
    Constant,
    Rule,
    flat_nodes,
    is_off,
    name_of,
    names_of,
    words,
)

__all__ = [
    "ALWAYS_VIEWS",
    "MAY_HAND_BACK",
    "UNANNOTATED_VIEWS",
    "WORLD_NAMES",
    "aten_overloads",
    "operands_rule",
    "overload_rule",
    "overloads_rule",
    "packet_overloads",
    "writes_out",
]

# Composite operators that may hand back their input though their schema does not say so.
UNANNOTATED_VIEWS = words(
    """
    type_as broadcast_tensors meshgrid align_tensors einsum chain_matmul cartesian_prod atleast_1d atleast_2d
    atleast_3d unsafe_split unsafe_chunk unsafe_split_with_sizes _unsafe_view conj_physical sum_to_size
    histogramdd _histogramdd_bin_edges flatten_dense_tensors unflatten_dense_tensors to_dense dequantize
    _cast_Float _cast_Double _cast_Half _cast_Long _cast_Int _cast_Short _cast_Byte _cast_Char wait_tensor
    _lazy_clone as_tensor from_numpy _reshape_alias set set_
    """
)
ALWAYS_VIEWS = words("_unsafe_view unsafe_split unsafe_split_with_sizes")
"""Of these, those that never copy."""

# Of several operands these give as many results, each of which may be a view of the operand in its place.
_EACH_OF_ITS_OWN = words("align_tensors atleast_1d atleast_2d atleast_3d broadcast_tensors meshgrid")
# These hand back the only operand there is; what they make of several is fresh.
_FRESH_OF_SEVERAL = words("einsum chain_matmul cartesian_prod flatten_dense_tensors")
# These hand back nothing but their first operand; the others say how it shall be.
_LIKE_THE_OTHERS = words("type_as unflatten_dense_tensors")
# Composite operators that hand back their input only while they are switched off (argument names).
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
MAY_HAND_BACK = UNANNOTATED_VIEWS | _DROPOUTS.keys()
"""Operators whose result may be an operand, though their schemas do not say so."""

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
    "batch_norm_update_stats": ("running_mean", "running_var", ""),  # always
}
WORLD_NAMES = words(
    """
    _assert_async _functional_assert_async _assert_scalar _functional_assert_scalar _assert_tensor_metadata
    _assert _print sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _check _check_is_size _check_index _check_value _check_type
    _check_with _check_tensor_all _record_function_enter _record_function_enter_new _record_function_exit
    """
)
_COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem"})
_WORLD_NAMESPACES = _COLLECTIVES | {"profiler"}
_LOOKS_ONLY = words(
    """
    sym_size sym_stride sym_numel sym_storage_offset size stride numel dim storage_offset is_contiguous
    sym_is_contiguous is_non_overlapping_and_dense is_floating_point is_complex is_signed get_device
    is_same_size result_type can_cast is_conj is_neg is_inference device layout is_strides_like_format
    _assert_tensor_metadata is_nonzero_shape
    """
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
    hands_back: bool
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
            aliases=self._aliases(node),
            random=self.random,
            world=self.world,
            changes_shape=self.changes_shape,
            looks_only=self.looks_only,
            guards=tuple(node.all_input_nodes) if self.world else (),
            reason=self._reason(writes),
        )

    def _aliases(self, node: Node) -> tuple[tuple[Node, ...], ...]:
        if self.hands_back:
            return (tuple(node.all_input_nodes),) * max(self.returns, 1)
        return tuple([_nodes(operands, node) for operands in self.aliases])

    def _reason(self, writes: tuple[Node, ...]) -> str:
        if writes:
            return f"{self.name} writes {', '.join(written.name for written in writes)}"
        if self.random:
            return f"{self.name} draws random numbers"
        return f"{self.name} acts on the world" if self.world else ""

    @property
    def is_plain(self) -> bool:
        return not (self.writes or any(self.aliases) or self.hands_back or self.random or self.world or self.looks_only)


def _nodes(operands: tuple[_Operand, ...], node: Node) -> tuple[Node, ...]:
    if not operands:
        return ()
    if len(operands) == 1 and not node.kwargs and 0 <= (position := operands[0].position) < len(node.args):
        given = node.args[position]
        if isinstance(given, Node):  # nearly all calls
            return (given,)
    return tuple(dict.fromkeys(found for operand in operands for found in operand.nodes(node)))


def _contents_read(rule: _SchemaRule, node: Node, writes: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """Views look at strides only, so they read no contents; others read all that they do not just overwrite."""
    if rule.looks_only:
        return ()
    if rule.name in ("copy_", "fill_", "zero_") and writes:
        return tuple(operand for operand in node.all_input_nodes if operand not in writes)
    return None


def _overload_parts(overload: OpOverload) -> tuple[list[_Operand], list[list[_Operand]]]:
    """The written arguments of an overload, and for each return the arguments it may alias."""
    written: list[_Operand] = []
    wildcards: list[_Operand] = []
    by_label: dict[str, list[_Operand]] = {}
    for position, argument in enumerate(overload._schema.arguments):
        if (info := argument.alias_info) is None:
            continue
        operand = _Operand(-1 if argument.kwarg_only else position, argument.name)
        if info.is_write:
            written.append(operand)
        if "*" in info.after_set or not info.before_set:
            wildcards.append(operand)
        for label in sorted(info.before_set):
            by_label.setdefault(label, []).append(operand)
    infos = [result.alias_info for result in overload._schema.returns]
    return written, [_aliased(info, by_label, wildcards) for info in infos]


def _aliased(info: Any, by_label: dict[str, list[_Operand]], wildcards: list[_Operand]) -> list[_Operand]:
    """The arguments that a return may alias; a list does not say, so it may alias all that may go into lists."""
    if info is None:
        return []
    labels = sorted(info.before_set | info.after_set)
    return [operand for label in labels for operand in by_label.get(label, [])] if labels else wildcards


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
    parts = [_overload_parts(overload) for overload in overloads]
    writes = _unique(operand for written, _ in parts for operand in written)
    returns, aliases = _returned(overloads, [aliased for _, aliased in parts])
    tags = [tag for overload in overloads for tag in overload.tags]
    namespace = overloads[0].namespace
    if not writes and name.endswith("_") and not name.endswith("__"):
        writes = _tensor_arguments(overloads)  # in place by its name, though the schema does not say so
    silent = not writes and all(not overload._schema.returns for overload in overloads)
    hands_back = name in UNANNOTATED_VIEWS or (
        torch.Tag.maybe_aliasing_or_mutating in tags and name not in (*_DROPOUTS, *_HIDDEN_STATISTICS)
    )
    view = any(aliases) and not writes and not hands_back
    return _SchemaRule(
        name=name,
        writes=writes,
        aliases=aliases,
        hands_back=hands_back,
        returns=returns,
        random=torch.Tag.nondeterministic_seeded in tags and name not in _NOT_RANDOM,
        world=silent or name in WORLD_NAMES or namespace in _WORLD_NAMESPACES,
        looks_only=name in _LOOKS_ONLY or (view and name not in _MAY_COPY),
        changes_shape=(torch.Tag.inplace_view in tags and name != "detach_") or name in _CHANGES_SHAPE,
    )


def _returned(
    overloads: list[OpOverload], aliased: list[list[list[_Operand]]]
) -> tuple[int, tuple[tuple[_Operand, ...], ...]]:
    """How many tensors come back, and what each may alias; one for all where the overloads differ."""
    holds_tensors = any(_holds_tensor(result.real_type) for one in overloads for result in one._schema.returns)
    if len({len(slots) for slots in aliased}) > 1:
        together = _unique(operand for slots in aliased for slot in slots for operand in slot)
        return int(holds_tensors), (together,)
    count = len(aliased[0])
    rows = tuple(_unique(operand for slots in aliased for operand in slots[slot]) for slot in range(count))
    return (count if holds_tensors else 0), rows


def _tensor_arguments(overloads: list[OpOverload]) -> tuple[_Operand, ...]:
    return _unique(
        _Operand(-1 if argument.kwarg_only else position, argument.name)
        for overload in overloads
        for position, argument in enumerate(overload._schema.arguments)
        if "Tensor" in str(argument.type)
    )


# Annotated as views, but they may copy the contents (and so read them).
_MAY_COPY = words(
    """
    reshape contiguous to flatten reshape_as resolve_conj resolve_neg pin_memory ravel type_as to_dense
    dequantize einsum chain_matmul cartesian_prod conj_physical sum_to_size wait_tensor _lazy_clone as_tensor
    meshgrid positive flatten_dense_tensors lift lift_fresh broadcast_tensors
    """
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


def _refine(name: str, overloads: list[OpOverload], base: _SchemaRule) -> Rule | None:
    """The rule of an operator whose effects depend on the values of its arguments; None for all others."""
    if switches := _DROPOUTS.get(name):
        return functools.partial(_dropout_rule, base, overloads, switches)
    if (flag := _RANDOM_BY_PROBABILITY.get(name) or _RANDOM_BY_FLAG.get(name)) is not None:
        return functools.partial(_switched_rule, base, overloads, flag)
    if statistics := _HIDDEN_STATISTICS.get(name):
        return functools.partial(_statistics_rule, base, overloads, statistics)
    return operands_rule(name, base)


def operands_rule(name: str, base: Rule) -> Rule | None:
    """The rule of what hands back some of its operands only, where ``base`` counts all; None for all others."""
    for names, rule in (
        (_EACH_OF_ITS_OWN, _each_of_its_own_rule),
        (_FRESH_OF_SEVERAL, _fresh_of_several_rule),
        (_LIKE_THE_OTHERS, _like_the_others_rule),
    ):
        if name in names:
            return functools.partial(rule, base)
    return None


def _dropout_rule(base: _SchemaRule, overloads: list[OpOverload], switches: tuple[str, ...], node: Node) -> CallEffects:
    if any(is_off(_argument(node, overloads, switch, True)) for switch in switches):
        answer = attrs.evolve(base(node), random=False)
        source = tuple(flat_nodes(node.args[:1])) or tuple(node.all_input_nodes[:1])
        aliases = (source, *answer.aliases[1:]) if base.returns > 1 else (source,)
        return attrs.evolve(answer, aliases=aliases, reason=base._reason(answer.writes) if answer.writes else "")
    return base(node)


def _each_of_its_own_rule(base: Rule, node: Node) -> CallEffects:
    operands = _operands_of(node)
    nodes = [operand for operand in operands if isinstance(operand, Node)]
    if len(nodes) < max(2, len(operands)):
        return base(node)
    return attrs.evolve(base(node), returns=len(nodes), aliases=tuple((operand,) for operand in nodes))


def _fresh_of_several_rule(base: Rule, node: Node) -> CallEffects:
    several = sum(isinstance(operand, Node) for operand in _operands_of(node)) > 1
    return attrs.evolve(base(node), aliases=()) if several else base(node)


def _like_the_others_rule(base: Rule, node: Node) -> CallEffects:
    answer = base(node)
    if not node.args:
        return answer
    return attrs.evolve(answer, aliases=(tuple(flat_nodes(node.args[0])),) * max(answer.returns, 1))


def _operands_of(node: Node) -> Sequence[Any]:
    """The operands of a call that takes one list of them, or each as an argument; others may stand beside them."""
    lists = [value for value in (*node.args, *node.kwargs.values()) if isinstance(value, (list, tuple))]
    nodes = [value for value in node.args if isinstance(value, Node)]
    return lists[0] if lists and not nodes else node.args


def _switched_rule(base: _SchemaRule, overloads: list[OpOverload], flag: str, node: Node) -> CallEffects:
    answer = base(node)
    if is_off(_argument(node, overloads, flag, True)):
        return attrs.evolve(answer, random=False, reason=answer.reason if answer.writes else "")
    return answer


def _statistics_rule(
    base: _SchemaRule, overloads: list[OpOverload], names: tuple[str, str, str], node: Node
) -> CallEffects:
    *statistics, switch = names
    if is_off(_argument(node, overloads, switch, True)):
        return base(node)
    found = (_argument(node, overloads, name) for name in statistics)
    writes = tuple(dict.fromkeys(written for value in found for written in flat_nodes(value)))
    return attrs.evolve(base(node), writes=writes, reason=base._reason(writes))


def _split_by_out(overloads: list[OpOverload]) -> tuple[list[OpOverload], list[OpOverload]]:
    """The overloads without and with ``out=`` arguments."""
    with_out = [one for one in overloads if any(argument.is_out for argument in one._schema.arguments)]
    return [one for one in overloads if one not in with_out], with_out


def overloads_rule(name: str, overloads: list[OpOverload]) -> Rule:
    """The rule of a name that stands for several overloads: those with ``out=`` only count if it is given."""
    plain, with_out = _split_by_out(overloads)
    base = _merged_rule(name, plain) if plain else _merged_rule(name, with_out)
    ordinary = _refine(name, plain, base) or base if plain else base
    if not with_out or not plain:
        return ordinary if not (base.is_plain and ordinary is base) else _constant_or(base)
    writing = _merged_rule(name, with_out)
    out_names = frozenset(argument.name for one in with_out for argument in one._schema.arguments if argument.is_out)
    return functools.partial(_out_rule, ordinary, writing, out_names)


def _out_rule(ordinary: Rule, writing: Rule, out_names: frozenset[str], node: Node) -> CallEffects:
    if node.kwargs and any(node.kwargs.get(name) is not None for name in out_names):
        return writing(node)
    return writes_out(ordinary(node), node)


def writes_out(effects: CallEffects, node: Node) -> CallEffects:
    """The same of a call that is given ``out=``, one tensor or several, whatever they are called in a schema."""
    written = tuple(dict.fromkeys(flat_nodes(node.kwargs["out"]))) if node.kwargs.get("out") is not None else ()
    if not written:
        return effects
    returns = max(effects.returns, 1)
    aliases = tuple((each,) for each in written) if len(written) == returns else (written,) * returns
    reason = f"{name_of(node.target)} writes {names_of(written)}"
    writes = tuple(dict.fromkeys((*effects.writes, *written)))
    return attrs.evolve(effects, writes=writes, returns=returns, aliases=aliases, looks_only=False, reason=reason)


def _constant_or(base: _SchemaRule) -> Rule:
    if base.returns == 1:
        return PLAIN_RULE
    if base.returns == 0:
        return NO_TENSOR_RULE
    return Constant(CallEffects(returns=base.returns))


def packet_overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    """The overloads of a packet that take or give tensors, or else all.

    TorchScript's list methods share names with operators (``aten::sort``, ``aten::append``); they are left out where
    there is an operator on a tensor.
    """
    names = packet.overloads()  # type: ignore[no-untyped-call]  # torch does not say
    overloads = [getattr(packet, name) for name in names]
    on_tensors = [one for one in overloads if "Tensor" in str(one._schema) and not _writes_list(one)]
    return on_tensors or overloads


def _writes_list(overload: OpOverload) -> bool:
    first = overload._schema.arguments[:1]
    return bool(first) and first[0].alias_info is not None and str(first[0].type).startswith("List[")


def aten_overloads(name: str) -> list[OpOverload]:
    """The overloads of ``aten::name``; empty if there is no such operator."""
    packet = getattr(torch.ops.aten, name, None)
    return packet_overloads(packet) if isinstance(packet, OpOverloadPacket) else []


def overload_rule(overload: OpOverload) -> Rule:
    """The rule of one operator."""
    name = overload._schema.name.partition("::")[2]
    base = _merged_rule(name, [overload])
    return _refine(name, [overload], base) or (_constant_or(base) if base.is_plain else base)
