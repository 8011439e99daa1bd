"""Finding the pass that goes wrong, and the smallest graph that shows it."""

import pytest
import torch
from torch import fx

from fxpasses import (
    ExportedProgramPassBase,
    ExportedProgramPassResult,
    FixedPoint,
    InputError,
    PassBase,
    PassManager,
    PassResult,
    Stage,
)
from fxpasses.debugging import find_guilty_pass, find_guilty_rewrite, goes_wrong, reduce_graph
from fxpasses.instruments import rewrite_allowed
from fxpasses.passes import replace_pattern

aten = torch.ops.aten


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(6))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = torch.sigmoid(layer(x)) if index == 3 else torch.tanh(layer(x))
        return {"a": x, "b": x + 1}


X = (torch.linspace(-1, 1, 12).reshape(3, 4),)


def harmless(graph_module):
    pass


def wrong(graph_module):
    for node in graph_module.graph.nodes:
        if node.target is torch.sigmoid:
            node.target = torch.tanh
        elif node.target is aten.sigmoid.default:
            node.target = aten.tanh.default


def flavours():
    program = torch.export.export(Deep(), X)
    return [fx.symbolic_trace(Deep()), program, program.module()]


@pytest.mark.parametrize("which", range(3), ids=["traced", "program", "module"])
def test_complaint_15_bisecting_names_the_wrong_pass_of_ten(which):
    """Complaint 15: automatic bisect: a pipeline of ten with one wrong pass."""
    module = flavours()[which]
    text = str(module.graph)
    pipeline = PassManager([harmless] * 3 + [Stage("middle", [harmless, wrong, harmless])] + [harmless] * 4)

    found = find_guilty_pass(pipeline, module, X)

    assert ("wrong", "3.1", 4, wrong) == (found.name, found.position, found.number, found.pass_)
    assert "the first node that differs is 'sigmoid'" in found.problem
    assert "sigmoid" in str(found.before.graph)
    assert "sigmoid](" not in str(found.after.graph)
    assert "+    %sigmoid" in str(found)
    assert text == str(module.graph)

    small = found.reduce()
    assert (1, ["sigmoid"]) == (
        small.nodes_after,
        [node.name for node in small.graph_module.graph.nodes if node.op.startswith("call")],
    )
    assert small.trials < 60
    assert "inputs: float32[3, 4]" in str(small)


def test_the_round_of_a_loop_is_named():
    class Add(torch.nn.Module):
        def forward(self, x):
            return torch.add(x, 1)

    def wrong_in_round_two(graph_module):
        add = next(node for node in graph_module.graph.nodes if node.op == "call_function")
        if add.target is torch.add and type(add.args[1]) is int:
            add.args = (add.args[0], 1.0)
        elif add.target is torch.add:
            add.target = torch.sub

    found = find_guilty_pass([FixedPoint([harmless, wrong_in_round_two])], fx.symbolic_trace(Add()), X)

    assert ("wrong_in_round_two", "0.1", 1, 3) == (found.name, found.position, found.step, found.number)


def test_a_pass_that_raises_is_guilty_too():
    def raises(graph_module):
        raise ValueError("crash")

    found = find_guilty_pass([harmless, raises, harmless], fx.symbolic_trace(Deep()), X)

    assert ("raises", 1) == (found.name, found.number)
    assert found.after is None
    assert "crash" in found.problem
    assert 1 == found.reduce().nodes_after


def test_a_check_of_ones_own_may_judge():
    def no_tanh(module):
        return not module.graph.find_nodes(op="call_function", target=torch.tanh)

    def to_tanh(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.sin):
            node.target = torch.tanh

    class Sin(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x)

    found = find_guilty_pass([harmless, to_tanh], fx.symbolic_trace(Sin()), check=no_tanh)

    assert ("to_tanh", "the check says no") == (found.name, found.problem)


def test_nothing_is_found_where_nothing_is_wrong():
    assert find_guilty_pass([harmless], fx.symbolic_trace(Deep()), X) is None


def test_a_graph_that_is_wrong_from_the_start_is_an_error():
    with pytest.raises(InputError, match="the graph is wrong before the first pass already: the check says no"):
        find_guilty_pass([harmless], fx.symbolic_trace(Deep()), X, check=lambda module: False)


