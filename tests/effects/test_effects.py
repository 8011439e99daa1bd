"""The effects of single nodes, and the order that follows from them."""

from __future__ import annotations

import inspect
import operator
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fuzz import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from programs import NESTED_STEPS, STEPS, observe, random_program, reorder, same
from torch import nn
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from fxpasses.dependencies import Dependencies
from fxpasses.effects import (
    CallEffects,
    RegionKind,
    Registry,
    analyze_effects,
    is_impure,
    register_effects,
    register_pure,
)
from fxpasses.effects.calls import words
from fxpasses.errors import CycleError
from fxpasses.passes.cleanup import CSEPass, EliminateDeadCode

aten = torch.ops.aten
EXAMPLES = examples(2000)


def module_of(write: Callable[[Graph, Node], Any], root: nn.Module | None = None) -> GraphModule:
    """A graph with the input ``x``, written by a function."""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(write(graph, x))
    return GraphModule(root or nn.Module(), graph)


def node(graph_module: GraphModule, name: str) -> Node:
    return next(found for found in graph_module.graph.nodes if found.name == name)


def edges(graph_module: GraphModule) -> list[tuple[str, str]]:
    return [(earlier.name, later.name) for earlier, later in analyze_effects(graph_module).order_edges]


def one_call(op: str, target: Any, *args: Any, **kwargs: Any) -> GraphModule:
    """``x`` and ``y`` go in where "x" and "y" stand; the call is named ``call``."""
    graph = Graph()
    given = {name: graph.placeholder(name) for name in ("x", "y")}
    args, kwargs = torch.fx.node.map_aggregate((args, kwargs), lambda a: given.get(a, a) if isinstance(a, str) else a)
    call = graph.create_node(op, target, tuple(args), dict(kwargs), name="call")
    graph.output(call)
    return GraphModule(nn.Module(), graph)


# --- what single calls do -------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    # what is called, with which arguments -> "w:" operands written, "a:" operands aliased, "r" random, "!" world
    "overload": (("call_function", aten.add.Tensor, "x", "y"), ""),
    "in-place overload": (("call_function", aten.add_.Tensor, "x", "y"), "w:x a:x"),
    "out overload": (("call_function", aten.add.out, "x", "y", {"out": "y"}), "w:y a:y"),
    "packet": (("call_function", aten.mul, "x", "y"), ""),
    "in-place packet": (("call_function", aten.mul_, "x", "y"), "w:x a:x"),
    "view overload": (("call_function", aten.view.default, "x", [6]), "a:x"),
    "slice": (("call_function", aten.slice.Tensor, "x", 0, 0, 1), "a:x"),
    "list of views": (("call_function", aten.split.Tensor, "x", 1), "a:x"),
    "foreach": (("call_function", aten._foreach_add_.Scalar, ["x", "y"], 1), "w:xy"),
    "random overload": (("call_function", aten.bernoulli.p, "x", 0.5), "r"),
    "random in place": (("call_function", aten.uniform_.default, "x"), "w:x a:x r"),
    "assert overload": (("call_function", aten._assert_async.msg, "x", "no"), "!"),
    "symbol constraint": (("call_function", aten.sym_constrain_range_for_size.default, "x"), "!"),
    "torch function": (("call_function", torch.add, "x", "y"), ""),
    "torch function out=": (("call_function", torch.add, "x", "y", {"out": "y"}), "w:y a:y"),
    "torch function out=None": (("call_function", torch.add, "x", "y", {"out": None}), ""),
    "torch in-place function": (("call_function", torch.relu_, "x"), "w:x a:x"),
    "torch view function": (("call_function", torch.flatten, "x"), "a:x"),
    "torch.split": (("call_function", torch.split, "x", 1), "a:x"),
    "torch.broadcast_tensors": (("call_function", torch.broadcast_tensors, "x", "y"), "a:xy"),
    "torch.einsum": (("call_function", torch.einsum, "ij->ji", "x"), "a:x"),
    "torch.einsum of several": (("call_function", torch.einsum, "ij,jk->ik", "x", "y"), ""),
    "torch.einsum of a list": (("call_function", torch.einsum, "ij,jk->ik", ["x", "y"]), ""),
    "torch.einsum by numbers": (("call_function", torch.einsum, "x", [0, 1], "y", [1, 2], [0, 2]), ""),
    "einsum overload": (("call_function", aten.einsum.default, "ij->ji", ["x"]), "a:x"),
    "einsum overload of several": (("call_function", aten.einsum.default, "ij,jk->ik", ["x", "y"]), ""),
    "torch.cartesian_prod": (("call_function", torch.cartesian_prod, "x"), "a:x"),
    "torch.cartesian_prod of several": (("call_function", torch.cartesian_prod, "x", "y"), ""),
    "type_as": (("call_function", aten.type_as.default, "x", "y"), "a:x"),
    "method type_as": (("call_method", "type_as", "x", "y"), "a:x"),
    "unflatten_dense_tensors": (("call_function", aten.unflatten_dense_tensors.default, "x", ["y", "y"]), "a:x"),
    "torch.sort, not list.sort": (("call_function", torch.sort, "x"), ""),
    "torch.rand_like": (("call_function", torch.rand_like, "x"), "r"),
    "torch.manual_seed": (("call_function", torch.manual_seed, 0), "r!"),
    "torch._assert": (("call_function", torch._assert, "x", "no"), "!"),
    "torch._check": (("call_function", torch._check, "x"), "!"),
    "functional": (("call_function", nn.functional.relu, "x"), ""),
    "functional inplace=True": (("call_function", nn.functional.relu, "x", {"inplace": True}), "w:x a:x"),
    "functional inplace positional": (("call_function", nn.functional.relu, "x", True), "w:x a:x"),
    "functional dropout": (("call_function", nn.functional.dropout, "x"), "r"),
    "functional dropout off": (("call_function", nn.functional.dropout, "x", 0.5, False), "a:x"),
    "functional dropout p=0": (("call_function", nn.functional.dropout, "x", {"p": 0.0}), "a:x"),
    "functional pool": (("call_function", nn.functional.max_pool2d, "x", 2), ""),
    "functional gumbel": (("call_function", nn.functional.gumbel_softmax, "x"), "r"),
    "batch norm": (("call_function", nn.functional.batch_norm, "x", "y", "y"), ""),
    "batch norm, training": (("call_function", nn.functional.batch_norm, "x", "y", "y", {"training": True}), "w:y"),
    "batch norm overload": (
        ("call_function", aten.batch_norm.default, "x", None, None, "y", "y", True, 0.1, 1e-5, False),
        "w:y",
    ),
    "batch norm overload, eval": (
        ("call_function", aten.batch_norm.default, "x", None, None, "y", "y", False, 0.1, 1e-5, False),
        "",
    ),
    "embedding with max_norm": (("call_function", nn.functional.embedding, "x", "y", {"max_norm": 1.0}), "w:y"),
    "dropout overload": (("call_function", aten.dropout.default, "x", 0.5, True), "r"),
    "dropout overload, off": (("call_function", aten.dropout.default, "x", 0.5, False), "a:x"),
    "attention": (("call_function", aten.scaled_dot_product_attention.default, "x", "x", "x"), ""),
    "attention with dropout": (
        ("call_function", aten.scaled_dot_product_attention.default, "x", "x", "x", None, 0.5),
        "r",
    ),
    "flash attention without dropout": (
        ("call_function", aten._scaled_dot_product_flash_attention_for_cpu.default, "x", "x", "x"),
        "",
    ),
    "wait for a collective": (("call_function", torch.ops._c10d_functional.wait_tensor.default, "x"), "a:x !"),
    "collective": (("call_function", torch.ops._c10d_functional.all_reduce.default, "x", "sum", "0"), "!"),
    "operator": (("call_function", operator.add, "x", "y"), ""),
    "operator.iadd": (("call_function", operator.iadd, "x", "y"), "w:x a:x"),
    "operator.imatmul": (("call_function", operator.imatmul, "x", "y"), "w:x a:x"),
    "operator.setitem": (("call_function", operator.setitem, "x", 0, "y"), "w:x"),
    "operator.getitem": (("call_function", operator.getitem, "x", 0), "a:x"),
    "operator.pos": (("call_function", operator.pos, "x"), "a:x"),
    "operator.invert": (("call_function", operator.invert, "x"), ""),
    "getattr shape": (("call_function", getattr, "x", "shape"), ""),
    "getattr T": (("call_function", getattr, "x", "T"), "a:x"),
    "print": (("call_function", print, "x"), "!"),
    "method": (("call_method", "add", "x", "y"), ""),
    "in-place method": (("call_method", "add_", "x", "y"), "w:x a:x"),
    "unknown in-place method": (("call_method", "frobnicate_", "x"), "w:x a:x"),
    "view method": (("call_method", "view", "x", -1), "a:x"),
    "size method": (("call_method", "size", "x"), ""),
    "cast method": (("call_method", "float", "x"), "a:x"),
    "__setitem__": (("call_method", "__setitem__", "x", 0, "y"), "w:x"),
    "__iadd__": (("call_method", "__iadd__", "x", "y"), "w:x a:x"),
    "__radd__": (("call_method", "__radd__", "x", "y"), ""),
    "item": (("call_method", "item", "x"), ""),
    "backward": (("call_method", "backward", "x"), "w:x a:x r!"),
    "Tensor.backward as a function": (("call_function", torch.Tensor.backward, "x"), "w:x a:x r!"),
    "list append": (("call_method", "append", "x", "y"), "w:xy a:xy"),
    "Tensor method as a function": (("call_function", torch.Tensor.mul_, "x", "y"), "w:x a:x"),
    "unknown function": (("call_function", os.path.join, "x", "y"), "w:xy a:xy r!"),
    "unknown method": (("call_method", "frobnicate", "x"), "w:x a:x r!"),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_a_call_writes_aliases_draws_and_shows_to_the_world(case: str) -> None:
    (op, target, *args), expected = CALLS[case]
    kwargs = args.pop() if args and isinstance(args[-1], dict) else {}
    graph_module = one_call(op, target, *args, **kwargs)
    effects = analyze_effects(graph_module)
    call = node(graph_module, "call")

    def named(holds: Callable[[Node], bool]) -> str:
        return "".join(operand.name for operand in call.all_input_nodes if holds(operand))

    writes = named(lambda operand: not set(effects.storages(operand)).isdisjoint(effects.of(call).writes))
    aliases = named(lambda operand: effects.may_alias(call, operand))
    flags = "r" * effects.of(call).random + "!" * effects.of(call).world
    found = " ".join(part for part in (f"w:{writes}" * bool(writes), f"a:{aliases}" * bool(aliases), flags) if part)

    assert expected == found
    assert is_impure(call) == bool(writes or flags)
    assert bool(effects.of(call).reason) == bool(writes or flags)


