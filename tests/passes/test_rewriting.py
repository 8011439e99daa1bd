"""``replace_pattern``: torch's documented behaviour, and what must hold beyond it."""

import copy
import operator
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import export
from torch.fx import GraphModule, symbolic_trace

from fxpasses.errors import PatternError
from fxpasses.partitioners.matching import explain, find_matches
from fxpasses.passes import Match, ReplacedPatterns, Rule, RuleSet, replace_pattern, replace_pattern_with_filters

aten = torch.ops.aten
X = torch.arange(-6.0, 6.0).reshape(3, 4) / 4


@torch.fx.wrap
def fused_linear(x, weight):
    """A kernel in Python: nobody can look into it."""
    return torch.relu(F.linear(x, weight))


@torch.fx.wrap
def fused_gate(x):
    return torch.sigmoid(x) * x


def targets(module):
    return [node.target for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def check(source, pattern, replacement, expected, *inputs, count=1, **options):
    """Replace, then compare the calls and the values with what a comparison function traces and gives."""
    module = symbolic_trace(source)
    found = replace_pattern(module, pattern, replacement, **options)
    module.graph.lint()

    assert count == len(found)
    assert targets(symbolic_trace(expected)) == targets(module)
    assert torch.equal(expected(*[i.clone() for i in inputs]), module(*[i.clone() for i in inputs]))
    return module, found


# ------------------------------------------------------------------------------------------------ torch's behaviour
def test_the_example_of_the_documentation():
    """cat becomes stack, twice, and the result says which pattern nodes matched what."""

    def source(x, w1, w2):
        m1 = torch.cat([w1, w2]).sum()
        m2 = torch.cat([w1, w2]).sum()
        return x + torch.max(m1) + torch.max(m2)

    def expected(x, w1, w2):
        m1 = torch.stack([w1, w2]).sum()
        m2 = torch.stack([w1, w2]).sum()
        return x + torch.max(m1) + torch.max(m2)

    _, found = check(
        source, lambda a, b: torch.cat([a, b]), lambda a, b: torch.stack([a, b]), expected, X, X, X + 1, count=2
    )

    assert all(isinstance(match, Match) for match in found)
    assert ["cat", "cat"] == [match.anchor.name for match in found]
    assert {"a", "b", "cat"} == {node.name for node in found[0].nodes_map}


def test_a_pattern_that_is_the_whole_graph():
    """The outputs of the graph are replaced too."""
    check(
        lambda x: torch.neg(torch.relu(x)),
        lambda x: torch.neg(torch.relu(x)),
        lambda x: torch.sigmoid(x),
        lambda x: torch.sigmoid(x),
        X,
    )


def test_one_value_may_be_two_inputs():
    """Where torch leaves add(a, a) alone: what stands for two inputs is read twice."""
    source, pattern = lambda a: torch.add(a, a), lambda x, y: torch.add(x, y)
    check(source, pattern, lambda x, y: torch.sub(x, -y), lambda a: torch.sub(a, -a), X)

    assert [] == torch.fx.replace_pattern(symbolic_trace(source), pattern, lambda x, y: torch.sub(x, -y))


def test_consecutive_matches():
    """Each of three neighbouring nodes is replaced."""
    check(
        lambda x: torch.sigmoid(torch.sigmoid(torch.sigmoid(x))),
        lambda x: torch.sigmoid(x),
        lambda x: torch.exp(x),
        lambda x: torch.exp(torch.exp(torch.exp(x))),
        X,
        count=3,
    )


def test_overlapping_matches_are_taken_in_graph_order():
    """Of four sigmoids, the first two and the last two are pairs."""
    check(
        lambda x: torch.sigmoid(torch.sigmoid(torch.sigmoid(torch.sigmoid(x)))),
        lambda x: torch.sigmoid(torch.sigmoid(x)),
        lambda x: torch.neg(x),
        lambda x: torch.neg(torch.neg(x)),
        X,
        count=2,
    )


def test_a_returned_value_may_have_other_users():
    """Only inner values must not be used outside."""
    check(
        lambda x: (lambda y: torch.neg(y) - y)(torch.relu(x)),
        lambda x: torch.relu(x),
        lambda x: torch.sigmoid(x),
        lambda x: (lambda y: torch.neg(y) - y)(torch.sigmoid(x)),
        X,
    )


def test_an_inner_value_that_is_used_outside_is_no_match():
    """Erasing it would break its user."""

    def source(x):
        m0 = torch.relu(x)
        m1 = torch.neg(m0)
        return m0 - m1

    check(source, lambda x: torch.neg(torch.relu(x)), lambda x: torch.sigmoid(x), source, X, count=0)


def test_an_inner_value_may_be_kept_on_demand():
    """With keeps_shared the result is replaced, and what is used elsewhere stays."""

    def source(x):
        m0 = torch.relu(x)
        return m0 - torch.neg(m0)

    check(
        source,
        lambda x: torch.neg(torch.relu(x)),
        lambda x: torch.clamp(torch.neg(x), max=0),
        lambda x: torch.relu(x) - torch.clamp(torch.neg(x), max=0),
        X,
        keeps_shared=True,
    )


def test_several_outputs():
    """Two results that share an input are replaced together."""

    def source(x):
        return torch.sigmoid(x) + torch.relu(x)

    check(
        source,
        lambda a: (torch.sigmoid(a), torch.relu(a)),
        lambda a: (torch.exp(a), torch.abs(a)),
        lambda x: torch.exp(x) + torch.abs(x),
        X,
    )


def test_one_new_value_for_several_outputs():
    """The replacement may return a value twice, and an inner value of the pattern may be a result."""

    def source(x1, x2):
        x = x1 - x2
        return torch.sigmoid(x) + torch.relu(x)

    def pattern(a1, a2):
        a = a1 - a2
        return torch.sigmoid(a), torch.relu(a), a

    def replacement(x1, x2):
        y1 = torch.exp(x1)
        y2 = torch.abs(x2)
        return y2, y2, y1

    module = symbolic_trace(source)
    assert 1 == len(replace_pattern(module, pattern, replacement))
    module.graph.lint()

    assert torch.equal(2 * torch.abs(X + 1), module(X, X + 1))


def test_placeholders_of_the_graph_stay():
    """An input that nothing uses is still an input."""
    module = symbolic_trace(lambda x, y, z: x + y)
    replace_pattern(module, lambda x, y: x + y, lambda x, y: x - y)

    assert 3 == sum(node.op == "placeholder" for node in module.graph.nodes)
    assert torch.equal(X - 1, module(X, 1, 2))


def test_a_literal_argument_can_be_an_input_of_the_pattern():
    """A placeholder stands for any Python object, lists included."""
    module = symbolic_trace(lambda x: aten._reshape_alias_copy.default(x, [1, 2], [3, 4]))

    found = replace_pattern(
        module,
        lambda x, a, b: aten._reshape_alias_copy.default(x, a, b),
        lambda x, a, b: aten._reshape_alias_copy.default(x, b, a),
    )

    assert [[1, 2], [3, 4]] == [value for node, value in found[0].nodes_map.items() if node.name in ("a", "b")]
    assert ([3, 4], [1, 2]) == tuple(list(a) for n in module.graph.nodes if n.op == "call_function" for a in n.args[1:])


def test_defaults_of_a_schema_are_filled_in():
    """padding=[0, 0] in the pattern is the default that the graph leaves out."""
    module = symbolic_trace(lambda x: aten.max_pool2d_with_indices.default(x, [2, 2], stride=[2, 2]))

    def pattern(x, kernel_size, stride):
        return aten.max_pool2d_with_indices.default(x, kernel_size, stride, padding=[0, 0])

    assert 1 == len(replace_pattern(module, pattern, pattern))


def test_submodules_of_the_replacement_come_along():
    """New ones are added, unused ones removed, and a path that the pattern names means the matched module."""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.sigmoid = nn.Sigmoid()
            self.submod = nn.ReLU()

        def forward(self, x):
            return self.submod(self.sigmoid(x + 1))

    class Pattern(nn.Module):
        def __init__(self):
            super().__init__()
            self.sigmoid = nn.Sigmoid()
            self.submod = nn.ReLU()

        def forward(self, x):
            return self.submod(self.sigmoid(x))

    class Replacement(nn.Module):
        def __init__(self):
            super().__init__()
            self.id = nn.Identity()
            self.submod = nn.Softmax(dim=0)

        def forward(self, x):
            return self.submod(self.id(x))

    module = symbolic_trace(M())
    replace_pattern(module, Pattern(), Replacement())
    module.graph.lint()

    assert isinstance(module.get_submodule("id"), nn.Identity)
    assert isinstance(module.get_submodule("submod"), nn.ReLU)
    with pytest.raises(AttributeError):
        module.get_submodule("sigmoid")
    assert torch.equal(torch.relu(X + 1), module(X))


def test_attributes_of_the_replacement_do_not_collide():
    """A constant of the replacement never becomes another constant of the same name."""

    class M(nn.Module):
        def forward(self, x):
            return torch.relu(x) + torch.tensor([1.0])

    module = symbolic_trace(M())
    replace_pattern(module, lambda x: torch.relu(x), lambda x: torch.neg(x) * torch.tensor([5.0]))

    assert torch.equal(X * -5 + 1, module(X))


def test_filters_see_the_match_and_both_graphs():
    """The second operand must be a number, as in torch's own example."""

    def source(x, scale):
        y = x + 1
        x = torch.add(x, 2).relu()
        return torch.add(x, y).relu() * scale

    def pattern(x, num):
        return torch.add(x, num).relu()

    def second_is_number(match, original_graph, pattern_graph):
        num = [node for node in pattern_graph.nodes if node.op == "placeholder"][1]
        assert original_graph is module.graph
        return isinstance(match.nodes_map[num], int | float)

    module = symbolic_trace(source)
    found = replace_pattern_with_filters(module, pattern, lambda x, num: torch.mul(x, num), [second_is_number])
    module.graph.lint()

    assert 1 == len(found)
    assert torch.equal(torch.add(X * 2, X + 1).relu() * 3, module(X, 3))


@pytest.mark.parametrize("spelling", [torch.add, operator.add])
def test_filters_see_a_tensor_where_the_pattern_has_one(spelling):
    """A filter that looks at the first input would fail on the 3 that a swap puts there once it said no."""
    module = symbolic_trace(lambda x: spelling(x, 3))

    found = replace_pattern_with_filters(
        module,
        lambda x, y: spelling(x, y),
        lambda x, y: torch.sub(x, y),
        [lambda match, graph, pattern: "shape" in match.placeholder_nodes[0].meta],
    )

    assert [] == found


def test_a_swap_gives_no_literal_to_what_takes_tensors_only():
    """``relu(x) + 1e-6`` is no sum of two tensors; ``3 + relu(x)`` may be spelled so."""
    tensors, numbers = symbolic_trace(lambda x: torch.add(torch.relu(x), 1e-6)), symbolic_trace(lambda x: x.relu() + 3)

    assert [] == replace_pattern(tensors, lambda x, y: torch.add(y, torch.relu(x)), lambda x, y: torch.addcmul(y, x, x))
    assert 1 == len(replace_pattern(numbers, lambda x, y: y + x.relu(), lambda x, y: torch.relu(x) + y))


def test_replaced_patterns_list_the_new_nodes():
    """``replacements`` are the nodes that are in the graph now, in order."""
    module = symbolic_trace(lambda x, y: torch.add(x, y))
    (found,) = replace_pattern_with_filters(
        module, lambda x, y: torch.add(x, y), lambda x, y: torch.sub(torch.mul(x, y), y)
    )

    assert isinstance(found, ReplacedPatterns)
    assert [n for n in module.graph.nodes if n.op == "call_function"] == found.replacements


def test_a_callback_makes_the_replacement_from_the_match():
    """It can look at the literals that the pattern's placeholders stand for."""

    def by_two(x, n):
        return torch.mul(x, x)

    def by_more(x, n):
        return torch.pow(x, n)

    def callback(match, original_graph, pattern_graph):
        n = [node for node in pattern_graph.nodes if node.op == "placeholder"][1]
        return symbolic_trace(by_two if match.nodes_map[n] == 2 else by_more).graph

    module = symbolic_trace(lambda x: torch.float_power(x, 2) + torch.float_power(x, 3))
    found = replace_pattern_with_filters(module, lambda x, n: torch.float_power(x, n), replacement_callback=callback)

    assert 2 == len(found)
    assert [torch.mul, torch.pow, operator.add] == targets(module)


def test_node_name_match_accepts_a_node_by_its_name():
    """Anchors whose name holds the text match whatever they call."""
    module = symbolic_trace(lambda x: torch.tanh(torch.neg(x)))
    next(n for n in module.graph.nodes if n.target is torch.tanh).name = "my_activation"

    found = replace_pattern_with_filters(
        module, lambda x: torch.relu(torch.neg(x)), lambda x: torch.exp(x), node_name_match="activation"
    )

    assert 1 == len(found)
    assert [torch.exp] == targets(module)


def test_ignore_literals_makes_literals_wildcards():
    """Without it the exponent 3 is not the exponent 2."""
    for ignore, count in ((False, 0), (True, 1)):
        module = symbolic_trace(lambda x: torch.pow(x, 3))
        found = replace_pattern_with_filters(
            module, lambda x: torch.pow(x, 2), lambda x: torch.exp(x), ignore_literals=ignore
        )

        assert count == len(found)


def test_type_annotations_of_other_nodes_stay():
    """``node.type`` of what is not replaced is not touched."""

    class M(nn.Module):
        def forward(self, x):
            y: int = x
            return torch.add(x, y)

    module = symbolic_trace(M())
    module.graph.find_nodes(op="placeholder")[0].type = int
    replace_pattern(module, lambda x, y: torch.add(x, y), lambda x, y: torch.sub(x, y))

    assert [int] == [node.type for node in module.graph.nodes if node.op == "placeholder"]


# ------------------------------------------------------------------------------------------------ graphs of all kinds
def test_exported_programs_as_pattern_and_replacement():
    """Both sides may be exported, over ATen ops, with the program's own parameters in the module."""
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.GELU()).eval()
    module = export(net, (X,)).module()

    pattern = export(_Wrap(lambda x, w, b: F.gelu(F.linear(x, w, b))), (X, torch.ones(5, 4), torch.ones(5))).module()
    found = replace_pattern(
        module, pattern, lambda x, w, b: aten.gelu.default(aten.addmm.default(b, x, aten.t.default(w)))
    )
    module.graph.lint()

    assert 2 == len(found)
    assert 0 == len(module.graph.find_nodes(op="call_function", target=aten.linear.default))
    assert torch.allclose(net(X), module(X))


