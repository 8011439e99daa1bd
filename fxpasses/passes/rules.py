"""Ready rules for transformers and convolutional nets: attention, norms, activations, convolution with batch norm.

They match graphs of ``torch.export`` as they come and after ``run_decompositions``: casts, dropout that is off, and the
expands, clones and views that a decomposed ``matmul`` or ``linear`` consists of are looked through.

>>> import torch
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
>>> module = torch.export.export(net, (torch.ones(2, 4),)).module()
>>> transformer_rules().apply(module).counts
{'linear_gelu': 1}
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from fxpasses.partitioners.matching import (
    Pattern,
    PatternMatch,
    anything,
    call,
    either,
    literal,
    maybe,
    value,
)
from fxpasses.partitioners.matching.conditions import tensor_of
from fxpasses.passes.fused_ops import linear_gelu, silu_mul
from fxpasses.passes.rewriting.rule_sets import Rule, RuleSet

__all__ = [
    "attention_rule",
    "conv_bn_rule",
    "layer_norm_rules",
    "linear_gelu_rule",
    "rms_norm_rule",
    "silu_mul_rule",
    "transformer_rules",
]

aten = torch.ops.aten
_CASTS = [aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default]
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_VIEWS = [aten.view.default, aten.reshape.default, aten._unsafe_view.default]


def transformer_rules() -> RuleSet:
    """All rules that a transformer needs; the larger patterns go first."""
    rules = [attention_rule(), rms_norm_rule(), *layer_norm_rules(), silu_mul_rule(), linear_gelu_rule()]
    return RuleSet(rules, name="transformer_rules")


# ---------------------------------------------------------------------------------------------------- questions
def _shape(node: Any) -> tuple[Any, ...]:
    return tuple(getattr(tensor_of(node), "shape", ()))


def _dtype(node: Any) -> Any:
    return getattr(tensor_of(node), "dtype", None)


def _is_last(dims: Any, node: Any) -> bool:
    """Whether ``dims`` names the last dimension of a node's value, and it alone."""
    dims = [dims] if isinstance(dims, int) else list(dims)
    return dims == [-1] or (bool(_shape(node)) and dims == [len(_shape(node)) - 1])


# ---------------------------------------------------------------------------------------------------- looking through
def _through(targets: Any, pattern: Pattern) -> Pattern:
    """The pattern, or one of these calls on it."""
    return either(call(targets, pattern, ...), pattern)


def _flattened(pattern: Pattern) -> Pattern:
    """An operand of a decomposed batched product: ``view(clone(expand(x)))``, each of them optional."""
    return _through(_VIEWS, _through(aten.clone.default, _through(aten.expand.default, pattern)))


def _product(left: Pattern, right: Pattern, name: str) -> Pattern:
    """``matmul(left, right)``, as it is or decomposed to ``bmm``."""
    bmm = call(aten.bmm.default, _flattened(left), _flattened(right))
    whole = call(aten.matmul.default, left, right)
    return either(whole.named(name), call(_VIEWS, bmm, ...).named(name))


def _square(x: Pattern) -> Pattern:
    return either(call(aten.pow.Tensor_Scalar, x, literal(one_of=[2, 2.0])), call(aten.mul.Tensor, x, x))


def _mean(x: Pattern, name: str) -> Pattern:
    return call(aten.mean.dim, x, literal(name), True)


def _inverse_root(x: Pattern) -> Pattern:
    """``1 / sqrt(x)`` in the ways it is written."""
    root = call(aten.sqrt.default, x)
    return either(
        call(aten.rsqrt.default, x),
        call(aten.pow.Tensor_Scalar, x, literal(one_of=[-0.5])),
        call(aten.reciprocal.default, root),
    )


# ---------------------------------------------------------------------------------------------------- attention
def attention_rule() -> Rule:
    """``softmax(q k^T * scale + mask) v`` becomes ``scaled_dot_product_attention``.

    The scale may be a product, a quotient or missing; mask, cast and switched-off dropout may be missing.
    """
    q, k, v = value("q"), value("k"), value("v")
    swapped = call(aten.transpose.int, k, literal("turn_a"), literal("turn_b"))
    turned = either(swapped, call(aten.permute.default, k, literal("turn")), call(aten.mT.default, k))
    scores = _product(q, turned, "scores")
    scaled = either(
        call(aten.mul.Tensor, scores, literal("times")),
        call(aten.div.Tensor, scores, literal("over", check=bool)),
        scores,
    )
    masked = either(call(aten.add.Tensor, scaled, value("mask")), scaled)
    soft = either(
        call(aten.softmax.int, masked, literal("dim"), maybe(anything())),
        call(aten._softmax.default, masked, literal("dim"), False),
    )
    cast = _through(_CASTS, soft)
    kept = either(call(aten.dropout.default, cast, literal(), False), call(aten.clone.default, cast, ...), cast)
    return Rule(_product(kept, v, "attended"), _attention, name="attention", filters=(_is_attention,), benefit=10)