def test_every_in_place_operator_of_python_writes_its_first_operand() -> None:
    names = words("iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor")
    for name in sorted(names):
        assert is_impure(node(one_call("call_function", getattr(operator, name), "x", "y"), "call")), name


def test_in_place_arithmetic_on_symbolic_sizes_is_ordinary_arithmetic() -> None:
    graph_module = one_call("call_function", operator.iadd, "x", 1)
    node(graph_module, "x").meta["val"] = 3

    assert not is_impure(node(graph_module, "call"))


def test_the_elements_of_a_tuple_have_storages_of_their_own() -> None:
    def write(graph: Graph, x: Node) -> Any:
        pair = graph.call_function(aten.max.dim, (x, 0))
        return [graph.call_function(operator.getitem, (pair, index)) for index in (0, 1)]

    graph_module = module_of(write)
    effects = analyze_effects(graph_module)
    values, indices = node(graph_module, "getitem"), node(graph_module, "getitem_1")

    assert not effects.may_alias(values, indices)
    assert set(effects.storages(node(graph_module, "max_dim"))) == {
        *effects.storages(values),
        *effects.storages(indices),
    }


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.broadcast_tensors, ("x", "y")),
        (torch.meshgrid, ("x", "y")),
        (aten.broadcast_tensors.default, (["x", "y"],)),
        (aten.meshgrid.indexing, (["x", "y"],)),
        (aten.atleast_2d.Sequence, (["x", "y"],)),
    ],
    ids=["broadcast_tensors", "meshgrid", "broadcast overload", "meshgrid overload", "atleast overload"],
)
def test_of_several_tensors_that_are_broadcast_each_result_is_a_view_of_one(target: Any, args: tuple[Any, ...]) -> None:
    graph_module = one_call("call_function", target, *args)
    call = node(graph_module, "call")
    with graph_module.graph.inserting_after(call):
        first, second = (graph_module.graph.call_function(operator.getitem, (call, index)) for index in (0, 1))
    effects = analyze_effects(graph_module)

    assert effects.storages(node(graph_module, "x")) == effects.storages(first)
    assert effects.storages(node(graph_module, "y")) == effects.storages(second)
    assert effects.storages(first) != effects.storages(second)


def test_reasons_say_what_is_wrong_with_a_node() -> None:
    def reason(*call: Any) -> str:
        graph_module = one_call(*call)
        return analyze_effects(graph_module).of(node(graph_module, "call")).reason

    assert reason("call_function", aten.add_.Tensor, "x", "y") == "add_ writes x"
    assert reason("call_function", aten.rand_like.default, "x") == "rand_like draws random numbers"
    assert reason("call_function", print, "x") == "print acts on the world"
    assert reason("call_function", os.path.join, "x") == "nobody knows what join does"


# --- modules --------------------------------------------------------------------------------------------------------


class Opaque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


MODULES: dict[str, tuple[nn.Module, str]] = {
    "linear": (nn.Linear(3, 3), ""),
    "batch norm, training": (nn.BatchNorm1d(3).train(), "state"),
    "batch norm, eval": (nn.BatchNorm1d(3).eval(), ""),
    "batch norm without statistics": (nn.BatchNorm1d(3, track_running_stats=False), ""),
    "instance norm with statistics": (nn.InstanceNorm1d(3, track_running_stats=True), "state"),
    "dropout, training": (nn.Dropout().train(), "random"),
    "dropout, eval": (nn.Dropout().eval(), "alias"),
    "dropout p=0": (nn.Dropout(0.0).train(), "alias"),
    "relu in place": (nn.ReLU(inplace=True), "writes alias"),
    "rrelu": (nn.RReLU().train(), "random"),
    "identity": (nn.Identity(), "alias"),
    "flatten": (nn.Flatten(), "alias"),
    "embedding with max_norm": (nn.Embedding(3, 3, max_norm=1.0), "state"),
    "lstm with dropout": (nn.LSTM(3, 3, 2, dropout=0.5).train(), "random"),
    "sequence with a dropout": (nn.Sequential(nn.Linear(3, 3), nn.Dropout()).train(), "random alias"),
    "user's own module": (Opaque(), "writes state random world alias"),
    "subclass of a known module": (type("MyLinear", (nn.Linear,), {})(3, 3), "writes state random world alias"),
    "graph module": (symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU())), ""),
    "graph module with dropout": (symbolic_trace(nn.Sequential(nn.Dropout())).train(), "random"),
    "graph module that writes": (symbolic_trace(nn.Sequential(nn.ReLU(inplace=True))), "writes alias"),
}


