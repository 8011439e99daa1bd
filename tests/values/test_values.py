from __future__ import annotations

import copy
import functools
import pickle
import re
import sys
import warnings

import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, export
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # the peer to agree with
from torch.fx.passes.shape_prop import ShapeProp  # the tool whose tensor_meta has to be kept in step

from fxpasses.editing import create_node, insert_after, insert_before, replace_node
from fxpasses.errors import FakeValueError
from fxpasses.metadata import MetaKey
from fxpasses.values import (
    compute_value,
    fake_mode_of,
    has_value,
    nested_graph_modules,
    obtain_fake_mode,
    refresh_callers,
    refresh_values,
    same_value,
    unify_fake_modes,
)

aten = torch.ops.aten
COST = MetaKey[int]("tests.values.cost", made_by="MeasureCost()")


def node_named(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if node.name == name)


def modes_in(graph_module: GraphModule) -> int:
    leaves = [node.meta.get("val") for nested in nested_graph_modules(graph_module) for node in nested.graph.nodes]
    return len({id(leaf.fake_mode) for leaf in torch.utils._pytree.tree_leaves(leaves) if isinstance(leaf, FakeTensor)})


def exported(function, *args, dynamic=None, strict: bool = False):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return export(Module(), args, dynamic_shapes=None if dynamic is None else (dynamic,), strict=strict)


# --- modes ---


def test_the_mode_of_a_program_is_that_of_its_placeholders() -> None:
    """fake_mode_of gives the same mode for program, module and graph, and None where there is none."""
    program = exported(torch.sin, torch.randn(3))
    mode = program.graph.find_nodes(op="placeholder")[0].meta["val"].fake_mode

    assert fake_mode_of(program) is mode
    assert fake_mode_of(program.graph_module) is mode
    assert fake_mode_of(program.graph) is mode
    assert fake_mode_of(symbolic_trace(torch.nn.ReLU())) is None


def constants_only() -> GraphModule:
    graph = Graph()
    graph.output(graph.create_node("get_attr", "a"))
    graph_module = GraphModule({"a": torch.ones(2, 3)}, graph)
    graph_module.register_buffer("b", torch.ones(2, 3))
    return graph_module


def test_complaint_33_a_graph_of_constants_only_keeps_one_mode() -> None:
    """Complaint 33: values computed one by one in a graph without inputs all belong to one mode."""
    graph_module = constants_only()
    graph = graph_module.graph
    first = next(iter(graph.nodes))
    refresh_values([first])
    output = graph.output_node()
    made = [insert_before(output, aten.full.default, ([2, 3], 1.0))]
    with graph.inserting_before(output):
        other = create_node(graph, "get_attr", "b")
    made += [
        insert_before(output, aten.add.Tensor, (first, other)),
        insert_before(output, aten.mul.Tensor, (made[0], other)),
    ]

    assert all(node.meta["val"].shape == (2, 3) for node in made)
    assert modes_in(graph_module) == 1


def test_a_mode_that_was_made_is_remembered_after_its_values_are_gone() -> None:
    """A graph without values gets a mode once, and later edits find it again."""
    graph_module = constants_only()
    mode = obtain_fake_mode(graph_module)

    assert obtain_fake_mode(graph_module) is mode
    assert fake_mode_of(graph_module) is mode


def test_a_mode_is_found_in_nested_graphs() -> None:
    """When only a branch has values, their mode is the mode of the whole."""
    program = exported(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), torch.randn(3))
    mode = fake_mode_of(program)
    for node in program.graph.nodes:
        node.meta.pop("val", None)

    assert fake_mode_of(program.graph_module) is mode


def test_complaint_33_mixed_modes_are_repaired() -> None:
    """Complaint 33: real-mode make_fx gives each value a mode of its own; an edit brings all of them into one."""
    graph_module = make_fx(lambda x, y: (x.sin() + y).relu())(torch.randn(3), torch.randn(3))
    assert modes_in(graph_module) > 1
    relu = node_named(graph_module.graph, "relu")

    replace_node(relu, insert_after(relu, aten.tanh.default, (relu.args[0],)))
    insert_before(
        graph_module.graph.output_node(), aten.add.Tensor, tuple(graph_module.graph.find_nodes(op="placeholder"))
    )

    assert modes_in(graph_module) == 1