class _Wrap(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def test_a_pattern_with_parameters_matches_any_parameters():
    """A parameter of an exported pattern stands for whatever parameter the graph has there."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.linear(x))

    module = export(nn.Sequential(Block(), Block()), (X,)).module()
    expected = module(X)
    pattern = export(Block(), (X,)).module()

    assert 2 == len(replace_pattern(module, pattern, pattern))
    module.graph.lint()
    assert torch.equal(expected, module(X))


def test_a_tensor_constant_is_matched_by_value():
    """A pattern with tensor 1 does not match a graph with tensor 99."""

    class Adds(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.number = torch.tensor(number)

        def forward(self, x):
            return x + self.number

    module = symbolic_trace(nn.Sequential(Adds(1.0), Adds(99.0)))

    assert 1 == len(replace_pattern(module, Adds(1.0), lambda x: torch.relu(x)))
    assert torch.equal(torch.relu(X) + 99, module(X))


# ------------------------------------------------------------------------------------------------ complaints
def test_complaint_03_new_nodes_have_values_and_a_second_rewrite_can_filter_on_them():
    """Complaint 3: a rewrite that filters on shape finds what the rewrite before it inserted."""
    module = export(_Wrap(lambda x: torch.relu(x) + torch.relu(x * 2)), (X,)).module()

    def has_shape(match, graph, pattern):
        return all(tuple(n.meta["val"].shape) == (3, 4) for n in match.returning_nodes)

    relu = aten.relu.default
    first = replace_pattern_with_filters(
        module,
        lambda x: relu(x),
        lambda x: aten.clamp_min.default(aten.neg.default(aten.neg.default(x)), 0),
        [has_shape],
    )
    second = replace_pattern_with_filters(
        module, lambda x: aten.neg.default(aten.neg.default(x)), lambda x: aten.mul.Scalar(x, 1), [has_shape]
    )
    calls = module.graph.find_nodes(op="call_function", target=aten.clamp_min.default)

    assert (2, 2) == (len(first), len(second))
    assert all("val" in n.meta for n in module.graph.nodes if n.op == "call_function")
    for node in calls:
        assert node.meta["stack_trace"]
        assert "replace_pattern" in str(node.meta["from_node"][-1].pass_name)
    assert torch.equal(torch.relu(X) + torch.relu(X * 2), module(X))


@pytest.mark.parametrize("depth", [2, 3])
def test_complaint_10_adjacent_matches_in_list_arguments(depth):
    """Complaint 10: cat in cat, in list arguments, and a chain of three."""

    def source(a, b, c, d):
        x = torch.cat([a, b])
        x = torch.cat([x, c])
        return torch.cat([x, d]) if depth == 3 else x

    module = symbolic_trace(source)
    found = replace_pattern(module, lambda a, b: torch.cat([a, b]), lambda a, b: torch.concat((a, b)))
    module.graph.lint()

    assert depth == len(found)
    assert torch.equal(source(X, X + 1, X + 2, X + 3), module(X, X + 1, X + 2, X + 3))
    assert torch.cat not in targets(module)


def test_complaint_10_nodes_map_is_updated_to_what_is_there_now():
    """Complaint 10: the second match's input is the first one's new node."""
    module = symbolic_trace(lambda a, b, c: torch.cat([torch.cat([a, b]), c]))
    first, second = replace_pattern_with_filters(
        module, lambda a, b: torch.cat([a, b]), lambda a, b: torch.concat((a, b))
    )

    assert first.replacements[0] in second.nodes_map.values()


def test_complaint_12_the_second_input_is_made_after_the_first_output_is_used():
    """Complaint 12: the producer in the way is moved up."""

    def source(x):
        first = torch.sin(x)
        user = first + 1
        late = x * 2
        second = torch.cos(late)
        return user + second

    module = symbolic_trace(source)
    found = replace_pattern(
        module, lambda a, b: (torch.sin(a), torch.cos(b)), lambda a, b: (torch.exp(a) + b * 0, torch.abs(b))
    )
    module.graph.lint()

    assert 1 == len(found)
    assert torch.equal((torch.exp(X) + X * 0) + 1 + torch.abs(X * 2), module(X))


def test_complaint_12_no_order_exists_then_nothing_is_replaced():
    """Complaint 12: the second input needs the first output, so the two cannot become one."""

    def source(x):
        first = torch.sin(x)
        second = torch.cos(first + 1)
        return first + second

    check(source, lambda a, b: (torch.sin(a), torch.cos(b)), lambda a, b: (torch.exp(a), b), source, X, count=0)


def test_complaint_13_operand_order_and_keywords_do_not_matter():
    """Complaint 13: ``x + relu(y)`` finds ``relu(y) + x``; ``sum(x, 1)`` finds ``sum(x, dim=1)``."""
    check(
        lambda a, b: torch.relu(b) + a,
        lambda x, y: x + torch.relu(y),
        lambda x, y: torch.sub(x, y),
        lambda a, b: torch.sub(a, b),
        X,
        X + 1,
    )
    check(lambda a: torch.sum(a, dim=1), lambda x: torch.sum(x, 1), lambda x: x.amax(1), lambda a: a.amax(1), X)


def test_complaint_22_bodies_of_cond_are_rewritten_once():
    """Complaint 22: relus inside the branches of torch.cond are found; a shared branch counts once."""

    def branch(x):
        return torch.relu(x) * 2

    def other(x):
        return torch.relu(x) + 1

    class M(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, branch, other, (x,))

    module = export(M(), (X,)).module()
    found = replace_pattern(module, lambda x: aten.relu.default(x), lambda x: aten.clamp_min.default(x, 0))

    assert 2 == len(found)
    for value in (X + 3, X - 3):
        assert torch.equal(M()(value), module(value))


def test_complaint_22_a_shared_body_is_rewritten_once():
    """Complaint 22: a submodule that is called twice is one graph."""
    body = symbolic_trace(lambda x: torch.relu(x) + 1)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body

        def forward(self, x):
            return self.body(self.body(x))

    tracer = type("KeepModules", (torch.fx.Tracer,), {"is_leaf_module": lambda self, m, name: True})()
    root = M()
    module = GraphModule(root, tracer.trace(root))

    assert 1 == len(replace_pattern(module, lambda x: torch.relu(x), lambda x: torch.clamp_min(x, 0)))
    assert torch.equal(torch.relu(torch.relu(X) + 1) + 1, module(X))
    assert 0 == len(replace_pattern(module, lambda x: torch.clamp_min(x, 0), lambda x: torch.relu(x), nested=False))


# ------------------------------------------------------------------------------------------------ effects
def test_a_read_is_not_moved_past_an_in_place_write():
    """The replacement reads x before x.add_ changes it."""

    def source(x):
        y = torch.sin(x)
        x.add_(1)
        return torch.relu(y) + x

    module = symbolic_trace(source)
    found = replace_pattern(module, lambda x: torch.relu(torch.sin(x)), lambda x: torch.clamp(torch.sin(x), min=0))
    module.graph.lint()

    assert 1 == len(found)
    assert torch.equal(source(X.clone()), module(X.clone()))


def test_a_match_around_an_in_place_write_is_left_alone():
    """One part reads x before the write, the other after it: no place is right for both."""

    def source(x):
        y = torch.sin(x)
        x.add_(1)
        return torch.cos(x) + y

    check(source, lambda x: torch.cos(x) + torch.sin(x), lambda x: torch.exp(x), source, X, count=0)


def test_a_result_that_would_share_memory_with_a_written_input_is_refused():
    """x * 1 becomes x only where nobody writes x afterwards."""

    def writes(x):
        y = x * 1
        x.add_(1)
        return y + x

    def reads(x):
        return x * 1 + x

    for source, count in ((writes, 0), (reads, 1)):
        module = symbolic_trace(source)

        assert count == len(replace_pattern(module, lambda x: x * 1, lambda x: x))
        assert torch.equal(source(X.clone()), module(X.clone()))


def test_a_write_to_an_input_does_not_get_lost():
    """Replacing x.add_(1) by x + 1 would leave the caller's x as it was."""
    module = symbolic_trace(lambda x: x.add_(1) * 2)

    assert 0 == len(replace_pattern(module, lambda x: x.add_(1), lambda x: x + 1))
    assert 1 == len(replace_pattern(module, lambda x: x.add_(1), lambda x: x.sub_(-1)))
    assert torch.equal((X + 1) * 2, module(X.clone()))


def test_an_in_place_op_on_a_temporary_may_be_replaced():
    """relu_ of a fresh value that nobody else reads is like relu."""
    module = symbolic_trace(lambda x: F.relu(torch.neg(x), inplace=True))

    assert 1 == len(replace_pattern(module, lambda x: F.relu(x, inplace=True), lambda x: torch.clamp_min(x, 0)))
    assert torch.equal(torch.relu(-X), module(X.clone()))


def test_functions_that_nobody_can_look_into_are_put_in_and_taken_out():
    """Both sides of a rule do the same, so a kernel in Python is not thought to write what the match only reads."""

    def source(x, weight):
        for _ in range(3):
            x = torch.relu(F.linear(x, weight))
            x = torch.sigmoid(x) * x
        return x

    def linear(x, weight):
        return torch.relu(F.linear(x, weight))

    def gate(x):
        return torch.sigmoid(x) * x

    module = symbolic_trace(source)
    weight = torch.arange(16.0).reshape(4, 4) / 16

    assert 3 == len(replace_pattern(module, linear, lambda x, weight: fused_linear(x, weight)))
    assert 3 == len(replace_pattern(module, gate, lambda x: fused_gate(x)))
    assert [fused_linear, fused_gate] * 3 == targets(module)
    assert torch.equal(source(X, weight), module(X, weight))
    assert 3 == len(replace_pattern(module, lambda x, weight: fused_linear(x, weight), linear))
    assert 3 == len(replace_pattern(module, lambda x: fused_gate(x), gate))
    assert targets(symbolic_trace(source)) == targets(module)
    assert torch.equal(source(X, weight), module(X, weight))


def test_a_write_in_place_of_a_function_that_nobody_can_look_into_is_allowed():
    """It may have written its input itself; a known read next to it says nothing about that."""
    module = symbolic_trace(lambda x: fused_gate(x) + 1)

    assert 1 == len(replace_pattern(module, lambda x: fused_gate(x), lambda x: x.sigmoid_()))


# ------------------------------------------------------------------------------------------------ bad input
def refused(message, *args, module=None, kind=PatternError, **options):
    module = module if module is not None else symbolic_trace(lambda x: torch.neg(torch.relu(x)))
    before = module.code
    with pytest.raises(kind) as caught:
        replace_pattern_with_filters(module, *args, **options)

    assert message in str(caught.value)
    assert before == module.code
    assert isinstance(caught.value, PatternError)


def test_a_pattern_with_an_unused_input_is_refused():
    """Nothing would say what it stands for."""
    refused("the pattern does not use its input 'y'", lambda x, y: torch.relu(x), lambda x, y: x)


def test_a_pattern_that_is_a_bare_input_is_refused():
    """It would match everything."""
    refused("the pattern computes nothing", lambda x: x, lambda x: x)


def test_a_pattern_with_dead_code_is_refused():
    """As in torch, also catchable as AssertionError."""

    def pattern(x):
        torch.neg(x)
        return torch.relu(x)

    refused("the pattern has dead code: nothing uses 'neg'", pattern, lambda x: x, kind=AssertionError)


def test_an_empty_pattern_is_refused():
    """As in torch, a ValueError."""
    refused("the pattern graph is empty", torch.fx.Graph(), lambda x: x, kind=ValueError)


def test_another_number_of_inputs_is_refused_with_both_sides():
    """Before anything is matched."""
    refused(
        "the pattern has 1 inputs (x), the replacement has 2 (x, y); they must be as many, in the same order",
        lambda x: torch.relu(x),
        lambda x, y: torch.add(x, y),
    )


def test_another_number_of_outputs_is_refused_with_both_sides():
    """Before anything is matched."""
    refused(
        "the pattern returns 1 value (relu), the replacement returns 2 (sin, cos); they must be as many",
        lambda x: torch.relu(x),
        lambda x: (torch.sin(x), torch.cos(x)),
    )


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (lambda x: aten.relu.default(aten._to_copy.default(x, dtype=torch.float64)), "float64[3, 4] on cpu"),
        (lambda x: aten.sum.dim_IntList(x, [1]), "float32[3] on cpu"),
    ],
)
def test_another_dtype_or_shape_is_refused_with_both_sides(replacement, message):
    """The graph has values, so the result is known beforehand."""
    module = export(_Wrap(lambda x: torch.relu(x)), (X,)).module()
    refused(
        f"relu is float32[3, 4] on cpu, the replacement gives {message}",
        lambda x: aten.relu.default(x),
        replacement,
        module=module,
    )