@pytest.mark.parametrize("case", MODULES)
def test_what_a_called_module_does_depends_on_its_class_and_switches(case: str) -> None:
    module, expected = MODULES[case]
    root = nn.Module()
    root.add_module("inner", module)
    graph_module = module_of(lambda graph, x: graph.create_node("call_module", "inner", (x,), name="call"), root)
    effects = analyze_effects(graph_module)
    x, call = node(graph_module, "x"), node(graph_module, "call")
    facts = {
        "writes": not set(effects.storages(x)).isdisjoint(effects.of(call).writes),
        "state": not set(effects.real_tensors()).isdisjoint(effects.of(call).writes),
        "random": effects.of(call).random,
        "world": effects.of(call).world,
        "alias": effects.may_alias(x, call),
    }
    found = [fact for fact, holds in facts.items() if holds]
    if "dropout" in case and "off" not in case and module.training and "alias" not in expected:
        found = [fact for fact in found if fact != "alias"]

    assert expected.split() == found
    assert is_impure(call) == bool(set(found) - {"alias"})


def test_a_module_with_a_hook_may_do_anything() -> None:
    root = nn.Module()
    root.add_module("inner", nn.Linear(3, 3))
    root.inner.register_forward_hook(lambda *_: None)
    graph_module = module_of(lambda graph, x: graph.create_node("call_module", "inner", (x,), name="call"), root)

    assert analyze_effects(graph_module).of(node(graph_module, "call")).reason == (
        "module 'inner' holds Linear, which is opaque"
    )


def test_a_call_of_a_module_that_is_not_there_is_impure_and_no_crash() -> None:
    graph_module = module_of(lambda graph, x: graph.call_function(operator.neg, (x,)))
    call = graph_module.graph.create_node("call_module", "gone")

    assert analyze_effects(graph_module).of(call).reason == "there is no module 'gone'"


def test_a_body_that_calls_itself_is_taken_to_do_anything() -> None:
    root = nn.Module()
    root.again = nn.Identity()
    inner = module_of(lambda graph, x: graph.call_module("again", (x,)), root)
    root.add_module("inner", inner)
    graph_module = module_of(lambda graph, x: graph.create_node("call_module", "inner", (x,), name="call"), root)
    inner.again = inner

    assert "calls itself" in analyze_effects(graph_module).of(node(graph_module, "call")).reason


def test_keywords_of_a_called_graph_are_bound_by_name() -> None:
    graph = Graph()
    first, second = graph.placeholder("first"), graph.placeholder("second")
    graph.call_method("add_", (second, 1))
    graph.output(first)
    root = nn.Module()
    root.add_module("inner", GraphModule(nn.Module(), graph))
    outer = Graph()
    x, y = outer.placeholder("x"), outer.placeholder("y")
    outer.output(outer.create_node("call_module", "inner", (), {"second": x, "first": y}, name="call"))
    graph_module = GraphModule(root, outer)
    effects = analyze_effects(graph_module)
    call = node(graph_module, "call")

    assert effects.storages(node(graph_module, "x")) == effects.of(call).writes
    assert effects.storages(node(graph_module, "y")) == effects.storages(call)


# --- storages -------------------------------------------------------------------------------------------------------


def test_tied_attributes_share_a_storage() -> None:
    root = nn.Module()
    root.weight = nn.Parameter(torch.ones(2, 3))
    root.tied = root.weight
    root.register_buffer("row", root.weight.detach()[0])
    root.other = nn.Parameter(torch.ones(2, 3))

    def write(graph: Graph, x: Node) -> Any:
        return [graph.get_attr(name) for name in ("weight", "tied", "row", "other")]

    graph_module = module_of(write, root)
    effects = analyze_effects(graph_module)
    weight, tied, row, other = (node(graph_module, name) for name in ("weight", "tied", "row", "other"))

    assert effects.storages(weight) == effects.storages(tied) == effects.storages(row)
    assert not effects.may_alias(weight, other)


def test_a_called_module_writes_the_attributes_of_the_same_tensors() -> None:
    root = nn.Module()
    root.norm = nn.BatchNorm1d(3)

    def write(graph: Graph, x: Node) -> Any:
        before = graph.call_function(aten.neg.default, (graph.get_attr("norm.running_mean"),))
        graph.call_module("norm", (x,))
        return before, graph.call_function(aten.abs.default, (graph.get_attr("norm.running_mean"),))

    assert {("neg_default", "norm"), ("norm", "abs_default")} <= set(edges(module_of(write, root)))


@pytest.mark.parametrize(
    ("op", "target", "others"),
    [
        ("call_function", aten.set_.source_Tensor, ()),
        ("call_function", aten.set_.source_Tensor_storage_offset, (0, [3], [1])),
        ("call_function", aten.set.source_Tensor, ()),
        ("call_method", "set_", ()),
    ],
)
def test_a_tensor_that_is_set_to_another_shows_it(op: str, target: Any, others: tuple[Any, ...]) -> None:
    """Both names share memory from then on, so that no read of one crosses a write to the other."""
    graph = Graph()
    x = graph.placeholder("x")
    empty = graph.call_function(aten.empty.memory_format, ([0],), name="empty")
    shown = graph.create_node(op, target, (empty, x, *others), name="shown")
    before = graph.call_function(aten.add.Tensor, (shown, 1), name="before")
    graph.call_function(aten.mul_.Tensor, (x, 3), name="write")
    graph.output((before, graph.call_function(aten.add.Tensor, (shown, 1), name="after")))
    module = GraphModule(nn.Module(), graph)
    effects = analyze_effects(module)

    assert effects.storages(x) == effects.storages(shown) == effects.storages(empty)
    assert {("before", "write"), ("write", "after")} <= set(edges(module))
    assert not CSEPass()(module).modified


def test_a_view_reads_nothing_but_is_ordered_once_shapes_change_in_place() -> None:
    def write(graph: Graph, x: Node, changes: str) -> Any:
        view = graph.call_method("view", (x, 6))
        graph.call_method(changes, (x,))
        return view

    plain = module_of(lambda graph, x: write(graph, x, "sin_"))
    reshaped = module_of(lambda graph, x: write(graph, x, "t_"))

    assert ("view", "sin_") not in edges(plain)
    assert ("view", "t_") in edges(reshaped)


def test_an_input_that_shares_memory_with_another_by_its_example_is_the_same_storage() -> None:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["val"] = torch.ones(2, 3)
    y.meta["val"] = x.meta["val"][0]
    graph.output((x, y))

    assert analyze_effects(graph).may_alias(x, y)


# --- order ----------------------------------------------------------------------------------------------------------


def sine_between(graph: Graph, x: Node) -> Any:
    y = graph.call_function(operator.add, (x, 1), {}, None)
    graph.call_method("sin_", (x,))
    return y, graph.call_function(operator.add, (x, 2))


def test_complaint_01_a_read_does_not_cross_a_write() -> None:
    graph_module = module_of(sine_between)
    effects = analyze_effects(graph_module)
    add, sine, add_1 = (node(graph_module, name) for name in ("add", "sin_", "add_1"))

    assert edges(graph_module)[:2] == [("add", "sin_"), ("sin_", "add_1")]
    assert effects.why_ordered(add, sine) == "add reads x, which sin_ writes"
    assert effects.why_ordered(sine, add_1) == "sin_ writes x, which add_1 reads"


