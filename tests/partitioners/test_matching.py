"""The pattern language, the matcher and its compatible face, and explanations."""

import itertools
import operator
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import export
from torch.fx import Graph, GraphModule, symbolic_trace

from fxpasses.errors import PatternError
from fxpasses.partitioners import InternalMatch, SubgraphMatcher, SubgraphMatcherWithNameNodeMap
from fxpasses.partitioners import matching as m

aten = torch.ops.aten
X = torch.arange(-6.0, 6.0).reshape(3, 4) / 4


def found(pattern, function, **options):
    """What a pattern captures in a traced function, one entry a match."""
    return [match.captures for match in m.find_matches(pattern, symbolic_trace(function), **options)]


def names(captures):
    return {key: value.name if isinstance(value, torch.fx.Node) else value for key, value in captures.items()}


# ------------------------------------------------------------------------------------------------ compatible face
def test_internal_match_has_the_five_fields():
    """Anchors, nodes_map, placeholder_nodes, returning_nodes, name_node_map, as in torch."""
    pattern = symbolic_trace(lambda a, b: torch.relu(a + b))
    target = symbolic_trace(lambda x: torch.relu(x + 2))
    (match,) = SubgraphMatcher(pattern.graph).match(target.graph)

    assert isinstance(match, InternalMatch)
    assert ["relu"] == [node.name for node in match.anchors]
    assert match.anchors[0].graph is pattern.graph
    assert {"relu": "relu", "add": "add", "a": "x", "b": "2"} == {k.name: str(v) for k, v in match.nodes_map.items()}
    assert ["x", 2] == [match.placeholder_nodes[0].name, match.placeholder_nodes[1]]
    assert ["relu"] == [node.name for node in match.returning_nodes]
    assert {} == match.name_node_map


def test_match_output_includes_the_output_node():
    """Then the results of the pattern must be the results of the graph."""
    pattern = symbolic_trace(lambda x: torch.relu(x))
    ends = symbolic_trace(lambda x: torch.relu(torch.neg(x)))
    goes_on = symbolic_trace(lambda x: torch.neg(torch.relu(x)))

    assert 1 == len(SubgraphMatcher(pattern.graph, match_output=True).match(ends.graph))
    assert 0 == len(SubgraphMatcher(pattern.graph, match_output=True).match(goes_on.graph))


def test_match_placeholder_wants_a_placeholder():
    """Otherwise a placeholder stands for anything."""
    pattern = symbolic_trace(lambda x: torch.relu(x))
    inner = symbolic_trace(lambda x: torch.relu(torch.neg(x)))

    assert 0 == len(SubgraphMatcher(pattern.graph, match_placeholder=True).match(inner.graph))
    assert 1 == len(SubgraphMatcher(pattern.graph, match_placeholder=False).match(inner.graph))


def test_overlapping_matches_on_demand():
    """Three sigmoids hold two pairs, of which one can be taken."""
    pattern = symbolic_trace(lambda x: torch.sigmoid(torch.sigmoid(x)))
    target = symbolic_trace(lambda x: torch.sigmoid(torch.sigmoid(torch.sigmoid(x))))

    assert 1 == len(SubgraphMatcher(pattern.graph).match(target.graph))
    assert 2 == len(SubgraphMatcher(pattern.graph, remove_overlapping_matches=False).match(target.graph))


def test_ignore_literals():
    """2 stands for 3 then."""
    pattern = symbolic_trace(lambda x: torch.pow(x, 2))
    target = symbolic_trace(lambda x: torch.pow(x, 3))

    assert 0 == len(SubgraphMatcher(pattern.graph).match(target.graph))
    assert 1 == len(SubgraphMatcher(pattern.graph, ignore_literals=True).match(target.graph))


def test_lists_of_nodes_and_literals():
    """Lists are compared item by item; another length is no match."""
    pattern = symbolic_trace(lambda a, b: aten.cat.default([a, b], 1)).graph
    matcher = SubgraphMatcher(pattern)

    assert 1 == len(matcher.match(symbolic_trace(lambda x, y: aten.cat.default([x, y], 1)).graph))
    assert 0 == len(matcher.match(symbolic_trace(lambda x, y: aten.cat.default([x, y, x], 1)).graph))
    assert 0 == len(matcher.match(symbolic_trace(lambda x, y: aten.cat.default([x, y], 0)).graph))