def test_another_shape_is_allowed_on_demand_and_values_follow():
    """With check_values=False the users' values are computed again."""
    module = export(_Wrap(lambda x: torch.relu(x) * 2), (X,)).module()
    replace_pattern(module, lambda x: aten.relu.default(x), lambda x: aten.sum.dim_IntList(x, [1]), check_values=False)
    (mul,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)

    assert (3,) == tuple(mul.meta["val"].shape)


def test_a_replacement_that_cannot_run_is_refused():
    """The operator's own complaint is in the message."""
    module = export(_Wrap(lambda x: torch.relu(x)), (X,)).module()
    refused(
        "the replacement does not fit",
        lambda x: aten.relu.default(x),
        lambda x: aten.view.default(x, [7]),
        module=module,
    )


def test_a_filter_that_raises_names_itself_and_nothing_changes():
    """Also catchable as what it raised."""

    def broken(match, graph, pattern):
        raise KeyError("oops")

    refused(
        "the match filter broken raised KeyError: 'oops'",
        lambda x: torch.relu(x),
        lambda x: torch.exp(x),
        [broken],
        kind=KeyError,
    )


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (len, "match filters are a list of functions, got the builtin_function_or_method len; put it into a list"),
        (3, "match filters are a list of functions, got the int 3"),
        ([3], "a match filter is a function that is asked about each match, got 3"),
    ],
)
def test_filters_that_are_no_list_of_functions_are_refused(filters, message):
    """In all functions that take filters, before anything is looked at; a TypeError, too."""
    relu = lambda x: torch.relu(x)
    refused(message, relu, relu, filters, kind=TypeError)
    for work in (Rule, find_matches, explain):
        with pytest.raises(PatternError) as caught:
            work(relu, symbolic_trace(relu), filters=filters)

        assert message == str(caught.value)