def test_a_view_stays_behind_the_writes_before_it_unless_its_base_does() -> None:
    """If the first write makes the memory need a gradient, a view that was taken before it cannot be written to."""

    def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = x[:2]
        first.copy_(y)
        second = x[2:]
        row = second[0]
        row.copy_(y[0])
        return x + 1

    graph_module = symbolic_trace(halves)
    effects = analyze_effects(graph_module)
    first_write, second_write = (found for found in graph_module.graph.nodes if found.target == "copy_")
    _first, second, row, _y = (found for found in graph_module.graph.nodes if found.target is operator.getitem)

    assert (first_write, second) in effects.order_edges
    assert (first_write, row) not in effects.order_edges
    assert effects.why_ordered(first_write, second) == "copy_ writes x, which getitem_1 is a view of"
    assert (first_write, second_write) not in effects.order_edges  # by way of the view


def test_complaint_01_merging_the_two_reads_is_refused_with_the_path() -> None:
    graph_module = module_of(sine_between)
    dependencies = Dependencies.of(graph_module)
    add, add_1 = (dependencies.position[node(graph_module, name)] for name in ("add", "add_1"))
    merger = dependencies.merger()

    assert not merger.may_merge(add, add_1)
    path = merger.blocking_path(add, add_1)
    assert dependencies.describe(path) == (
        "add -> sin_ (add reads x, which sin_ writes) -> add_1 (sin_ writes x, which add_1 reads)"
    )


def test_the_number_of_edges_is_linear_in_the_readers() -> None:
    def write(graph: Graph, x: Node) -> Any:
        for _ in range(10):
            for _ in range(10):
                graph.call_function(aten.sin.default, (x,))
            graph.call_method("add_", (x, 1))
        return x

    assert len(edges(module_of(write))) == 100 + 90 + 1  # to the next writer, to the next readers, to the end


def test_random_operators_and_side_effects_are_chained() -> None:
    def write(graph: Graph, x: Node) -> Any:
        first = graph.call_function(torch.rand_like, (x,))
        graph.call_function(print, (x,))
        second = graph.call_function(nn.functional.dropout, (x,))
        graph.call_function(torch._assert, (True, "yes"))
        return first, second

    graph_module = module_of(write)
    effects = analyze_effects(graph_module)

    assert edges(graph_module)[:2] == [("rand_like", "dropout"), ("print_1", "_assert")]
    assert effects.why_ordered(node(graph_module, "rand_like"), node(graph_module, "dropout")) == (
        "rand_like and dropout both draw random numbers"
    )
    assert effects.why_ordered(node(graph_module, "print_1"), node(graph_module, "_assert")) == (
        "print_1 and _assert both act on the world"
    )


def test_an_assertion_on_a_symbol_stays_before_what_it_guards() -> None:
    def write(graph: Graph, x: Node) -> Any:
        size = graph.call_method("item", (x,))
        size.meta["val"] = 3
        holds = graph.call_function(operator.ge, (size, 0))
        holds.meta["val"] = True
        graph.call_function(aten._assert_scalar.default, (holds, "size must not be negative"))
        twice = graph.call_function(operator.mul, (size, 2))
        twice.meta["val"] = 6
        return graph.call_function(aten.zeros.default, ([twice],))

    graph_module = module_of(write)

    assert ("_assert_scalar_default", "zeros_default") in edges(graph_module)
    assert analyze_effects(graph_module).why_ordered(
        node(graph_module, "_assert_scalar_default"), node(graph_module, "zeros_default")
    ) == ("_assert_scalar_default asserts what zeros_default relies on")


def test_nodes_out_of_order_are_analysed_in_an_order_that_runs() -> None:
    graph_module = module_of(sine_between)
    graph_module.graph._root.append(node(graph_module, "add_1"))
    effects = analyze_effects(graph_module)

    assert [found.name for found in effects.nodes] == ["x", "add_1", "add", "sin_", "output"]


def test_a_circle_of_data_is_an_error_that_names_it() -> None:
    graph_module = module_of(sine_between)
    node(graph_module, "add").args = (node(graph_module, "add_1"), 1)
    node(graph_module, "add_1").args = (node(graph_module, "add"), 2)

    with pytest.raises(CycleError, match="cycle: add") as caught:
        analyze_effects(graph_module)
    assert isinstance(caught.value, RuntimeError)


def test_complaint_38_a_long_chain_of_writes_needs_no_recursion_and_no_edges() -> None:
    def write(graph: Graph, x: Node) -> Any:
        for _ in range(20_000):
            x = graph.call_method("add_", (x, 1))
        return x

    graph_module = module_of(write)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        effects = analyze_effects(graph_module)
        needed = effects.needed_nodes()
    finally:
        sys.setrecursionlimit(limit)

    assert effects.order_edges == []  # each takes the result of the one before
    assert len(needed) == 20_002


# --- regions --------------------------------------------------------------------------------------------------------

ENTER, EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


def nested_regions(graph: Graph, x: Node) -> Any:
    outside = graph.call_function(torch.mm, (x, x))
    enter = graph.call_function(ENTER, ("cpu", torch.bfloat16, True, False))
    half = graph.call_function(torch.mm, (x, x))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    inner = graph.call_function(torch.mm, (x, x))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.call_function(EXIT, (enter,))
    return outside, half, inner, graph.call_function(torch.mm, (x, x))


def test_complaint_21_no_node_crosses_a_region_marker() -> None:
    graph_module = module_of(nested_regions)
    found = edges(graph_module)

    assert found[:4] == [
        ("mm", "_enter_autocast"),
        ("_enter_autocast", "mm_1"),
        ("mm_1", "_set_grad_enabled"),
        ("_set_grad_enabled", "mm_2"),
    ]
    assert ("_set_grad_enabled_1", "_exit_autocast") in found
    assert ("_exit_autocast", "mm_3") in found


def test_complaint_21_each_node_knows_the_regions_that_are_open_around_it() -> None:
    graph_module = module_of(nested_regions)
    effects = analyze_effects(graph_module)

    def stack(name: str) -> list[str]:
        return [marker.name for marker in effects.region_stack(node(graph_module, name))]

    assert stack("mm") == []
    assert stack("mm_1") == ["_enter_autocast"]
    assert stack("mm_2") == ["_enter_autocast", "_set_grad_enabled"]
    assert stack("mm_3") == []
    assert stack("_enter_autocast") == ["_enter_autocast"]
    assert effects.of(node(graph_module, "_enter_autocast")).region is RegionKind.AUTOCAST
    assert effects.of(node(graph_module, "_set_grad_enabled")).region is RegionKind.GRAD_MODE


def test_the_end_of_a_vmap_ends_its_region() -> None:
    """What it loads before it begins is a switch that nothing closes; a level inside of another ends by itself."""

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = torch.vmap(torch.vmap(torch.cumsum, in_dims=(0, None)), in_dims=(0, None))(x, 0)
            return torch.vmap(torch.sin)(inner.cos())

    graph_module = torch.export.export(Twice(), (torch.randn(2, 3, 4),)).graph_module
    effects = analyze_effects(graph_module)
    depth = {node.name: len(effects.region_stack(node)) for node in graph_module.graph.nodes}

    assert {"cumsum": 4, "_vmap_decrement_nesting": 2, "cos": 0, "sin": 2, "output": 0}.items() <= depth.items()


