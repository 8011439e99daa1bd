"""The walk of an ExportPass: what is computed again, what stays, and the graphs inside."""

from __future__ import annotations

import sys

import pytest
import torch
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule
from work import lines_run, operators_run

from fxpasses.checks import fake_values_agree, lint, metadata_is_complete
from fxpasses.export_pass import ExportPass, replay
from fxpasses.pass_base import PassResult
from fxpasses.pass_manager import PassManager
from fxpasses.testing import assert_same_values
from fxpasses.values import fake_mode_of, refresh_values

aten = torch.ops.aten


class Replace(ExportPass):
    """Replace operators by operators."""

    def __init__(self, **by_name):
        self.swaps = {getattr(aten, name).default: getattr(aten, other).default for name, other in by_name.items()}

    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(self.swaps.get(op, op), args, kwargs, meta)


class Drop(ExportPass):
    """Drop an operator."""

    def __init__(self, op):
        self.op = op

    def call_operator(self, op, args, kwargs, meta):
        return args[0] if op == self.op else super().call_operator(op, args, kwargs, meta)


class Cast(ExportPass):
    """Compute sin in another precision."""

    def __init__(self, dtype):
        self.dtype = dtype

    def call_operator(self, op, args, kwargs, meta):
        if op == aten.sin.default and args[0].data.dtype != self.dtype:
            args = (super().call_operator(aten.to.dtype, (args[0], self.dtype), {}, meta),)
        return super().call_operator(op, args, kwargs, meta)


