"""Cleanup passes: golden text, the same numbers, a second run that changes nothing, random programs."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fuzz import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import observe, random_program, same
from torch import nn
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fxpasses import PassBase, PassManager
from fxpasses.errors import CycleError, GraphError
from fxpasses.passes import (
    CSEPass,
    EliminateDeadCode,
    RemoveDetach,
    RemoveNoOps,
    SortTopologically,
    StripGuards,
    get_CSE_banned_ops,
    legalize_graph,
)
from fxpasses.passes.cleanup import dead_nodes, find_common_subexpressions, find_no_ops

aten = torch.ops.aten
EXAMPLES = examples(150)
X = torch.arange(6.0).reshape(2, 3) / 4

ALL = [EliminateDeadCode(attributes=False), RemoveNoOps(), SortTopologically(), StripGuards(), CSEPass()]


def traced(function: Callable[..., Any]) -> GraphModule:
    return symbolic_trace(function)


def exported(module: nn.Module, *args: Any, **options: Any) -> torch.export.ExportedProgram:
    return torch.export.export(module, args, **options)


def names(graph_module: GraphModule) -> list[str]:
    return [node.name for node in graph_module.graph.nodes]


def text(graph_module: GraphModule) -> str:
    """The code of a graph and of those inside, without type annotations and the clean-up of variables."""
    parts = [found.code for found in graph_module.modules() if isinstance(found, GraphModule)]
    plain = re.sub(r" : _\w+_(?=[,)])|(?<=\)) -> _\w+_", "", "".join(parts))
    lines = [line.partition(";  ")[0] for line in plain.splitlines()]
    return "\n".join(line for line in lines if line.strip())


def assert_tidies(pass_: PassBase, graph_module: GraphModule, expected: str, *inputs: Any) -> GraphModule:
    """Golden text, same numbers, and a second run that says that nothing changed."""
    before = observe(graph_module, inputs)
    result = pass_(graph_module)
    result.graph_module.graph.lint()

    assert expected.strip("\n") == text(result.graph_module)
    assert same(before, observe(result.graph_module, inputs))
    assert result.modified
    assert not pass_(result.graph_module).modified
    return result.graph_module


# --- dead code ------------------------------------------------------------------------------------------------------


def test_dead_code_is_erased_and_effects_stay() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.cos()
        x.mul_(0.0)
        torch.nn.functional.dropout(x)
        return x + 2

    assert_tidies(
        EliminateDeadCode(),
        traced(function),
        """
def forward(self, x):
    mul_ = x.mul_(0.0)
    dropout = torch.nn.functional.dropout(x, p = 0.5, training = True, inplace = False)
    add_1 = x + 2
    return add_1
""",
        X,
    )


def test_complaint_01_an_in_place_method_is_not_dead_because_nobody_uses_its_result() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.0)
        return x + 1

    ours, theirs = traced(function), traced(function)
    theirs.graph.eliminate_dead_code()
    theirs.recompile()

    assert not EliminateDeadCode()(ours).modified
    assert same([torch.ones(2, 3)], [ours(X.clone())])
    assert not same([torch.ones(2, 3)], [theirs(X.clone())])  # what torch 2.13 makes of it


def test_writes_that_nobody_sees_are_dead() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        scratch = x.clone()
        row = scratch[0]
        row.add_(1)
        kept = x.clone()
        kept[0].add_(1)
        late = kept.sum()
        kept.mul_(2)
        return late

    graph_module = traced(function)

    assert ["clone", "getitem", "add_", "mul_"] == [node.name for node in dead_nodes(graph_module)]


def test_what_asserts_prints_or_counts_stays() -> None:
    root = nn.Module()
    root.norm = nn.BatchNorm1d(3).requires_grad_(False)
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._assert, (True, "fine"))
    graph.call_function(print, ("said",))
    graph.call_module("norm", (x,))
    graph.call_function(torch.rand, (3,))
    graph.output(x)

    assert not EliminateDeadCode()(GraphModule(root, graph)).modified


def test_dead_code_inside_branches_is_erased_and_their_effects_stay() -> None:
    """Complaint 22."""
    root = nn.Module()
    for name in ("true", "false"):
        body = Graph()
        y = body.placeholder("y")
        body.call_method("cos", (y,))
        if name == "true":
            body.call_method("add_", (y, 1))
        body.output((body.call_method("sin", (y,)),))
        root.add_module(name, GraphModule(nn.Module(), body))
    graph = Graph()
    x = graph.placeholder("x")
    bodies = graph.get_attr("true"), graph.get_attr("false")
    graph.call_function(torch.ops.higher_order.cond, (True, *bodies, (x,)))
    graph.output(x)

    assert_tidies(
        EliminateDeadCode(),
        GraphModule(root, graph),
        """
