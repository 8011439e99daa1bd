"""A replacement runs what its match ran in the same order, as far as effects tell the orders apart."""

import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import observe, same
from torch.fx import Graph, GraphModule, Node, Proxy, symbolic_trace
from torch.fx.proxy import GraphAppendingTracer

from fxpasses.effects import analyze_effects
from fxpasses.partitioners import matching as m
from fxpasses.passes import Rule, RuleSet, replace_pattern

A = torch.ops.aten
X, Y = torch.arange(-3.0, 3.0), torch.ones(6)


def write_then_read(x, y):
    return A.add_.Tensor(x, y), A.relu.default(x)


def read_then_write(x, y):
    relu = A.relu.default(x)
    return A.add_.Tensor(x, y), relu


def add_first(x):
    added = A.add_.Tensor(x, 1)
    relu = A.relu.default(x)
    return A.add.Tensor(added, relu)


def relu_first(x):
    relu = A.relu.default(x)
    added = A.add_.Tensor(x, 1)
    return A.add.Tensor(added, relu)


def add_then_mul(x):
    return A.add_.Tensor(x, 1), A.mul_.Tensor(x, 2)


def mul_then_add(x):
    mul = A.mul_.Tensor(x, 2)
    return A.add_.Tensor(x, 1), mul


def other_noise(x, y):
    second = A.bernoulli.default(y)
    return A.bernoulli.default(x), second, x - y


def noise(x, y):
    return A.bernoulli.default(x), A.bernoulli.default(y), x - y


@pytest.mark.parametrize(
    ("first", "second", "inputs"),
    [
        (write_then_read, read_then_write, (X, Y)),
        (add_first, relu_first, (X,)),
        (add_then_mul, mul_then_add, (X,)),
        (noise, other_noise, (Y / 2, Y / 4)),
    ],
)
def test_nodes_that_effects_order_match_in_the_order_of_the_pattern_only(first, second, inputs):
    """Reads and writes, two writes, random numbers: the other order is no match, the same one is."""
    for pattern, other in ((first, second), (second, first)):
        module = symbolic_trace(pattern)
        before = observe(module, inputs)

        assert 0 == len(replace_pattern(module, other, other))
        assert same(before, observe(module, inputs))
        assert 1 == len(replace_pattern(module, pattern, pattern))
        assert same(before, observe(module, inputs))


def test_nodes_in_another_order_match_where_no_effect_orders_them():
    """The inputs of the pattern are two tensors here, and what is read is not what is written."""

    def source(x, y):
        relu = A.relu.default(y)
        return A.add_.Tensor(x, 1), relu

    def pattern(a, b):
        return A.add_.Tensor(a, 1), A.relu.default(b)

    assert 1 == len(replace_pattern(symbolic_trace(source), pattern, pattern))


def test_terms_run_as_python_evaluates_them():
    """Arguments first, from left to right; items of a repeat one after the other."""
    x = m.value("x")
    add, relu = m.call(A.add_.Tensor, x, 1), m.call(A.relu.default, x)
    graph = symbolic_trace(add_first).graph

    assert 1 == len(m.find_matches(m.call(A.add.Tensor, add, relu), graph))
    assert 0 == len(m.find_matches(m.call(A.add.Tensor, relu, add, commutes=False), graph))
    assert 1 == len(m.find_matches(m.outputs(m.call(A.add.Tensor, add, relu)), graph))


@pytest.mark.parametrize(("is_reversed", "count"), [(False, 1), (True, 0)])
def test_repeated_items_run_in_their_order(is_reversed, count):
    """A list of draws of random numbers is a match only if they were drawn in the order of the list."""

    def source(x):
        draws = [A.bernoulli.default(x), A.bernoulli.default(x)]
        return torch.cat(draws[::-1] if is_reversed else draws)

    pattern = m.call(torch.cat, [m.repeat(m.call(A.bernoulli.default, m.value("x")))])

    assert count == len(m.find_matches(pattern, symbolic_trace(source)))


def test_explain_names_both_nodes_and_the_reason():
    """Which runs first, and why the order counts."""
    explained = m.explain(write_then_read, symbolic_trace(read_then_write))

    assert [] == list(explained.matches)
    assert (
        "relu_default runs before add__tensor, in the pattern it runs after it "
        "(relu_default reads x, which add__tensor writes)"
    ) == explained.best.reason


@pytest.mark.parametrize(("is_one", "count"), [(False, 1), (True, 0)])
def test_two_inputs_that_are_one_memory_are_treated_alike_on_both_sides(is_one, count):
    """Reading y before or after x is written is the same only where x and y are two tensors."""

    def source(x, y):
        return A.relu_.default(x), A.neg.default(x if is_one else y)

    def other(x, y):
        neg = A.neg.default(y)
        return A.relu_.default(x), neg

    def pattern(x, y):
        return A.relu_.default(x), A.neg.default(y)

    module = symbolic_trace(source)
    before = observe(module, (X, Y))
    report = RuleSet([Rule(pattern, other, name="swap")]).apply(module)

    assert count == len(report.applications)
    assert same(before, observe(module, (X, Y)))
    assert (
        [] == report.refusals
        or (
            "two inputs of the pattern are one memory here (x), which the replacement reads and writes in another order"
        )
        == report.refusals[0].reason
    )
    assert 1 == len(replace_pattern(symbolic_trace(source), pattern, pattern))


