"""Where a node comes from: the module, function or method that the user wrote, in whatever way the graph was made.

Tracers leave different tracks. Strict export writes ``source_fn_stack``, non-strict export only ``nn_module_stack`` and
``torch_fn``; ``symbolic_trace`` keeps calls of modules, functions and methods; ``make_fx`` leaves only operators.
:func:`origin_of` reads what is there, and a table says which spellings mean the same: ``nn.ReLU``, ``F.relu``,
``torch.relu``, ``x.relu()`` and ``aten.relu``.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.fx import Node

from fxpasses.metadata import module_stack

__all__ = ["MODULE_EQUIVALENTS", "Origin", "canonical_name", "class_named", "origin_of"]

MODULE_EQUIVALENTS = MappingProxyType(
    {
        nn.AdaptiveAvgPool1d: "adaptive_avg_pool1d",
        nn.AdaptiveAvgPool2d: "adaptive_avg_pool2d",
        nn.AdaptiveAvgPool3d: "adaptive_avg_pool3d",
        nn.AdaptiveMaxPool1d: "adaptive_max_pool1d",
        nn.AdaptiveMaxPool2d: "adaptive_max_pool2d",
        nn.AdaptiveMaxPool3d: "adaptive_max_pool3d",
        nn.AvgPool1d: "avg_pool1d",
        nn.AvgPool2d: "avg_pool2d",
        nn.AvgPool3d: "avg_pool3d",
        nn.BatchNorm1d: "batch_norm",
        nn.BatchNorm2d: "batch_norm",
        nn.BatchNorm3d: "batch_norm",
        nn.Bilinear: "bilinear",
        nn.CELU: "celu",
        nn.Conv1d: "conv1d",
        nn.Conv2d: "conv2d",
        nn.Conv3d: "conv3d",
        nn.ConvTranspose1d: "conv_transpose1d",
        nn.ConvTranspose2d: "conv_transpose2d",
        nn.ConvTranspose3d: "conv_transpose3d",
        nn.CosineSimilarity: "cosine_similarity",
        nn.CrossEntropyLoss: "cross_entropy",
        nn.Dropout: "dropout",
        nn.ELU: "elu",
        nn.Embedding: "embedding",
        nn.EmbeddingBag: "embedding_bag",
        nn.Flatten: "flatten",
        nn.GELU: "gelu",
        nn.GLU: "glu",
        nn.GroupNorm: "group_norm",
        nn.Hardshrink: "hardshrink",
        nn.Hardsigmoid: "hardsigmoid",
        nn.Hardswish: "hardswish",
        nn.Hardtanh: "hardtanh",
        nn.InstanceNorm1d: "instance_norm",
        nn.InstanceNorm2d: "instance_norm",
        nn.InstanceNorm3d: "instance_norm",
        nn.L1Loss: "l1_loss",
        nn.LayerNorm: "layer_norm",
        nn.LeakyReLU: "leaky_relu",
        nn.Linear: "linear",
        nn.LogSigmoid: "logsigmoid",
        nn.LogSoftmax: "log_softmax",
        nn.MSELoss: "mse_loss",
        nn.MaxPool1d: "max_pool1d",
        nn.MaxPool2d: "max_pool2d",
        nn.MaxPool3d: "max_pool3d",
        nn.Mish: "mish",
        nn.MultiheadAttention: "multi_head_attention_forward",
        nn.PReLU: "prelu",
        nn.PixelShuffle: "pixel_shuffle",
        nn.PixelUnshuffle: "pixel_unshuffle",
        nn.RMSNorm: "rms_norm",
        nn.ReLU6: "relu6",
        nn.ReLU: "relu",
        nn.SELU: "selu",
        nn.SiLU: "silu",
        nn.Sigmoid: "sigmoid",
        nn.Softmax: "softmax",
        nn.Softplus: "softplus",
        nn.Softshrink: "softshrink",
        nn.Softsign: "softsign",
        nn.Tanh: "tanh",
        nn.Tanhshrink: "tanhshrink",
        nn.Unflatten: "unflatten",
        nn.Upsample: "interpolate",
    }
)
"""The function that each module stands for."""

_ALIASES = MappingProxyType(
    {
        "addmm_linear": "linear",
        "floordiv": "floor_divide",
        "iadd": "add",
        "iand": "and",
        "idiv": "div",
        "ifloordiv": "floor_divide",
        "imatmul": "matmul",
        "imul": "mul",
        "ior": "or",
        "ipow": "pow",
        "isub": "sub",
        "itruediv": "div",
        "log_softmax_int": "log_softmax",
        "multiply": "mul",
        "native_batch_norm": "batch_norm",
        "native_batch_norm_legit": "batch_norm",
        "native_batch_norm_legit_functional": "batch_norm",
        "native_batch_norm_legit_no_training": "batch_norm",
        "native_dropout": "dropout",
        "native_group_norm": "group_norm",
        "native_layer_norm": "layer_norm",
        "subtract": "sub",
        "truediv": "div",
        "divide": "div",
        "true_divide": "div",
    }
)
_FUNCTIONS_WITHOUT_NAMES = MappingProxyType(
    {
        getattr(nn.functional, name): name
        for name in (
            "adaptive_max_pool1d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
            "fractional_max_pool2d",
            "fractional_max_pool3d",
            "max_pool1d",
            "max_pool2d",
            "max_pool3d",
        )
    }
)
"""Functions that choose between two others, which carry the chooser's inner name."""
_LIBRARIES = ("torch", "_operator", "operator", "math")