@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"padding": 1}, {"stride": 1, "padding": 1}])
def test_arguments_left_out_are_their_defaults(options):
    """A pattern that names all arguments of max_pool matches calls that name some."""

    def pattern(x, kernel, stride, padding, dilation):
        return aten.max_pool2d_with_indices.default(x, kernel, stride, padding, dilation)

    graph = symbolic_trace(pattern).graph
    pool = nn.MaxPool2d(kernel_size=2, **options)
    target = torch.fx.experimental.proxy_tensor.make_fx(pool)(torch.randn(1, 2, 8, 8))

    assert 1 == len(SubgraphMatcher(graph).match(target.graph))


def test_name_node_map():
    """The dictionary at the end of the outputs names nodes, and the pattern module is left as it was."""

    def pattern(x, weight):
        conv = F.conv2d(x, weight)
        relu = F.relu(conv)
        twice = relu * 2
        return relu, twice, {"conv": conv, "relu": relu}

    def target(x, weight):
        conv = F.conv2d(x * 2, weight * 3)
        relu = F.relu(conv)
        return relu + relu * 2

    inputs = (torch.randn(1, 3, 4, 4), torch.randn(3, 3, 1, 1))
    pattern_module = export(_Wrap(pattern), inputs).module()
    code = pattern_module.code
    matches = SubgraphMatcherWithNameNodeMap(pattern_module).match(export(_Wrap(target), inputs).module().graph)

    assert [{"conv": "conv2d", "relu": "relu"}] == [names(match.name_node_map) for match in matches]
    assert code == pattern_module.code


