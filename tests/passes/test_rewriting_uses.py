"""Each user of replaced nodes is rewritten once, and everybody is asked about what will be, not what still is."""

import time

import torch
from torch.fx import Graph, GraphModule, symbolic_trace

from fxpasses.passes import FoldToConstant, Outline, Rule, RuleSet, replace_pattern

X = torch.arange(-3.0, 3.0)


def wide(count):
    """One input, ``count`` sums, all of them returned."""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(tuple(graph.call_function(torch.add, (x, float(number))) for number in range(count)))
    return GraphModule({}, graph)


def test_replacing_all_inputs_of_one_node_is_linear():
    """An output of 8,000 values, each of which is replaced: seconds, if the output were rewritten for each."""
    module = wide(8_000)
    start = time.process_time()
    found = replace_pattern(module, lambda x, c: torch.add(x, c), lambda x, c: torch.sub(x, c))

    assert 8_000 == len(found)
    assert 4 > time.process_time() - start


def test_several_inputs_of_one_node_become_nodes_literals_and_inputs():
    """One user takes a new node, a literal, and what a replacement hands on."""

    def source(x):
        return torch.stack([torch.relu(x), torch.neg(torch.neg(x)), torch.sin(x)]), [torch.numel(x), torch.numel(x)]

    module = symbolic_trace(source)
    rules = [
        Rule(lambda v: torch.relu(v), lambda v: torch.clamp_min(v, 0)),
        Rule(lambda v: torch.neg(torch.neg(v)), lambda v: v),
        Rule(lambda v: torch.numel(v), lambda v: 6),
    ]
    RuleSet(rules).apply(module)
    module.graph.lint()
    stack, output = list(module.graph.nodes)[-2:]

    assert "[clamp_min, x, sin]" == str(stack.args[0])
    assert "(stack, [6, 6])" == str(output.args[0])
    assert ["x", "clamp_min", "sin", "stack", "output"] == [node.name for node in module.graph.nodes]


def test_what_is_handed_on_and_then_replaced_ends_at_the_last_value():
    """The outer match gives its input, which the inner one, with another rule, replaces."""
    module = symbolic_trace(lambda x: torch.cat([torch.abs(torch.relu(x)), torch.relu(x)]))
    rules = [
        Rule(lambda v: torch.abs(v), lambda v: v, priority=1),
        Rule(lambda v: torch.relu(v), lambda v: torch.clamp_min(v, 0)),
    ]
    RuleSet(rules).apply(module)
    module.graph.lint()

    assert torch.equal(torch.cat([torch.relu(X), torch.relu(X)]), module(X))
    assert ["x", "clamp_min", "clamp_min_1", "cat", "output"] == [node.name for node in module.graph.nodes]


def test_a_user_that_is_replaced_itself_is_left_out():
    """A cat of replaced values goes, and what comes in its place has their new values."""
    module = symbolic_trace(lambda x: torch.cat([torch.relu(x), torch.relu(-x)]))
    rules = [
        Rule(lambda v: torch.relu(v), lambda v: torch.clamp_min(v, 0)),
        Rule(lambda a, b: torch.cat([a, b]), lambda a, b: torch.concat([a, b])),
    ]
    RuleSet(rules).apply(module)
    module.graph.lint()

    assert ["x", "clamp_min", "neg", "clamp_min_1", "concat", "output"] == [node.name for node in module.graph.nodes]
    assert torch.equal(torch.cat([torch.relu(X), torch.relu(-X)]), module(X))


def test_observers_of_replacements_are_told():
    """Torch's own hooks hear of each old node, its new name and the user."""
    module = wide(2)
    told = []
    module._register_replace_node_hook(lambda old, new, user: told.append((old.name, new, user.name)))
    replace_pattern(module, lambda x, c: torch.add(x, c), lambda x, c: torch.sub(x, c))

    assert [("add", "sub", "output"), ("add_1", "sub_1", "output")] == told


def test_a_constant_that_depends_on_a_folded_one_is_folded_in_the_same_round():
    """The second fold sees what the first one made."""
    root, graph = torch.nn.Module(), Graph()
    root.register_buffer("weight", X.clone())
    weight = graph.get_attr("weight")
    graph.output(graph.call_function(torch.neg, (graph.call_function(torch.sin, (weight,)),)))
    module = GraphModule(root, graph)
    rules = [
        Rule(lambda v: torch.sin(v), FoldToConstant(), priority=1),
        Rule(lambda v: torch.neg(v), FoldToConstant()),
    ]
    report = RuleSet(rules).apply(module)

    assert 2 == len(report.applications)
    assert torch.equal(-torch.sin(X), module())


def test_outlining_beside_other_rules_in_a_graph_with_writes():
    """What nodes do was asked for when one of them had an input that did not exist at the start: a bare KeyError."""

    def source(x):
        y = torch.cos(torch.sin(x))
        y.add_(1)
        return torch.tanh(y.neg())

    module = symbolic_trace(source)
    rules = [Rule(lambda v: torch.sin(v), Outline("part")), Rule(lambda v: torch.cos(v), lambda v: torch.cos(-v))]
    RuleSet(rules).apply(module)
    module.graph.lint()

    assert torch.equal(source(X), module(X))