def test_a_rule_set_of_one_rule_that_is_no_list_is_refused():
    """The message says what is expected."""
    with pytest.raises(PatternError) as caught:
        RuleSet(Rule(lambda x: torch.relu(x), lambda x: torch.exp(x)))

    assert "a RuleSet takes a list of Rules, got Rule" == str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_a_callback_that_raises_names_itself_and_nothing_changes():
    """Matches before the failing one are not replaced either."""
    asked = []

    def broken(match, graph, pattern):
        asked.append(match)
        if len(asked) == 2:
            raise ZeroDivisionError("second")
        return symbolic_trace(lambda x: torch.exp(x)).graph

    refused(
        "the replacement broken raised ZeroDivisionError: second",
        lambda x: torch.relu(x),
        module=symbolic_trace(lambda x: torch.relu(torch.relu(x))),
        replacement_callback=broken,
        kind=ZeroDivisionError,
    )


def test_a_callback_that_returns_no_graph_is_refused():
    """The message says what came instead."""
    refused("must return a Graph, it returned int", lambda x: torch.relu(x), replacement_callback=lambda *_: 3)


def test_neither_replacement_nor_callback_is_refused():
    """There is nothing to put in place."""
    refused("give a replacement or a replacement_callback", lambda x: torch.relu(x), kind=AssertionError)