def test_a_mode_that_was_asked_for_before_a_region_closes_it() -> None:
    """The end of a region may set what ``is_grad_enabled`` said: no region is left open then."""

    def write(graph: Graph, x: Node) -> Any:
        before = graph.call_function(torch.is_grad_enabled)
        graph.call_function(torch._C._set_grad_enabled, (False,))
        inside = graph.call_function(torch.mm, (x, x))
        graph.call_function(torch._C._set_grad_enabled, (before,))
        return graph.call_function(torch.mm, (inside, x))

    graph_module = module_of(write)
    effects = analyze_effects(graph_module)

    assert ["_set_grad_enabled"] == [each.name for each in effects.region_stack(node(graph_module, "mm"))]
    assert () == effects.region_stack(node(graph_module, "mm_1"))
    assert () == effects.region_stack(graph_module.graph.output_node())


def test_inference_mode_and_other_switches_are_barriers_too() -> None:
    def write(graph: Graph, x: Node) -> Any:
        mode = graph.call_function(torch.autograd.grad_mode._enter_inference_mode, (True,))
        y = graph.call_function(operator.add, (x, 1))
        graph.call_function(torch.autograd.grad_mode._exit_inference_mode, (mode,))
        graph.call_function(torch.set_default_dtype, (torch.float32,))
        return y

    graph_module = module_of(write)
    kinds = [effects.region for effects in map(analyze_effects(graph_module).of, graph_module.graph.nodes)]

    assert kinds == [
        None,
        RegionKind.INFERENCE_MODE,
        None,
        RegionKind.INFERENCE_MODE,
        RegionKind.GLOBAL_STATE,
        None,
    ]
    assert ("add", "_exit_inference_mode") in edges(graph_module)


# --- bodies ---------------------------------------------------------------------------------------------------------


def with_cond(true: Callable[[Graph, Node], Any], false: Callable[[Graph, Node], Any]) -> GraphModule:
    """``y = x + 1``, a ``cond`` on x, ``z = x + 2``."""
    root = nn.Module()
    root.true = module_of(lambda graph, x: (true(graph, x),))
    root.false = module_of(lambda graph, x: (false(graph, x),))

    def write(graph: Graph, x: Node) -> Any:
        before = graph.call_function(operator.add, (x, 1))
        bodies = graph.get_attr("true"), graph.get_attr("false")
        result = graph.call_function(torch.ops.higher_order.cond, (True, *bodies, (x,)))
        first = graph.call_function(operator.getitem, (result, 0))
        return before, first, graph.call_function(operator.add, (x, 2))

    return module_of(write, root)


def pure_branch(graph: Graph, x: Node) -> Any:
    return graph.call_method("cos", (x,))


def writing_branch(graph: Graph, x: Node) -> Any:
    return graph.call_method("sin", (graph.call_method("add_", (x, 1)),))


def random_branch(graph: Graph, x: Node) -> Any:
    return graph.call_function(torch.rand_like, (x,))


def printing_branch(graph: Graph, x: Node) -> Any:
    graph.call_function(print, ("here",))
    return graph.call_method("cos", (x,))


def test_complaint_22_a_cond_does_what_its_branches_do() -> None:
    pure = with_cond(pure_branch, pure_branch)
    writing = with_cond(pure_branch, writing_branch)
    drawing = with_cond(random_branch, pure_branch)
    printing = with_cond(pure_branch, printing_branch)

    assert not is_impure(node(pure, "cond"))
    assert edges(pure) == []
    assert edges(writing)[:2] == [("add", "cond"), ("cond", "add_1")]
    assert analyze_effects(writing).of(node(writing, "cond")).reason == "the body of cond is not pure: add_ writes x"
    assert analyze_effects(drawing).of(node(drawing, "cond")).random
    assert analyze_effects(printing).of(node(printing, "cond")).world


def test_complaint_22_a_pure_region_inside_a_body_leaves_the_call_pure() -> None:
    def branch(graph: Graph, x: Node) -> Any:
        enter = graph.call_function(ENTER, ("cpu", torch.bfloat16, True, False))
        y = graph.call_method("cos", (x,))
        graph.call_function(EXIT, (enter,))
        return y

    def open_branch(graph: Graph, x: Node) -> Any:
        graph.call_function(ENTER, ("cpu", torch.bfloat16, True, False))
        return graph.call_method("cos", (x,))

    assert not is_impure(node(with_cond(branch, pure_branch), "cond"))
    assert is_impure(node(with_cond(open_branch, pure_branch), "cond"))


def test_a_body_that_returns_its_operand_aliases_it() -> None:
    graph_module = with_cond(lambda graph, x: x, pure_branch)

    assert analyze_effects(graph_module).may_alias(node(graph_module, "getitem"), node(graph_module, "x"))


def test_writes_in_a_body_to_an_attribute_are_seen_outside() -> None:
    root = nn.Module()
    root.register_buffer("state", torch.zeros(3))
    root.true = module_of(lambda graph, x: (graph.call_method("add_", (graph.get_attr("state"), x)),), root)
    root.false = module_of(lambda graph, x: (graph.call_method("cos", (x,)),))

    def write(graph: Graph, x: Node) -> Any:
        bodies = graph.get_attr("true"), graph.get_attr("false")
        graph.call_function(torch.ops.higher_order.cond, (True, *bodies, (x,)))
        return graph.call_method("sin", (graph.get_attr("state"),))

    assert ("cond", "sin") in edges(module_of(write, root))


def test_of_the_results_of_a_called_graph_only_those_that_show_its_state_alias_it() -> None:
    """One gives back a buffer, one a view of the input; the third is fresh, and so is what is written to it."""
    root = nn.Module()
    root.register_buffer("state", torch.zeros(3))

    def inside(graph: Graph, x: Node) -> Any:
        counted = graph.call_method("add_", (graph.get_attr("state"), 1))
        return (counted, graph.call_method("view", (x, -1)), graph.call_method("sin", (x,)))

    def outside(graph: Graph, x: Node) -> Any:
        call = graph.call_module("part", (x,))
        state, view, fresh = (graph.call_function(operator.getitem, (call, index)) for index in range(3))
        state.name, view.name, fresh.name = "shown", "view", "fresh"
        return (graph.get_attr("part.state"), state, view, graph.call_method("add_", (fresh, 1)))

    holder = nn.Module()
    holder.part = module_of(inside, root)
    effects = analyze_effects(module := module_of(outside, holder))
    shown, view, fresh, state, x = (node(module, name) for name in ("shown", "view", "fresh", "part_state", "x"))

    assert effects.may_alias(shown, state)
    assert effects.may_alias(view, x)
    assert not any(effects.may_alias(one, other) for one, other in [(fresh, state), (fresh, x), (view, shown)])
    assert effects.storages(fresh) == effects.of(node(module, "add_")).writes


