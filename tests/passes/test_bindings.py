"""The faster functions do what the operators do: the same kernels, the same results, the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.passes.placing_parts.bindings import BINDINGS, binding_of

UNARY = """abs cos erf exp log neg reciprocal relu rsqrt sigmoid sin sqrt square tanh silu gelu elu hardsigmoid
    hardswish leaky_relu softplus clone contiguous mean sum tril triu argmax t"""
COMPARISONS = "eq ge gt le lt ne"
CALLS: dict[str, str] = {
    **{f"{name}.default": "call(x)" for name in UNARY.split()},
    **{f"{name}.Scalar": "call(x, 0.5)" for name in COMPARISONS.split()},
    **{f"{name}.Tensor": "call(x, y)" for name in COMPARISONS.split()},
    **{f"{name}.Tensor": "call(x, y), call(x, 0.5)" for name in ("add", "sub", "mul", "div")},
    **{
        f"{name}.Tensor": "call(x.detach().clone(), y), call(x.detach().clone(), 2)"
        for name in ("add_", "mul_", "sub_")
    },
    "__and__.Tensor": "call(mask, mask.t())",
    "addmm.default": "call(y[0], x, y), call(y[0], x, y, beta=0.5, alpha=2)",
    "argmax.default": "call(x), call(x, 1), call(x, 1, True)",
    "baddbmm.default": "call(b, b, b)",
    "batch_norm.default": "call(image, w3, w3, w3.detach(), w3.detach().abs(), False, 0.1, 1e-5, True)",
    "bitwise_and.Tensor": "call(mask, mask.t())",
    "bitwise_not.default": "call(mask)",
    "bmm.default": "call(b, b)",
    "cat.default": "call([x, y]), call([x, y], -1)",
    "clamp.default": "call(x, 0.0), call(x, -0.5, 0.5)",
    "clone.default": "call(x), call(image, memory_format=torch.channels_last)",
    "contiguous.default": "call(x.t()), call(image, memory_format=torch.channels_last)",
    "conv1d.default": "call(b, b)",
    "conv2d.default": "call(image, kernel), call(image, kernel, w4, [2, 2], [1, 1], [1, 1], 1)",
    "conv2d.padding": "call(image, kernel, w4, [1, 1], 'same')",
    "conv3d.default": "call(image[None], kernel[:2, :2, None])",
    "copy_.default": "call(x.detach().clone(), y), call(x.detach().clone(), y, True)",
    "cumsum.default": "call(x, 0), call(x, -1, dtype=torch.float64)",
    "detach.default": "call(x)",
    "diff.default": "call(x), call(x, 1, -1, y)",
    "dropout.default": "call(x, 0.5, True), call(x, 0.5, False)",
    "embedding.default": "call(x, index), call(x, index, 1)",
    "expand.default": "call(x[:, None], [4, 3, 4]), call(x[:, None], [-1, 2, -1])",
    "flatten.using_ints": "call(image), call(image, 1, 2)",
    "gelu.default": "call(x), call(x, approximate='tanh')",
    "group_norm.default": "call(image, 3), call(image, 1, w3, w3, 1e-5)",
    "index_copy_.default": "call(x.detach().clone(), 0, index, y[:2])",
    "index_select.default": "call(x, 1, index)",
    "instance_norm.default": "call(image, w3, w3, None, None, True, 0.1, 1e-5, True)",
    "layer_norm.default": "call(x, [4]), call(x, [4], w4, w4, 1e-6)",
    "leaky_relu.default": "call(x), call(x, 0.2)",
    "linear.default": "call(x, y), call(x, y, w4)",
    "logical_and.default": "call(mask, mask.t())",
    "logical_not.default": "call(mask)",
    "masked_fill.Scalar": "call(x, mask, 0.5), call(x, mask, float('-inf'))",
    "masked_fill.Tensor": "call(x, mask, w4[0])",
    "matmul.default": "call(x, y), call(b, b), call(b, b[0, 0])",
    "mean.default": "call(x), call(x, dtype=torch.float64)",
    "mean.dim": "call(x, [-1]), call(x, [0], True), call(x, [0], True, dtype=torch.float64)",
    "mm.default": "call(x, y)",
    "permute.default": "call(image, [0, 2, 3, 1])",
    "pow.Tensor_Scalar": "call(x, 2), call(x, 3.0)",
    "pow.Tensor_Tensor": "call(x, y)",
    "repeat.default": "call(x, [2, 1, 1])",
    "reshape.default": "call(x, [2, 8]), call(x.t(), [-1])",
    "rms_norm.default": "call(x, [4]), call(x, [4], w4, 1e-6)",
    "scaled_dot_product_attention.default": "call(q, q, q, mask, scale=0.3), call(q, q, q, None, 0.0, True)",
    "select.int": "call(x, 1, 0), call(x, -1, -1)",
    "softmax.int": "call(x, -1), call(x, 0, torch.float64)",
    "squeeze.default": "call(x[:, None])",
    "squeeze.dim": "call(x[:, None], 1)",
    "stack.default": "call([x, y]), call([x, y], 1)",
    "sum.default": "call(x), call(x, dtype=torch.float64)",
    "sum.dim_IntList": "call(x, [1]), call(x, [0, 1], True)",
    "to.dtype": "call(x, torch.float64), call(x, torch.float32), call(x, torch.float32, False, True)",
    "transpose.int": "call(image, 1, -1)",
    "tril.default": "call(x), call(x, -1)",
    "triu.default": "call(x), call(x, 1)",
    "type_as.default": "call(x, index)",
    "unfold.default": "call(x, 1, 2, 1)",
    "unsqueeze.default": "call(x, 0), call(x, -1)",
    "view.default": "call(x, [2, 8]), call(x, [-1])",
    "view_as.default": "call(x, y)",
    "where.self": "call(mask, x, y)",
    "avg_pool2d.default": "call(image, [2, 2]), call(image, [2, 2], [1, 1], [1, 1], True, False)",
    "adaptive_avg_pool2d.default": "call(image, [1, 1])",
}


def test_what_a_function_does_not_take_by_position_goes_to_the_operator() -> None:
    """A cast with a memory format, as flexible attention has them."""
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2, 3)
    to, number = torch.ops.aten.to.dtype, torch.int32
    short, long = (graph.call_function(to, (x, number, False, False, *more)) for more in ((), (None,)))

    assert torch.Tensor.to is binding_of(short)
    assert to is binding_of(long)
    assert number is binding_of(long)(x.meta["val"], *long.args[1:]).dtype


class Dispatched(TorchDispatchMode):
    """Notes what reaches the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = pytree.tree_map_only(Tensor, lambda each: (tuple(each.shape), each.dtype), (args, kwargs or {}))
        self.calls.append(f"{function} {plain}")
        return function(*args, **(kwargs or {}))