def test_symbols_decide_which_mode_stays() -> None:
    """Static values move into the mode that owns the symbols."""
    program = exported(lambda x: x + 1, torch.randn(3, 4), dynamic=({0: Dim.DYNAMIC},))
    node = node_named(program.graph, "add")
    with FakeTensorMode() as other:
        node.meta["val"] = torch.empty(5)

    mode = unify_fake_modes(program)

    assert mode is not other
    assert modes_in(program.graph_module) == 1
    assert node.meta["val"].shape == (5,)


def test_symbols_of_two_environments_are_refused_with_a_sentence() -> None:
    """Two programs with symbolic shapes cannot be mixed, and the error says which nodes and what to do."""
    first = exported(lambda x: x + 1, torch.randn(3, 4), dynamic=({0: Dim.DYNAMIC},))
    second = exported(lambda x: x + 1, torch.randn(3, 4), dynamic=({0: Dim.DYNAMIC},))
    node_named(first.graph, "add").meta["val"] = node_named(second.graph, "add").meta["val"]
    message = (
        "the symbolic shapes of 'args_0' and 'add' belong to two shape environments, which cannot be merged; export "
        "both parts of the graph in one go, or make the shapes of one of them static"
    )

    with pytest.raises(FakeValueError, match=re.escape(message)):
        unify_fake_modes(first)


def test_one_real_tensor_gives_one_fake() -> None:
    """A constant read twice gives fakes of one mode, without its data being copied."""
    graph_module = constants_only()
    node = next(iter(graph_module.graph.nodes))

    value = compute_value(node)

    assert isinstance(value, FakeTensor)
    assert value.shape == (2, 3)


# --- symbolic shapes ---


def test_symint_nodes_are_followed_like_values() -> None:
    """sym_size, arithmetic on it and a view by it get symbols as values, and follow a change of their input."""
    program = exported(lambda x: x * 2, torch.randn(3, 4), dynamic=({0: Dim.DYNAMIC},))
    graph = program.graph
    mul = node_named(graph, "mul")
    size = insert_after(mul, aten.sym_size.int, (mul, 0))
    double = insert_after(size, torch.ops.aten.sym_numel.default, (mul,))
    view = insert_after(double, aten.view.default, (mul, [double]))
    symbol = mul.args[0].meta["val"].shape[0]

    assert same_value(size.meta["val"], symbol)
    assert str(double.meta["val"]) == f"4*{symbol}"
    assert str(view.meta["val"].shape[0]) == f"4*{symbol}"

    taken = insert_after(mul, aten.sum.dim_IntList, (mul, [1], True))
    for node in (double, view):
        node.replace_input_with(mul, taken)
    changed = refresh_values([double])

    assert [double, view] == changed
    assert str(view.meta["val"].shape[0]) == str(symbol)


def test_guards_are_not_added_by_comparing_values() -> None:
    """Comparing and refreshing symbolic values leaves the shape environment without new guards."""
    program = exported(lambda x: (x * 2).relu(), torch.randn(3, 4), dynamic=({0: Dim.DYNAMIC},))
    shape_env = fake_mode_of(program).shape_env
    before = len(shape_env.guards), len(shape_env.replacements)

    refresh_values(program.graph.nodes)

    assert before == (len(shape_env.guards), len(shape_env.replacements))


def test_unbacked_symbols_keep_their_names_when_recomputed() -> None:
    """A node that makes a fresh size makes the same symbol again, so nobody downstream changes."""
    program = exported(lambda x: x.nonzero().sum(1) + 1, torch.tensor([1.0, 0.0, 2.0]))
    nonzero = node_named(program.graph, "nonzero")
    before = str(nonzero.meta["val"].shape)

    changed = refresh_values([nonzero])

    assert [] == changed
    assert before == str(nonzero.meta["val"].shape)


def test_a_replacement_takes_over_the_unbacked_symbols() -> None:
    """A node created in the place of one that makes a fresh size makes that very size; its users stay as they are."""
    program = exported(lambda x: x.nonzero().sum(1) + 1, torch.tensor([1.0, 0.0, 2.0]))
    graph = program.graph
    nonzero = node_named(graph, "nonzero")
    symbol = str(nonzero.meta["val"].shape[0])
    bindings = nonzero.meta["unbacked_bindings"]
    users_before = [id(node.meta["val"]) for node in graph.nodes if node.name in ("sum_1", "add")]

    new = insert_after(nonzero, aten.nonzero.default, (nonzero.args[0],), replaces=[nonzero])
    replace_node(nonzero, new)

    assert bindings == new.meta["unbacked_bindings"]
    assert symbol == str(new.meta["val"].shape[0])
    assert users_before == [id(node.meta["val"]) for node in graph.nodes if node.name in ("sum_1", "add")]


