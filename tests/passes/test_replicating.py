"""Computing a value again where it is used."""

import operator
import re

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from fxpasses import PartitionError
from fxpasses.passes import replicate, split
from fxpasses.programs import capture


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        table = torch.arange(4, dtype=torch.float32).cos().expand(3, 4)
        return self.second(self.first(x) * table) * table


def cut_tables(name="linear_1"):
    model, x = Tables(), torch.randn(3, 4)
    graph_module = capture(model, (x,)).module(check_guards=False)
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    at = next(place for place, node in enumerate(nodes) if node.name == name)
    return model, x, graph_module, {node: int(place >= at) for place, node in enumerate(nodes)}


def named(graph_module, *names):
    return [node for node in graph_module.graph.nodes if node.name in names]


def test_a_copied_node_does_not_cross():
    """The part that uses the table computes it; only the activation is sent, and the result is the same."""
    model, x, graph_module, stages = cut_tables()
    homes = replicate(graph_module, stages, {1: named(graph_module, "arange", "cos", "expand")})
    cut = split(graph_module, homes)

    assert torch.equal(model(x), cut(x))
    assert ["submod_0"] == [node.name for node in cut.calls[1].all_input_nodes]
    assert 2 == len(graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default))


def test_copies_keep_their_origin():
    """A copy has the value, the module stack and the line of what it stands for, and says who made it."""
    _, _, graph_module, stages = cut_tables()
    (cos,) = named(graph_module, "cos")
    replicate(graph_module, stages, {1: named(graph_module, "arange", "cos", "expand")})
    copy = graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)[1]

    assert cos.meta["val"].shape == copy.meta["val"].shape
    assert cos.meta["stack_trace"] == copy.meta["stack_trace"]
    assert "replicate" == copy.meta["from_node"][-1].pass_name


def test_an_original_that_nothing_uses_goes():
    """What only the other part used is computed there alone."""
    graph_module = symbolic_trace(lambda x: operator.add(x.sin(), torch.relu(x)))
    sine, relu, total = named(graph_module, "sin", "relu", "add")
    homes = replicate(graph_module, {sine: 0, relu: 0, total: 1}, {1: [sine]})

    assert 3 == len(homes)
    assert [1] == [homes[node] for node in graph_module.graph.find_nodes(op="call_method", target="sin")]


def test_a_part_is_not_left_empty():
    """An original stays if it is all that its part has."""
    graph_module = symbolic_trace(lambda x: torch.relu(x.sin()))
    sine, relu = named(graph_module, "sin", "relu")

    assert [0, 1, 1] == sorted(replicate(graph_module, {sine: 0, relu: 1}, {1: [sine]}).values())


def test_the_same_call_gives_the_same_graph():
    """Copies stand where they stood, whatever order they were listed in."""
    texts = []
    for turn in (1, -1):
        _, _, graph_module, stages = cut_tables()
        replicate(graph_module, stages, {1: named(graph_module, "arange", "cos", "expand")[::turn]})
        texts.append(str(graph_module.graph))

    assert texts[0] == texts[1]


def write(x, y):
    x.add_(1)
    return y.neg() * x.sum()


REFUSED = {
    "random": (lambda x, y: y * torch.rand_like(x), "rand_like", "it draws random numbers"),
    "written": (write, "sum_1", "what it reads or gives is written in place"),
    "writing": (write, "add_", "it has an effect: add_ writes x"),
    "input": (lambda x, y: x + y, "x", "it is a node of kind placeholder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_must_not_run_twice_is_refused(name):
    """Random numbers, writes and what is written: one sentence, and the graph stays."""
    function, target, reason = REFUSED[name]
    graph_module = symbolic_trace(function)
    before = str(graph_module.graph)
    message = re.escape(f"{target} cannot be computed again in part 1: {reason}")
    with pytest.raises(PartitionError, match=f"^{message}$"):
        replicate(graph_module, dict.fromkeys(graph_module.graph.nodes, 0), {1: named(graph_module, target)})

    assert before == str(graph_module.graph)
