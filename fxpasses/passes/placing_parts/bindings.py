"""Which of torch's Python functions does what an operator does, in less time.

``torch.ops.aten.add.Tensor(x, y)`` boxes its arguments for a call that fits every operator; ``torch.add(x, y)`` goes
straight to the same operator. That is worth about a microsecond a call, as much as a small operator takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.fx import Node

from fxpasses.metadata import value_of

__all__ = ["BINDINGS", "binding_of"]

aten = torch.ops.aten

_FUNCTIONS = """
    abs.default add.Tensor addmm.default argmax.default baddbmm.default batch_norm.default bitwise_and.Tensor
    bitwise_not.default bmm.default cat.default clamp.default clone.default conv1d.default conv2d.default
    conv2d.padding conv3d.default cos.default cumsum.default detach.default diff.default div.Tensor dropout.default
    embedding.default eq.Scalar eq.Tensor erf.default exp.default flatten.using_ints ge.Scalar ge.Tensor
    group_norm.default gt.Scalar gt.Tensor index_select.default instance_norm.default layer_norm.default le.Scalar
    le.Tensor log.default logical_and.default logical_not.default lt.Scalar lt.Tensor masked_fill.Scalar
    masked_fill.Tensor matmul.default mean.default mean.dim mm.default mul.Tensor ne.Scalar ne.Tensor neg.default
    permute.default pow.Tensor_Scalar pow.Tensor_Tensor reciprocal.default relu.default reshape.default
    rms_norm.default rsqrt.default select.int sigmoid.default sin.default softmax.int sqrt.default square.default
    squeeze.default squeeze.dim stack.default sub.Tensor sum.default sum.dim_IntList t.default tanh.default
    transpose.int tril.default triu.default unsqueeze.default where.self
"""
_METHODS = """
    __and__.Tensor add_.Tensor contiguous.default copy_.default expand.default index_copy_.default mul_.Tensor
    repeat.default sub_.Tensor to.dtype type_as.default unfold.default view.default view_as.default
"""
_NN_FUNCTIONS = """
    adaptive_avg_pool2d.default avg_pool2d.default elu.default gelu.default hardsigmoid.default hardswish.default
    leaky_relu.default linear.default scaled_dot_product_attention.default silu.default softplus.default
"""


def _table() -> dict[OpOverload, Callable[..., Any]]:
    functions: dict[OpOverload, Callable[..., Any]] = {}
    for holder, names in ((torch, _FUNCTIONS), (torch.Tensor, _METHODS), (torch._C._nn, _NN_FUNCTIONS)):
        for name in names.split():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(aten, packet, None), overload, None)
            function = getattr(holder, packet, None)
            if operator is not None and function is not None:  # another version of torch may lack one
                functions[operator] = function
    return functions


BINDINGS = _table()
"""The function of an operator: same arguments, same dispatch, one tensor as its result."""

_BY_POSITION = {aten.to.dtype: 4}
"""How many arguments a function takes by position, where the schema has more."""


def binding_of(node: Node) -> Callable[..., Any]:
    """What to call for a node: its target, or the faster function that does the same with these arguments.

    The functions take their arguments in the order of the schema, and keywords only where the schema says so. They
    choose the overload by the first argument, which must be a tensor.
    """
    target: Any = node.target
    function, taken = BINDINGS.get(target), len(node.args)
    if function is None or not 0 < taken <= _BY_POSITION.get(target, taken) or not _is_tensor(node.args[0]):
        return target  # type: ignore[no-any-return]  # what a node calls can be called
    by_name = {argument.name for argument in target._schema.arguments if argument.kwarg_only}
    return function if by_name.issuperset(node.kwargs) else target


def _is_tensor(argument: Any) -> bool:
    first = argument[0] if isinstance(argument, (list, tuple)) and argument else argument
    return isinstance(first, Node) and isinstance(value_of(first), torch.Tensor | nn.Parameter)