class _Wrap(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def test_name_node_map_of_an_input_and_a_module():
    """Inputs can be named too, and parameters of the pattern stand for any."""

    class Pattern(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            linear = self.linear(x)
            return linear, {"linear": linear, "x": x}

    target = export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (X,)).module()
    (match,) = SubgraphMatcherWithNameNodeMap(export(Pattern(), (X,)).module()).match(target.graph)

    assert "linear" == match.name_node_map["linear"].name
    assert "placeholder" == match.name_node_map["x"].op


@pytest.mark.parametrize(
    "pattern",
    [lambda x: torch.relu(x), lambda x: (torch.relu(x), torch.neg(x))],
)
def test_a_pattern_without_names_is_refused(pattern):
    """The message says what it must return."""
    with pytest.raises(AssertionError, match=r"must return \(result, ..., \{name: node\}\)"):
        SubgraphMatcherWithNameNodeMap(symbolic_trace(pattern))


def test_what_is_no_graph_is_refused():
    """The message says what was given."""
    matcher = SubgraphMatcher(symbolic_trace(lambda x: torch.relu(x)).graph)
    with pytest.raises(TypeError, match=r"match\(\) takes a Graph or GraphModule, got Linear"):
        matcher.match(nn.Linear(1, 1))


# ------------------------------------------------------------------------------------------------ the language
def test_captures_of_values_and_literals():
    """A name makes a node or a literal available."""
    pattern = m.call(torch.softmax, m.call(torch.mul, m.value("x"), m.literal("scale")), m.literal("dim"))

    assert [{"x": "a", "scale": 0.5, "dim": -1}] == [
        names(c) for c in found(pattern, lambda a: torch.softmax(torch.mul(a, 0.5), dim=-1))
    ]


@pytest.mark.parametrize(
    ("literal", "matching"),
    [
        (m.literal(one_of=[1, 3]), [1, 3]),
        (m.literal(one_of={1, 3}), [1, 3]),
        (m.literal(at_least=2), [2, 3]),
        (m.literal(at_most=1), [1]),
        (m.literal(at_least=2, at_most=2), [2]),
        (m.literal(check=lambda v: v % 2 == 1), [1, 3]),
        (m.literal(one_of=[1.0]), []),
        (m.literal(), [1, 2, 3]),
    ],
)
def test_sets_and_ranges_of_literals(literal, matching):
    """1 is not 1.0, and a literal without demands is any."""
    pattern = m.call(torch.pow, m.value(), literal)

    assert matching == [n for n in (1, 2, 3) if found(pattern, _power(n))]


def _power(exponent):
    return lambda x: torch.pow(x, exponent)


def test_a_tolerance_for_numbers():
    """The scale of an attention may be rounded."""
    pattern = m.call(torch.mul, m.value(), m.literal(one_of=[1 / 3], within=1e-3))

    assert 1 == len(found(pattern, lambda x: torch.mul(x, 0.3333)))
    assert 0 == len(found(pattern, lambda x: torch.mul(x, 0.33)))


def test_an_optional_argument():
    """It may be left out, None, or must match."""
    pattern = m.call(F.linear, m.value(), m.value(), m.maybe(m.value("bias")))

    assert [{"bias": None}] == found(pattern, lambda x, w: F.linear(x, w))
    assert [{"bias": None}] == found(pattern, lambda x, w: F.linear(x, w, None))
    assert [{"bias": "b"}] == [names(c) for c in found(pattern, lambda x, w, b: F.linear(x, w, bias=b))]
    relu = m.call(F.linear, m.value(), m.value(), m.maybe(m.call(torch.relu, m.value())))
    assert [] == found(relu, lambda x, w, b: F.linear(x, w, b))


def test_repeated_arguments_and_lists_of_any_length():
    """What is repeated is captured as a list, in order."""
    pattern = m.call(torch.cat, [m.repeat(m.call(torch.relu, m.value("x")), name="parts")], ...)

    (captures,) = found(pattern, lambda a, b, c: torch.cat([torch.relu(a), torch.relu(b), torch.relu(c)], 1))
    assert (["a", "b", "c"], ["relu", "relu_1", "relu_2"]) == tuple(
        [node.name for node in captures[key]] for key in ("x", "parts")
    )
    assert [] == found(pattern, lambda a, b: torch.cat([torch.relu(a), b]))


def test_repeats_between_fixed_items():
    """First and last are fixed, with any number of items between; and bounds on the number."""
    first, last = m.call(torch.sin, m.value()), m.call(torch.cos, m.value())
    pattern = m.call(torch.cat, [first, m.repeat(m.value("x"), at_most=1), last])

    assert [1, 1, 0] == [
        len(found(pattern, f))
        for f in (
            lambda a: torch.cat([torch.sin(a), torch.cos(a)]),
            lambda a: torch.cat([torch.sin(a), a, torch.cos(a)]),
            lambda a: torch.cat([torch.sin(a), a, a, torch.cos(a)]),
        )
    ]


def test_two_repeats_share_a_list():
    """Every split of the list is tried."""
    pattern = m.call(
        torch.cat,
        [m.repeat(m.call(torch.sin, m.value()), name="sins"), m.repeat(m.call(torch.cos, m.value()), name="others")],
    )
    (captures,) = found(pattern, lambda a: torch.cat([torch.sin(a), torch.cos(a), torch.cos(a)]))

    assert (1, 2) == (len(captures["sins"]), len(captures["others"]))


def test_repeated_positional_arguments():
    """view(x, 2, 3) has as many arguments as there are sizes."""
    pattern = m.call_method("view", m.value("x"), m.repeat(m.literal(), name="sizes"))

    assert [{"x": "x", "sizes": [2, 6]}] == [names(c) for c in found(pattern, lambda x: x.view(2, 6))]


def test_alternatives_of_ops():
    """A list of targets, | between patterns, and one_of inside a callable."""
    functions = (lambda x: torch.reshape(x, (12,)), lambda x: torch.flatten(x, 0), lambda x: torch.relu(x))

    assert [1, 1, 0] == [len(found(m.call([torch.reshape, torch.flatten], m.value(), ...), f)) for f in functions]
    either = m.call(torch.reshape, ...) | m.call(torch.flatten, ...)
    assert [1, 1, 0] == [len(found(either, f)) for f in functions]
    choice = m.one_of(torch.reshape, torch.flatten)
    assert [1, 1, 0] == [len(found(lambda x, n: choice(x, n), f)) for f in functions]


def test_and_or_not():
    """Conditions on a value as patterns."""
    is_relu, is_neg = m.call(torch.relu, m.value()), m.call(torch.neg, m.value())
    functions = {
        "relu": lambda x: torch.exp(torch.relu(x)),
        "neg": lambda x: torch.exp(torch.neg(x)),
        "none": lambda x: torch.exp(x),
    }

    def hits(pattern):
        return [name for name, f in functions.items() if found(m.call(torch.exp, pattern), f)]

    assert ["relu", "neg"] == hits(is_relu | is_neg)
    assert ["none"] == hits(~(is_relu | is_neg))
    assert ["neg"] == hits(m.both(m.call([torch.relu, torch.neg], m.value()), ~is_relu))


def test_both_names_what_another_pattern_owns():
    """A value beside a call inside both() only gives it a name."""
    pattern = m.call(torch.exp, m.both(m.call(torch.relu, m.value("x")), m.value("inner")))

    assert [{"inner": "relu", "x": "x"}] == [names(c) for c in found(pattern, lambda x: torch.exp(torch.relu(x)))]


def exported(function, *inputs):
    return export(_Wrap(function), inputs).module()


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({"dtype": torch.float32}, True),
        ({"dtype": (torch.float16, torch.float32)}, True),
        ({"dtype": torch.int64}, False),
        ({"rank": 2}, True),
        ({"rank": (1, 3)}, False),
        ({"shape": (3, 4)}, True),
        ({"shape": (None, 4)}, True),
        ({"shape": (..., 4)}, True),
        ({"shape": (3, ...)}, True),
        ({"shape": (..., 5)}, False),
        ({"shape": (3,)}, False),
        ({"device": "cpu"}, True),
        ({"device": "cuda"}, False),
        ({"users": 2}, True),
        ({"users": range(1, 3)}, True),
        ({"users": 1}, False),
        ({"check": lambda node: node.name == "x" or True}, True),
        ({"check": lambda node: False}, False),
    ],
)
def test_conditions_on_values(conditions, holds):
    """Dtype, shape with gaps, rank, device, number of users, and questions of one's own."""
    module = exported(lambda x: aten.relu.default(x) + x, X)
    pattern = m.call(aten.relu.default, m.value("x", **conditions))

    assert int(holds) == len(m.find_matches(pattern, module))