def test_a_module_that_is_not_traced_is_refused():
    """The message says what to do."""
    with pytest.raises(TypeError, match="works on a GraphModule, got Linear; trace or export the module first"):
        replace_pattern(nn.Linear(2, 2), lambda x: torch.relu(x), lambda x: x)


def test_an_input_that_is_handed_on_must_stay():
    """A pattern may return an input beside its results, if the replacement returns the same one."""
    module = symbolic_trace(lambda x, y: torch.neg(torch.add(x, y)) * x)
    pattern = lambda a, b: (torch.neg(torch.add(a, b)), a)
    refused("the pattern returns its input x as it is", pattern, lambda a, b: (torch.sub(a, b), b), module=module)

    assert 1 == len(replace_pattern(module, pattern, lambda a, b: (torch.sub(a, b), a)))
    assert torch.equal((X - 1) * X, module(X, 1))


def test_a_rewritten_module_can_be_copied_and_pickled_before_it_has_run():
    """The code is made when it is needed."""
    module = symbolic_trace(_Relu())
    replace_pattern(module, lambda x: torch.relu(x), lambda x: torch.exp(x))

    assert torch.equal(torch.exp(X), copy.deepcopy(module)(X))
    replace_pattern(module, lambda x: torch.exp(x), lambda x: torch.sin(x))
    assert torch.equal(torch.sin(X), pickle.loads(pickle.dumps(module))(X))