def forward(self, x):
    true = self.true
    false = self.false
    cond = torch.ops.higher_order.cond(True, true, false, (x,))
    return x
def forward(self, y):
    add_ = y.add_(1)
    sin = y.sin()
    return (sin,)
def forward(self, y):
    sin = y.sin()
    return (sin,)
""",
        X,
    )


def test_unused_modules_and_parameters_go_with_the_dead_code_unless_they_shall_stay() -> None:
    def make() -> GraphModule:
        root = nn.Module()
        root.used, root.unused = nn.Linear(3, 3), nn.Linear(3, 3)
        graph = Graph()
        x = graph.placeholder("x")
        graph.call_module("unused", (x,))
        graph.output(graph.call_module("used", (x,)))
        return GraphModule(root, graph)

    cleaned, kept = make(), make()
    EliminateDeadCode()(cleaned)
    EliminateDeadCode(attributes=False)(kept)

    assert ["used.weight", "used.bias"] == [name for name, _ in cleaned.named_parameters()]
    assert 4 == len(list(kept.parameters()))
    assert ["x", "used", "output"] == names(kept)


def test_an_exported_program_stays_valid_without_its_dead_code() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            (x * 3).sin()
            return self.linear(x)

    program = exported(Model(), X)
    result = PassManager([EliminateDeadCode()])(program)

    assert result.modified
    assert "sin" not in result.exported_program.graph_module.code
    assert "add_" in result.exported_program.graph_module.code
    assert torch.equal(program.module()(X), result.exported_program.module()(X))


# --- common subexpressions ------------------------------------------------------------------------------------------


def test_equal_subexpressions_are_computed_once_where_nothing_was_written_between() -> None:
    def function(x: torch.Tensor) -> Any:
        first, second = x + 1, x + 1
        x.sin_()
        third, fourth = x + 1, x + 1
        return first * second, third * fourth

    assert_tidies(
        CSEPass(),
        traced(function),
        """
def forward(self, x):
    add = x + 1
    sin_ = x.sin_()
    add_2 = x + 1
    mul = add * add
    mul_1 = add_2 * add_2
    return (mul, mul_1)