def test_a_condition_on_a_value_that_is_not_known_does_not_hold():
    """A traced graph has no shapes; explain says so."""
    module = symbolic_trace(lambda x: torch.relu(x))
    pattern = m.call(torch.relu, m.value(rank=2))

    assert [] == m.find_matches(pattern, module)
    assert "x has no tensor in meta['val']" in str(m.explain(pattern, module))


def test_constants_by_value():
    """A tensor 1 is not a tensor 99; a number means every element; dtype may be left open."""

    class M(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def forward(self, x):
            return x + self.value

    ones, many = torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 99.0])
    graphs = [symbolic_trace(M(v)) for v in (ones, many, torch.ones(4, dtype=torch.float64))]

    def hits(constant):
        return [len(m.find_matches(m.call(operator.add, m.value(), constant), g)) for g in graphs]

    assert [1, 0, 1] == hits(m.constant(1))
    assert [1, 0, 0] == hits(m.constant(torch.ones(4)))
    assert [1, 0, 1] == hits(m.constant(torch.ones(4), exact=False))
    assert [1, 1, 1] == hits(m.constant())


def test_lifted_parameters_are_weights():
    """An input p_... of an exported program's graph is a parameter, a user's input is not."""
    program = export(nn.Linear(4, 2), (X,))
    pattern = m.call(aten.linear.default, m.value("x"), m.weight("w"), m.weight("b"))

    for graph in (program.graph_module, program.module()):
        assert 1 == len(m.find_matches(pattern, graph))
    assert 0 == len(m.find_matches(m.call(aten.linear.default, m.weight(), ...), program.graph_module))


def test_modules_by_type_and_by_path():
    """Subclasses count; a path is exact."""

    special = nn.modules.linear.NonDynamicallyQuantizableLinear(4, 4)
    module = symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), special))

    assert 2 == len(m.find_matches(m.call_module(nn.Linear, m.value()), module))
    assert 1 == len(m.find_matches(m.call_module(nn.ReLU, m.call_module(nn.Linear, m.value())), module))
    assert 1 == len(m.find_matches(m.call_module("0", m.value()), module))


