"""What a Python callable or a method does: functions of torch, ``operator``, ``builtins`` and ``math``.

A target nobody knows is *opaque*: it may do anything to its operands and to the world.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Node
from torch.fx.operator_schemas import get_signature_for_torch_op

from fxpasses.effects.calls import (
    NO_TENSOR,
    NO_TENSOR_RULE,
    PLAIN_RULE,
    SHAPE_ONLY,
    SHAPE_RULE,
    CallEffects,
    RegionKind,
    Rule,
    aliasing_rule,
    flat_nodes,
    is_off,
    name_of,
    names_of,
    opaque,
    words,
)
from fxpasses.effects.operators import (
    UNANNOTATED_VIEWS,
    WORLD_NAMES,
    aten_overloads,
    operands_rule,
    overload_rule,
    overloads_rule,
    packet_overloads,
    writes_out,
)

__all__ = ["rule_for_target"]


_PURE_BUILTINS = words(
    """
    len max min sum abs round divmod pow range slice isinstance issubclass type int float bool complex str repr
    hash id callable hasattr all any bin hex oct ord chr format
    """
)
_CONTAINER_BUILTINS = frozenset(
    {"tuple", "list", "dict", "zip", "enumerate", "reversed", "sorted", "map", "filter", "set"}
)
_TENSORLESS_ATTRIBUTES = words(
    """
    shape dtype device ndim layout requires_grad is_cuda is_cpu is_meta is_sparse is_quantized is_leaf itemsize
    nbytes names output_nr _version __class__ __name__ training
    """
)
_SHAPE_METHODS = words(
    """
    size dim ndimension numel nelement element_size stride is_contiguous get_device is_floating_point is_complex
    storage_offset __len__ is_signed is_inference is_shared is_pinned type_name dtype has_names
    """
)
_NUMBER_METHODS = frozenset({"item", "tolist", "__contains__", "__bool__", "__int__", "__float__", "__index__"})
_CASTING_METHODS = words(
    """
    float double half bfloat16 int long short byte bool char cfloat cdouble chalf cpu cuda xpu mps type to numpy
    storage untyped_storage as_subclass values keys items get __iter__
    """
)
_FRESH_METHODS = words(
    """
    new new_tensor unique unique_consecutive norm stft istft split_copy __deepcopy__ __reversed__ __rsub__
    __rdiv__ __rtruediv__ __rpow__ lu __rmatmul__ format join startswith endswith lower upper strip
    """
)
_WORLD_METHODS = frozenset({"backward", "register_hook", "register_post_accumulate_grad_hook", "share_memory_"})
_RANDOM_FUNCTIONALS = frozenset({"gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d"})
_DROPOUT_FUNCTIONALS = words(
    "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu multi_head_attention_forward"
)
_PYTHON_MODULES = (
    "torch.nn.functional",
    "torch.functional",
    "torch.signal.windows.windows",
    "torch._jit_internal",
    "torch.overrides",
)


def _first_operand(node: Node) -> tuple[Node, ...]:
    """The nodes in the first positional argument."""
    first = node.args[0] if node.args else None
    return (first,) if isinstance(first, Node) else tuple(flat_nodes(first))


def _first_operand_rule(node: Node) -> CallEffects:
    return CallEffects(aliases=(_first_operand(node),))


def _world_rule(node: Node) -> CallEffects:
    return CallEffects(
        returns=0, world=True, guards=tuple(node.all_input_nodes), reason=f"{name_of(node.target)} acts on the world"
    )


def _seed_rule(node: Node) -> CallEffects:
    return CallEffects(returns=1, random=True, world=True, reason=f"{name_of(node.target)} sets the random state")


def _setitem_rule(node: Node) -> CallEffects:
    written = _first_operand(node)
    if any(_is_container(operand) for operand in written):
        return attrs.evolve(_container_rule(node), writes=tuple(node.all_input_nodes), mixes=True)
    return CallEffects(writes=written, returns=0, reason=f"{name_of(node.target)} writes {names_of(written)}")


def _is_container(node: Node) -> bool:
    return node.target in (dict, list) or isinstance(node.meta.get("val"), (dict, list))


def _container_rule(node: Node) -> CallEffects:
    """A list or dict that takes something in shares its memory from then on."""
    written = _first_operand(node)
    reason = f"{name_of(node.target)} writes {names_of(written)}"
    return CallEffects(writes=written, aliases=(tuple(node.all_input_nodes),), reason=reason)


def _inplace_rule(node: Node) -> CallEffects:
    """``operator.iadd`` and its kind; on numbers they are ordinary arithmetic."""
    written = _first_operand(node)
    if all(_is_number(operand) for operand in written):
        return NO_TENSOR
    return CallEffects(writes=written, aliases=(written,), reason=f"{name_of(node.target)} writes {names_of(written)}")


def _is_number(node: Node) -> bool:
    value = node.meta.get("val", node.meta.get("example_value"))
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool))


def _getattr_rule(node: Node) -> CallEffects:
    name = node.args[1] if len(node.args) > 1 else node.kwargs.get("name")
    return SHAPE_ONLY if name in _TENSORLESS_ATTRIBUTES else _first_operand_view(node)


def _first_operand_view(node: Node) -> CallEffects:
    return CallEffects(aliases=(_first_operand(node),), looks_only=True, reads=())


def _getitem_rule(node: Node) -> CallEffects:
    """A slice is a view; an index that holds tensors, lists or truth values copies, and then it reads."""
    index = node.args[1] if len(node.args) > 1 else None
    steps = index if isinstance(index, tuple) else (index,)
    if len(node.all_input_nodes) > 1 or any(isinstance(step, (list, bool)) for step in steps):
        return CallEffects(aliases=(_first_operand(node),))
    return _first_operand_view(node)


def _functional_rule(node: Node) -> CallEffects:
    """The Python functions of ``torch.nn.functional``: told by their ``inplace``, ``training`` and ``p`` arguments."""
    name = name_of(node.target)
    given = _bound_arguments(node)
    source = _first_operand(node) or tuple(flat_nodes(node.kwargs.get("input")))
    writes = _written_by_functional(name, given, source)
    drops = name in _DROPOUT_FUNCTIONALS
    is_on = not is_off(given.get("training", True)) and not is_off(given.get("p", given.get("dropout_p", 1.0)))
    random = name in _RANDOM_FUNCTIONALS or (drops and is_on)
    hands_back = bool(given.get("inplace")) or (drops and not random) or name.startswith("_")
    effects = CallEffects(
        writes=writes,
        aliases=(source,) if hands_back else (),
        random=random,
        reason=f"{name} writes {names_of(writes)}" if writes else f"{name} draws random numbers" if random else "",
    )
    return writes_out(effects, node)


def _written_by_functional(name: str, given: Mapping[str, Any], source: tuple[Node, ...]) -> tuple[Node, ...]:
    if name in ("batch_norm", "instance_norm"):
        learns = not is_off(given.get("training", given.get("use_input_stats", True)))
        return tuple(flat_nodes([given.get("running_mean"), given.get("running_var")])) if learns else ()
    if name in ("embedding", "embedding_bag") and given.get("max_norm") is not None:
        return tuple(flat_nodes(given.get("weight")))
    return source if given.get("inplace") else ()


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
_STREAM_CALLS = words("set_stream set_device synchronize wait_stream wait_event record_event record_stream")
"""What moves work between streams: kernels before it and behind it must stay there."""
_SEEDS = words("manual_seed manual_seed_all seed seed_all initial_seed set_rng_state get_rng_state")
_BATCHING = frozenset({"_add_batch_dim", "_remove_batch_dim", "_wrap_for_grad", "_unwrap_for_grad"})
_STATE_SWITCHES = (
    "lazy_load_decompositions",
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
    name = name_of(function)
    if found := _REGION_FUNCTIONS.get(name):
        return found
    if "increment_nesting" in name or "decrement_nesting" in name:
        return RegionKind.GLOBAL_STATE, "increment" in name
    return (RegionKind.GLOBAL_STATE, True) if name.startswith(_STATE_SWITCHES) or name in _STREAM_CALLS else None


def _region_rule(kind: RegionKind, opens: bool, node: Node) -> CallEffects:
    return CallEffects(
        returns=0,
        world=not kind.is_barrier,
        region=kind,
        opens=opens,
        reason=f"{name_of(node.target)} switches {kind.value}",
    )


def _method_rule(name: str) -> Rule | None:
    """The rule of ``call_method``; None for a name that nobody knows."""
    if name in _WORLD_METHODS:
        return functools.partial(_opaque_rule, f"method {name} acts on the world")
    if name in _STREAM_CALLS:
        return functools.partial(_region_rule, RegionKind.GLOBAL_STATE, True)
    if name in ("__setitem__", "__delitem__"):
        return _setitem_rule
    if name == "__getitem__":
        return _getitem_rule
    if name.startswith("__i") and name.endswith("__") and hasattr(operator, name):
        return _inplace_rule
    if name in _SHAPE_METHODS:
        return SHAPE_RULE
    if name in _NUMBER_METHODS:
        return NO_TENSOR_RULE
    if name in _CASTING_METHODS:
        return _first_operand_rule
    if name in ("append", "extend", "insert", "update", "setdefault"):
        return _container_rule
    if name == "fill":  # of an array that shares memory with a tensor; tensors have none
        return _inplace_rule
    if name in _JOINING and name.startswith("__"):
        return _joining_rule
    if overloads := aten_overloads(name):
        return overloads_rule(name, overloads)
    if name in _FRESH_METHODS or _is_operator_method(name):
        return PLAIN_RULE
    if name.endswith("_") and not name.startswith("_"):
        return _inplace_rule
    return None


def _is_operator_method(name: str) -> bool:
    """``__add__`` and its kind, the reflected ones (``__radd__``) too."""
    return name.startswith("__") and (hasattr(operator, name) or hasattr(operator, "__" + name[3:]))


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
    if name in _JOINING:
        return _joining_rule
    in_place = name.startswith("i") and hasattr(operator, f"__{name}__") and name not in _NOT_IN_PLACE
    return _inplace_rule if in_place else PLAIN_RULE


def _joining_rule(node: Node) -> CallEffects:
    """Lists that are joined or repeated hold what they held; tensors are added or multiplied."""
    return aliasing_rule(node) if any(map(_is_list, node.args)) else PLAIN_RULE(node)


def _summing_rule(node: Node) -> CallEffects:
    """The same of ``sum``, which joins lists where it starts from one."""
    start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start")
    return aliasing_rule(node) if _is_list(start) else PLAIN_RULE(node)


def _is_list(given: Any) -> bool:
    """Whether an operand is several values: written as such, recorded as such, or made by what gives several.

    Of values that nobody has recorded, what they were joined from is looked at, some dozens, the first each time.
    """
    for _ in range(_JOINED):
        parts = _parts(given)
        if any(map(_is_surely_list, (given, *parts))):
            return True
        if not parts or not all(map(_may_be_list, parts)):
            return False
        given = parts[0]
    return False


def _parts(given: Any) -> list[Any]:
    """What a value is joined, repeated or cut from if it is a list and nobody has recorded it."""
    if not isinstance(given, Node) or "val" in given.meta:
        return []
    if given.target is operator.getitem and isinstance(given.args[1], slice):
        return [given.args[0]]
    name = name_of(given.target)
    repeats = "mul" in name  # a whole number of times
    return [each for each in given.args if not (repeats and isinstance(each, int))] if name in _JOINING else []


def _is_surely_list(given: Any) -> bool:
    if not isinstance(given, Node):
        return isinstance(given, (tuple, list))
    if "val" in given.meta:
        return isinstance(given.meta["val"], (tuple, list))
    return name_of(given.target) in _LISTS


def _may_be_list(given: Any) -> bool:
    """Whether a part may be a list: what modules and inputs give are mostly tensors, and so is what they join."""
    return isinstance(given, Node) and given.op not in ("call_module", "placeholder", "get_attr")


_JOINED = 50
_JOINING = frozenset({"add", "concat", "mul", "__add__", "__radd__", "__mul__", "__rmul__"})
_LISTS = words(
    """
    unbind split chunk tensor_split hsplit vsplit dsplit split_with_sizes unsafe_split unsafe_chunk
    unsafe_split_with_sizes broadcast_tensors meshgrid tuple list align_tensors
    """
)
_NOT_IN_PLACE = frozenset({"invert", "inv", "index", "is_", "is_not", "indexOf", "itemgetter"})


def _builtin_rule(function: Any) -> Rule | None:
    name = function.__name__
    if name == "getattr":
        return _getattr_rule
    if name == "print":
        return _world_rule
    if name == "sum":
        return _summing_rule
    if name in _PURE_BUILTINS:
        return PLAIN_RULE
    return aliasing_rule if name in _CONTAINER_BUILTINS else None


def _torch_function_rule(function: Any) -> Rule | None:
    """The rule of a function of torch that is no operator object: by its schemas, or by its Python signature."""
    name, module = name_of(function), _module_of(function)
    if not module.startswith("torch"):
        return _schema_rule(function)
    if (rule := _special_rule(name)) is not None:
        return rule
    if (region := _region_of(function)) is not None:
        return functools.partial(_region_rule, *region)
    if module == "torch._tensor":
        return _method_rule(name)
    is_python = module in _PYTHON_MODULES and not inspect.isbuiltin(function)
    if is_python and (rule := operands_rule(name, aliasing_rule)) is not None:
        return rule
    if module == "torch.masked._ops" or (is_python and name in UNANNOTATED_VIEWS):
        return aliasing_rule
    if (rule := _schema_rule(function)) is not None:
        return rule
    if is_python:
        return _functional_rule
    return aliasing_rule if name in ("tensor", "as_tensor", "from_numpy", "asarray") else None


def _special_rule(name: str) -> Rule | None:
    if name in _BATCHING:
        return _first_operand_view
    if name in WORLD_NAMES:
        return _world_rule
    if name in _SEEDS:
        return _seed_rule
    return NO_TENSOR_RULE if name.startswith(("sym_", "_sym_")) else None


def _schema_rule(function: Any) -> Rule | None:
    overloads = _schema_overloads(function)
    return overloads_rule(overloads[0]._schema.name.partition("::")[2], overloads) if overloads else None


def _schema_overloads(function: Any) -> list[OpOverload]:
    """The operators behind a function such as ``torch.add``, as :mod:`torch.fx.operator_schemas` tells them."""
    found = get_signature_for_torch_op(function, return_schemas=True)
    schemas = found[1] if isinstance(found, tuple) else None
    names = dict.fromkeys(schema.name.partition("::")[2] for schema in schemas or ())
    if not names and getattr(torch, name_of(function), None) is function:
        names = {name_of(function): None}
    return [overload for name in names for overload in aten_overloads(name)]


@functools.lru_cache(maxsize=4096)
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
        region = (RegionKind.GLOBAL_STATE, True) if target.namespace == "streams" else _REGION_FUNCTIONS.get(name)
        return functools.partial(_region_rule, *region) if region else overload_rule(target)
    if isinstance(target, OpOverloadPacket):
        return overloads_rule(target.__name__, packet_overloads(target))
    if isinstance(target, HigherOrderOperator):
        return None
    return _python_rule(target)


def _python_rule(target: Any) -> Rule | None:
    module = _module_of(target)
    if module in ("_operator", "operator") and hasattr(target, "__name__"):
        return _operator_rule(target)
    if getattr(builtins, name_of(target), None) is target:
        return _builtin_rule(target)
    if getattr(math, name_of(target), None) is target:
        return PLAIN_RULE
    if inspect.ismethoddescriptor(target) and issubclass(getattr(target, "__objclass__", object), torch._C.TensorBase):
        return _method_rule(name_of(target))
    return _torch_function_rule(target) if _is_torch_function(target) else None
