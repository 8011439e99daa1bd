"""Markers and what is between them become operators with bodies, as torch.export makes them."""

import operator

import pytest
import torch
from test_opening import captured
from torch import nn
from torch.fx import Graph, GraphModule

from fxpasses.outlining.closing import close_regions
from fxpasses.outlining.opening import open_regions
from fxpasses.outlining.regions import body_of_region, is_region, switches_regions

AUTOCAST = ("cpu", torch.bfloat16, True, False)
ENTER, EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
aten = torch.ops.aten


def test_closed_again_a_graph_computes_the_same():
    """Values, types and whether a gradient flows; names, values and parameters are where they were."""
    model, x, graph_module = captured()
    state = dict(graph_module.state_dict())
    open_regions(graph_module)
    names = [node.name for node in graph_module.graph.output_node().all_input_nodes]
    count = close_regions(graph_module)
    graph_module.graph.lint()
    graph_module.recompile()

    assert 3 == count
    assert not any(map(switches_regions, graph_module.graph.nodes))
    assert names == [node.name for node in graph_module.graph.output_node().all_input_nodes]
    assert state.keys() == graph_module.state_dict().keys()
    for expected, found in zip(model(x), graph_module(x), strict=True):
        assert torch.equal(expected, found)
        assert (expected.dtype, expected.requires_grad) == (found.dtype, found.requires_grad)


def test_a_region_in_a_region_is_in_its_body():
    """The graph keeps no body that it does not run itself."""
    _, _, graph_module = captured()
    open_regions(graph_module)
    close_regions(graph_module)
    outer = [node for node in graph_module.graph.nodes if is_region(node)]
    inner = [node for region in outer for node in body_of_region(region).graph.nodes if is_region(node)]

    assert ["wrap_with_autocast", "wrap_with_set_grad_enabled"] == [node.target.name() for node in outer]
    assert ["wrap_with_autocast"] == [node.target.name() for node in inner]
    assert 2 == sum(isinstance(child, GraphModule) for child in graph_module.children())


def test_a_second_run_finds_nothing():
    """Closing is done once."""
    _, _, graph_module = captured()
    open_regions(graph_module)
    close_regions(graph_module)

    assert 0 == close_regions(graph_module)


def test_values_and_origins_are_kept():
    """The operator and what is picked out of it have a value; the picked ones say where they are from."""
    _, _, graph_module = captured()
    open_regions(graph_module)
    close_regions(graph_module)
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.getitem):
        assert node.meta["val"] is node.args[0].meta["val"][node.args[1]]
        assert node.meta["stack_trace"] == body_of_region(node.args[0]).graph.output_node().args[0][
            node.args[1]
        ].meta.get("stack_trace", node.meta["stack_trace"])
        assert node.args[0].meta["from_node"]


def marked(write):
    """A graph of one input that ``write`` fills."""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(write(graph, x))
    return GraphModule({"inner": nn.Linear(4, 4)}, graph)


def _fails_inside(graph, x):
    opened = graph.call_function(ENTER, AUTOCAST)
    y = graph.call_function(aten.mm.default, (x, x))
    graph.call_function(EXIT, (opened,))
    return y


def test_an_error_inside_leaves_no_autocast_behind():
    """Markers would: nobody reaches the one that closes."""
    module = marked(_fails_inside)
    close_regions(module)
    module.recompile()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(torch.randn(2, 5))

    assert not torch.is_autocast_enabled("cpu")


def test_what_is_written_in_place_is_still_written():
    """A region without results runs for what it does to its inputs."""

    def write(graph, x):
        opened = graph.call_function(ENTER, AUTOCAST)
        graph.call_function(aten.add_.Tensor, (x, 1))
        graph.call_function(EXIT, (opened,))
        return x

    module = marked(write)
    count = close_regions(module)
    module.recompile()

    assert 1 == count
    assert torch.equal(torch.ones(2), module(torch.zeros(2)))


def test_an_empty_region_goes():
    """Markers with nothing between them become nothing."""

    def write(graph, x):
        graph.call_function(EXIT, (graph.call_function(ENTER, AUTOCAST),))
        return x

    module = marked(write)
    count = close_regions(module)

    assert 1 == count
    assert ["placeholder", "output"] == [node.op for node in module.graph.nodes]


def _calls_a_module(graph, x):
    opened = graph.call_function(ENTER, AUTOCAST)
    y = graph.call_module("inner", (x,))
    graph.call_function(EXIT, (opened,))
    return y


def _overlaps(graph, x):
    first, second = graph.call_function(ENTER, AUTOCAST), graph.call_function(ENTER, AUTOCAST)
    y = graph.call_function(aten.relu.default, (x,))
    graph.call_function(EXIT, (first,))
    graph.call_function(EXIT, (second,))
    return y


def _is_left_open(graph, x):
    graph.call_function(torch._C._set_grad_enabled, (False,))
    y = graph.call_function(aten.relu.default, (x,))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    return y


@pytest.mark.parametrize("write", [_calls_a_module, _overlaps, _is_left_open])
def test_other_markers_stay(write):
    """Regions that call modules or overlap, and markers without a partner, are left as they are."""
    module = marked(write)
    before = str(module.graph)

    assert 0 == close_regions(module)
    assert before == str(module.graph)