def test_the_same_pattern_twice_is_the_same_value():
    """x - relu(x) is not x - relu(y)."""
    x = m.value("x")
    pattern = m.call(operator.sub, x, m.call(torch.relu, x))

    assert 1 == len(found(pattern, lambda a: a - torch.relu(a)))
    assert 0 == len(found(pattern, lambda a, b: a - torch.relu(b)))


def test_two_inputs_may_be_the_same_value():
    """x * y finds a * a."""
    assert 1 == len(found(m.call(operator.mul, m.value("x"), m.value("y")), lambda a: a * a))


def test_an_input_is_never_part_of_the_match():
    """relu(x) + y does not find r + r, where y would be erased with the relu."""
    pattern = m.call(operator.add, m.call(torch.relu, m.value("x")), m.value("y"))

    assert 0 == len(found(pattern, lambda a: (lambda r: r + r)(torch.relu(a))))


def test_several_outputs_and_disconnected_anchors():
    """Anchors that share a value are joined through it; others are paired in graph order."""
    x = m.value("x")
    shared = m.outputs(m.call(torch.sin, x), m.call(torch.cos, x))
    apart = m.outputs(m.call(torch.sin, m.value("a")), m.call(torch.cos, m.value("b")))

    def function(a, b):
        return torch.sin(a), torch.cos(b), torch.sin(b), torch.cos(a)

    pairs = [[node.name for node in match.results] for match in m.find_matches(shared, symbolic_trace(function))]
    assert [["sin", "cos_1"], ["sin_1", "cos"]] == pairs
    pairs = [[node.name for node in match.results] for match in m.find_matches(apart, symbolic_trace(function))]
    assert [["sin", "cos"], ["sin_1", "cos_1"]] == pairs


def test_an_output_that_another_output_is_made_of():
    """It may be used outside, being a result."""
    inner = m.call(torch.relu, m.value("x"))
    pattern = m.outputs(m.call(torch.neg, inner), inner)

    assert 1 == len(found(pattern, lambda a: (lambda r: torch.neg(r) + r)(torch.relu(a))))


def test_open_arguments():
    """... leaves the rest of the arguments open, keywords included."""
    pattern = m.call(aten.sum.dim_IntList, m.value(), ...)

    assert 1 == len(found(pattern, lambda x: aten.sum.dim_IntList(x, [1], keepdim=True)))


def test_packets_match_every_overload():
    """aten.add is add.Tensor and add.Scalar."""
    module = symbolic_trace(lambda x, y: aten.add.Scalar(aten.add.Tensor(x, y), 1))

    assert 2 == len(m.find_matches(m.call(aten.add, ...), module))


# ------------------------------------------------------------------------------------------------ normal forms
@pytest.mark.parametrize(
    ("pattern", "function"),
    [
        (lambda x: torch.sum(x, 1), lambda x: torch.sum(x, dim=1)),
        (lambda x: torch.sum(x, dim=1), lambda x: torch.sum(x, 1)),
        (lambda x: torch.sum(x, dim=[1]), lambda x: torch.sum(x, 1)),
        (lambda x: aten.sum.dim_IntList(x, [1]), lambda x: aten.sum.dim_IntList(x, [1], False)),
        (lambda x: aten.softmax.int(x, 1), lambda x: aten.softmax.int(x, 1, None)),
        (lambda x: F.softmax(x, 1), lambda x: F.softmax(x, dim=1)),
        (lambda x: F.gelu(x), lambda x: F.gelu(x, approximate="none")),
        (lambda x: x.sum(1), lambda x: x.sum(dim=1)),
        (lambda x: x.view(2, 6), lambda x: x.view((2, 6))),
        (lambda x: torch.add(x, x), lambda x: torch.add(x, other=x, alpha=1)),
    ],
)
def test_spellings_that_mean_the_same(pattern, function):
    """Positions, keywords, defaults, brackets left out."""
    assert 1 == len(found(pattern, function))


