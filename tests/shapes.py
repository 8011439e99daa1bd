"""A table of graph shapes, each small and each with one difficulty, for tests of whatever cuts or rebuilds graphs.

``SHAPES`` maps names to :class:`Shape`. ``shape.capture()`` gives a fresh GraphModule, ``shape.inputs()`` what to call
it with, and ``behaviour(module, shape)`` what it *means*: outputs, inputs and state afterwards, and gradients, over
several calls. An operation is right if the behaviour of its result equals that of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import attrs
import torch
from torch import nn
from torch.fx import GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@attrs.frozen
class Shape:
    """One row of the table.

    Attributes:
        name: What the difficulty is.
        model: Makes the module, always with the same weights.
        inputs: Makes positional and keyword arguments, always the same.
        by: How it is captured: "trace" (symbolic_trace), "export" (the module of an exported program), "dynamo" (the
            graph that torch.compile hands to a backend), "make_fx" (aten operators of one run).
        dynamic_shapes: For "export".
        calls: How often to call it, one after the other.
        gradients: Whether outputs have gradients worth comparing.
        exact: Whether cutting keeps gradients bit for bit; an autocast region that is cut casts a weight once for
            each piece, and adds up the gradients of the casts in another precision.
    """

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], Arguments]
    by: str = "trace"
    dynamic_shapes: Any = None
    calls: int = 1
    gradients: bool = True
    exact: bool = True

    def module(self) -> nn.Module:
        """The model, always the same."""
        torch.manual_seed(0)
        return self.model()

    def program(self) -> torch.export.ExportedProgram:
        """The exported program."""
        args, kwargs = self.inputs()
        return torch.export.export(self.module(), args, kwargs, dynamic_shapes=self.dynamic_shapes)

    def capture(self) -> GraphModule:
        """A fresh graph."""
        args, kwargs = self.inputs()
        if self.by == "export":
            return self.program().module()
        if self.by == "make_fx":
            return make_fx(self.module())(*args)
        if self.by == "dynamo":
            return _dynamo_graph(self.module(), args, kwargs)
        module = self.module()
        return symbolic_trace(module.function if isinstance(module, _Function) else module)


def _dynamo_graph(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphModule:
    found: list[GraphModule] = []

    def keep(graph_module: GraphModule, _: Any) -> Callable[..., Any]:
        found.append(graph_module)
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(model, backend=keep, fullgraph=True, dynamic=True)(*args, **kwargs)
    torch._dynamo.reset()
    return found[0]


SHAPES: dict[str, Shape] = {}


def _shape(inputs: Callable[[], Any], **options: Any) -> Callable[[Any], Any]:
    """Register a module class, or a function, under its name."""

    def register(made: Any) -> Any:
        model = made if isinstance(made, type) else (lambda: _Function(made))

        def arguments() -> Arguments:
            given = inputs()
            return given if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict) else (given, {})

        name = made.__name__
        SHAPES[name] = Shape(name, model, arguments, **options)
        return made

    return register


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _x(*shape: int) -> torch.Tensor:
    shape = shape or (4, 4)
    count = int(torch.tensor(shape).prod())
    return torch.linspace(-1, 1.5, count).reshape(shape)


def _one() -> tuple[Any, ...]:
    return (_x(),)


def _two() -> tuple[Any, ...]:
    return (_x(), _x().flip(0))


# Plain shapes


@_shape(_one)
def chain(x):
    return torch.tanh(torch.relu(x + 1) * 2) - 3


@_shape(_two)
def diamond(x, y):
    a = x * y
    left, right = a.sin(), a.cos()
    return left @ right + a


@_shape(_one)
def nothing_to_do(x):
    return x


@_shape(_two)
def inputs_come_out(x, y):
    return y, x + y, x


@_shape(lambda: ((_x(),), {}))
def default_arguments(x, scale=2.0, shift=None):
    return x * scale + 1


@_shape(lambda: ((), {"shift": _x(), "x": _x(4)}), by="export")
class KeywordsInAnotherOrder(nn.Module):
    def forward(self, x, *, shift):
        return (x + shift).relu() - shift


@_shape(_one)
def none_comes_out(x):
    x.relu().sum()


@_shape(_one)
def nested_outputs(x):
    y = x + 1
    return {"a": [y.sin(), None], "b": (y.cos(), {"c": x * 2, "d": None})}


@_shape(lambda: ({"a": _x(), "b": [_x(), (_x(),)]}, 3), by="export")
class NestedInputs(nn.Module):
    def forward(self, tree, number):
        inner = tree["b"][1][0] * number
        return {"sum": tree["a"] + inner, "parts": [tree["b"][0].relu(), inner.sin()]}


@_shape(_two)
def nested_arguments(x, y):
    joined = torch.cat([x, torch.stack((x[0], y[1])), y.relu()], dim=0)
    return torch.einsum("ij,kj->ik", [joined, y])


@_shape(lambda: (_x(), True, "relu", None))
def numbers_and_strings_in(x, flag, name, nothing):
    return torch.add(x, 1) * flag


# Several values


@_shape(_one)
def several_values(x):
    a, b, c, _ = torch.split(x * 2, 1)
    values, indices = a.max(dim=1)
    return b + values, c.sin(), indices


@_shape(_one, by="make_fx")
class WholeTuplesAcross(nn.Module):
    def forward(self, x):
        pieces = torch.split(x * 2, 2)
        a = pieces[0].sin()
        return torch.cat(pieces) + 1, a, torch.ops.aten.var_mean.correction(x, [0])[1]


@_shape(_one)
def sizes_across(x):
    y = x * 2
    rows = y.size(0)
    shape = y.shape
    return y.view(shape[0], 2, -1) + rows, torch.ones(y.size()).expand(shape) * x, y.reshape(y.size())


@_shape(lambda: (_x(6, 4),), by="dynamo")
class SymbolicSizesAcross(nn.Module):
    def forward(self, x):
        y = x * 2
        size = y.size()
        return y.view(size[0] // 2, -1).sum() + torch.ones(size).relu(), y.reshape(size).sin()


@_shape(lambda: (_x(6, 4),), by="export", dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2, max=64)}})
class DynamicBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        y = self.linear(x)
        return y.reshape(x.shape[0] * 3).sin(), torch.arange(x.shape[0]) + y.shape[0]


@_shape(_one)
def slices(x):
    n = x.size(0) // 2
    y = x[:n, 1:] + 1
    return y[..., None, 0], x[y.size(0) :, n]


# State


@_shape(_one)
class Parameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))
        self.linear = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)])
        self.unused = nn.Parameter(torch.rand(2))

    def forward(self, x):
        x = self.linear(x @ self.weight)
        for block in self.blocks:
            x = block(x) + self.weight
        return x


@_shape(_one, by="export")
class ExportedParameters(Parameters):
    pass


@_shape(lambda: (torch.arange(4),), by="export")
class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)).relu())


@_shape(lambda: (torch.arange(4),))
class TiedModules(TiedWeights):
    pass


@_shape(_two)
class SharedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, y):
        return self.linear(self.linear(x).relu() + y)


@_shape(_one)
class ConstantInTwoPlaces(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", _x(2, 4))
        self.register_buffer("scratch", _x(2, 4), persistent=False)

    def forward(self, x):
        first = torch.cat([self.table, x]).relu()
        return torch.cat([first, self.table, self.scratch]) * 2


@_shape(lambda: (_x(), _x(4)), by="export", calls=3, gradients=False)
class KeyValueCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long), persistent=False)
        self.project = nn.Linear(4, 4)

    def forward(self, x, token):
        value = self.project(token)
        self.cache.index_put_((self.position,), value.unsqueeze(0))
        self.position.add_(1)
        scores = x @ self.cache.t()
        return scores.softmax(-1) @ self.cache


@_shape(_one, calls=2, gradients=False)
class ConvolutionState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4, 2))

    def forward(self, x):
        joined = torch.cat([self.state, x], dim=1)
        self.state.copy_(joined[:, -2:])
        return joined.sum(1), self.state * 2


@_shape(_one, calls=2)
class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(self.linear(self.norm(x)) + x)


# Effects


@_shape(_two, gradients=False)
def written_between(x, y):
    before = x + 1
    x.sin_()
    after = x + 2
    y.mul_(after)
    return before, after


@_shape(_one, gradients=False)
def written_through_a_view(x):
    y = x * 2
    row = y[0]
    total = y.sum()
    row.add_(1)
    y.select(0, 1).fill_(0.5)
    return y, total, row.cos()


@_shape(_two, gradients=False)
def only_effects(x, y):
    x.add_(1)
    torch.mul(x, 2, out=y)
    y.neg_()


@_shape(_two, by="export", gradients=False)
class ExportedWrites(nn.Module):
    def forward(self, x, y):
        x.add_(y)
        z = x.t()
        y[0] = z[1]
        return z + y


@_shape(_one)
def random_numbers(x):
    a = torch.rand_like(x)
    b = torch.nn.functional.dropout(x, 0.5)
    return a + x, b * torch.randn(4, 4)


@_shape(_one)
def assertions(x):
    torch._assert(x.dim() == 2, "a matrix")
    y = x.relu()
    torch._assert(y.size(0) == 4, "four rows")
    return y + 1


# Regions


@_shape(_one, by="dynamo")
class Autocast(nn.Module):
    def forward(self, x):
        a = x @ x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ x
            c = b.float() @ x
        return a + 1, b, c @ c, (x @ x).sin()


@_shape(_one, by="dynamo", exact=False)
class AutocastAndNoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))

    def forward(self, x):
        a = x @ self.weight
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ self.weight
            with torch.no_grad():
                c = b @ self.weight
                d = c @ self.weight
            e = d @ self.weight
        with torch.no_grad():
            f = e.float() * self.weight
            with torch.enable_grad():
                g = f * self.weight
        return a @ self.weight, b, c, e, f, g


@_shape(_one, by="export")
class ExportedNoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            a = self.linear(x).relu()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = self.linear(a)
        return self.linear(b.float()) + a


@_shape(_one, by="dynamo", gradients=False)
class Inference(nn.Module):
    def forward(self, x):
        with torch.inference_mode():
            a = x.sin() + 1
            b = a.cos() * 2
        return b, x + 1


# Control flow


@_shape(_one, by="export", gradients=False)
class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4).requires_grad_(False)  # run eagerly, torch.cond warns about gradients

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda a: self.linear(a), lambda a: a.sin() - 1, (x * 2,))
        return torch.cond(y.sum() > 0, lambda a: (a + 1, a * 3), lambda a: (a - 1, a * 2), (y,))


@_shape(_one, by="export", gradients=False)
class WhileLoop(nn.Module):
    def forward(self, x):
        count = torch.zeros((), dtype=torch.long)
        _, y = torch.ops.higher_order.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, y.sin() * 2), (count, x + 1), ()
        )
        return y.relu()


@_shape(_one, by="export", gradients=False)
class Map(nn.Module):
    def forward(self, x):
        from torch._higher_order_ops.map import map as map_op

        return map_op(lambda row, shift: row.sin() + shift, x * 2, x[0]) + 1


@_shape(_one, by="make_fx")
class AtenOperators(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.softmax(self.linear(x), dim=-1).sum(0)


# --------------------------------------------------------------------------------------------------------------------
# What a module means
# --------------------------------------------------------------------------------------------------------------------


def compute_nodes(graph_module: GraphModule) -> list[Node]:
    """The nodes that can be assigned to partitions, in graph order."""
    return [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]


def behaviour(module: nn.Module, shape: Shape, *, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """All that calls of a module show.

    Args:
        module: It is called, and so changed.
        shape: Gives the inputs.
        names: The original names of parameters and buffers, by those in ``module``.

    Returns:
        Outputs, inputs afterwards, state afterwards by name, gradients by name, and the state of the random generator.
    """
    names = names or {}
    torch.manual_seed(7)
    found: dict[str, Any] = {}
    for call in range(shape.calls):
        args, kwargs = shape.inputs()
        if shape.gradients:
            args, kwargs = pytree.tree_map(_differentiable, (args, kwargs))
        if shape.by == "dynamo":
            args, kwargs = _dynamo_arguments(module, args, kwargs)
        outputs = module(*args, **kwargs)
        found[f"outputs {call}"] = pytree.tree_map(_detached, outputs)
        found[f"differentiable {call}"] = [_needs_grad(leaf) for leaf in pytree.tree_leaves(outputs)]
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        found[f"inputs {call}"] = [leaf.detach().clone() for leaf in tensors]
        if shape.gradients:
            leaves = [leaf for leaf in pytree.tree_leaves(outputs) if _needs_grad(leaf)]
            if leaves:
                torch.autograd.backward([leaf.float().sum() for leaf in leaves])
            found[f"input gradients {call}"] = [leaf.grad for leaf in tensors if leaf.is_leaf]
    state = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    found["state"] = {names.get(name, name): tensor.detach().clone() for name, tensor in state}
    found["gradients"] = {
        names.get(name, name): tensor.grad for name, tensor in state if tensor.is_leaf and tensor.grad is not None
    }
    found["random"] = torch.get_rng_state()
    return found


@cache
def behaviour_of_source(name: str) -> Mapping[str, Any]:
    """The behaviour of a shape as it is captured."""
    return behaviour(SHAPES[name].capture(), SHAPES[name])


@cache
def size_of_source(name: str) -> int:
    """How many nodes of a shape compute something."""
    return len(compute_nodes(SHAPES[name].capture()))


def assert_same_behaviour(
    expected: Mapping[str, Any], actual: Mapping[str, Any], *, state: bool = True, exact: bool = True
) -> None:
    """Everything is equal, bit for bit.

    Args:
        expected: What the source does.
        actual: What the result does.
        state: Compare the state, too, which needs the names to be the same.
        exact: False allows gradients to differ by rounding.
    """
    for key, value in expected.items():
        if not state and key in ("state", "gradients"):
            continue
        bound = 0.05 if not exact and "gradients" in key else 0
        torch.testing.assert_close(
            actual[key], value, rtol=bound, atol=bound, equal_nan=True, msg=lambda text, key=key: f"{key}: {text}"
        )


def _differentiable(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.requires_grad_()
    return leaf


def _needs_grad(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _dynamo_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """What a graph of dynamo takes: its parameters and sizes as inputs, in its own order."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    tensors = iter([*args, *kwargs.values()])
    given: list[Any] = []
    for node in placeholders:
        example = node.meta["example_value"]
        if isinstance(example, torch.SymInt):
            given.append(int(example.node.hint))
        elif isinstance(example, nn.Parameter):
            torch.manual_seed(1)
            given.append(nn.Parameter(torch.rand(example.shape)))
        else:
            given.append(next(tensors))
    return tuple(given), {}