def export(function, *args, dynamic_shapes=None):
    class Model(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    shapes = None if dynamic_shapes is None else (dynamic_shapes,)
    return torch.export.export(Model(), args, dynamic_shapes=shapes)


def module_of(function, *args, dynamic_shapes=None) -> GraphModule:
    return export(function, *args, dynamic_shapes=dynamic_shapes).graph_module


def named(module):
    return {node.name: node for node in module.graph.nodes}


@pytest.fixture
def computed(monkeypatch):
    """The names of the nodes whose value is computed while the test runs."""
    names = []

    def watch(original):
        def counted(node, *args, **kwargs):
            names.append(node.name)
            return original(node, *args, **kwargs)

        return counted

    monkeypatch.setattr(replay, "give_value", watch(replay.give_value))
    monkeypatch.setattr(replay, "refresh_value", watch(replay.refresh_value))
    return names


# --- the frontier ---------------------------------------------------------------------------------------------------


def test_only_the_new_node_is_computed_when_its_value_is_the_old_one(computed):
    module = module_of(lambda x: x.exp().sin().neg().abs(), torch.ones(2))
    before = named(module)
    Replace(sin="cos")(module)

    assert ["cos"] == computed
    assert all(named(module)[name] is before[name] for name in ("exp", "neg", "abs_1"))


def test_a_new_dtype_travels_until_it_comes_to_an_end(computed):
    module = module_of(lambda x: (aten._to_copy.default(x.sin().neg(), dtype=torch.float32) + 1).abs(), torch.ones(2))
    before = {name: node.meta.get("val") for name, node in named(module).items()}
    Cast(torch.float16)(module)
    after = named(module)

    assert ["to", "sin", "neg", "_to_copy"] == [name.removesuffix("_1") for name in computed]
    assert after["neg"].meta["val"].dtype == torch.float16
    assert all(after[name].meta["val"] is before[name] for name in ("add", "abs_1"))
    fake_values_agree(module)


def test_values_of_a_partial_walk_equal_those_of_a_full_one():
    module = module_of(lambda x: (x.sin() * x.cos()).sum(0), torch.ones(3, 4))
    Cast(torch.float64)(module)
    partial = [node.meta.get("val") for node in module.graph.nodes]
    changed = refresh_values([node for node in module.graph.nodes if node.op == "call_function"])

    assert changed == []
    assert torch.float64 in [value.dtype for value in partial if isinstance(value, torch.Tensor)]


def test_complaint_04_a_pass_that_touches_one_of_5000_nodes_costs_one_operator():
    """Complaint 4: ExportPass replays the whole graph for each pass."""
    graph = torch.fx.Graph()
    program = module_of(lambda x: x.sin(), torch.ones(4))
    value = next(iter(program.graph.nodes)).meta["val"]
    node = graph.placeholder("x")
    node.meta["val"] = value
    for index in range(5000):
        node = graph.call_function(aten.tanh.default if index == 2500 else aten.sin.default, (node,))
        node.meta["val"] = value
    graph.output((node,))
    module = GraphModule(torch.nn.Module(), graph)
    before = list(graph.nodes)
    full = operators_run(lambda: refresh_values(before[1:-1]))
    one = Replace(tanh="cos")
    Replace(cos="tanh").call(module)
    swaps = (one, Replace(cos="tanh"), one)
    operators = [operators_run(lambda swap=swap: run_without_recompile(swap, module)) for swap in swaps]

    assert [full, *operators] == [5000, 1, 1, 1]
    assert [4999, 1] == [sum(n in set(before) for n in graph.nodes) - 2, sum(n not in set(before) for n in graph.nodes)]
    assert [] == refresh_values([n for n in graph.nodes if n.op == "call_function"])


def run_without_recompile(pass_, module):
    module.recompile = lambda: None
    try:
        return pass_.call(module)
    finally:
        del module.recompile


def test_complaint_38_a_chain_of_20000_nodes_needs_no_recursion():
    """Complaint 38: RecursionError on big graphs."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for _ in range(20_000):
        node = graph.call_function(torch.neg, (node,))
    graph.output(node)
    module = GraphModule(torch.nn.Module(), graph)

    class DropAll(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            return args[0]

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        DropAll().call(module)
    finally:
        sys.setrecursionlimit(limit)

    assert len(graph.nodes) == 2


def test_complaint_05_the_second_run_says_that_nothing_changed():
    """Complaint 5: ``modified`` lies, so callers rebuild everything and fixpoints never settle."""
    module = module_of(lambda x: x.sin(), torch.ones(2))
    graph = module.graph
    first, second = Replace(sin="cos")(module), Replace(sin="cos")(module)

    assert (True, False) == (first.modified, second.modified)
    assert second.graph_module.graph is graph


def test_complaint_33_a_graph_of_constants_keeps_one_fake_mode():
    """Complaint 33: two fake modes after a pass when all inputs are constants."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.ones(3))

        def forward(self):
            return self.table.sin() + torch.tensor([1.0, 2.0, 3.0])

    for module in (
        torch.export.export(Model(), ()).graph_module,
        torch.export.export(Model(), ()).module(),
        torch.fx.symbolic_trace(Model()),
    ):
        Replace(sin="cos")(module)
        values = [node.meta["val"] for node in module.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]

        assert len({id(value.fake_mode) for value in values}) <= 1
        assert not values or fake_mode_of(module) is values[0].fake_mode


def test_dynamic_shapes_stay_symbols_and_get_no_new_guards():
    rows = torch.export.Dim("rows", min=2, max=64)
    program = export(lambda x: (x.sin() @ x.t()).view(-1), torch.ones(4, 3), dynamic_shapes=({0: rows},))
    guards = len(fake_mode_of(program).shape_env.guards)
    Replace(sin="cos")(program)

    assert guards == len(fake_mode_of(program).shape_env.guards)
    x = torch.randn(7, 3)
    torch.testing.assert_close((x.cos() @ x.t()).view(-1), program.module()(x))


def test_sizes_that_depend_on_data_keep_their_symbols():
    program = export(lambda x: (x.nonzero() + 1).float().sin(), torch.ones(4))
    Replace(sin="cos")(program)
    x = torch.tensor([1.0, 0.0, 3.0])

    fake_values_agree(program.graph_module)
    torch.testing.assert_close((x[:3].nonzero() + 1).float().cos(), program.graph_module(x)[0])


# --- the graphs inside ----------------------------------------------------------------------------------------------


def control_flow(x):
    from torch._higher_order_ops import map as hop_map
    from torch._higher_order_ops import scan, while_loop

    y = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos().sin(), (x,))
    y = hop_map(lambda row, other: row.sin() + other, y, x[0])
    carry, rows = scan(lambda c, row: (c + row.sin(), c * row), torch.zeros(3), y)
    _, y = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin()), (torch.zeros((), dtype=torch.long), y))
    with torch.no_grad():
        z = y.sin()
    return z + carry, rows


