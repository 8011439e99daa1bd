"""Random little programs with views, in-place operations, random numbers and side effects, for tests of any pass.

``random_program(rng)`` writes one node after the other and runs each at once, so every program it gives really runs.
``observe(graph_module, inputs)`` is what a program *means*: its outputs, what it left in its inputs and buffers, and
the state of the random number generator. A pass is right if before and after are observed to be equal (``same``).

With hypothesis: ``@given(rng=st.randoms(use_true_random=False))``, then ``random_program(rng)``; that shrinks.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

aten = torch.ops.aten
torch.set_num_threads(
    1
)  # six numbers at a time: waiting for a second thread costs more than all else on a busy machine
Runner = Callable[[Any], Any]


class Holder(nn.Module):
    """The attributes that programs use: a buffer, a view of it, a parameter tied to another, and modules with state."""

    def __init__(self, *, bodies: bool = False) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(6.0).reshape(2, 3) / 7)
        self.register_buffer("state_row", self.state[0])
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3), requires_grad=False)
        self.tied = self.weight
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.relu = nn.ReLU(inplace=True)
        self.norm.requires_grad_(False)
        for name, write in _BODY_WRITERS.items() if bodies else ():
            self.add_module(f"body_{name}", _body(write))


def _body(write: Callable[[Graph, Node], Node]) -> GraphModule:
    graph = Graph()
    graph.output((write(graph, graph.placeholder("y")),))
    return GraphModule(nn.Module(), graph)


_BODY_WRITERS: dict[str, Callable[[Graph, Node], Node]] = {
    "pure": lambda graph, y: graph.call_method("cos", (y,)),
    "writing": lambda graph, y: graph.call_method("sin", (graph.call_method("add_", (y, 1)),)),
    "random": lambda graph, y: graph.call_function(torch.rand_like, (y,)),
    "scratch": lambda graph, y: graph.call_method("mul_", (graph.call_method("clone", (y,)), 2)),
}


@attrs.frozen
class Program:
    """A random program.

    Attributes:
        graph_module: The program; every node has ``meta["val"]``, in one fake mode.
        inputs: Tensors to call it with; clone them, or use :func:`observe`, which does.
    """

    graph_module: GraphModule
    inputs: tuple[torch.Tensor, ...]


class _Writer:
    """Writes a program node by node and keeps the real value of each."""

    def __init__(self, rng: random.Random, holder: Holder) -> None:
        self.rng = rng
        self.holder = holder
        self.graph = Graph(self.holder)
        self.values: dict[Node, Any] = {}
        self.mode = FakeTensorMode()

    def tensors(self, like: torch.Tensor | None = None) -> list[Node]:
        return [
            node
            for node, value in self.values.items()
            if isinstance(value, torch.Tensor) and (like is None or value.shape == like.shape)
        ]

    def pick(self, like: torch.Tensor | None = None) -> Node:
        return self.rng.choice(self.tensors(like))

    def call(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node | None:
        """Add a node and run it; nothing is added if it raises."""
        load = self.values.__getitem__
        given = torch.fx.map_arg((args, kwargs or {}), load)
        try:
            value = _execute(self.holder, op, target, *given)
        except (RuntimeError, IndexError, ValueError):
            return None
        node = self.graph.create_node(op, target, args, kwargs or {})
        self.values[node] = value
        node.meta["val"] = pytree.tree_map_only(torch.Tensor, functools.partial(_shadow, self.mode), value)
        return node


def _shadow(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor with the layout of a real one."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _execute(holder: nn.Module, op: str, target: Any, args: Any, kwargs: Any) -> Any:
    if op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    if op == "call_module":
        return holder.get_submodule(target)(*args, **kwargs)
    if op == "get_attr":
        return getattr(holder, target)
    return target(*args, **kwargs)


# Each step adds a node or a few.

_UNARY = [torch.sin, torch.cos, aten.tanh.default, aten.neg.default, operator.neg, torch.nn.functional.relu]
_UNARY_METHODS = ["sin", "tanh", "clone", "abs"]
_BINARY = [torch.add, operator.mul, aten.sub.Tensor, torch.maximum, operator.add]
_IN_PLACE_METHODS = ["sin_", "neg_", "tanh_", "abs_", "zero_"]
_IN_PLACE_FUNCTIONS = [torch.sin_, aten.cos_.default, aten.neg_.default, torch.relu_]


def _unary(writer: _Writer) -> None:
    if writer.rng.random() < 0.5:
        writer.call("call_method", writer.rng.choice(_UNARY_METHODS), (writer.pick(),))
    else:
        writer.call("call_function", writer.rng.choice(_UNARY), (writer.pick(),))


def _binary(writer: _Writer) -> None:
    left = writer.pick()
    right = writer.pick(writer.values[left]) if writer.rng.random() < 0.7 else writer.rng.choice([1, 0.5, 2.0])
    target = writer.rng.choice(_BINARY if isinstance(right, Node) else [torch.add, operator.mul, operator.sub])
    writer.call("call_function", target, (left, right))


def _view(writer: _Writer) -> None:
    source = writer.pick()
    made: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("call_function", operator.getitem, (source, writer.rng.choice([0, 1, slice(1, None), (slice(None), 0)]))),
        ("call_method", "view", (source, -1)),
        ("call_method", "t", (source,)),
        ("call_method", "contiguous", (source,)),
        ("call_method", "reshape", (source, -1)),
        ("call_function", torch.flatten, (source,)),
        ("call_function", aten.slice.Tensor, (source, 0, 0, 2)),
        ("call_function", aten.detach.default, (source,)),
        ("call_function", torch.nn.functional.dropout, (source, 0.5, False)),
        ("call_method", "float", (source,)),
        ("call_function", aten.alias.default, (source,)),
    ]
    writer.call(*writer.rng.choice(made))


def _pieces(writer: _Writer) -> None:
    source = writer.pick()
    target = writer.rng.choice([torch.split, aten.split.Tensor])
    if (pieces := writer.call("call_function", target, (source, 1))) is not None:
        for index in range(min(2, len(writer.values[pieces]))):
            writer.call("call_function", operator.getitem, (pieces, index))


def _in_place(writer: _Writer) -> None:
    target = writer.pick()
    value = writer.values[target]
    other = writer.pick(value)
    made: list[tuple[Any, ...]] = [
        ("call_method", writer.rng.choice(_IN_PLACE_METHODS), (target,)),
        ("call_function", writer.rng.choice(_IN_PLACE_FUNCTIONS), (target,)),
        ("call_method", "add_", (target, writer.rng.choice([1, other]))),
        ("call_method", "mul_", (target, 0.5)),
        ("call_method", "copy_", (target, other)),
        ("call_function", operator.iadd, (target, 1)),
        ("call_function", operator.setitem, (target, 0, 0.25)),
        ("call_function", aten.copy_.default, (target, other)),
        ("call_function", torch.sin, (other,), {"out": target}),
        ("call_function", aten.add.out, (other, 1), {"out": target}),
        ("call_function", torch.nn.functional.relu, (target,), {"inplace": True}),
        ("call_module", "relu", (target,)),
    ]
    writer.call(*writer.rng.choice(made))


def _random(writer: _Writer) -> None:
    source = writer.pick()
    made: list[tuple[Any, ...]] = [
        ("call_function", torch.rand_like, (source,)),
        ("call_function", torch.rand, (2, 3)),
        ("call_function", aten.bernoulli.p, (source, 0.5)),
        ("call_function", torch.nn.functional.dropout, (source, 0.5)),
        ("call_method", "uniform_", (source,)),
        ("call_module", "dropout", (source,)),
    ]
    writer.call(*writer.rng.choice(made))


def _state(writer: _Writer) -> None:
    writer.call("get_attr", writer.rng.choice(["state", "state_row", "weight", "tied"]), ())


def _norm(writer: _Writer) -> None:
    writer.call("call_module", "norm", (writer.pick(),))


def _assert(writer: _Writer) -> None:
    writer.call("call_function", torch._assert, (writer.rng.random() < 2, "holds"))


def _autocast(writer: _Writer) -> None:
    """A region in which a product has another precision."""
    source = writer.pick()
    if writer.values[source].dim() != 2:
        return
    enter = writer.call("call_function", torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False))
    for _ in range(writer.rng.randint(1, 2)):
        turned = writer.call("call_method", "t", (source,))
        if turned is not None and (product := writer.call("call_function", torch.mm, (source, turned))) is not None:
            writer.call("call_method", "float", (product,))
            writer.values.pop(product)  # keep half precision inside
    writer.call("call_function", torch.amp.autocast_mode._exit_autocast, (enter,))


def _branch(writer: _Writer) -> None:
    """A ``cond`` between two bodies, whose effects are those of both."""
    names = [f"body_{writer.rng.choice(list(_BODY_WRITERS))}" for _ in range(2)]
    bodies = [writer.call("get_attr", name, ()) for name in names]
    args = (writer.rng.random() < 0.5, *bodies, (writer.pick(),))
    if (result := writer.call("call_function", torch.ops.higher_order.cond, args)) is not None:
        writer.call("call_function", operator.getitem, (result, 0))


def _inner(writer: _Writer) -> None:
    name = f"body_{writer.rng.choice(list(_BODY_WRITERS))}"
    if (result := writer.call("call_module", name, (writer.pick(),))) is not None:
        writer.call("call_function", operator.getitem, (result, 0))


def _grad_mode(writer: _Writer) -> None:
    writer.call("call_function", torch._C._set_grad_enabled, (False,))
    _unary(writer)
    writer.call("call_function", torch._C._set_grad_enabled, (True,))


NESTED_STEPS: dict[str, Callable[[_Writer], None]] = {"branch": _branch, "inner": _inner, "grad_mode": _grad_mode}
"""Steps that are taken only when asked for: ``steps=(*STEPS, *NESTED_STEPS)``."""
STEPS: dict[str, Callable[[_Writer], None]] = {
    "unary": _unary,
    "binary": _binary,
    "view": _view,
    "pieces": _pieces,
    "in_place": _in_place,
    "random": _random,
    "state": _state,
    "norm": _norm,
    "assert": _assert,
    "autocast": _autocast,
}
_WEIGHTS = {"unary": 4, "binary": 4, "view": 4, "in_place": 6, "state": 2, "random": 2}
PURE_STEPS = ("unary", "binary", "view", "pieces", "state")
"""The steps of a program without any effects."""


def random_program(
    rng: random.Random | int, *, size: int = 8, steps: Sequence[str] = tuple(STEPS), outputs: int = 3
) -> Program:
    """Write a random program that runs.

    Args:
        rng: A random number generator, such as ``st.randoms(use_true_random=False)`` draws, or a seed.
        size: How many steps to take; a step is a node or a few.
        steps: Which kinds of steps to take; names of ``STEPS`` and ``NESTED_STEPS``.
        outputs: How many values to give back at most.
    """
    rng = random.Random(rng) if isinstance(rng, int) else rng
    nested = not NESTED_STEPS.keys().isdisjoint(steps)
    writer = _Writer(rng, Holder(bodies=nested))
    inputs = tuple(torch.arange(6.0).reshape(2, 3) / 5 - shift for shift in (0.3, 0.9)[: rng.randint(1, 2)])
    for index, tensor in enumerate(inputs):
        node = writer.graph.placeholder(f"x{index}")
        writer.values[node] = tensor.clone()
        node.meta["val"] = _shadow(writer.mode, tensor)
    weights = [_WEIGHTS.get(step, 1) for step in steps]
    for step in rng.choices(list(steps), weights, k=size):
        (STEPS | NESTED_STEPS)[step](writer)
    found = writer.tensors()
    writer.graph.output(tuple(rng.sample(found, min(outputs, len(found)))))
    return Program(GraphModule(Holder(bodies=nested), writer.graph), inputs)


def observe(graph_module: nn.Module, inputs: Sequence[Any], seed: int = 0) -> list[torch.Tensor]:
    """All that a run shows: outputs, inputs and buffers afterwards, the random state. Puts the buffers back."""
    state = _state_of(graph_module)
    kept = [(tensor, tensor.detach().clone()) for tensor in state]
    given = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), list(inputs))
    torch.manual_seed(seed)
    try:
        outputs = graph_module(*given)
        leaves = [leaf for leaf in pytree.tree_leaves([outputs, given]) if isinstance(leaf, torch.Tensor)]
        shown = [leaf.detach().clone() for leaf in [*leaves, *state]]
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
    return [*shown, torch.get_rng_state()]


def _state_of(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers, sorted by what they hold, so that the order stays if some of them go into a submodule."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [
        tensor for _, tensor in sorted(named, key=lambda each: (each[1].flatten().tolist(), each[0].split(".")[::-1]))
    ]


def same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    """Whether two observations are equal, bit for bit."""
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(first, second, strict=True)
    )


def reorder(graph_module: GraphModule, order: Sequence[Node]) -> GraphModule:
    """Put the nodes of a graph into the given order, in place."""
    for earlier, later in itertools.pairwise(order):
        earlier.append(later)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