""",
        X,
    )


def test_common_subexpressions_leave_the_given_module_as_it_is() -> None:
    graph_module = traced(lambda x: (x + 1) * (x + 1))
    before = graph_module.code
    result = CSEPass()(graph_module)

    assert result.graph_module is not graph_module
    assert before == graph_module.code
    assert not CSEPass()(traced(lambda x: x + 1)).modified


@pytest.mark.parametrize(
    ("name", "function"),
    {
        "a random operator": lambda x: torch.rand_like(x) - torch.rand_like(x),
        "dropout": lambda x: nn.functional.dropout(x) - nn.functional.dropout(x),
        "a write": lambda x: x.add_(1) + x.add_(1),
        "a result that is written": lambda x: ((x + 1).add_(1), x + 1),
        "a copy that is written": lambda x: (x.contiguous().add_(1), x.contiguous()),
        "a view of a result that is written": lambda x: ((x + 1)[0].add_(1), (x + 1)[0]),
        "numbers of different types": lambda x: (torch.full((2,), 1), torch.full((2,), 1.0), torch.full((2,), True)),
        "zeros of different signs": lambda x: (torch.copysign(x, 0.0), torch.copysign(x, -0.0)),
    }.items(),
)
def test_these_are_never_merged(name: str, function: Callable[..., Any]) -> None:
    graph_module = traced(function)
    if "numbers" in name:
        graph_module = make_fx(function)(X)

    assert {} == find_common_subexpressions(graph_module)


def test_equal_views_are_merged_even_if_their_base_is_written() -> None:
    def function(x: torch.Tensor) -> Any:
        first = x.view(-1)
        x.add_(1)
        second = x.view(-1)
        second.mul_(2)
        return first + second

    graph_module = traced(function)

    assert {"view_1": "view"} == {a.name: b.name for a, b in find_common_subexpressions(graph_module).items()}
    assert same(observe(graph_module, [X]), observe(CSEPass()(graph_module).graph_module, [X]))


def test_products_inside_and_outside_of_autocast_are_different() -> None:
    """Complaint 21: not merged across the border of a region."""
    enter, leave = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_method("t", (x,))
    before = graph.call_function(torch.mm, (x, y))
    region = graph.call_function(enter, ("cpu", torch.bfloat16, True, False))
    inside = [graph.call_function(torch.mm, (x, y)) for _ in range(2)]
    graph.call_function(leave, (region,))
    graph.output((before, *inside))
    graph_module = GraphModule(nn.Module(), graph)

    assert {"mm_2": "mm_1"} == {a.name: b.name for a, b in find_common_subexpressions(graph_module).items()}
    assert same(observe(graph_module, [X]), observe(CSEPass()(graph_module).graph_module, [X]))


def test_reads_of_a_buffer_are_merged_only_between_its_writes() -> None:
    root = nn.Module()
    root.register_buffer("state", torch.ones(3))
    graph = Graph()
    reads = []
    for _ in range(2):
        reads += [graph.call_method("sum", (graph.get_attr("state"),)) for _ in range(2)]
        graph.call_method("add_", (graph.get_attr("state"), 1))
    graph.output(tuple(reads))
    graph_module = GraphModule(root, graph)
    found = {a.name: b.name for a, b in find_common_subexpressions(graph_module).items() if a.op != "get_attr"}

    assert {"sum_2": "sum_1", "sum_4": "sum_3"} == found
    assert same(observe(graph_module, []), observe(CSEPass()(graph_module).graph_module, []))


def test_what_stands_for_others_carries_their_provenance() -> None:
    graph_module = make_fx(lambda x: (x + 1) * (x + 1), tracing_mode="fake")(X)
    for node in graph_module.graph.nodes:
        node.meta["stack_trace"] = f"File user.py, line {node.name}"
    result = CSEPass()(graph_module).graph_module
    add = next(node for node in result.graph.nodes if node.name == "add")

    assert ["add_1"] == [source.name for source in add.meta["from_node"]]
    assert "val" in add.meta


def test_complaint_22_equal_subexpressions_in_a_branch_are_computed_once() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin() + x.sin(), lambda x: x.cos(), (x,))

    program = exported(Model(), X)
    result = PassManager([CSEPass()])(program)

    assert 1 == result.exported_program.graph_module.true_graph_0.code.count("sin.default")
    assert torch.equal(program.module()(X), result.exported_program.module()(X))


def test_sizes_known_only_at_run_time_are_not_merged() -> None:
    """Merging two unbacked symbols would leave shapes that speak of a symbol nobody makes."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.nonzero(), x.nonzero()

    program = exported(Model(), X)

    assert {} == {
        node: first
        for node, first in find_common_subexpressions(program.graph_module).items()
        if node.target is aten.nonzero.default
    }