def every_graph(module):
    return [inner for inner in module.modules() if isinstance(inner, GraphModule)]


def test_complaint_22_each_body_of_control_flow_is_visited():
    """Complaint 22: passes stop at control-flow subgraphs."""
    x = torch.randn(2, 3)
    program = export(control_flow, x)
    expected = program.module()(x)
    result = PassManager([Replace(sin="tanh")])(program)
    changed = program.module()(x)
    back = PassManager([Replace(tanh="sin")])(program)

    assert result.modified
    assert back.modified
    assert not any(
        node.target is aten.tanh.default for inner in every_graph(program.graph_module) for node in inner.graph.nodes
    )
    assert not torch.allclose(changed[0], expected[0])
    assert_same_values(program.module()(x), expected)
    program.validate()
    for inner in every_graph(program.graph_module):
        lint(inner)
        metadata_is_complete(inner)


def test_complaint_22_a_body_that_two_calls_share_is_visited_once():
    """Complaint 22: a shared branch is rewritten once."""

    class Wrap(ExportPass):
        def __init__(self):
            self.seen = 0

        def call_operator(self, op, args, kwargs, meta):
            value = super().call_operator(op, args, kwargs, meta)
            if op != aten.sin.default:
                return value
            self.seen += 1
            return super().call_operator(aten.neg.default, (value,), {}, meta)

    module = module_of(lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)), torch.ones(3))
    cond = next(node for node in module.graph.nodes if node.target is torch.ops.higher_order.cond)
    with module.graph.inserting_after(cond):
        again = module.graph.node_copy(cond)
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        element = module.graph.call_function(aten.neg.default, (output.args[0][0],))
        element.meta["val"] = output.args[0][0].meta["val"]
    output.args = ((element, again),)
    module.recompile()
    wrap = Wrap()
    wrap(module)

    assert wrap.seen == 1
    assert ["aten.sin.default", "aten.neg.default"] == [
        str(node.target) for node in module.true_graph_0.graph.nodes if node.op == "call_function"
    ]


def test_a_value_that_changes_outside_changes_inside():
    module = module_of(
        lambda x: torch.cond(x.sum() > 0, lambda a: a.cos(), lambda a: a.exp(), (x.sin(),)), torch.ones(3)
    )
    Cast(torch.float64)(module)
    inner = [node.meta["val"].dtype for node in module.true_graph_0.graph.nodes if node.op != "output"]

    assert {torch.float64} == set(inner)
    assert module.graph.output_node().args[0][0].meta["val"].dtype == torch.float64
    fake_values_agree(module)


def test_rows_of_a_map_change_with_what_is_mapped():
    from torch._higher_order_ops import map as hop_map

    module = module_of(lambda x: hop_map(lambda row: row.cos(), x.sin()), torch.ones(2, 3))
    Cast(torch.float64)(module)
    row = module.body_graph_0.graph.find_nodes(op="placeholder")[0].meta["val"]

    assert ((3,), torch.float64) == (row.shape, row.dtype)
    fake_values_agree(module)


def test_a_value_that_changes_inside_changes_outside():
    module = module_of(
        lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.sin() + 1, (x,)).exp(), torch.ones(3)
    )
    Cast(torch.float64)(module)

    assert module.graph.output_node().args[0][0].meta["val"].dtype == torch.float64


def test_a_class_that_does_not_visit_nested_graphs_leaves_them():
    class OuterOnly(Replace):
        visit_nested = False

    program = export(control_flow, torch.randn(2, 3))
    text = [inner.code for inner in every_graph(program.graph_module)]
    result = OuterOnly(sin="tanh")(program)

    assert not result.modified
    assert text == [inner.code for inner in every_graph(program.graph_module)]