@pytest.mark.parametrize(
    "name", ["map_impl", "scan", "while_loop", "wrap", "invoke_subgraph", "tag_activation_checkpoint"]
)
def test_the_bodies_of_higher_order_operators_are_looked_into(name: str) -> None:
    from torch._higher_order_ops.map import map_impl
    from torch._higher_order_ops.wrap import wrap

    target = {"map_impl": map_impl, "wrap": wrap}.get(name) or getattr(torch.ops.higher_order, name)

    def call(body: Callable[[Graph, Node], Any]) -> GraphModule:
        root = nn.Module()
        root.body = module_of(lambda graph, x: (body(graph, x),))

        def write(graph: Graph, x: Node) -> Any:
            inner = graph.get_attr("body")
            args: dict[str, tuple[Any, ...]] = {
                "map_impl": (inner, [x], []),
                "scan": (inner, [], [x], ()),
                "while_loop": (inner, inner, (x,), ()),
                "invoke_subgraph": (inner, "name", x),
            }
            return graph.create_node("call_function", target, args.get(name, (inner, x)), name="call")

        return module_of(write, root)

    pure, writing, drawing = call(pure_branch), call(writing_branch), call(random_branch)

    assert not is_impure(node(pure, "call"))
    assert analyze_effects(writing).of(node(writing, "call")).writes == (0,)
    assert analyze_effects(drawing).of(node(drawing, "call")).random


def test_auto_functionalized_calls_are_pure_and_token_calls_are_not() -> None:
    functional = torch.ops.higher_order.auto_functionalized_v2
    pure = one_call("call_function", functional, aten.relu_.default, _x_base_index=0, _all_bases=["x"])
    token = one_call("call_function", torch.ops.higher_order.with_effects, "x", aten._print.default, "hi")
    effects = analyze_effects(token).of(node(token, "call"))

    assert not is_impure(node(pure, "call"))
    assert effects.world
    assert effects.region is RegionKind.EFFECT_TOKEN


# --- what users say -------------------------------------------------------------------------------------------------


def kernel(x: Any, y: Any) -> Any:
    return x + y


def test_an_unknown_function_is_impure_until_it_is_registered() -> None:
    graph_module = one_call("call_function", kernel, "x", "y")
    before = is_impure(node(graph_module, "call"))
    register_pure(kernel)
    after = is_impure(node(graph_module, "call"))

    from fxpasses.effects.analysis import USER_REGISTRY

    USER_REGISTRY.forget(kernel)

    assert (before, after) == (True, False)
    assert is_impure(node(graph_module, "call"))


def test_a_registry_of_ones_own_says_what_a_target_writes() -> None:
    registry = Registry()

    @registry.effects(kernel)
    def writes_first(call: Node) -> CallEffects:
        return CallEffects(writes=tuple(call.all_input_nodes[:1]), reason="kernel writes its first operand")

    graph_module = one_call("call_function", kernel, "x", "y")
    effects = analyze_effects(graph_module, registry=registry)

    assert effects.of(node(graph_module, "call")).writes == effects.storages(node(graph_module, "x"))
    assert effects.of(node(graph_module, "call")).reason == "kernel writes its first operand"


def test_a_module_class_and_a_method_can_be_registered() -> None:
    registry = Registry()
    registry.pure(Opaque)
    registry.pure("frobnicate", may_alias=True)
    root = nn.Module()
    root.inner = Opaque()

    def write(graph: Graph, x: Node) -> Any:
        return graph.call_module("inner", (x,)), graph.call_method("frobnicate", (x,))

    graph_module = module_of(write, root)
    effects = analyze_effects(graph_module, registry=registry)

    assert effects.of(node(graph_module, "inner")).is_pure
    assert effects.of(node(graph_module, "inner")).reads[1:] == tuple(effects.real_tensors())
    assert effects.may_alias(node(graph_module, "frobnicate"), node(graph_module, "x"))


def test_register_effects_works_as_a_decorator() -> None:
    from fxpasses.effects.analysis import USER_REGISTRY

    @register_effects(kernel)
    def rule(call: Node) -> CallEffects:
        return CallEffects(random=True, reason="kernel draws random numbers")

    graph_module = one_call("call_function", kernel, "x", "y")
    found = analyze_effects(graph_module).of(node(graph_module, "call"))
    USER_REGISTRY.forget(kernel)

    assert found.random
    assert not found.world


# --- exported programs ----------------------------------------------------------------------------------------------


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.tied = self.weight
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        y.mul_(2)
        return x * self.weight + self.tied * y + self.count


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return torch.export.export(Stateful(), (torch.ones(3), torch.ones(3)))


def test_tied_parameters_of_a_program_share_a_storage(program: torch.export.ExportedProgram) -> None:
    graph_module = program.graph_module
    effects = analyze_effects(graph_module, program=program)
    lifted = [found for found in graph_module.graph.nodes if found.name in ("p_weight", "p_tied")]

    assert len({effects.storages(found) for found in lifted}) == 1
    assert not effects.may_alias(node(graph_module, "b_count"), lifted[0])


def test_buffers_of_a_program_that_share_memory_are_ordered_with_and_without_the_program() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(2, 3))
            self.register_buffer("row", self.state[0])

        def forward(self, x: torch.Tensor) -> Any:
            before = self.row + 1
            self.state.add_(x)
            return before, self.row + 1

    program = torch.export.export(Model(), (torch.ones(2, 3),))

    for known in (None, program):
        found = analyze_effects(program.graph_module, program=known).order_edges
        assert [(earlier.name, later.name) for earlier, later in found[:2]] == [("add", "add_"), ("add_", "add_1")]


def test_what_a_program_copies_back_is_written_by_its_output(program: torch.export.ExportedProgram) -> None:
    functional = program.run_decompositions({})
    graph_module = functional.graph_module
    effects = analyze_effects(graph_module, signature=functional.graph_signature)
    output = next(found for found in graph_module.graph.nodes if found.op == "output")
    targets = [target.name for target in effects.copy_backs.values()]

    assert sorted(targets) == ["b_count", "y"]
    assert set(effects.of(output).writes) == {
        *effects.storages(node(graph_module, "b_count")),
        *effects.storages(node(graph_module, "y")),
    }
    assert all(effects.of(found).is_pure for found in graph_module.graph.nodes if found.op == "call_function")


def test_the_guards_of_an_exported_module_act_on_the_world(program: torch.export.ExportedProgram) -> None:
    graph_module = program.module()
    effects = analyze_effects(graph_module).of(node(graph_module, "_guards_fn"))

    assert effects.world
    assert not effects.writes
    assert effects.reason == "module '_guards_fn' checks the inputs"


class Checked(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        count = x.sum().to(torch.int64).item()
        torch._check(count >= 0)
        torch._check(count < 100)
        return torch.zeros(count), x.nonzero(), x * count


def test_unbacked_symbols_are_followed_like_values() -> None:
    program = torch.export.export(Checked(), (torch.ones(3),))
    expected = [tensor.clone() for tensor in program.module()(torch.ones(3))]
    graph_module = program.module()
    effects = analyze_effects(graph_module)
    asserts = [found for found in graph_module.graph.nodes if "assert" in found.name or "constrain" in found.name]
    zeros = next(found for found in graph_module.graph.nodes if "zeros" in found.name)

    assert asserts
    assert all(effects.of(found).world and not effects.is_removable(found) for found in asserts)
    assert any(later is zeros for _, later in effects.order_edges)
    assert not EliminateDeadCode()(graph_module).modified
    for seed in range(5):
        reordered = reorder(graph_module, legal_order(graph_module, random.Random(seed)))
        assert all(map(torch.equal, expected, reordered(torch.ones(3))))
        with pytest.raises(RuntimeError):
            reordered(-torch.ones(3))


def test_an_exported_module_that_is_called_checks_its_inputs_and_is_known_besides() -> None:
    root = nn.Module()
    root.inner = torch.export.export(nn.Linear(3, 3), (torch.ones(2, 3),)).module()
    graph_module = module_of(lambda graph, x: graph.create_node("call_module", "inner", (x,), name="call"), root)
    effects = analyze_effects(graph_module).of(node(graph_module, "call"))

    assert not effects.writes
    assert not effects.random
    assert effects.world


@pytest.mark.parametrize("name", ["cond", "map", "scan", "while_loop"])
def test_complaint_22_exported_control_flow_is_pure_where_its_bodies_are(name: str) -> None:
    from functorch.experimental.control_flow import map as control_map
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    forms: dict[str, Callable[[torch.Tensor], Any]] = {
        "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
        "map": lambda x: control_map(lambda a, b: a + b, x, torch.ones(3)),
        "scan": lambda x: scan(lambda carry, a: (carry + a, carry * a), torch.zeros(3), x),
        "while_loop": lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)),
    }

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return forms[name](x)

    graph_module = torch.export.export(Model(), (torch.ones(2, 3),)).graph_module
    effects = analyze_effects(graph_module)
    (call,) = [found for found in graph_module.graph.nodes if isinstance(found.target, HigherOrderOperator)]

    assert effects.of(call).is_pure
    assert effects.is_removable(call)
    assert effects.may_alias(call, node(graph_module, "x")) == (name == "while_loop")  # it may run zero times