def test_banned_operators_are_left_alone() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.add(x, 1) + torch.ops.aten.add(x, 1) + aten.mul.Tensor(x, 2) + aten.mul.Tensor(x, 2)

    graph_module = make_fx(function)(X)

    assert "mul_1" not in names(CSEPass(banned_ops={aten.add})(graph_module).graph_module)
    assert "add_1" in names(CSEPass(banned_ops={aten.add})(graph_module).graph_module)
    assert not CSEPass({aten.add, aten.mul})(graph_module).modified
    assert CSEPass({aten.mul.Tensor})(graph_module).modified


def test_the_banned_set_is_upstreams() -> None:
    from torch.fx.passes.dialect.common.cse_pass import get_CSE_banned_ops as theirs

    assert theirs() == get_CSE_banned_ops()


def upstream_cases() -> dict[str, Callable[..., Any]]:
    def nested(x: torch.Tensor) -> Any:
        return torch.cat((x, x)) + torch.cat((x, x))

    def two(x: torch.Tensor) -> Any:
        return x.cos().sum() + x.cos().sum() + x.sin() + x.sin()

    def chain(x: torch.Tensor) -> Any:
        y, z = x.clone(), x.clone()
        for _ in range(5):
            y, z = y.cos(), z.cos()
        return y, z

    def keyword(x: torch.Tensor) -> Any:
        return x.sum(dim=1) + x.sum(dim=1) + x.sum(dim=0).sum()

    def nothing(x: torch.Tensor) -> Any:
        return x

    return {"nested": nested, "two": two, "chain": chain, "keyword": keyword, "nothing": nothing}


@pytest.mark.parametrize("name", upstream_cases())
def test_functional_graphs_are_merged_like_upstream_merges_them(name: str) -> None:
    from torch.fx.passes.dialect.common.cse_pass import CSEPass as Theirs

    graph_module = make_fx(upstream_cases()[name])(X)
    ours, theirs = CSEPass()(graph_module), Theirs()(graph_module)

    assert theirs.modified == ours.modified
    assert names(theirs.graph_module) == names(ours.graph_module)
    assert same(observe(theirs.graph_module, [X]), observe(ours.graph_module, [X]))


def test_the_pytrees_and_checks_of_an_exported_module_stay() -> None:
    class Model(nn.Module):
        def forward(self, x: dict[str, torch.Tensor]) -> Any:
            return {"out": x["a"].sin() + x["a"].sin()}

    graph_module = exported(Model(), {"a": X}).module()
    result = CSEPass()(graph_module)

    assert result.modified
    assert torch.equal(graph_module({"a": X})["out"], result.graph_module({"a": X})["out"])
    assert len(graph_module._forward_pre_hooks) == len(result.graph_module._forward_pre_hooks)


# --- order ----------------------------------------------------------------------------------------------------------


def shuffled() -> GraphModule:
    """``a, b, c, d`` where ``a`` needs ``c`` and all else could stay."""
    graph_module = traced(lambda x: (x.sin() + x.cos(), x.tanh().exp()))
    nodes = {node.name: node for node in graph_module.graph.nodes}
    nodes["x"].append(nodes["add"])
    return graph_module


def test_only_what_stands_too_early_moves() -> None:
    """Complaint 34."""
    graph_module = shuffled()
    result = legalize_graph(graph_module)

    assert ["x", "sin", "cos", "add", "tanh", "exp", "output"] == names(result)
    assert result is graph_module


def test_complaint_34_a_graph_in_order_stays_untouched() -> None:
    graph_module = traced(lambda x: (x.sin() + x.cos(), x.tanh().exp()))
    nodes = list(graph_module.graph.nodes)

    assert not SortTopologically()(graph_module).modified
    assert nodes == list(legalize_graph(graph_module).graph.nodes)


def test_sorting_as_a_pass_says_whether_something_moved() -> None:
    graph_module = shuffled()

    assert SortTopologically()(graph_module).modified
    assert not SortTopologically()(graph_module).modified
    assert same(observe(traced(lambda x: (x.sin() + x.cos(), x.tanh().exp())), [X]), observe(graph_module, [X]))