def test_new_unbacked_symbols_are_bound_to_their_node() -> None:
    """A new nonzero gets a symbol of its own, noted in unbacked_bindings, and users follow it."""
    program = exported(lambda x: x * 2, torch.tensor([1.0, 0.0, 2.0]))
    mul = node_named(program.graph, "mul")

    nonzero = insert_after(mul, aten.nonzero.default, (mul,))
    total = insert_after(nonzero, aten.sum.dim_IntList, (nonzero, [1]))

    (symbol,) = nonzero.meta["unbacked_bindings"]
    assert str(symbol) == str(nonzero.meta["val"].shape[0]) == str(total.meta["val"].shape[0])


# --- refreshing ---


def test_a_change_walks_on_until_nothing_changes() -> None:
    """A change of dtype reaches the comparison and stops there: its result is bool either way."""
    program = exported(lambda x: ((x + 1) > 0).logical_not(), torch.randn(3))
    graph = program.graph
    add = node_named(graph, "add")
    untouched = node_named(graph, "logical_not").meta["val"]
    for node in graph.nodes:
        COST.write(node, 1)

    half = insert_after(
        graph.find_nodes(op="placeholder")[0], aten._to_copy.default, (add.args[0],), {"dtype": torch.half}
    )
    add.replace_input_with(add.args[0], half)
    changed = refresh_values([add])

    assert [add] == changed
    assert torch.half == add.meta["val"].dtype
    assert node_named(graph, "logical_not").meta["val"] is untouched
    assert not COST.has(add)
    assert COST.has(node_named(graph, "gt"))


def test_refreshing_what_is_right_changes_nothing() -> None:
    """Recorded values stay the same objects when they are right."""
    program = exported(lambda x: torch.split(x.sin() @ x.T, 2), torch.randn(4, 3))
    values = [node.meta.get("val") for node in program.graph.nodes]

    assert [] == refresh_values(node for node in program.graph.nodes if node.op == "call_function")
    assert all(old is node.meta.get("val") for old, node in zip(values, program.graph.nodes, strict=True))


def test_branches_follow_their_operands() -> None:
    """When the operand of a cond changes its dtype, the nodes inside of both branches and the result follow."""
    program = exported(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x + 1,)), torch.randn(3))
    graph = program.graph
    add = node_named(graph, "add")
    double = insert_after(add, aten._to_copy.default, (add,), {"dtype": torch.float64})
    cond = next(node for node in graph.nodes if "cond" in str(node.target))
    cond.args = (*cond.args[:3], (double,))

    refresh_values([cond])

    assert torch.float64 == cond.meta["val"][0].dtype
    for branch in (program.graph_module.true_graph_0, program.graph_module.false_graph_0):
        values = [node.meta["val"] for node in branch.graph.nodes if node.op == "call_function"]
        assert [torch.float64] == [value.dtype for value in values]
    assert modes_in(program.graph_module) == 1


def test_edited_bodies_count_before_they_are_recompiled() -> None:
    """The value of a call comes from the graph of its body, not from code that may be older."""
    program = exported(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), torch.randn(3))
    cond = next(node for node in program.graph.nodes if "cond" in str(node.target))
    for branch in (program.graph_module.true_graph_0, program.graph_module.false_graph_0):
        node = next(node for node in branch.graph.nodes if node.op == "call_function")
        replace_node(node, insert_after(node, aten._to_copy.default, (node.args[0],), {"dtype": torch.int32}))

    refresh_values([cond])

    assert torch.int32 == cond.meta["val"][0].dtype


def loops(x: torch.Tensor) -> torch.Tensor:
    mapped = torch._higher_order_ops.map(lambda row, y: row + y, x, x[0] + 0)
    _, looped = torch._higher_order_ops.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y.sin()), (torch.zeros((), dtype=torch.int64), mapped)
    )
    carry, scanned = torch._higher_order_ops.scan(lambda c, row: (c + row, c * row), x[0] * 1, looped)
    return carry + scanned.sum(0)