def test_a_graph_is_reduced_to_the_nodes_that_matter():
    def f(x, y):
        a = torch.relu(x)
        b = torch.tanh(a + y)
        c = b * a
        d = torch.sin(c)
        return d + torch.cos(b), a - 1

    module = fx.symbolic_trace(f)
    text = str(module.graph)

    def bad(candidate):
        targets = [node.target for node in candidate.graph.nodes if node.op == "call_function"]
        return torch.tanh in targets and torch.sin in targets

    small = reduce_graph(module, (torch.randn(3), torch.randn(3)), bad)

    names = [node.name for node in small.graph_module.graph.nodes if node.op == "call_function"]
    assert ["tanh", "mul", "sin"] == names
    assert (8, 3) == (small.nodes_before, small.nodes_after)
    assert 2 == len(small.args)
    small.graph_module(*small.args)
    assert text == str(module.graph)


def test_effects_are_kept_while_their_node_is():
    def f(x):
        y = x + 1
        y.mul_(2)
        return torch.relu(y)

    def bad(module, args):
        return any(node.target == "mul_" for node in module.graph.nodes)

    small = reduce_graph(fx.symbolic_trace(f), (torch.ones(2),), bad)

    assert ["mul_"] == [node.name for node in small.graph_module.graph.nodes if node.op.startswith("call")]


def test_the_problem_must_be_there_to_begin_with():
    with pytest.raises(InputError, match="the problem is not there on the whole graph"):
        reduce_graph(fx.symbolic_trace(Deep()), X, goes_wrong(harmless))


def test_the_number_of_trials_is_limited():
    small = reduce_graph(fx.symbolic_trace(Deep()), X, goes_wrong(wrong), max_trials=3)

    assert small.trials == 3
    assert goes_wrong(wrong)(small.graph_module, small.args)


def test_the_wrong_rewrite_among_many_is_found():
    class Chain(torch.nn.Module):
        def forward(self, x):
            for index in range(9):
                x = torch.relu(x * (-1 if index == 5 else 1)) + 1
            return x

    module = fx.symbolic_trace(Chain())

    def drop_relu(graph_module):
        """Right while the input is not negative."""
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            if rewrite_allowed(node):
                node.replace_all_uses_with(node.args[0])
                graph_module.graph.erase_node(node)

    found = find_guilty_rewrite([harmless, drop_relu], module, (torch.full((2,), 2.0),))

    assert (5, "relu_5 in pass 'drop_relu'") == (found.number, found.where)
    assert "-    %relu_5 :" in str(found)
    assert find_guilty_rewrite([harmless], module, (torch.ones(2),)) is None


def test_rewrites_by_pattern_are_counted_by_themselves():
    class Relus(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x - 1) + torch.relu(x)

    def drop(graph_module):
        replace_pattern(graph_module, lambda x: torch.relu(x), lambda x: torch.abs(x))

    found = find_guilty_rewrite(drop, fx.symbolic_trace(Relus()), (torch.ones(2),))

    assert found is None
    found = find_guilty_rewrite(drop, fx.symbolic_trace(Relus()), (torch.zeros(2),))
    assert 0 == found.number
    assert "relu" in found.where


class SigmoidToTanh(PassBase):
    """Wrong, and refuses graphs without what it replaces."""

    def requires(self, graph_module):
        if not graph_module.graph.find_nodes(op="call_function", target=torch.sigmoid):
            raise ValueError("there is no sigmoid")

    def call(self, graph_module):
        wrong(graph_module)
        return PassResult(graph_module, True)


def test_a_graph_is_reduced_to_what_shows_the_same_problem_not_another():
    found = find_guilty_pass([harmless, SigmoidToTanh()], fx.symbolic_trace(Deep()), X)

    calls = [node.target for node in found.reduce().graph_module.graph.nodes if node.op == "call_function"]

    assert [torch.sigmoid] == calls


def test_a_pass_that_raises_is_reduced_to_the_same_error():
    def refuses_tanh_and_small_graphs(graph_module):
        if len(graph_module.graph.find_nodes(op="call_function", target=torch.tanh)) > 2:
            raise ZeroDivisionError("too many")
        raise KeyError("too few")

    found = find_guilty_pass([refuses_tanh_and_small_graphs], fx.symbolic_trace(Deep()), X)

    reduced = found.reduce().graph_module

    assert "ZeroDivisionError" in found.problem
    assert 3 == len(reduced.graph.find_nodes(op="call_function", target=torch.tanh))