def test_placeholders_come_first() -> None:
    graph = Graph()
    root = nn.Module()
    root.weight = nn.Parameter(torch.ones(3), requires_grad=False)
    weight = graph.get_attr("weight")
    x = graph.placeholder("x")
    graph.output(graph.call_function(operator.add, (x, weight)))
    graph_module = legalize_graph(GraphModule(root, graph))

    assert ["x", "weight", "add", "output"] == names(graph_module)


def test_sorting_respects_writes() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        x.sin_()
        return y, (x + 2).cos()

    graph_module = traced(function)
    nodes = {node.name: node for node in graph_module.graph.nodes}
    nodes["x"].append(nodes["cos"])
    legalize_graph(graph_module)

    assert ["x", "add", "sin_", "add_1", "cos", "output"] == names(graph_module)
    assert same(observe(traced(function), [X]), observe(graph_module, [X]))


def test_a_cycle_is_named() -> None:
    graph_module = traced(lambda x: x.sin().cos())
    nodes = {node.name: node for node in graph_module.graph.nodes}
    nodes["sin"].args = (nodes["cos"],)

    with pytest.raises(CycleError) as caught:
        legalize_graph(graph_module)
    assert str(caught.value) == (
        "the graph has a cycle: sin -> cos -> sin; each of these nodes needs the one before it, so none can run first"
    )
    assert ["sin", "cos", "sin"] == [node.name for node in caught.value.path]
    with pytest.raises(RuntimeError):
        legalize_graph(graph_module)


@pytest.mark.parametrize("subject", [nn.Sequential(), Graph(), None])
def test_only_the_graph_of_a_module_is_sorted(subject) -> None:
    """Anything else is told what to give."""
    message = (
        f"legalize_graph sorts the graph of a GraphModule in place, not of {type(subject).__name__}; "
        "give the graph_module of a program, and trace or export a model first"
    )
    with pytest.raises(GraphError) as caught:
        legalize_graph(subject)

    assert message == str(caught.value)
    assert isinstance(caught.value, TypeError)


# --- operations that do nothing -------------------------------------------------------------------------------------


def test_detach_is_replaced_by_its_input() -> None:
    assert_tidies(
        RemoveDetach(),
        traced(lambda x: x.detach().sin() + torch.detach(x) + aten.detach.default(x)),
        """
def forward(self, x):
    sin = x.sin()
    add = sin + x
    add_1 = add + x
    return add_1
""",
        X,
    )


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.identity = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.view(2, 3).to(torch.float32).contiguous()
        y = nn.functional.dropout(y, 0.5, False).clone()
        y = y[:, :].expand(2, 3).transpose(0, 1).transpose(0, 1)
        return y.reshape(2, 3) + x.t().t().double().sum()


def test_operations_that_do_nothing_are_replaced_by_their_input() -> None:
    graph_module = make_fx(Idle(), tracing_mode="fake")(X)
    before = observe(graph_module, [X])
    result = RemoveNoOps()(graph_module)

    assert same(before, observe(result.graph_module, [X]))
    assert result.modified
    assert not RemoveNoOps()(result.graph_module).modified
    assert not {"view", "clone", "expand"} & set(names(result.graph_module))


def test_an_exported_model_loses_its_no_ops() -> None:
    program = exported(Idle().eval(), X)
    result = PassManager([RemoveNoOps(), EliminateDeadCode()])(program)
    text = result.exported_program.graph_module.code

    assert result.modified
    assert "dropout" not in text
    assert "contiguous" not in text
    assert torch.equal(program.module()(X), result.exported_program.module()(X))