class _Relu(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def test_an_exported_program_is_rewritten_in_place():
    """Its signature follows the new names."""
    program = export(_Wrap(lambda x: torch.relu(x)), (X,))
    found = replace_pattern(program, lambda x: aten.relu.default(x), lambda x: aten.clamp_min.default(x, 0))
    program.validate()

    assert 1 == len(found)
    assert torch.equal(torch.relu(X), program.module()(X))


def test_a_pattern_with_ops_that_never_occur_changes_nothing():
    """Nothing is found, nothing is touched; RuleSet's report names the op."""
    module = symbolic_trace(lambda x: torch.neg(x))
    code = module.code

    assert [] == replace_pattern(module, lambda x: torch.relu(x), lambda x: torch.exp(x))
    assert code == module.code


def test_the_code_is_never_stale():
    """Code is generated when it is looked at, and is that of the rewritten graph."""
    module = symbolic_trace(lambda x: torch.neg(x))
    replace_pattern(module, lambda x: torch.neg(x), lambda x: torch.exp(x))

    assert "torch.exp" in module.code
    replace_pattern(module, lambda x: torch.exp(x), lambda x: torch.sin(x))
    assert torch.equal(torch.sin(X), module(X))
    module.recompile()
    assert "torch.sin" in module.code


def test_complaint_38_patterns_of_2000_nodes_work_with_the_default_recursion_limit():
    """Complaint 38: matched and replaced in a chain of 20,000 nodes."""

    def chain(count):
        graph = torch.fx.Graph()
        value = graph.placeholder("x")
        for place in range(count):
            value = graph.call_function((torch.sin, torch.cos)[place % 2], (value,))
        graph.output(value)
        return GraphModule(nn.Module(), graph)

    module = chain(20_000)

    assert 10 == len(replace_pattern(module, chain(2_000), lambda x: torch.neg(x)))
    assert 10 == len(targets(module))


def test_replacing_leaves_modules_alone_that_it_has_nothing_to_do_with() -> None:
    """Modules that no node named, and those of bodies inside of bodies, were deleted."""

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def positive(x: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = torch.cond(x.mean() > 1, lambda x: x.sin(), lambda x: x.cos(), (x,))
                return found

            result: torch.Tensor = torch.cond(x.sum() > 0, positive, lambda x: x.neg(), (x.relu(),))
            return result

    x = torch.ones(3)
    module = torch.export.export(Branching(), (x,)).module()
    module.add_module("loss", nn.MSELoss())
    before = {name for name, _ in module.named_modules()}

    assert replace_pattern(module, lambda x: torch.ops.aten.relu.default(x), lambda x: torch.ops.aten.abs.default(x))

    assert before == {name for name, _ in module.named_modules()}
    assert torch.equal(Branching()(x), module(x))


def test_replaced_modules_are_deleted_unless_something_in_them_is_used() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gone, self.kept = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.relu(self.gone(x)) + self.kept(x) * self.kept.weight.sum()
            return result

    class Pattern(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gone = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.gone(x))

    module = symbolic_trace(Pair())

    assert 1 == len(replace_pattern(module, symbolic_trace(Pattern()), lambda x: torch.neg(x)))

    assert ["kept"] == [name for name, _ in module.named_children()]