# --- more sources ---------------------------------------------------------------------------------------------------


def test_a_dict_that_takes_a_tensor_in_shares_its_memory() -> None:
    def write(graph: Graph, x: Node) -> Any:
        table = graph.call_function(dict, ())
        graph.call_function(operator.setitem, (table, "key", x))
        again = graph.call_function(operator.getitem, (table, "key"))
        graph.call_method("add_", (again, 1))
        return graph.call_method("sin", (x,))

    assert ("add_", "sin") in edges(module_of(write))


def test_streams_are_barriers() -> None:
    def write(graph: Graph, x: Node) -> Any:
        before = graph.call_method("sin", (x,))
        graph.call_method("wait_stream", (graph.get_attr("stream"),))
        return before, graph.call_method("cos", (x,))

    root = nn.Module()
    root.stream = None

    found = edges(module_of(write, root))
    assert ("sin", "wait_stream") in found
    assert ("wait_stream", "cos") in found


def test_in_place_collectives_write_their_operands_though_their_schema_does_not_say_so() -> None:
    target = torch.ops.c10d.allreduce_.default
    graph_module = one_call("call_function", target, ["x"], "y", 0, None, -1)
    effects = analyze_effects(graph_module)

    assert effects.storages(node(graph_module, "x"))[0] in effects.of(node(graph_module, "call")).writes
    assert effects.of(node(graph_module, "call")).world


def test_a_forward_put_on_a_module_makes_it_opaque() -> None:
    root = nn.Module()
    root.inner = nn.Linear(3, 3)
    root.inner.forward = root.inner.forward  # as offloading tools patch it
    graph_module = module_of(lambda graph, x: graph.create_node("call_module", "inner", (x,), name="call"), root)

    assert "opaque" in analyze_effects(graph_module).of(node(graph_module, "call")).reason


def test_attributes_of_a_graph_without_a_module_are_known_by_name() -> None:
    graph = Graph()
    first, second, other = (graph.get_attr(name) for name in ("w", "w", "v"))
    graph.output((first, second, other))
    effects = analyze_effects(graph)

    assert effects.may_alias(first, second)
    assert not effects.may_alias(first, other)


def test_needed_nodes_are_what_somebody_would_miss() -> None:
    def write(graph: Graph, x: Node) -> Any:
        scratch = graph.call_method("clone", (x,))
        graph.call_method("add_", (scratch, 1))
        seen = graph.call_method("sum", (scratch,))
        graph.call_method("mul_", (scratch, 2))
        graph.call_method("neg_", (x,))
        return seen

    needed = [found.name for found in analyze_effects(module_of(write)).needed_nodes()]

    assert needed == ["x", "clone", "add_", "sum_1", "neg_", "output"]


# --- meaning kept ---------------------------------------------------------------------------------------------------


def legal_order(graph_module: GraphModule, rng: random.Random) -> list[Node]:
    """A random order that data and order edges allow."""
    dependencies = Dependencies.of(graph_module)
    waiting = [len(row) for row in dependencies.predecessor_lists]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[Node] = []
    while ready:
        inputs = [index for index in ready if dependencies.nodes[index].op == "placeholder"]
        middle = [index for index in ready if dependencies.nodes[index].op not in ("placeholder", "output")]
        index = inputs[0] if inputs else rng.choice(middle or ready)
        ready.remove(index)
        order.append(dependencies.nodes[index])
        for user in dependencies.successor_lists[index]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    assert len(order) == len(dependencies)
    return order


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(6.0).reshape(2, 3))
        self.norm = nn.BatchNorm1d(3).requires_grad_(False)


def variant(between: Callable[[Graph, Node], Any]) -> Callable[[], GraphModule]:
    """``y = x + 1``, something, ``z = x + 1`` again, so that all of reordering, DCE and CSE have something to spoil."""

    def write(graph: Graph, x: Node) -> Any:
        before = graph.call_function(operator.add, (x, 1))
        extra = between(graph, x)
        after = graph.call_function(operator.add, (x, 1))
        return before, after, extra

    return lambda: module_of(write, State())


def _view(graph: Graph, x: Node) -> Any:
    graph.call_method("mul_", (graph.call_method("view", (x, -1)), 2))


def _slice(graph: Graph, x: Node) -> Any:
    graph.call_function(aten.zero_.default, (graph.call_function(operator.getitem, (x, (slice(None), 0))),))


def _view_of_view(graph: Graph, x: Node) -> Any:
    row = graph.call_function(operator.getitem, (graph.call_method("t", (x,)), 0))
    graph.call_method("neg_", (graph.call_method("reshape", (row, -1)),))


def _out(graph: Graph, x: Node) -> Any:
    graph.call_function(torch.sin, (x,), {"out": x})


def _buffer(graph: Graph, x: Node) -> Any:
    read = graph.call_method("sum", (graph.get_attr("state"),))
    graph.call_method("add_", (graph.get_attr("state"), x))
    graph.call_function(operator.iadd, (x, graph.get_attr("state")))
    return read, graph.call_method("sum", (graph.get_attr("state"),))


def _setitem(graph: Graph, x: Node) -> Any:
    graph.call_function(operator.setitem, (x, 0, 7.0))


def _random(graph: Graph, x: Node) -> Any:
    graph.call_function(torch.rand, (3,))
    return graph.call_function(torch.rand_like, (x,)), graph.call_function(torch.rand_like, (x,))


def _assert(graph: Graph, x: Node) -> Any:
    graph.call_function(torch._assert, (True, "fine"))
    graph.call_method("sin_", (x,))


def _autocast(graph: Graph, x: Node) -> Any:
    turned = graph.call_method("t", (x,))
    before = graph.call_function(torch.mm, (x, turned))
    enter = graph.call_function(ENTER, ("cpu", torch.bfloat16, True, False))
    inside = graph.call_function(torch.mm, (x, turned))
    graph.call_function(EXIT, (enter,))
    return before, inside, graph.call_function(torch.mm, (x, turned))


def _pieces(graph: Graph, x: Node) -> Any:
    pieces = graph.call_function(torch.split, (x, 1))
    graph.call_method("exp_", (graph.call_function(operator.getitem, (pieces, 1)),))


def _norm(graph: Graph, x: Node) -> Any:
    graph.call_module("norm", (x,))
    graph.call_function(nn.functional.relu, (x,), {"inplace": True})
    return graph.call_module("norm", (x,))