class Origin(NamedTuple):
    """What one node comes from.

    Attributes:
        exact: The function, method name or module class itself, if the tracks tell; else None.
        name: The canonical name of that function.
        call: Which call it was: equal for all nodes of one call.
        modules: From the innermost module outwards: its path, its class and which call of it.
    """

    exact: Any
    name: str | None
    call: Hashable
    modules: tuple[tuple[str, type | None, Hashable], ...]


def origin_of(node: Node, root: nn.Module | None = None) -> Origin:
    """Read the tracks of a node.

    Args:
        node: A call.
        root: The module that owns the graph, to know the classes of ``call_module`` nodes.
    """
    modules = tuple(
        (path, class_named(kind) if isinstance(kind, str) else kind, key)
        for key, (path, kind) in reversed(module_stack(node).items())
    )
    if node.op == "call_module" and root is not None:
        kind = type(root.get_submodule(str(node.target)))
        around = tuple(each for each in modules if str(node.target).startswith(f"{each[0]}.") or not each[0])
        return Origin(kind, canonical_name(kind), node, ((str(node.target), kind, node), *around))
    if stack := node.meta.get("source_fn_stack"):
        call, source = stack[-1]
        return Origin(source, canonical_name(source), ("source", call), modules)
    if track := node.meta.get("torch_fn"):
        return Origin(None, canonical_name(str(track[1]).rpartition(".")[2]), tuple(track), modules)
    return Origin(node.target, canonical_name(node.target), node, modules)


def canonical_name(source: Any) -> str | None:
    """The name that all spellings of one function share; None for what is not torch's own.

    >>> {canonical_name(each) for each in (nn.ReLU, nn.functional.relu, torch.relu, torch.Tensor.relu_, "relu")}
    {'relu'}
    """
    try:
        return _canonical_name(source)
    except TypeError:  # not hashable
        return None


@cache
def _canonical_name(source: Any) -> str | None:
    if isinstance(source, str):
        return _plain(source)
    if isinstance(source, type):
        return MODULE_EQUIVALENTS.get(source)
    if source in _FUNCTIONS_WITHOUT_NAMES:
        return _FUNCTIONS_WITHOUT_NAMES[source]
    if isinstance(source, torch._ops.OpOverload):
        source = source.overloadpacket
    if isinstance(source, torch._ops.OpOverloadPacket):
        return _plain(source.__name__) if source._qualified_op_name.startswith(("aten::", "prims::")) else None
    home = getattr(source, "__module__", None) or getattr(getattr(source, "__objclass__", None), "__module__", None)
    if home is None and type(getattr(source, "__self__", None)).__module__ == "builtins":
        home = getattr(getattr(source, "__self__", None), "__module__", None)
    name = getattr(source, "__name__", None)
    return _plain(name) if name and str(home).partition(".")[0] in _LIBRARIES else None


def _plain(name: str) -> str:
    """A function's name without the marks of in-place, private and reflected forms."""
    bare = name.strip("_")
    return _ALIASES.get(bare, bare)


@cache
def class_named(name: str) -> type | None:
    """The class with this qualified name, if its module is loaded; nothing is imported."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        if (found := sys.modules.get(".".join(parts[:split]))) is not None:
            for part in parts[split:]:
                found = getattr(found, part, None)
            return found if isinstance(found, type) else None
    return None