def test_a_subclass_can_tell_how_deep_it_is_by_call_submodule():
    """As backends do that leave bodies alone: they count calls of ``call_submodule`` and switch their hook off."""

    class OuterOnly(Replace):
        def __init__(self):
            super().__init__(sin="tanh")
            self.depth = 0

        def call_submodule(self, graph_module, inputs):
            self.depth += 1
            if self.depth > 1:
                hook = self.call_operator
                self.call_operator = super(Replace, self).call_operator
            result = super().call_submodule(graph_module, inputs)
            if self.depth > 1:
                self.call_operator = hook
            self.depth -= 1
            return result

    module = module_of(
        lambda x: torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x.sin(),)), torch.ones(3)
    )
    OuterOnly()(module)

    assert any(node.target is aten.tanh.default for node in module.graph.nodes)
    assert not any(node.target is aten.tanh.default for node in module.true_graph_0.graph.nodes)


def test_partitions_are_walked_and_guards_are_not():
    inner = torch.fx.symbolic_trace(lambda x: torch.sin(x))
    root = torch.nn.Module()
    root.part = inner
    graph = torch.fx.Graph()
    graph.output(graph.call_module("part", (graph.placeholder("x"),)))
    module = GraphModule(root, graph)

    class UseCos(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            return super().call_operator(torch.cos if op is torch.sin else op, args, kwargs, meta)

    UseCos()(module)
    x = torch.ones(2)

    torch.testing.assert_close(x.cos(), module(x))


# --- edits by hand --------------------------------------------------------------------------------------------------


class EditsByHand(ExportPass):
    """As many backend passes do: edit the graph, then let ``super().call`` bring the values up to date."""

    def call(self, graph_module: GraphModule) -> PassResult:
        for node in list(graph_module.graph.find_nodes(op="call_function", target=aten.sin.default)):
            with graph_module.graph.inserting_before(node):
                wide = graph_module.graph.call_function(aten.to.dtype, (node.args[0], torch.float64))
            node.replace_input_with(node.args[0], wide)
        graph_module.recompile()
        graph_module = super().call(graph_module).graph_module
        return PassResult(graph_module, True)


def test_edits_by_hand_are_propagated_by_super_call(computed):
    module = module_of(lambda x: x.exp().abs().sin().neg(), torch.ones(2))
    result = EditsByHand()(module)
    after = named(module)

    assert result.modified
    assert after["neg"].meta["val"].dtype == torch.float64
    assert "abs_1" not in computed
    assert "exp" not in computed
    fake_values_agree(module)


def test_edits_by_hand_reach_nested_graphs_once():
    module = module_of(
        lambda x: torch.cond(x.sum() > 0, lambda a: a.sin().sum(), lambda a: a.sin().sum() + 1, (x,)), torch.ones(3)
    )
    EditsByHand()(module)
    casts = [node for node in module.true_graph_0.graph.nodes if node.target is aten.to.dtype]

    assert len(casts) == 1


def test_a_value_set_by_hand_reaches_its_users():
    class Retype(ExportPass):
        def call(self, graph_module):
            node = graph_module.graph.find_nodes(op="placeholder")[0]
            node.meta["val"] = node.meta["val"].double()
            return super().call(graph_module)

    module = module_of(lambda x: x.sin().exp(), torch.ones(2))
    Retype()(module)

    assert {torch.float64} == {node.meta["val"].dtype for node in module.graph.nodes if node.op != "output"}


def test_a_node_made_by_hand_without_a_value_gets_one():
    module = module_of(lambda x: x.sin(), torch.ones(2))
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        node = module.graph.call_function(aten.cos.default, (output.args[0][0],))
    output.args = ((node,),)
    ExportPass()(module)

    assert node.meta["val"].shape == (2,)


# --- any graph ------------------------------------------------------------------------------------------------------


UNARY = ("sin", "cos", "neg", "relu", "relu_", "exp", "detach", "clone")


@st.composite
def programs(draw):
    """Random chains and joins of unary ops, some in place, of two dtypes."""
    steps = draw(st.lists(st.tuples(st.sampled_from(UNARY), st.integers(0, 6)), min_size=1, max_size=10))
    joins = draw(st.integers(1, 3))
    half = draw(st.booleans())

    def run(x):
        values = [x + 1, x.half() if half else x * 2]
        for name, index in steps:
            values.append(getattr(values[index % len(values)], name)())
        return tuple(values[-joins:])

    return run


@settings(max_examples=8 * FUZZ, deadline=None)
@given(programs(), st.sampled_from(["sin", "cos", "neg", "exp"]), st.booleans())
def test_on_any_graph_a_rewrite_keeps_numbers_values_and_everything_else(run, name, cast):
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    program = export(run, x)
    untouched = {n for n in program.graph.nodes if n.target is not getattr(aten, name).default}

    class Twice(ExportPass):
        """neg(neg(f(x))), through another dtype and back if asked."""

        def call_operator(self, op, args, kwargs, meta):
            value = super().call_operator(op, args, kwargs, meta)
            if op != getattr(aten, name).default:
                return value
            dtype = value.data.dtype
            if cast:
                value = super().call_operator(aten.to.dtype, (value, torch.float64), {}, meta)
            value = super().call_operator(aten.abs.default, (value,), {}, meta)
            return super().call_operator(aten.to.dtype, (value, dtype), {}, meta) if cast else value

    def expected(x):
        real = getattr(torch.Tensor, name)
        try:
            setattr(torch.Tensor, name, lambda self: real(self).abs())
            return run(x)
        finally:
            setattr(torch.Tensor, name, real)

    wanted = expected(x.clone())
    PassManager([Twice()])(program)

    assert_same_values(program.module()(x.clone()), wanted)
    assert untouched <= set(program.graph.nodes)
    lint(program)
    metadata_is_complete(program)
    fake_values_agree(program)


@settings(max_examples=6 * FUZZ, deadline=None)
@given(programs())
def test_on_any_graph_a_no_op_changes_nothing(run):
    program = export(run, torch.ones(2, 3))
    text, nodes = program.graph_module.code, list(program.graph.nodes)
    result = PassManager([ExportPass(), Replace(tanh="sin"), Drop(aten.rand.default)])(program)

    assert not result.modified
    assert text == program.graph_module.code
    assert nodes == list(program.graph.nodes)


def test_thousands_of_new_constants_become_inputs_in_linear_time():
    class NumbersAsTensors(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            args = (args[0], torch.tensor(float(args[1]))) if op == aten.mul.Tensor else args
            return super().call_operator(op, args, kwargs, meta)

    def scaled(times):
        def run(x):
            for number in range(times):
                x = x * number
            return x

        return export(run, torch.ones(2))

    programs = {count: scaled(count) for count in (50, 200)}
    lines = {count: lines_run(lambda count=count: NumbersAsTensors()(programs[count])) for count in programs}

    assert 200 == len(programs[200].constants)
    assert lines[200] < 5 * lines[50]


def many_inputs(count):
    return export(lambda x: torch.cat([torch.sin(x + number) for number in range(count)]), torch.ones(2))


class KeepAndNegate(ExportPass):
    """Use the negative of every sine."""

    def call_operator(self, op, args, kwargs, meta):
        value = super().call_operator(op, args, kwargs, meta)
        return super().call_operator(aten.neg.default, (value,), {}, meta) if op == aten.sin.default else value


@pytest.mark.parametrize(
    ("pass_", "expected"),
    [
        (Replace(sin="cos"), lambda x: torch.cat([torch.cos(x + number) for number in range(100)])),
        (Drop(aten.sin.default), lambda x: torch.cat([x + number for number in range(100)])),
        (KeepAndNegate(), lambda x: torch.cat([-torch.sin(x + number) for number in range(100)])),
    ],
    ids=["replaced", "dropped", "kept"],
)
def test_a_node_with_many_inputs_is_given_all_its_new_ones(pass_, expected):
    program = many_inputs(100)
    x = torch.linspace(-1, 1, 2)

    after = PassManager([pass_], checks=[lint, metadata_is_complete, fake_values_agree])(program).exported_program

    assert torch.equal(expected(x), after.module()(x))
    assert isinstance(pass_, KeepAndNegate) == bool(after.graph.find_nodes(op="call_function", target=aten.sin.default))


def test_replacing_the_inputs_of_one_node_costs_time_in_proportion_to_them():
    modules = {count: many_inputs(count).graph_module for count in (100, 800)}
    lines = {count: lines_run(lambda count=count: Replace(sin="cos")(modules[count])) for count in modules}

    assert lines[800] <= 8 * lines[100]