def test_what_a_check_of_ones_own_found_is_reduced_by_that_check():
    def at_most_one_tanh(module):
        return len(module.graph.find_nodes(op="call_function", target=torch.tanh)) < 6

    found = find_guilty_pass([harmless, wrong], fx.symbolic_trace(Deep()), X, check=at_most_one_tanh)

    reduced = found.reduce().graph_module

    assert "the check says no" == found.problem
    assert 1 == len(reduced.graph.find_nodes(op="call_function", target=torch.sigmoid))


def test_a_predicate_may_leave_out_what_raises():
    program = fx.symbolic_trace(Deep())
    args = X

    assert goes_wrong(SigmoidToTanh())(fx.symbolic_trace(torch.nn.Tanh()), args)
    assert not goes_wrong(SigmoidToTanh(), raising=False)(fx.symbolic_trace(torch.nn.Tanh()), args)
    assert goes_wrong(SigmoidToTanh(), raising=False)(program, args)
    assert not goes_wrong(SigmoidToTanh(), raising=True)(program, args)


def test_passes_on_whole_programs_are_found_but_not_reduced():
    class WrongProgram(ExportedProgramPassBase):
        def call(self, exported_program):
            wrong(exported_program.graph_module)
            return ExportedProgramPassResult(exported_program, True)

    found = find_guilty_pass([harmless, WrongProgram()], torch.export.export(Deep(), X), X)

    assert "WrongProgram" == found.name
    with pytest.raises(InputError, match="WrongProgram works on whole programs"):
        found.reduce()
    with pytest.raises(InputError, match="WrongProgram works on whole programs"):
        goes_wrong(WrongProgram())


def double_through_data(graph_module):
    for parameter in graph_module.parameters():
        parameter.data.mul_(2)


def double_in_place(graph_module):
    with torch.no_grad():
        for parameter in graph_module.parameters():
            parameter.mul_(2)


def make_double(graph_module):
    for parameter in graph_module.parameters():
        parameter.data = parameter.data.double()


@pytest.mark.parametrize("writes", [double_through_data, double_in_place, make_double])
def test_a_pass_that_writes_into_parameters_is_found_and_they_are_put_back(writes):
    module = fx.symbolic_trace(Deep())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    expected = module(*X)

    found = find_guilty_pass([harmless, writes, harmless], module, X)

    assert (writes.__name__, 1) == (found.name, found.number)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(expected["a"], found.before(*X)["a"])
    if writes is not make_double:
        assert not torch.equal(expected["a"], found.after(*X)["a"])
        assert 1 == found.reduce().nodes_after
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_reducing_leaves_buffers_and_inputs_as_they_were():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            return torch.sigmoid(x.mul_(2)) + torch.add(self.seen, x.sum(), out=self.seen)

    module, x = fx.symbolic_trace(Counts()), torch.ones(2)
    reduce_graph(module, (x,), goes_wrong(wrong))

    assert 0 == module.seen
    assert torch.equal(torch.ones(2), x)


def test_inputs_that_are_no_sequence_are_refused():
    with pytest.raises(InputError, match=r"args is a tuple of inputs, not a Tensor; write \(x,\)"):
        find_guilty_pass([wrong], fx.symbolic_trace(Deep()), X[0])


def test_a_long_chain_is_reduced_in_few_trials():
    graph = fx.Graph()
    node = graph.placeholder("x")
    for number in range(300):
        node = graph.call_function(torch.sigmoid if number == 177 else torch.neg, (node,))
    graph.output(node)

    small = reduce_graph(fx.GraphModule({}, graph), (torch.ones(2),), goes_wrong(wrong))

    assert [torch.sigmoid] == [each.target for each in small.graph_module.graph.nodes if each.op == "call_function"]
    assert small.trials < 30


def test_models_that_were_made_in_inference_mode_are_put_back_too():
    with torch.inference_mode():
        model = Deep()
    module = fx.symbolic_trace(model)
    before = {name: value.clone() for name, value in module.state_dict().items()}

    found = find_guilty_pass([harmless, double_through_data], module, X)

    assert "double_through_data" == found.name
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