def _is_attention(match: PatternMatch) -> bool:
    captures = match.captures
    q, k, v = captures["q"], captures["k"], captures["v"]
    shapes = [_shape(node) for node in (q, k, v)]
    if any(len(shape) != 4 for shape in shapes) or not _is_last(captures["dim"], captures["scores"]):
        return False
    if len({_dtype(q), _dtype(k), _dtype(v), _dtype(captures["attended"])}) != 1:
        return False
    if shapes[0][:2] != shapes[1][:2] or shapes[0][:2] != shapes[2][:2] or not _turns_last_two(captures):
        return False
    wanted = (*shapes[0][:3], shapes[1][2])
    if _shape(captures["scores"]) != wanted or _shape(captures["attended"]) != (*shapes[0][:3], shapes[2][3]):
        return False
    mask = captures["mask"]
    return mask is None or (len(_shape(mask)) in (2, 3, 4) and _dtype(mask) == _dtype(q))


def _turns_last_two(captures: dict[str, Any]) -> bool:
    if captures["turn"] is not None:
        return [dim % 4 for dim in captures["turn"]] == [0, 1, 3, 2]
    if captures["turn_a"] is None:
        return True  # mT turns no others
    return {captures["turn_a"] % 4, captures["turn_b"] % 4} == {2, 3}


def _attention(q: Any, k: Any, v: Any, mask: Any, times: Any, over: Any) -> Any:
    scale = float(times) if times is not None else 1.0 / over if over is not None else 1.0
    return aten.scaled_dot_product_attention.default(q, k, v, mask, 0.0, False, scale=scale)


# ---------------------------------------------------------------------------------------------------- norms
def rms_norm_rule() -> Rule:
    """``x * rsqrt(mean(x^2) + eps) * weight`` becomes ``rms_norm``; the weight may come after a cast, or be missing."""
    x = value("x")
    variance = call(aten.add.Tensor, _mean(_square(x), "dims"), literal("eps"))
    normed = either(
        call(aten.mul.Tensor, x, _inverse_root(variance)),
        call(aten.div.Tensor, x, call(aten.sqrt.default, variance)),
    )
    cast = either(call(_CASTS, normed, ...).named("cast"), normed)
    return Rule(
        call(aten.mul.Tensor, value("weight"), cast).named("result"),
        _rms_norm,
        name="rms_norm",
        filters=(_is_rms_norm,),
        benefit=5,
    )


def _is_rms_norm(match: PatternMatch) -> bool:
    x, weight, result = (match.captures[name] for name in ("x", "weight", "result"))
    if not _shape(x) or not _is_last(match["dims"], x):
        return False
    return _shape(weight) == _shape(x)[-1:] and _shape(result) == _shape(x)


def _rms_norm(match: PatternMatch, x: Any, weight: Any, eps: Any) -> Any:
    width = list(_shape(match["x"])[-1:])
    if _dtype(match["x"]) == _dtype(match["weight"]) == _dtype(match["result"]):
        return aten.rms_norm.default(x, width, weight, float(eps))
    normed = aten.rms_norm.default(x, width, None, float(eps))
    cast = match["cast"]
    if cast is not None and _dtype(cast) != _dtype(match["x"]):
        normed = aten.to.dtype(normed, _dtype(cast))
    return aten.mul.Tensor(weight, normed)


def layer_norm_rules() -> list[Rule]:
    """A layer norm written out, or decomposed to ``native_layer_norm``, becomes ``layer_norm``."""
    x = value("x")
    centred = call(aten.sub.Tensor, x, _mean(x, "dims"))
    variance = either(
        _mean(_square(centred), "dims_of_variance"),
        call(aten.var.correction, x, literal("dims_of_variance"), correction=literal(one_of=[0]), keepdim=True),
        call(aten.var.dim, x, literal("dims_of_variance"), False, True),
    )
    shifted = call(aten.add.Tensor, variance, literal("eps"))
    normed = either(
        call(aten.mul.Tensor, centred, _inverse_root(shifted)),
        call(aten.div.Tensor, centred, call(aten.sqrt.default, shifted)),
    )
    scaled = call(aten.mul.Tensor, normed, value("weight"))
    written = call(aten.add.Tensor, scaled, value("bias")).named("result")
    native = call(
        aten.native_layer_norm.default, x, literal("width"), anything("weight"), anything("bias"), literal("eps")
    )
    return [
        Rule(written, _layer_norm, name="layer_norm", filters=(_is_layer_norm,), benefit=6),
        Rule(_first(native), _whole_layer_norm, name="layer_norm", benefit=4),
    ]


def _first(pattern: Pattern) -> Pattern:
    return call(operator.getitem, pattern, 0)


def _is_layer_norm(match: PatternMatch) -> bool:
    x, weight, bias = (match.captures[name] for name in ("x", "weight", "bias"))
    if not _shape(x) or len({_dtype(x), _dtype(weight), _dtype(bias), _dtype(match["result"])}) != 1:
        return False
    if not _is_last(match["dims"], x) or not _is_last(match["dims_of_variance"], x):
        return False
    return _shape(weight) == _shape(bias) == _shape(x)[-1:]