def test_map_while_and_scan_are_recomputed() -> None:
    """The values of loops come out as they were recorded."""
    program = exported(loops, torch.randn(3, 4), strict=True)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]

    changed = refresh_values(calls)

    assert [] == changed


def test_in_place_changes_of_shape_do_not_reach_the_recorded_value() -> None:
    """Computing x.t_() leaves the recorded value of x as it was."""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(x)
    graph_module = GraphModule({}, graph)
    mode = obtain_fake_mode(graph_module)
    with mode:
        x.meta["val"] = torch.empty(2, 3)

    turned = insert_before(graph.output_node(), "t_", (x,), op="call_method")

    assert (3, 2) == tuple(turned.meta["val"].shape)
    assert (2, 3) == tuple(x.meta["val"].shape)


def test_regions_are_not_entered_while_values_are_computed() -> None:
    """set_grad_enabled and enter_autocast nodes get no value and leave the process as it is; autocast is applied."""
    graph = Graph()
    x = graph.placeholder("x")
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False))
    inside = graph.call_function(torch.mm, (x, x))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    outside = graph.call_function(torch.mm, (x, x))
    graph.output((inside, outside))
    graph_module = GraphModule({}, graph)
    with obtain_fake_mode(graph_module):
        x.meta["val"] = torch.empty(3, 3)

    refresh_values(graph.nodes)

    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.bfloat16 == inside.meta["val"].dtype
    assert torch.float32 == outside.meta["val"].dtype


def test_modules_and_methods_get_values_and_keep_their_state() -> None:
    """call_module and call_method nodes are computed on fakes; buffers of the real module are not written."""
    graph_module = symbolic_trace(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)))
    graph = graph_module.graph
    x = graph.find_nodes(op="placeholder")[0]
    with obtain_fake_mode(graph_module):
        x.meta["val"] = torch.empty(2, 3, 8, 8)

    refresh_values([x, *graph.nodes])
    flat = insert_before(graph.output_node(), "flatten", (graph.output_node().args[0], 1), op="call_method")

    assert (2, 144) == tuple(flat.meta["val"].shape)
    assert 0 == graph_module.get_submodule("1").num_batches_tracked.item()


def test_opaque_code_that_stands_no_fakes_leaves_values_unknown() -> None:
    """Somebody's compiled part that fails on fake tensors has no value, and neither have its users; no error."""

    class Opaque(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy() + 1)

    root = torch.nn.Module()
    root.part = Opaque()
    graph = Graph()
    x = graph.placeholder("x")
    part = graph.call_module("part", (x,))
    relu = graph.call_function(torch.relu, (part,))
    graph.output(relu)
    graph_module = GraphModule(root, graph)
    with obtain_fake_mode(graph_module):
        x.meta["val"] = part.meta["val"] = relu.meta["val"] = torch.empty(3)

    changed = refresh_values([part])

    assert [part, relu] == changed
    assert not has_value(part)
    assert not has_value(relu)


def test_without_values_on_the_inputs_there_is_none_and_no_error() -> None:
    """Edits of a graph that was never propagated work, and compute_value says what is missing."""
    graph_module = symbolic_trace(torch.nn.ReLU())
    relu = graph_module.graph.output_node().args[0]

    new = insert_after(relu, torch.neg, (relu,))

    assert not has_value(new)
    message = "the value of 'neg' cannot be computed: its inputs ['relu'] have no recorded value"
    with pytest.raises(FakeValueError, match=re.escape(message)):
        compute_value(new)


def test_arguments_that_do_not_fit_are_an_error_with_the_source_line() -> None:
    """A matrix product of the wrong shapes names operator, reason and advice, and leaves no node behind."""
    program = exported(lambda x: x.sin(), torch.randn(3, 4))
    sin = node_named(program.graph, "sin")
    before = str(program.graph)

    with pytest.raises(FakeValueError) as caught:
        insert_after(sin, aten.mm.default, (sin, sin))

    assert "the value of 'mm_default'" in str(caught.value)
    assert "a and b must have same reduction dim" in caught.value.reason
    assert before == str(program.graph)