class Counting(nn.Module):
    """torch.export copies ``steps`` into itself; ``last`` is really copied."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.last.copy_(x * self.steps)
        return x + self.last


def test_a_tensor_that_is_copied_into_itself_is_no_copy() -> None:
    graph_module = torch.export.export(Counting(), (X,)).module(check_guards=False)
    assert isinstance(graph_module, GraphModule)
    assert {"copy_", "copy__default"} <= set(names(graph_module))
    eager = Counting()

    result = RemoveNoOps()(graph_module)
    left = [node for node in result.graph_module.graph.nodes if node.target is torch.ops.aten.copy_.default]

    assert [node.args[0].target for node in left] == ["last"]
    for _ in range(2):
        assert torch.equal(result.graph_module(X), eager(X))
    for name, buffer in eager.named_buffers():
        assert torch.equal(result.graph_module.get_buffer(name), buffer)


class Asserting(nn.Module):
    """The assertion that comes with casts of exported models, written by hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._assert_tensor_metadata.default(x, dtype=torch.float32, device=torch.device("cpu"))
        return x + 1


def assertion_in(graph_module: GraphModule) -> Node:
    (found,) = (node for node in graph_module.graph.nodes if "_assert" in node.name)
    return found


def test_assertions_that_the_recorded_values_prove_are_no_ops() -> None:
    program = exported(Asserting(), X)
    result = PassManager([RemoveNoOps()])(program)

    assert ["x", "add", "output"] == names(result.exported_program.graph_module)
    assert torch.equal(program.module()(X), result.exported_program.module()(X))


@pytest.mark.parametrize(("size", "stays"), [([2, 3], False), ([2, 4], True)])
def test_assertions_about_sizes_are_compared_with_the_sizes(size: list[int], stays: bool) -> None:
    graph_module = exported(Asserting(), X).graph_module
    node = assertion_in(graph_module)
    node.args = (node.args[0], size)

    assert stays == (node in RemoveNoOps()(graph_module).graph_module.graph.nodes)


def test_assertions_that_nothing_proves_stay() -> None:
    """One that the value contradicts, one about a size that may change, one on a value that nobody recorded."""
    batch = torch.export.Dim("batch", min=2, max=64)
    wrong, open_size, unknown = (exported(Asserting(), X, dynamic_shapes=({0: batch},)).graph_module for _ in range(3))
    assertion_in(wrong).args = (*assertion_in(wrong).args[:3], torch.int32)
    assertion_in(open_size).args = (assertion_in(open_size).args[0], [2, 3])
    unknown.graph.find_nodes(op="placeholder")[0].meta.clear()

    for graph_module in (wrong, open_size, unknown):
        assert not RemoveNoOps()(graph_module).modified


def test_symbolic_sizes_are_compared_without_new_guards() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(x.shape[0], 3).view(-1, 3) * 2 + x.reshape(-1).sum()

    batch = torch.export.Dim("batch", min=2, max=64)
    program = exported(Model(), X, dynamic_shapes=({0: batch},))
    before = [str(guard) for guard in program.range_constraints.items()]
    result = PassManager([RemoveNoOps()])(program)

    assert before == [str(guard) for guard in result.exported_program.range_constraints.items()]
    assert not [name for name in names(result.exported_program.graph_module) if "view" in name]
    inputs = torch.randn(7, 3)
    assert torch.equal(program.module()(inputs), result.exported_program.module()(inputs))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone(),
        lambda x: x.clone().add_(1),
        lambda x: (x.clone(), x.add_(1))[0],
        lambda x: x.t() + 0,
        lambda x: x.detach() + 1,
        lambda x: x.to(torch.float64) + 1,
        lambda x: x[:1] + 1,
    ],
)
def test_these_are_no_no_ops(function: Callable[..., Any]) -> None:
    assert [] == find_no_ops(make_fx(function, tracing_mode="fake")(X))


def test_a_copy_is_needless_if_nobody_writes_and_it_stays_inside() -> None:
    graph_module = make_fx(lambda x: x.clone().sin() + x, tracing_mode="fake")(X)

    assert ["clone"] == [node.name for node in find_no_ops(graph_module)]


# --- guards ---------------------------------------------------------------------------------------------------------