@pytest.mark.parametrize(
    ("pattern", "function"),
    [
        (lambda x: torch.sum(x, 1), lambda x: torch.sum(x, 0)),
        (lambda x: torch.sum(x, 1), lambda x: torch.sum(x, 1, keepdim=True)),
        (lambda x: F.gelu(x), lambda x: F.gelu(x, approximate="tanh")),
        (lambda x, y: torch.sub(x, torch.relu(y)), lambda x, y: torch.sub(torch.relu(y), x)),
        (lambda x, y: torch.add(torch.relu(x), y, alpha=2), lambda x, y: torch.add(y, torch.relu(x), alpha=2)),
        (lambda x, n: torch.relu(x).shape + n.shape, lambda x, n: n.shape + torch.relu(x).shape),
    ],
)
def test_spellings_that_mean_something_else(pattern, function):
    """Subtraction, a scaled sum and joined shapes do not commute."""
    module = symbolic_trace(lambda x, y: (function(x) if function.__code__.co_argcount == 1 else function(x, y), y))

    assert 0 == len(m.find_matches(pattern, module))


def test_complaint_13_three_commutative_adds_match_all_eight_orders():
    """Complaint 13: swapped operands at any of three sums."""
    pattern = symbolic_trace(lambda a, b, c, d: (torch.relu(a) + torch.sin(b)) + (torch.cos(c) + torch.exp(d)))

    def ordered(first, second, third):
        def function(a, b, c, d):
            left = torch.sin(b) + torch.relu(a) if first else torch.relu(a) + torch.sin(b)
            right = torch.exp(d) + torch.cos(c) if second else torch.cos(c) + torch.exp(d)
            return right + left if third else left + right

        return function

    matcher = SubgraphMatcher(pattern.graph)
    for order in itertools.product([False, True], repeat=3):
        (match,) = matcher.match(symbolic_trace(ordered(*order)).graph)

        assert ["a", "b", "c", "d"] == [node.name for node in match.placeholder_nodes]
    assert 0 == len(SubgraphMatcher(pattern.graph, commutes=False).match(symbolic_trace(ordered(1, 0, 0)).graph))


def test_complaint_13_commutative_patterns_do_not_blow_up():
    """Complaint 13: forty swappable sums and a part that is missing are refused at once."""

    def graph(last):
        made = Graph()
        x = made.placeholder("x")
        parts = [made.call_function(operator.add, (x, x)) for _ in range(40)]
        made.output(made.call_function(torch.cat, ([*parts, made.call_function(last, (x,))],)))
        return made

    view = m.GraphView(graph(torch.tanh))
    pattern = m.compile_pattern(graph(torch.relu))
    search = m.find_matches(pattern, view)

    assert [] == search
    assert len(view.feasible) < 500


def test_complaint_13_a_swap_may_be_undone_for_a_shared_value():
    """Complaint 13: x + y first binds x to a, which the second sum then contradicts."""
    x, y = m.value("x"), m.value("y")
    pattern = m.call(torch.cat, [m.call(operator.add, x, y), m.call(operator.sub, y, x)])

    assert [{"x": "b", "y": "a"}] == [names(c) for c in found(pattern, lambda a, b: torch.cat([a + b, a - b]))]


# ------------------------------------------------------------------------------------------------ validity
def test_an_inner_value_that_is_used_outside_is_no_match():
    """Unless it is a result."""
    assert [] == found(lambda x: torch.neg(torch.relu(x)), lambda x: (lambda r: torch.neg(r) + r)(torch.relu(x)))


def test_a_match_is_convex_along_data():
    """sin(a) and cos(sin(a) + 1) cannot become one node."""
    pattern = m.outputs(m.call(torch.sin, m.value()), m.call(torch.cos, m.value()))

    assert [] == found(pattern, lambda a: torch.cos(torch.sin(a) + 1))


def test_a_match_is_convex_along_effects():
    """One part reads x before a write and the other after it; without effects it would be a match."""

    def function(x):
        y = torch.sin(x)
        x.add_(1)
        return torch.cos(x) + y

    pattern = lambda x: torch.cos(x) + torch.sin(x)

    assert [] == found(pattern, function)
    assert 1 == len(found(pattern, function, effects=False))