def test_a_custom_operator_without_a_fake_kernel_says_so() -> None:
    """The advice for an operator without a fake kernel is to register one."""

    @torch.library.custom_op("fxpasses_tests::no_fake", mutates_args=())
    def no_fake(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    program = exported(lambda x: x.sin(), torch.randn(3, 4))
    sin = node_named(program.graph, "sin")

    with pytest.raises(FakeValueError, match=re.escape("torch.library.register_fake")):
        insert_after(sin, torch.ops.fxpasses_tests.no_fake.default, (sin,))


def test_tensor_meta_is_kept_in_step() -> None:
    """Where nodes carry tensor_meta, new and changed nodes carry a right one; a fresh propagation agrees."""
    graph_module = make_fx(lambda x: x.sin().sum(0), tracing_mode="fake")(torch.randn(2, 3))
    graph = graph_module.graph
    assert all("tensor_meta" in node.meta for node in graph.nodes if node.op == "call_function")
    sin = node_named(graph, "sin")
    new = insert_after(sin, aten.slice.Tensor, (sin, 1, 0, 2), replaces=[sin])
    node_named(graph, "sum_1").replace_input_with(sin, new)

    refresh_values([node_named(graph, "sum_1")])
    found = [node.meta["tensor_meta"] for node in graph.nodes if node.op == "call_function"]
    graph_module.recompile()
    ShapeProp(graph_module).propagate(torch.randn(2, 3))

    assert [node.meta["tensor_meta"] for node in graph.nodes if node.op == "call_function"] == found
    assert (2, 2) == tuple(new.meta["tensor_meta"].shape)


def test_long_chains_need_no_recursion() -> None:
    """A change at the head of a 20,000-node chain reaches its end with a low recursion limit."""
    graph = Graph()
    x = node = graph.placeholder("x")
    for _ in range(20_000):
        node = graph.call_function(torch.neg, (node,))
    graph.output(node)
    graph_module = GraphModule({}, graph)
    with obtain_fake_mode(graph_module) as mode:
        for each in graph.nodes:
            if each.op != "output":
                each.meta["val"] = 1
    x.meta["val"] = 2
    node.meta["val"] = 3
    limit = sys.getrecursionlimit()
    for each in graph.nodes:  # plain numbers: the walk is tested, not the dispatcher
        if each.op == "call_function":
            each.target = abs
    sys.setrecursionlimit(200)
    try:
        changed = refresh_values([x])
    finally:
        sys.setrecursionlimit(limit)

    assert 20_001 == len(changed)
    assert 2 == node.meta["val"]
    assert fake_mode_of(graph_module) is mode


def test_equal_looks_are_told_from_different_ones() -> None:
    """same_value compares shape, stride, dtype, device and structure, and numbers by type and value."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        one, two = torch.empty(2, 3), torch.empty(2, 3)
        turned, other = torch.empty(3, 2).T, torch.empty(2, 3, dtype=torch.half)
        elsewhere = torch.empty(2, 3, device="meta")

    assert same_value(one, two)
    assert same_value((one, [two, None, 1]), [two, (one, None, 1)])
    assert same_value(float("nan"), float("nan"))
    for left, right in [
        (one, turned),
        (one, other),
        (one, elsewhere),
        (one, None),
        (1, 1.0),
        (True, 1),
        ((one,), (one, two)),
    ]:
        assert not same_value(left, right)


def test_edits_inside_a_body_reach_the_caller() -> None:
    """refresh_callers goes on from an edited branch to the call, and to whoever uses it, through two levels."""

    def outer(x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return torch.cond(y.sum() > 1, torch.sin, torch.cos, (y,))

        return torch.cond(x.sum() > 0, inner, inner, (x,)) + 1

    program = exported(outer, torch.randn(3))
    graphs = [nested.graph for nested in nested_graph_modules(program.graph_module)]
    for target in (aten.sin.default, aten.cos.default):
        for node in [node for graph in graphs for node in graph.find_nodes(op="call_function", target=target)]:
            replace_node(node, insert_after(node, aten._to_copy.default, node.args, {"dtype": torch.float64}))

    changed = refresh_callers(program.graph_module)

    assert torch.float64 == node_named(program.graph, "add").meta["val"].dtype
    assert changed[-1] is node_named(program.graph, "add")


def test_edits_of_a_graph_without_values_leave_its_module_alone() -> None:
    """No mode is made, and nothing is noted on the module, while there are no values to compute."""
    graph_module = symbolic_trace(torch.nn.ReLU())
    relu = graph_module.graph.output_node().args[0]

    replace_node(relu, insert_after(relu, torch.tanh, relu.args))

    assert not graph_module.meta


def test_a_module_that_remembers_its_mode_can_be_pickled_and_copied() -> None:
    """The remembered mode is shared by copies and left out of pickles."""
    graph_module = constants_only()
    mode = obtain_fake_mode(graph_module)

    assert fake_mode_of(copy.deepcopy(graph_module)) is mode
    assert fake_mode_of(pickle.loads(pickle.dumps(graph_module))) is None


def test_nodes_inside_of_an_autocast_body_are_computed_under_autocast() -> None:
    """A node created in the body of an exported autocast region gets the dtype that it will have when it runs."""

    def autocast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return y + 1

    program = exported(autocast, torch.randn(3, 3))
    bodies = [nested for nested in nested_graph_modules(program.graph_module) if nested is not program.graph_module]
    (matmul,) = bodies[0].graph.find_nodes(op="call_function", target=aten.matmul.default)

    replace_node(matmul, insert_after(matmul, aten.mm.default, matmul.args))
    changed = refresh_callers(program.graph_module)

    assert torch.bfloat16 == node_named(bodies[0].graph, "mm_default").meta["val"].dtype
    assert [] == changed


def test_graphs_of_dynamo_keep_their_own_key() -> None:
    """Where values are recorded as example_value, new nodes have them there as well, and changes reach both."""
    graph = Graph()
    x = graph.placeholder("x")
    sin = graph.call_function(torch.sin, (x,))
    graph.output((sin,))
    graph_module = GraphModule({}, graph)
    with obtain_fake_mode(graph_module):
        x.meta["example_value"] = torch.empty(3)
        sin.meta["example_value"] = torch.empty(3)

    half = insert_before(sin, "half", (x,), op="call_method")
    again = insert_before(sin, torch.neg, (half,))
    sin.replace_input_with(x, again)
    refresh_values([sin])

    assert [torch.half] * 3 == [node.meta["example_value"].dtype for node in (half, again, sin)]
    assert fake_mode_of(graph_module) is half.meta["example_value"].fake_mode


class Chain(torch.nn.Module):
    """A program with views, reductions, several outputs of one node, and symbolic sizes."""

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        a = x.sin() + y
        b, c = torch.split(a.relu() * 2, 2, 1)
        d = (b.reshape(-1) + c.flatten()).view(x.shape[0], 2)
        e = torch.where(d > 0, d, c)
        return e.sum(0), (e @ e.T).softmax(-1), a.transpose(0, 1).contiguous()


SWAPS: dict[str, tuple[tuple[object, dict[str, object]], ...]] = {
    "sin": ((aten.cos.default, {}), (aten._to_copy.default, {"dtype": torch.float64})),
    "relu": ((aten.tanh.default, {}), (aten._to_copy.default, {"dtype": torch.bfloat16}), (aten.neg.default, {})),
    "softmax": ((aten._to_copy.default, {"dtype": torch.float64}), (aten.sum.default, {})),
    "contiguous": ((aten.clone.default, {}), (aten.sigmoid.default, {})),
    "where": ((aten.add.Tensor, {}),),
}


@functools.cache
def chain(dynamic: bool):
    shapes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}) if dynamic else None
    return export(Chain(), (torch.randn(3, 4), torch.randn(3, 4)), dynamic_shapes=shapes)


@settings(max_examples=examples(50), deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.sampled_from(sorted(SWAPS)), st.integers(0, 2)), max_size=5))
def test_recorded_values_agree_with_a_fresh_propagation(dynamic: bool, swaps: list[tuple[str, int]]) -> None:
    """After any rewrites, what is recorded on every node is what propagating the whole graph again would give."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own copying of tree specs warns about itself
        program = copy.deepcopy(chain(dynamic))
    graph = program.graph
    for name, choice in swaps:
        found = [node for node in graph.nodes if node.name.startswith(name)]
        if found:
            node = found[0]
            target, kwargs = SWAPS[name][choice % len(SWAPS[name])]
            args = node.args[1:3] if name == "where" else node.args[:1]
            new = insert_after(node, target, args, kwargs, replaces=[node], name=f"new_{name}")
            replace_node(node, new)
    recorded = {node: node.meta["val"] for node in graph.nodes if node.op != "output"}

    mode = fake_mode_of(program)
    inputs = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    program.graph_module.recompile()
    FakeTensorProp(program.graph_module, mode).propagate_dont_convert_inputs(*inputs)

    for node, value in recorded.items():
        assert same_value(value, node.meta["val"]), node.name
    assert modes_in(program.graph_module) == 1
