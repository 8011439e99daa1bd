"""``outline`` turns groups of nodes into submodules in place; its helpers keep names, kinds and regions of state."""

from __future__ import annotations

import operator

import pytest
import torch
from shapes import SHAPES, assert_same_behaviour, behaviour, behaviour_of_source, compute_nodes
from torch import nn
from torch.fx import Graph, symbolic_trace

from fxpasses.collecting import collection_paused
from fxpasses.editing.attributes import find_attribute, install_attribute, state_of
from fxpasses.errors import GraphError, PartitionError, SplitError
from fxpasses.outlining import outline
from fxpasses.outlining.boundaries import Leaf, adopt_getitems, elements_of, put_together
from fxpasses.outlining.graph_writing import GraphWriter
from fxpasses.outlining.lazy_modules import lazy_graph_module
from fxpasses.outlining.regions import Regions

POLICIES = ("share", "own", "duplicate", "pass_in")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "name", ["ExportedParameters", "TiedWeights", "ConstantInTwoPlaces", "Autocast", "Conditional"]
)
def test_outlining_keeps_what_a_module_means(name, policy):
    """Under each policy for constants, in place."""
    shape = SHAPES[name]
    source = shape.capture()
    nodes = compute_nodes(source)
    third = max(1, len(nodes) // 3)
    parts = outline(source, [("first", nodes[:third]), ("last", nodes[-third:])], constants=policy)
    source.recompile()
    source.graph.lint()

    assert ["first", "last"] == [part.name for part in parts]
    assert source.first is parts[0].module
    assert_same_behaviour(behaviour_of_source(shape.name), behaviour(source, shape), state=False, exact=shape.exact)


def test_state_moves_and_empty_modules_go():
    """What a part has taken over is removed from the top level, unless something there needs it."""
    source = SHAPES["ExportedParameters"].capture()
    nodes = compute_nodes(source)
    before = {tensor.data_ptr() for tensor in source.parameters()}
    outline(source, [("all", [node for node in nodes if node.op != "call_module"])])
    names = [name for name, _ in source.named_parameters()]

    assert ["unused"] == [name for name in names if not name.startswith("all.")]
    assert before == {tensor.data_ptr() for tensor in source.parameters()}
    assert not hasattr(source, "blocks")


def test_a_users_own_module_is_not_taken_apart():
    """A parameter that is read through a leaf module of the user stays in that module."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x) + self.linear.bias

    model = Model()
    source = symbolic_trace(model)
    call, add = compute_nodes(source)
    outline(source, [("head", [add])])
    source.recompile()
    x = torch.rand(2)

    assert source.head.linear.bias is model.linear.bias is source.linear.bias
    torch.testing.assert_close(source(x), model(x))
    assert call.target == "linear"


def test_a_policy_that_does_not_exist_is_refused():
    """The message lists the policies."""
    source = SHAPES["ConstantInTwoPlaces"].capture()
    with pytest.raises(SplitError, match="it must be one of 'share', 'own', 'duplicate', 'pass_in'"):
        outline(source, [("part", compute_nodes(source))], constants="borrow")


def test_groups_must_be_disjoint():
    """The message names both parts and the node."""
    source = SHAPES["chain"].capture()
    nodes = compute_nodes(source)
    with pytest.raises(PartitionError, match="parts 'a' and 'b' both hold relu"):
        outline(source, [("a", nodes[:2]), ("b", nodes[1:])])


# Attributes


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2))
        self.register_buffer("kept", torch.rand(2))
        self.register_buffer("scratch", torch.rand(2), persistent=False)
        self.plain = torch.rand(2)
        self.inner = nn.Sequential(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("name", "kind", "persistent"),
    [
        ("weight", "parameter", True),
        ("kept", "buffer", True),
        ("scratch", "buffer", False),
        ("plain", "constant", True),
        ("inner.0", "module", True),
        ("inner.0.bias", "parameter", True),
    ],
)
def test_attributes_keep_their_kind(name, kind, persistent):
    """Parameters, buffers of both sorts, constants and modules are installed as what they were."""
    source, target = Stateful(), nn.Module()
    attribute = find_attribute(source, name)
    install_attribute(target, name, attribute)
    again = find_attribute(target, name)

    assert (kind, persistent) == (again.kind, again.persistent)
    assert again.value is attribute.value


def test_attributes_that_are_missing_or_taken_are_refused():
    """Messages name the node, the attribute and the module."""
    source = Stateful()
    with pytest.raises(GraphError, match=r"node 'w' asks for attribute 'inner.0.gain', which Stateful does not have"):
        find_attribute(source, "inner.0.gain", user="w")
    with pytest.raises(GraphError, match="cannot put 'weight' into Stateful: the name is taken by another value"):
        install_attribute(source, "weight", find_attribute(source, "kept"))
    install_attribute(source, "inner.0.bias", find_attribute(source, "inner.0.bias"))


def test_state_lists_tied_parameters_under_each_name():
    """One entry for each name, in module order."""
    model = SHAPES["TiedModules"].module()

    assert ["embed.weight", "body.weight", "body.bias", "head.weight"] == list(state_of(model))


# Borders


def test_elements_of_nested_tuples():
    """Elements that a getitem picks are that node, others are leaves, None stays None."""
    graph = Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.split, (x, 1))
    picked = graph.call_function(operator.getitem, (node, 1))
    node.meta["val"] = (torch.ones(1), torch.ones(2), [torch.ones(3), None])
    nested = elements_of(node)

    assert (Leaf(node, (0,)), picked, [Leaf(node, (2, 0)), None]) == nested
    values = {Leaf(node, (0,)): "a", picked: "b", Leaf(node, (2, 0)): "c"}
    assert ("a", "b", ["c", None]) == put_together(nested, values)
    assert x is elements_of(x)
    assert "split_2_0" == Leaf(node, (2, 0)).name


def test_getitem_of_a_tensor_stays_where_it_was_put():
    """Only elements of tuples follow their producer."""
    source = symbolic_trace(lambda x: torch.split(x.relu(), 1)[0] + x.relu()[:, 0])
    home = {node: place for place, node in enumerate(compute_nodes(source))}
    nodes = list(home)
    adopt_getitems(list(source.graph.nodes), home, -1)
    moved = [node for place, node in enumerate(nodes) if home[node] != place]

    assert ["getitem"] == [node.name for node in moved]


# Regions, writing, lazy modules


def test_regions_of_nodes():
    """Each node knows the markers around it; setting a mode back is the end of its region."""
    nodes = list(SHAPES["AutocastAndNoGrad"].capture().graph.nodes)
    regions = Regions(nodes)
    depth = [len(regions.open_at(node)) for node in nodes if node.op == "call_function" and node not in regions]

    # torch.enable_grad() inside of torch.no_grad() cannot be told from the end of it, and means the same.
    assert [0, 1, 2, 2, 1, 1, 0, 0] == depth


def test_names_that_are_taken_are_made_unique():
    """The writer keeps wished names where it can, and leaves a graph that torch can go on with."""
    writer = GraphWriter()
    x = writer.append("placeholder", "x", name="x")
    first = writer.append("call_function", torch.sin, (x,), name="y")
    second = writer.append("call_function", torch.cos, (first,), name="y")
    third = writer.append("call_function", torch.cos, (second,))
    writer.append("output", "output", (third,))
    with writer.graph.inserting_before(third):
        fourth = writer.graph.call_function(torch.cos, (second,))
    writer.graph.lint()

    assert ["y", "y_1", "cos", "cos_1"] == [node.name for node in (first, second, third, fourth)]
    assert [second, fourth, third] == writer.graph.find_nodes(op="call_function", target=torch.cos)


def test_collections_are_put_off_and_taken_up_again():
    """Also when the body raises, and not if they were off before."""
    import gc

    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_lazy_module_has_no_code_until_it_is_asked_for():
    """One class for all until then; hooks run once on the first call; edits are seen."""
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.add, (x, 1))
    graph.output(y)
    module = lazy_graph_module(graph, class_name="Part")
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))

    assert module.__dict__["_code"] is None
    assert "Part()" == repr(module)
    torch.testing.assert_close(module(torch.zeros(1)), torch.ones(1))
    assert [1] == calls
    y.args = (x, 2)
    module.recompile()
    assert "torch.add(x, 2)" in module.code
    torch.testing.assert_close(module(torch.zeros(1)), torch.full((1,), 2.0))
    assert "Part" == type(module).__name__