def test_complaint_29_the_guards_of_an_exported_module_can_be_stripped() -> None:
    graph_module = exported(Idle(), X).module()
    before = graph_module(X)
    result = StripGuards()(graph_module)

    assert result.modified
    assert "_guards_fn" not in graph_module.code
    assert "_guards_fn" not in dict(graph_module.named_modules())
    assert torch.equal(before, graph_module(X))
    assert not StripGuards()(graph_module).modified


def test_complaint_29_guards_are_not_dead_code() -> None:
    graph_module = exported(Idle(), X).module()

    EliminateDeadCode()(graph_module)
    assert "_guards_fn" in graph_module.code


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 3))
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        old = self.state.clone()
        self.state.add_(x)
        return x.view(2, 3), self.weight.reshape(2, 3), old, {"y": y.contiguous(), "double": (x + 1) * (x + 1)}


@pytest.mark.parametrize("functional", [False, True])
def test_an_exported_program_keeps_its_numbers_and_state_through_all_cleanups(functional: bool) -> None:
    def make() -> torch.export.ExportedProgram:
        program = exported(Everything(), X, X + 1)
        return program.run_decompositions({}) if functional else program

    def run(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
        module = program.module()
        return [leaf.clone() for _ in range(2) for leaf in [*pytree.tree_leaves(module(X, X + 1)), *module.buffers()]]

    result = PassManager([RemoveNoOps(), CSEPass(), EliminateDeadCode(), SortTopologically()])(make())
    result.exported_program.validate()

    assert result.modified
    assert 1 == result.exported_program.graph_module.code.count("add.Tensor(x, 1)")
    assert all(map(torch.equal, run(make()), run(result.exported_program)))


# --- all together ---------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_complaint_01_random_programs_mean_the_same_after_every_cleanup(seed: int) -> None:
    for pass_ in ALL:
        program = random_program(seed, size=8)
        expected = observe(program.graph_module, program.inputs)
        result = pass_(program.graph_module)
        result.graph_module.graph.lint()

        assert same(expected, observe(result.graph_module, program.inputs)), pass_
        assert not pass_(result.graph_module).modified, pass_


@settings(max_examples=EXAMPLES // 4, deadline=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_random_programs_out_of_order_are_sorted_into_one_that_runs(rng: random.Random) -> None:
    program = random_program(rng, size=8, steps=("unary", "binary", "state"))
    expected = observe(program.graph_module, program.inputs)
    nodes = [node for node in program.graph_module.graph.nodes if node.op not in ("placeholder", "output")]
    for moved in rng.sample(nodes, min(3, len(nodes))):
        rng.choice(nodes).append(moved)
    legalize_graph(program.graph_module)
    program.graph_module.graph.lint()

    assert same(expected, observe(program.graph_module, program.inputs))


def test_cleanups_are_values_with_a_name_and_a_digest() -> None:
    assert CSEPass() == CSEPass()
    assert CSEPass({aten.add}) != CSEPass()
    assert EliminateDeadCode() != EliminateDeadCode(attributes=False)
    assert "EliminateDeadCode(attributes=False)" == repr(EliminateDeadCode(attributes=False))
    assert CSEPass({aten.add, aten.mul}).digest == CSEPass({aten.mul, aten.add}).digest


@pytest.mark.parametrize(
    "copied",
    [
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.to("cpu", copy=True),
        lambda x: x.to(torch.zeros(1), copy=True),
    ],
    ids=["type", "device", "like another"],
)
def test_a_cast_that_is_asked_to_copy_is_no_view(copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """It was taken out though the copy was written to, or given back."""

    class Copying(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return copied(x).add_(1), x * 2

    class Returning(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return copied(x)

    for model in (Copying(), Returning()):
        graph = torch.export.export(model, (X,)).module(check_guards=False)
        assert not any(node.name.startswith("to") for node in find_no_ops(graph))
        x = X.clone()
        RemoveNoOps()(graph)
        given = graph(x)
        assert torch.equal(x, X)
        assert all(each.data_ptr() != x.data_ptr() for each in pytree.tree_leaves(given))
