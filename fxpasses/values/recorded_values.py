"""What ``node.meta`` records about the value of a node: read it, compare it, write it with all that depends on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node, map_arg
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols

from fxpasses.metadata import drop_stale_entries, value_of

__all__ = [
    "SYMBOLIC",
    "describe_like",
    "finds_sizes",
    "forget_value",
    "has_size_of_data",
    "has_value",
    "same_value",
    "set_value",
    "shape_env_of",
    "value_leaves",
    "value_of_arguments",
]

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def has_value(node: Node) -> bool:
    """Whether a fake value is recorded (it may be None, for nodes that give nothing)."""
    return "val" in node.meta or "example_value" in node.meta


def shape_env_of(value: Any) -> ShapeEnv | None:
    """The shape environment that a fake tensor or a symbol belongs to."""
    if isinstance(value, FakeTensor):
        return value.fake_mode.shape_env
    return value.node.shape_env if isinstance(value, SYMBOLIC) else None


def value_of_arguments(argument: Any) -> Any:
    """The recorded values of a structure of nodes and constants."""
    return map_arg(argument, value_of)


def value_leaves(value: Any) -> Iterator[Any]:
    """The tensors, symbols and numbers in a structure."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, (list, tuple)):
            waiting.extend(reversed(found))
        elif isinstance(found, Mapping):
            waiting.extend(reversed(list(found.values())))
        else:
            yield found


def has_size_of_data(node: Node) -> bool:
    """Whether data say how large what a node gives is: it gives a symbol that none of its inputs has.

    Only the first that finds one has it among its ``unbacked_bindings``: of what is picked again by the same mask, or
    by a copy of the node, torch knows that it is as large.
    """
    if node.meta.get("unbacked_bindings"):
        return True
    return node.op == "call_function" and finds_sizes(node, value_of(node))


def finds_sizes(node: Node, value: Any) -> bool:
    """Whether what a node may give has a symbol that no input of the node has."""
    found = _symbols_of_data(value)
    return bool(found) and not found.issubset(_symbols_of_data([value_of(given) for given in node.all_input_nodes]))


def _symbols_of_data(value: Any) -> set[Any]:
    """The symbols in a value that no input of the graph says."""
    found: set[Any] = set()
    for leaf in value_leaves(value):
        is_tensor = isinstance(leaf, torch.Tensor)
        if isinstance(leaf, SYMBOLIC) or (is_tensor and any(isinstance(size, torch.SymInt) for size in leaf.shape)):
            found |= free_unbacked_symbols(leaf)
    return found


def same_value(left: Any, right: Any) -> bool:
    """Whether two values look the same to whoever uses them: shape, stride, dtype, device, layout and symbols.

    Symbols are compared by their expressions, so no guard is ever added to the shape environment.
    """
    if left is right:
        return True
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return _same_tensor(left, right)
    if isinstance(left, SYMBOLIC) or isinstance(right, SYMBOLIC):
        return _same_size(left, right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return list(left) == list(right) and all(same_value(left[key], right[key]) for key in left)
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def _same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.device != right.device or left.layout != right.layout:
        return False
    if len(left.shape) != len(right.shape) or not all(map(_same_size, left.shape, right.shape)):
        return False
    return left.layout != torch.strided or all(map(_same_size, left.stride(), right.stride()))


def _same_size(left: Any, right: Any) -> bool:
    if not isinstance(left, SYMBOLIC) and not isinstance(right, SYMBOLIC):
        return type(left) is type(right) and bool(left == right)
    if type(left) is type(right) and left.node.shape_env is not right.node.shape_env:
        return False
    return bool(_expression(left) == _expression(right))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, SYMBOLIC) else size


def set_value(node: Node, value: Any) -> None:
    """Record ``value``; what else is said about the old value is brought up to date or dropped."""
    if "example_value" in node.meta or (not has_value(node) and _only_examples(node)):
        node.meta["example_value"] = value
    node.meta["val"] = value
    if "tensor_meta" in node.meta:
        _update_tensor_meta(node, node.meta["tensor_meta"], value)
    node.meta.pop("eager_input_vals", None)
    drop_stale_entries(node)


def describe_like(node: Node, samples: Iterable[Node]) -> None:
    """Write ``tensor_meta`` of a recorded value, in the form of the first of some nodes that has one; else nothing.

    torch's class for it is never imported here: who reads these entries has graphs in which there are some. Passes of
    ExecuTorch leave the entry empty and read it all the same, so the node gets an empty one where its samples have it.
    """
    if not has_value(node):
        return
    given = [each.meta["tensor_meta"] for each in samples if "tensor_meta" in each.meta]
    if given:
        _update_tensor_meta(node, next((each for each in given if each is not None), None), value_of(node))


def _only_examples(node: Node) -> bool:
    """Whether this is a graph of dynamo's, which keeps its values under another key."""
    inputs = [each.meta for each in node.all_input_nodes]
    return any("example_value" in meta for meta in inputs) and not any(
        "val" in meta and "example_value" not in meta for meta in inputs
    )


def _update_tensor_meta(node: Node, sample: Any, value: Any) -> None:
    form = _form(sample)
    made = _described(form, value)
    if made is None and form is not None:
        node.meta.pop("tensor_meta", None)
    else:
        node.meta["tensor_meta"] = made


def _form(sample: Any) -> Any:
    """The description of one tensor in what is said of one or several; None where that is empty."""
    while isinstance(sample, (list, tuple)) and not hasattr(sample, "_replace"):
        sample = next((part for part in sample if part is not None), None)
    return sample if hasattr(sample, "_replace") else None


def _described(sample: Any, value: Any) -> Any:
    """``tensor_meta`` of a value, in the form that ``sample`` has; empty entries if that is None."""
    if isinstance(value, (list, tuple)):
        parts = [_described(sample, part) for part in value]
        return type(value)(parts) if type(value) in (list, tuple) else tuple(parts)
    if sample is None or not isinstance(value, torch.Tensor):
        return None
    strided = value.layout == torch.strided
    return sample._replace(
        shape=value.shape,
        dtype=value.dtype,
        requires_grad=value.requires_grad,
        stride=value.stride() if strided else (),
        memory_format=_memory_format(value) if strided else None,
        is_quantized=value.is_quantized,
        qparams={},
    )


def _memory_format(tensor: torch.Tensor) -> torch.memory_format | None:
    if any(isinstance(size, torch.SymInt) for size in tensor.shape):
        return None  # asking would add guards to the shape environment
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return next((each for each in formats if _is_contiguous(tensor, each)), None)


def _is_contiguous(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    dims = {torch.channels_last: 4, torch.channels_last_3d: 5}
    if dims.get(memory_format, tensor.dim()) != tensor.dim():
        return False
    return tensor.is_contiguous(memory_format=memory_format)


def forget_value(node: Node) -> None:
    """Drop what is recorded about a value, and the typed entries that depend on it."""
    for key in ("val", "example_value", "tensor_meta", "unbacked_bindings", "eager_input_vals"):
        node.meta.pop(key, None)
    drop_stale_entries(node)