def _layer_norm(match: PatternMatch, x: Any, weight: Any, bias: Any, eps: Any) -> Any:
    return aten.layer_norm.default(x, list(_shape(match["x"])[-1:]), weight, bias, float(eps))


def _whole_layer_norm(x: Any, width: Any, weight: Any, bias: Any, eps: Any) -> Any:
    return aten.layer_norm.default(x, list(width), weight, bias, eps)


# ---------------------------------------------------------------------------------------------------- activations
def silu_mul_rule() -> Rule:
    """``silu(gate) * up`` becomes ``fxpasses::silu_mul``."""
    gate = value("gate", dtype=_FLOATS)
    silu = either(call(aten.silu.default, gate), call(aten.mul.Tensor, gate, call(aten.sigmoid.default, gate)))
    pattern = call(aten.mul.Tensor, silu, value("up"))
    return Rule(pattern, lambda gate, up: silu_mul(gate, up), name="silu_mul", filters=(_is_gated,), benefit=2)


def _is_gated(match: PatternMatch) -> bool:
    return _dtype(match["gate"]) == _dtype(match["up"]) and _shape(match["gate"]) == _shape(match["up"])


def linear_gelu_rule() -> Rule:
    """``gelu(linear(x, weight, bias))`` becomes ``fxpasses::linear_gelu``."""
    x, weight, bias = value("x"), value("weight"), value("bias")
    whole = call(aten.linear.default, x, weight, maybe(bias))
    turned = either(call(aten.t.default, weight), call(aten.permute.default, weight, [1, 0]))
    product = either(
        call(aten.addmm.default, bias, _through(_VIEWS, x), turned),
        call(aten.mm.default, _through(_VIEWS, x), turned),
    )
    linear = either(whole.named("linear"), call(_VIEWS, product, ...).named("linear"), product.named("linear"))
    pattern = call(aten.gelu.default, linear, approximate=literal("approximate"))
    return Rule(pattern, _linear_gelu, name="linear_gelu", filters=(_is_linear,), benefit=3)


def _is_linear(match: PatternMatch) -> bool:
    """The views around a decomposed product flatten and unflatten the leading dimensions, and do nothing else."""
    x, weight, result = _shape(match["x"]), _shape(match["weight"]), _shape(match["linear"])
    if len(weight) != 2 or not x or x[-1] != weight[1]:
        return False
    return result == (*x[:-1], weight[0])


def _linear_gelu(x: Any, weight: Any, bias: Any, approximate: Any) -> Any:
    return linear_gelu(x, weight, bias, approximate)


# ---------------------------------------------------------------------------------------------------- convolution
def conv_bn_rule() -> Rule:
    """A convolution followed by a batch norm in evaluation mode becomes one convolution.

    The new weight and bias are computed in the graph, from whatever the parameters are there; ``FoldConstants`` or
    ``FuseConvBN`` make constants of them.
    """
    conv = call(
        [aten.conv2d.default, aten.conv1d.default, aten.conv3d.default],
        value("x"),
        value("weight"),
        maybe(value("bias")),
        *(literal(name) for name in ("stride", "padding", "dilation", "groups")),
    )
    either_conv = either(conv, _general_convolution())
    statistics = [anything("gamma"), anything("beta"), value("mean"), value("variance")]
    trained = call(aten.batch_norm.default, either_conv, *statistics, False, literal(), literal("eps"), anything())
    native = call(
        aten._native_batch_norm_legit_no_training.default, either_conv, *statistics, literal(), literal("eps")
    )
    return Rule(either(trained, call(operator.getitem, native, 0)), _conv_bn, name="conv_bn", benefit=5)


def _general_convolution() -> Pattern:
    """The convolution of core ATen, not transposed."""
    return call(
        aten.convolution.default,
        value("x"),
        value("weight"),
        either(value("bias"), literal(one_of=[None])),
        *(literal(name) for name in ("stride", "padding", "dilation")),
        False,
        literal("output_padding"),
        literal("groups"),
    )


def _conv_bn(
    match: PatternMatch, x: Any, weight: Any, bias: Any, gamma: Any, beta: Any, mean: Any, variance: Any
) -> Any:
    captures = match.captures
    scale = aten.rsqrt.default(aten.add.Tensor(variance, captures["eps"]))
    if gamma is not None:
        scale = aten.mul.Tensor(scale, gamma)
    shape = [-1] + [1] * (len(_shape(captures["weight"])) - 1)
    shift = aten.mul.Tensor(aten.neg.default(mean) if bias is None else aten.sub.Tensor(bias, mean), scale)
    if beta is not None:
        shift = aten.add.Tensor(shift, beta)
    folded = aten.mul.Tensor(weight, aten.reshape.default(scale, shape))
    stride, padding, dilation = (captures[name] for name in ("stride", "padding", "dilation"))
    target: Any = next(node.target for node in match.nodes if str(node.target).startswith("aten.conv"))
    if target is aten.convolution.default:
        spare = captures["output_padding"]
        return target(x, folded, shift, stride, padding, dilation, False, spare, captures["groups"])
    return target(x, folded, shift, stride, padding, dilation, captures["groups"])
