"""Fold a batch norm that does not train into the convolution before it.

``bn(conv(x, w) + b) = conv(x, w * s) + (b - mean) * s + beta`` with ``s = gamma / sqrt(var + eps)``, one factor for
each output channel (R. Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference: a whitepaper",
2018, section 3.1).
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.arguments import getitem_users, is_call_to, normalized_arguments, only_user, set_argument
from fxpasses.editing import erase_nodes, replace_node
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.programs.constant_values import Constants

__all__ = ["FuseConvBN", "fused_weights"]

aten = torch.ops.aten

_PLAIN = (aten.conv1d, aten.conv2d, aten.conv3d)
_TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
_GENERAL = aten.convolution.default
_NORMS = (
    aten.batch_norm.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._batch_norm_no_update.default,
)


@attrs.frozen
class _Pair:
    """A convolution and the batch norm that alone uses it, with all their constants."""

    conv: Node
    norm: Node
    weight: Node
    bias: Node | None
    tensors: dict[str, torch.Tensor | None]
    eps: float
    transposed: bool


def fused_weights(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    *,
    eps: float,
    transposed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight and bias of the convolution that does both, computed in double precision.

    Args:
        weight: ``(out, in / groups, ...)``; ``(in, out, ...)`` if transposed.
        bias: ``(out,)``, or None.
        mean: Running mean, ``(out,)``.
        var: Running variance, ``(out,)``.
        gamma: Scale of the norm, ``(out,)``, or None for ones.
        beta: Shift of the norm, ``(out,)``, or None for zeros.
        eps: Added to the variance.
        transposed: The weight is that of a transposed convolution, with one group.

    Returns:
        Weight and bias, of the weight's dtype.
    """
    with torch.no_grad():
        scale = torch.rsqrt(var.double() + eps)
        scale = scale if gamma is None else scale * gamma.double()
        shape = [1] * weight.dim()
        shape[1 if transposed else 0] = -1
        shift = -mean.double() if bias is None else bias.double() - mean.double()
        shift = shift * scale if beta is None else shift * scale + beta.double()
        return (weight.double() * scale.reshape(shape)).to(weight.dtype), shift.to(weight.dtype)


def _find_pair(norm: Node, constants: Constants) -> _Pair | None:
    named = normalized_arguments(norm)
    if named.get("training", False):
        return None
    conv = named["input"]
    if not is_call_to(conv, *_PLAIN, *_TRANSPOSED, _GENERAL) or only_user(conv) is not norm:
        return None
    conv_named = normalized_arguments(conv)
    transposed = is_call_to(conv, *_TRANSPOSED) or bool(conv_named.get("transposed", False))
    if transposed and conv_named["groups"] != 1:
        return None
    nodes = {
        "weight": conv_named["weight"],
        "bias": conv_named["bias"],
        "mean": named["running_mean"],
        "var": named["running_var"],
        "gamma": named["weight"],
        "beta": named["bias"],
    }
    tensors = {name: None if node is None else constants.tensor(node) for name, node in nodes.items()}
    if any(node is not None and tensors[name] is None for name, node in nodes.items()) or tensors["mean"] is None:
        return None
    return _Pair(conv, norm, nodes["weight"], nodes["bias"], tensors, named["eps"], transposed)


def _result_of(norm: Node) -> Node | None:
    """The node that carries the normalized value; None if somebody looks at the saved statistics too."""
    if is_call_to(norm, aten.batch_norm.default):
        return norm
    users = getitem_users(norm)
    if list(users) != [0] or len(norm.users) != len(users[0]):
        return None
    return users[0][0] if len(users[0]) == 1 else None


@attrs.frozen
class FuseConvBN(PassBase):
    """Fold each batch norm in evaluation mode into the convolution whose only user it is.

    Works on exported graphs, before and after decomposition, and on graph modules whose weights are attributes. The
    convolution gets new parameters named after the old ones (``conv.weight`` gives ``conv.weight_fused``); inputs of a
    program that nobody uses any more are removed. The result computes the same as before, also for gradients of the
    inputs; the norm's own scale and shift do not train any more.
    """

    target_ops: ClassVar[tuple[Any, ...]] = _NORMS

    def call(self, graph_module: GraphModule) -> PassResult:
        """Fuse in place."""
        norms = [node for node in graph_module.graph.nodes if is_call_to(node, *_NORMS)]
        if not norms:
            return PassResult(graph_module, False)
        constants = Constants.of(graph_module)
        fused = [_fuse(norm, constants) for norm in norms]
        if any(fused):
            graph_module.recompile()
        return PassResult(graph_module, any(fused))


def _fuse(norm: Node, constants: Constants) -> bool:
    pair, result = _find_pair(norm, constants), _result_of(norm)
    if pair is None or result is None:
        return False
    made = fused_weights(**pair.tensors, eps=pair.eps, transposed=pair.transposed)  # type: ignore[arg-type]
    before = [node for node in (*pair.conv.all_input_nodes, *norm.all_input_nodes) if node is not pair.conv]
    name = constants.name(pair.weight)
    bias_name = constants.name(pair.bias) if pair.bias is not None else f"{name.removesuffix('weight')}bias"
    for argument, each, tensor in (("weight", name, made[0]), ("bias", bias_name, made[1])):
        parameter = _like(tensor, pair.tensors["weight"])
        replaced = [node for node in (pair.weight if argument == "weight" else pair.bias,) if node is not None]
        node = constants.add(f"{each}_fused", parameter, before=pair.conv, replaces=replaced)
        set_argument(pair.conv, argument, node)
    replace_node(result, pair.conv)
    if result is not norm:
        erase_nodes([norm])
    constants.drop_unused(before)
    return True


def _like(tensor: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    if not isinstance(weight, torch.nn.Parameter):
        return tensor
    return torch.nn.Parameter(tensor, requires_grad=weight.requires_grad)