def test_a_match_does_not_cross_an_autocast_region():
    """A node before the region and one inside it do not belong together."""

    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.relu, (x,))
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False))
    z = graph.call_function(torch.mm, (y, y))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    graph.output(z)
    inner = m.call(torch.relu, m.value())

    assert [] == m.find_matches(m.call(torch.mm, inner, inner), GraphModule(nn.Module(), graph))


def test_filters_are_asked_for_each_way_to_lay_the_pattern():
    """The swapped way is offered when the first is refused."""
    pattern = m.call(operator.add, m.value("x"), m.value("y"))
    module = symbolic_trace(lambda a, b: a + b)

    (match,) = m.find_matches(pattern, module, filters=[lambda match: match["x"].name == "b"])
    assert {"x": "b", "y": "a"} == names(match.captures)


# ------------------------------------------------------------------------------------------------ size
def chain(count, functions=(torch.sin, torch.cos)):
    graph = Graph()
    value = graph.placeholder("x")
    for place in range(count):
        value = graph.call_function(functions[place % len(functions)], (value,))
    graph.output(value)
    return graph


def test_complaint_38_a_pattern_of_2000_nodes_with_a_recursion_limit_of_200():
    """Complaint 38: a chain of 20,000 nodes holds ten of them."""
    pattern, target = chain(2_000), chain(20_000)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        matches = SubgraphMatcher(pattern).match(target)
    finally:
        sys.setrecursionlimit(limit)

    assert 10 == len(matches)


def test_two_anchors_on_one_value_with_many_users_are_linear():
    """Ten thousand users of one value: pairs are not tried one with each other."""
    graph = Graph()
    x = graph.placeholder("x")
    sins = [graph.call_function(torch.sin, (x,)) for _ in range(5_000)]
    coses = [graph.call_function(torch.cos, (x,)) for _ in range(5_000)]
    graph.output((sins, coses))
    a = m.value("a")

    assert 5_000 == len(m.find_matches(m.outputs(m.call(torch.sin, a), m.call(torch.cos, a)), graph))
    apart = m.outputs(m.call(torch.sin, m.value("a")), m.call(torch.cos, m.value("b")))
    assert 5_000 == len(m.find_matches(apart, graph))


# ------------------------------------------------------------------------------------------------ explain
def test_complaint_14_the_failing_argument_is_named():
    """Complaint 14: a pattern that is off by one argument."""
    module = symbolic_trace(lambda x: torch.softmax(x * 2, dim=0))
    explanation = m.explain(lambda x: torch.softmax(x * 2, dim=-1), module)

    assert "softmax" == explanation.best.node.name
    assert "argument 'dim' of softmax is 0, the pattern has -1" == explanation.best.reason
    assert () == explanation.matches


def test_complaint_14_the_failing_dtype_is_named():
    """Complaint 14: a pattern that is off by one dtype, with the user's own line."""
    module = exported(lambda x: torch.relu(x), X)
    explanation = m.explain(m.call(aten.relu.default, m.value("x", dtype=torch.float16)), module)

    assert "dtype is torch.float32, not torch.float16" == explanation.best.reason
    assert "placeholder" == explanation.best.node.op


def test_the_best_partial_match_comes_first():
    """The one that laid most of the pattern."""
    module = symbolic_trace(lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v)
    explanation = m.explain(lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v, module)

    assert (2, 5, "expected truediv, found mul (mul)") == (
        len(explanation.best.matched),
        explanation.best.total,
        explanation.best.reason,
    )


def test_an_anchor_that_never_occurs_is_explained_by_what_stands_there():
    """The inner part is found, and what uses it instead is told."""
    module = symbolic_trace(lambda x: torch.sigmoid(torch.neg(x)))

    assert "expected relu to use neg, found sigmoid (sigmoid)" == (
        m.explain(lambda x: torch.relu(torch.neg(x)), module).best.reason
    )
    assert "no node of the graph calls relu; it calls neg, sigmoid" == (
        m.explain(lambda x: torch.relu(x), module).best.reason
    )