def _foreach(graph: Graph, x: Node) -> Any:
    graph.call_function(aten._foreach_mul_.Scalar, ([x], 3))


VARIANTS = {
    "call_method": variant(lambda graph, x: graph.call_method("mul_", (x, 0.0)) and None),
    "function": variant(lambda graph, x: graph.call_function(aten.sin_.default, (x,)) and None),
    "view": variant(_view),
    "slice": variant(_slice),
    "view of a view": variant(_view_of_view),
    "pieces": variant(_pieces),
    "out=": variant(_out),
    "buffer": variant(_buffer),
    "setitem": variant(_setitem),
    "random": variant(_random),
    "assert": variant(_assert),
    "autocast": variant(_autocast),
    "norm": variant(_norm),
    "foreach": variant(_foreach),
    "cond": lambda: with_cond(writing_branch, writing_branch),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_complaint_01_every_variant_keeps_its_meaning(name: str) -> None:
    x = [torch.arange(6.0).reshape(2, 3) / 4]
    expected = observe(VARIANTS[name](), x)

    for seed in range(10):
        graph_module = VARIANTS[name]()
        assert same(expected, observe(reorder(graph_module, legal_order(graph_module, random.Random(seed))), x))
    for tidy in (EliminateDeadCode(), CSEPass()):
        assert same(expected, observe(tidy(VARIANTS[name]()).graph_module, x))
    merged = CSEPass()(EliminateDeadCode()(VARIANTS[name]()).graph_module).graph_module
    assert same(expected, observe(merged, x))


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("random", "autocast")])
def test_complaint_01_every_variant_refuses_to_merge_around_the_write(name: str) -> None:
    graph_module = VARIANTS[name]()
    dependencies = Dependencies.of(graph_module)
    first, last = (dependencies.position[node(graph_module, each)] for each in ("add", "add_1"))

    assert not dependencies.merger().may_merge(first, last)
    assert not dependencies.is_convex([first, last])
    with pytest.raises(CycleError, match="add"):
        dependencies.stable_order(extra=[(last, first)])


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=set(Phase) - {Phase.explain}
)
@given(seed=st.integers(0, 2**32))  # a seed, not st.randoms(): five times as fast, and there are many
def test_complaint_01_random_programs_equal_eager_after_random_legal_reorderings(seed: int) -> None:
    program = random_program(seed, size=6)
    expected = observe(program.graph_module, program.inputs)
    order = legal_order(program.graph_module, random.Random(seed))

    assert same(expected, observe(reorder(program.graph_module, order), program.inputs))


@settings(max_examples=EXAMPLES // 20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_complaint_22_random_programs_with_bodies_equal_eager_in_every_legal_order(seed: int) -> None:
    program = random_program(seed, size=8, steps=(*STEPS, *NESTED_STEPS))
    expected = observe(program.graph_module, program.inputs)

    for tidy in (EliminateDeadCode(attributes=False), CSEPass()):
        other = random_program(seed, size=8, steps=(*STEPS, *NESTED_STEPS))
        assert same(expected, observe(tidy(other.graph_module).graph_module, other.inputs))
    order = legal_order(program.graph_module, random.Random(seed))
    assert same(expected, observe(reorder(program.graph_module, order), program.inputs))


@settings(max_examples=EXAMPLES // 10, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_complaint_01_an_illegal_order_is_refused_with_the_path_that_forbids_it(seed: int) -> None:
    program = random_program(seed, size=8)
    effects = analyze_effects(program.graph_module)
    dependencies = Dependencies.of(program.graph_module, effects)

    for earlier, later in effects.order_edges[:3]:
        forbidden = dependencies.position[later], dependencies.position[earlier]
        with pytest.raises(CycleError) as caught:
            dependencies.stable_order(extra=[forbidden])
        assert effects.why_ordered(earlier, later)
        assert {earlier.name, later.name} <= {found.name for found in caught.value.path}


def elsewhere(graph: Graph, target: Any, *args: Any, **named: Any) -> Node:
    return graph.call_function(target, args, named)


def places(graph: Graph) -> Node:
    return elsewhere(graph, torch.empty, 0, dtype=torch.long)


def sorted_into(graph: Graph, b: Node) -> None:
    elsewhere(graph, torch.sort, elsewhere(graph, torch.neg, b), out=(b, places(graph)))


def largest_into(graph: Graph, b: Node) -> None:
    elsewhere(graph, torch.topk, elsewhere(graph, torch.neg, b), 4, out=[b, places(graph)])


def normalized_into(graph: Graph, b: Node) -> None:
    elsewhere(graph, torch.nn.functional.normalize, b, out=b)


def view_of_joined(graph: Graph, b: Node) -> None:
    joined = elsewhere(graph, operator.add, elsewhere(graph, torch.unbind, b), (b,))
    graph.call_method("fill_", (elsewhere(graph, operator.getitem, joined, 0), 4.0))


def view_of_repeated(graph: Graph, b: Node) -> None:
    repeated = elsewhere(graph, operator.mul, elsewhere(graph, torch.chunk, b, 2), 2)
    part = elsewhere(graph, operator.getitem, repeated, slice(1, 3))
    graph.call_method("fill_", (elsewhere(graph, operator.getitem, part, 0), 4.0))


def view_of_sum(graph: Graph, b: Node) -> None:
    together = elsewhere(graph, sum, [elsewhere(graph, torch.unbind, b)], ())
    graph.call_method("fill_", (elsewhere(graph, operator.getitem, together, 0), 4.0))


def array(graph: Graph, b: Node) -> None:
    graph.call_method("fill", (graph.call_method("numpy", (b,)), 4.0))


@pytest.mark.parametrize(
    "write",
    [sorted_into, largest_into, normalized_into, view_of_joined, view_of_repeated, view_of_sum, array],
)
def test_writes_to_several_outputs_and_by_way_of_lists_are_seen(write: Callable[[Graph, Node], None]) -> None:
    """None of them was: they were dropped, and reads were merged across them."""
    graph = Graph()
    b = elsewhere(graph, operator.sub, graph.placeholder("x"), 1.0)
    before = elsewhere(graph, torch.sin, b)
    write(graph, b)
    graph.output((before, elsewhere(graph, torch.sin, b)))
    module = GraphModule({}, graph)
    x = torch.rand(4, 4)
    expected = module(x.clone())
    assert not torch.equal(*expected)

    for cleaned in (EliminateDeadCode(), CSEPass()):
        cleaned(module)
        assert all(map(torch.equal, module(x.clone()), expected))


@pytest.mark.parametrize("target", [torch.batch_norm_update_stats, aten.batch_norm_update_stats.default])
def test_statistics_that_are_only_updated_are_written(target: Any) -> None:
    graph = Graph()
    x, mean, var = map(graph.placeholder, "xmv")
    updated = graph.call_function(target, (x, mean, var, 0.5))
    graph.output(mean)

    assert analyze_effects(GraphModule({}, graph)).of(updated).writes
    assert is_impure(updated)


def test_what_is_added_up_is_fresh() -> None:
    """Tensors that are added or multiplied, and sums of them, share no memory with what they are made of."""
    graph = Graph()
    x = graph.placeholder("x")
    made = [
        elsewhere(graph, operator.add, x, x),
        elsewhere(graph, operator.mul, x, 2),
        elsewhere(graph, sum, [x, x]),
    ]
    graph.output(tuple(made))
    effects = analyze_effects(GraphModule({}, graph))

    assert not any(effects.call(node).aliases for node in made)