def tensors() -> dict[str, Any]:
    torch.manual_seed(0)
    leaf: dict[str, Tensor] = {
        "x": torch.rand(4, 4),
        "y": torch.rand(4, 4),
        "b": torch.randn(2, 3, 3),
        "image": torch.randn(2, 3, 6, 6),
        "kernel": torch.randn(4, 3, 3, 3),
        "q": torch.randn(2, 2, 4, 4),
        "w3": torch.randn(3),
        "w4": torch.randn(4),
    }
    return {
        "torch": torch,
        **{name: each.requires_grad_() for name, each in leaf.items()},
        "mask": torch.rand(4, 4) > 0.5,
        "index": torch.tensor([1, 3]),
    }


def seen(name: str, function: Any) -> list[Any]:
    """What a function makes of the calls: kernels, names of gradients, results with their layout, gradients."""
    given = tensors()
    torch.manual_seed(1)
    with Dispatched() as dispatched:
        results = eval(f"[{CALLS[name]}]", {**given, "call": function})
    leaves = [each for each in given.values() if isinstance(each, Tensor) and each.requires_grad]
    sums = [each.to(torch.float64).sum() for each in results if each.requires_grad]
    gradients = torch.autograd.grad(sum(sums), leaves, allow_unused=True) if sums else ()
    graphs = [type(each.grad_fn).__name__ for each in results]
    return [dispatched.calls, graphs, [(each.dtype, each.stride(), each) for each in results], gradients]


@pytest.mark.parametrize("name", [str(target).removeprefix("aten.") for target in BINDINGS])
def test_a_function_does_what_its_operator_does(name: str) -> None:
    """The same kernels on the same arguments; results, layouts and gradients to the last bit."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)

    expected, actual = seen(name, operator), seen(name, BINDINGS[operator])

    assert expected[:2] == actual[:2]
    for one, other in zip(pytree.tree_leaves(expected[2:]), pytree.tree_leaves(actual[2:]), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def test_an_operator_is_called_itself_where_a_function_would_choose_another() -> None:
    """A number first, or a keyword that the schema knows by position only."""
    aten, graph = torch.ops.aten, Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 2)
    sums = [(x, x), (2.0, x), (x,)]
    calls = [graph.call_function(aten.add.Tensor, args, {} if len(args) == 2 else {"other": x}) for args in sums]
    unknown = graph.call_function(aten.lgamma.default, (x,))

    assert [torch.add, aten.add.Tensor, aten.add.Tensor] == [binding_of(call) for call in calls]
    assert aten.lgamma.default == binding_of(unknown)