def test_a_whole_match_that_may_not_be_taken_is_explained():
    """Used inside, or cut by an effect."""

    def leaks(x):
        r = torch.relu(x)
        return torch.neg(r) + r

    def crosses(x):
        y = torch.sin(x)
        x.add_(1)
        return torch.cos(x) + y

    assert "relu is inside the match and add uses it" == (
        m.explain(lambda x: torch.neg(torch.relu(x)), symbolic_trace(leaks)).best.reason
    )
    assert (
        "a path leaves the match and comes back: sin -> add_ -> cos (sin reads x, which add_ writes; "
        "add_ writes x, which cos reads)"
    ) == m.explain(lambda x: torch.cos(x) + torch.sin(x), symbolic_trace(crosses)).best.reason


def test_explain_also_gives_the_matches():
    """Matched anchors are no failures."""
    explanation = m.explain(lambda x: torch.relu(x), symbolic_trace(lambda x: torch.relu(torch.relu(x))))

    assert (2, None) == (len(explanation.matches), explanation.best)
    assert "2 matches" == str(explanation)


# ------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: m.call("relu"), "'relu' is not a function or operator; use call_method for a method's name"),
        (lambda: m.call([]), "a call pattern needs at least one target"),
        (lambda: m.call_method("no_such_method", m.value()), "a tensor has no method 'no_such_method'"),
        (lambda: m.call_module(int), "<class 'int'> is neither a module type nor a path"),
        (lambda: m.either(), "either() needs at least one pattern"),
        (lambda: m.both(), "both() needs at least one pattern"),
        (lambda: m.outputs(), "outputs() needs at least one pattern"),
        (lambda: m.repeat(m.value(), at_least=2, at_most=1), "no number is at least 2 and at most 1"),
        (lambda: m.one_of(), "one_of() takes functions or operators"),
        (lambda: m.value(colour="red"), "unknown condition 'colour'; there are: dtype, rank, shape"),
        (lambda: m.value(users="two"), "users= takes a number or a range, got 'two'"),
        (lambda: m.compile_pattern(m.value("x")), "holds no call, so it would match everything"),
        (lambda: m.compile_pattern(m.outputs(m.call(torch.relu, ...), m.value())), "is no call: a result is what"),
        (lambda: m.compile_pattern(3), "the pattern is a int; give a callable, Graph"),
        (lambda: m.compile_pattern(lambda x: x or -x), "cannot be traced: TraceError"),
        (lambda: m.explain(lambda x: torch.relu(x), Graph(), limit=0), "explain() needs a positive limit, got 0"),
    ],
)
def test_bad_patterns_are_refused(make, message):
    """Where they are written, saying what is wrong."""
    with pytest.raises(PatternError) as caught:
        make()

    assert message in str(caught.value)


def test_a_condition_that_raises_is_named():
    """The user's function and the node it was asked about."""
    pattern = m.call(torch.relu, m.value(check=lambda node: node.nothing))

    with pytest.raises(PatternError, match=r"raised AttributeError: .* \(asked about x\)"):
        found(pattern, lambda x: torch.relu(x))


# ------------------------------------------------------------------------------------------------ hypothesis
OPS = [torch.sin, torch.cos, torch.tanh, torch.neg]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_planted_pattern_is_found_and_nothing_else(data):
    """Random graphs of unary and binary calls, with a pattern of ops that occur nowhere else planted in them."""
    graph = Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    planted = []
    for _ in range(data.draw(st.integers(1, 12))):
        a, b = (values[data.draw(st.integers(0, len(values) - 1))] for _ in range(2))
        kind = data.draw(st.sampled_from(["unary", "binary", "plant", "swapped"]))
        if kind == "unary":
            values.append(graph.call_function(data.draw(st.sampled_from(OPS)), (a,)))
        elif kind == "binary":
            values.append(graph.call_function(operator.sub, (a, b)))
        else:
            inner = graph.call_function(torch.sigmoid, (a,))
            last = (inner, b) if kind == "plant" else (b, inner)
            planted.append(graph.call_function(torch.add, last))
            values.append(planted[-1])
    graph.output(tuple(values))
    matches = m.find_matches(lambda x, y: torch.sigmoid(x) + y, graph)
    pattern = m.call(torch.add, m.call(torch.sigmoid, m.value("x")), m.value("y"))

    assert [] == matches  # operator.add is another function
    assert planted == [match.anchors[0] for match in m.find_matches(pattern, graph)]