def test_a_rule_may_say_that_it_holds_for_shared_inputs():
    """Multiplying x by 1 before y is read changes nothing, whatever y is."""

    def source(x):
        return A.add_.Tensor(x, x)

    def slow(x, y):
        return A.add_.Tensor(A.mul_.Tensor(x, 1), y)

    for holds, count in ((False, 0), (True, 1)):
        module = symbolic_trace(source)
        rule = Rule(lambda x, y: A.add_.Tensor(x, y), slow, holds_for_shared=holds)

        assert count == len(RuleSet([rule]).apply(module).applications)
        assert same(observe(symbolic_trace(source), (X,)), observe(module, (X,)))


# ------------------------------------------------------------------------------------------------ random patterns
_EQUAL = {
    A.relu.default: lambda x: A.clamp_min.default(x, 0),
    A.neg.default: lambda x: A.mul.Tensor(x, -1),
    A.relu_.default: lambda x: A.clamp_min_.default(x, 0),
    A.neg_.default: lambda x: A.mul_.Tensor(x, -1),
    A.alias.default: lambda x: A.view.default(x, [6]),
    A.add.Tensor: lambda x, y: A.sub.Tensor(x, A.neg.default(y)),
    A.add_.Tensor: lambda x, y: A.sub_.Tensor(x, A.neg.default(y)),
    A.copy_.default: lambda x, y: A.copy_.default(x, A.mul.Tensor(y, 1)),
}
_CALLS = list(_EQUAL)


def _grow(rng, graph, values, count):
    """Append random calls of the operators above."""
    for _ in range(count):
        target = rng.choice(_CALLS)
        given = [rng.choice(values) for argument in target._schema.arguments if "Tensor" in str(argument.type)]
        values.append(graph.call_function(target, tuple(given)))


def _random_pattern(rng):
    """Two inputs, both used, and a few calls, all returned or used."""
    graph = Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    _grow(rng, graph, values, rng.randint(1, 4))
    for unused in [value for value in values[:2] if not value.users]:
        values.append(graph.call_function(A.add.Tensor, (values[-1], unused)))
    graph.output(tuple(value for value in values[2:] if not value.users or rng.choice([True, False])))
    return GraphModule({}, graph)


def _same_in_other_words(pattern):
    """The pattern with each operator as another that does the same."""
    graph = Graph()
    tracer = GraphAppendingTracer(graph)
    env = {}
    for node in pattern.graph.nodes:
        if node.op == "call_function":
            given = [Proxy(env[each], tracer) for each in node.args]
            env[node] = _EQUAL[node.target](*given).node
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
    return GraphModule({}, graph)


def _shuffled(rng, graph_module):
    """The same calls in a random order that data allow, whatever the effects."""
    graph = Graph()
    env: dict[Node, Node] = {}
    waiting = [node for node in graph_module.graph.nodes if node.op != "output"]
    while waiting:
        ready = [node for node in waiting if all(each in env for each in node.all_input_nodes)]
        node = next((n for n in ready if n.op == "placeholder"), None) or rng.choice(ready)
        env[node] = graph.node_copy(node, env.__getitem__)
        waiting.remove(node)
    graph.output(tuple(rng.sample([n for n in env.values() if n.op != "placeholder"], 1)))
    return GraphModule({}, graph)


def _planted(rng, pattern):
    """A random program in which the pattern's calls stand, in any order that data allow."""
    graph = Graph()
    values = [graph.placeholder("a"), graph.placeholder("b")]
    _grow(rng, graph, values, rng.randint(0, 2))
    env = dict(zip(pattern.graph.find_nodes(op="placeholder"), rng.choices(values, k=2), strict=True))
    for node in pattern.graph.nodes:
        if node.op == "call_function":
            env[node] = graph.node_copy(node, env.__getitem__)
            values.append(env[node])
            _grow(rng, graph, values, rng.choice([0, 0, 1]))
    graph.output(tuple(rng.sample(values, 2)))
    return _shuffled(rng, GraphModule({}, graph))


def _in_a_legal_order(rng, graph_module):
    """The same calls in a random order that is right for inputs that are distinct in memory."""
    effects = analyze_effects(graph_module)
    before: dict[Node, list[Node]] = {}
    for earlier, later in effects.order_edges:
        before.setdefault(later, []).append(earlier)
    graph, env = Graph(), {}
    waiting = list(graph_module.graph.nodes)
    while waiting:
        ready = [n for n in waiting if all(each in env for each in (*n.all_input_nodes, *before.get(n, ())))]
        calls = [node for node in ready if node.op == "call_function"]
        node = ready[0] if ready[0].op == "placeholder" or not calls else rng.choice(calls)
        env[node] = graph.node_copy(node, env.__getitem__)
        waiting.remove(node)
    return GraphModule({}, graph)


@settings(max_examples=examples(300), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_random_patterns_with_writes_mean_the_same_after_rewriting(rng):
    """Small patterns with in-place calls in random programs: outputs and inputs are what they were."""
    pattern = _random_pattern(rng)
    module = _planted(rng, pattern)
    before = observe(module, (X, Y))
    replace_pattern(module, pattern, _in_a_legal_order(rng, _same_in_other_words(pattern)))
    module.graph.lint()

    assert same(before, observe(module, (X, Y)))
