"""Source partitions: the same whatever way the model was written, captured and decomposed."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from partition_graphs import trace
from torch import nn
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from fxpasses.errors import PartitionError
from fxpasses.partitioners import (
    SourcePartition,
    check_subgraphs_connected,
    get_module_partitions,
    get_source_partitions,
    partition_by_source,
)
from fxpasses.partitioners.sources import canonical_name


class AsModules(nn.Module):
    """One Linear called twice, then another, with ReLU between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.ReLU()

    def forward(self, x):
        return self.second(self.act(self.first(self.act(self.first(x)))))


class AsFunctions(AsModules):
    def forward(self, x):
        x = F.relu(F.linear(x, self.first.weight, self.first.bias))
        x = F.relu(F.linear(x, self.first.weight, self.first.bias))
        return F.linear(x, self.second.weight)


class AsTorch(AsModules):
    def forward(self, x):
        x = torch.relu(F.linear(x, self.first.weight, self.first.bias))
        x = torch.relu(F.linear(x, self.first.weight, self.first.bias))
        return F.linear(x, self.second.weight)


class AsMethods(AsModules):
    def forward(self, x):
        x = F.linear(x, self.first.weight, self.first.bias).relu()
        x = F.linear(x, self.first.weight, self.first.bias).relu()
        return F.linear(x, self.second.weight)


MODELS = [AsModules, AsFunctions, AsTorch, AsMethods]


@functools.cache
def capture(model: type[nn.Module], way: str) -> Graph:
    """The graph of a model, captured one way."""
    if way == "trace":
        return symbolic_trace(model()).graph
    program = torch.export.export(model(), (torch.ones(3, 4),), strict="non-strict" not in way)
    if "decomposed" in way:
        program = program.run_decompositions()
    if "module" in way:
        module = program.module()
        assert isinstance(module, GraphModule)
        return module.graph
    return program.graph


def shape_of(partitions: dict[Any, list[SourcePartition]]) -> Any:
    """All that source partitions say, in names."""
    return [
        [
            [[node.name for node in part] for part in (each.nodes, each.input_nodes, each.output_nodes, each.params)]
            for each in calls
        ]
        for calls in partitions.values()
    ]


def test_classic_one_linear_called_twice() -> None:
    """The classic: nodes, inputs, outputs and params of each call of two Linears and a ReLU."""
    partitions = get_source_partitions(capture(AsModules, "non-strict"), [nn.Linear, nn.ReLU])

    assert [nn.Linear, nn.ReLU] == list(partitions)
    assert shape_of(partitions) == [
        [
            [["linear"], ["x"], ["linear"], ["p_first_weight", "p_first_bias"]],
            [["linear_1"], ["relu"], ["linear_1"], ["p_first_weight", "p_first_bias"]],
            [["linear_2"], ["relu_1"], ["linear_2"], ["p_second_weight"]],
        ],
        [
            [["relu"], ["linear"], ["relu"], []],
            [["relu_1"], ["linear_1"], ["relu_1"], []],
        ],
    ]
    linears, relus = partitions[nn.Linear], partitions[nn.ReLU]
    assert check_subgraphs_connected(linears[0], relus[0])
    assert not check_subgraphs_connected(relus[0], linears[0])
    assert not check_subgraphs_connected(linears[2], relus[0])


WAYS = ["strict", "non-strict", "strict decomposed", "non-strict decomposed", "strict module", "non-strict module"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "wanted", [(nn.Linear, nn.ReLU), (F.linear, torch.relu), ("linear", "relu")], ids=["modules", "functions", "names"]
)
def test_complaint_32_the_same_partitions_however_it_is_written(way: str, wanted: Any) -> None:
    """Complaint 32: nn, F, torch and method spellings, strict or not, decomposed or not, give the same partitions."""
    found = [shape_of(get_source_partitions(capture(model, way), wanted)) for model in MODELS]

    assert found[0] == found[1] == found[2] == found[3]
    assert [3, 2] == [len(calls) for calls in found[0]]


def test_complaint_32_strict_and_not_agree() -> None:
    """Complaint 32: strict and non-strict export give equal partitions, before and after decompositions."""
    for suffix in ("", " decomposed"):
        strict, loose = (
            shape_of(get_source_partitions(capture(AsModules, way + suffix), [nn.Linear, nn.ReLU]))
            for way in ("strict", "non-strict")
        )
        assert strict == loose


@pytest.mark.parametrize("model", MODELS)
def test_symbolic_traces_have_sources_too(model: type[nn.Module]) -> None:
    """Graphs of ``symbolic_trace`` are read by what they call."""
    partitions = get_source_partitions(capture(model, "trace"), [nn.Linear, nn.ReLU])

    assert [3, 2] == [len(calls) for calls in partitions.values()]


def test_each_node_is_listed_under_the_source_that_fits_best() -> None:
    """Asked for a module and its function, module calls are the module's and function calls the function's."""

    class Mixed(AsModules):
        def forward(self, x):
            return F.linear(self.first(x), self.second.weight)

    for way in WAYS:
        partitions = get_source_partitions(capture(Mixed, way), [nn.Linear, F.linear])

        assert {nn.Linear: 1, F.linear: 1} == {source: len(calls) for source, calls in partitions.items()}


def test_sources_that_do_not_occur_are_an_empty_answer() -> None:
    """A source that does not occur has no entry, and is no error."""
    graph = capture(AsModules, "non-strict")

    assert get_source_partitions(graph, [nn.Conv2d, torch.cos]) == {}
    assert get_source_partitions(graph, []) == {}


def test_filter() -> None:
    """A filter keeps the calls of whose nodes all pass it."""
    graph = capture(AsModules, "non-strict decomposed")

    partitions = get_source_partitions(graph, [nn.Linear], lambda node: not node.name.endswith("_1"))

    assert [["permute", "addmm"], ["permute_2", "mm"]] == [[n.name for n in p.nodes] for p in partitions[nn.Linear]]


def test_other_modules_with_the_same_function_are_not_confused() -> None:
    """``BatchNorm2d`` is not found in ``BatchNorm1d``, and a module around a ReLU is not a ReLU."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.six = nn.ReLU6()

        def forward(self, x):
            return self.six(self.norm(x))

    graph = capture(Model, "non-strict")

    assert get_source_partitions(graph, [nn.BatchNorm2d, nn.ReLU]) == {}
    assert list(get_source_partitions(graph, [nn.BatchNorm1d, nn.ReLU6])) == [nn.BatchNorm1d, nn.ReLU6]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu() + x


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        return self.layers[1](self.layers[0](self.layers[0](x)))


@pytest.mark.parametrize("way", ["strict", "non-strict", "non-strict decomposed"])
def test_whole_modules_by_class_path_and_instance(way: str) -> None:
    """A module of the user's own is found by class, by path and by instance, with all that its submodules do."""
    model = Blocks()
    program = torch.export.export(model, (torch.ones(3, 4),), strict="non-strict" not in way)
    graph = program.run_decompositions().graph if "decomposed" in way else program.graph

    by_class = get_source_partitions(graph, [Block])[Block]
    by_path = get_module_partitions(graph, ["layers.0", "layers.1"])
    by_instance = get_module_partitions(graph, [model.layers[1]], root=model)

    assert [2, 1] == [len(calls) for calls in by_path.values()]
    assert [each.nodes for each in by_class] == [each.nodes for calls in by_path.values() for each in calls]
    assert by_path["layers.1"][0].nodes == by_instance[model.layers[1]][0].nodes
    assert [["x"], ["p_layers_0_linear_weight", "p_layers_0_linear_bias"]] == [
        [node.name for node in nodes] for nodes in (by_class[0].input_nodes, by_class[0].params)
    ]
    with pytest.raises(
        PartitionError, match=r"^a module of type Linear is not part of the root; give its path, or root="
    ):
        get_module_partitions(graph, [nn.Linear(1, 1)], root=model)


def test_partition_by_source_is_an_assignment() -> None:
    """Each call becomes a partition called after its source; what is outside says why."""
    program = torch.export.export(AsModules(), (torch.ones(3, 4),))
    nodes = {node.name: node for node in program.graph.nodes}

    assignment = partition_by_source(program.graph_module, [nn.Linear])

    assert assignment.order == ("Linear_0", "Linear_1", "Linear_2")
    assert assignment.why(nodes["relu"]) == "it comes from none of the wanted sources"


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        ((nn.ReLU, F.relu, torch.relu, torch.relu_, torch.Tensor.relu, "relu", torch.ops.aten.relu.default), "relu"),
        ((nn.Linear, F.linear, torch.ops.aten.linear), "linear"),
        ((nn.MaxPool2d, F.max_pool2d), "max_pool2d"),
        ((torch.add, torch.Tensor.add_, torch.ops.aten.add.Tensor, "add"), "add"),
        ((nn.Softmax, F.softmax, torch.softmax, torch.ops.aten._softmax.default), "softmax"),
        ((AsModules, trace, len), None),
    ],
)
def test_canonical_names(sources: Any, name: str | None) -> None:
    """All spellings of a function have one canonical name; what is not torch's own has none."""
    assert {name} == {canonical_name(source) for source in sources}


NO_GRAPH = (
    "a graph is a torch.fx.Graph, a GraphModule or an ExportedProgram, not {}; "
    "capture the model with torch.export or torch.fx.symbolic_trace first"
)


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda _: get_source_partitions(None, [nn.Linear]), NO_GRAPH.format("NoneType")),
        (lambda _: get_module_partitions(nn.ReLU(), ["act"]), NO_GRAPH.format("ReLU")),
        (lambda _: partition_by_source(None, [nn.Linear]), NO_GRAPH.format("NoneType")),
        (
            lambda module: get_source_partitions(module, nn.Linear),
            "wanted sources come in a list, not as <class 'torch.nn.modules.linear.Linear'>",
        ),
        (lambda module: get_source_partitions(module, "linear"), "wanted sources come in a list, not as 'linear'"),
        (lambda module: partition_by_source(module, None), "wanted sources come in a list, not as None"),
        (
            lambda module: get_source_partitions(module, [[nn.Linear]]),
            "a wanted source is a class, a function, an operator or a name, not "
            "[<class 'torch.nn.modules.linear.Linear'>]",
        ),
        (lambda module: get_module_partitions(module, "first"), "modules come in a list, not as 'first'"),
        (lambda module: get_module_partitions(module, [3]), "a module is given by its path or itself, not by 3"),
    ],
)
def test_what_is_no_graph_or_no_list_is_refused(find: Any, message: str) -> None:
    """A sentence says what is wanted; a TypeError, as Python would raise."""
    with pytest.raises(PartitionError) as caught:
        find(symbolic_trace(AsModules()))

    assert message == str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_connected_wants_source_partitions() -> None:
    """Anything else is a TypeError."""
    with pytest.raises(
        PartitionError, match=r"^check_subgraphs_connected takes two SourcePartitions, not int$"
    ) as caught:
        check_subgraphs_connected(3, 4)

    assert isinstance(caught.value, TypeError)


def test_large_partitions_are_linear() -> None:
    """A partition of 10,000 nodes, for which torch needs seconds, takes a moment and has the right borders."""
    graph = Graph()
    value: Node = graph.placeholder("x")
    for place in range(10_000):
        value = graph.call_function(torch.sin, (value,))
        value.meta["nn_module_stack"] = {"layer": ("layer", nn.Sequential)}
        value.meta["torch_fn"] = (f"sin_{place}", "builtin_function_or_method.sin")
    graph.output(value)

    (partition,) = get_source_partitions(graph, [nn.Sequential])[nn.Sequential]

    assert (10_000, ["x"], [value]) == (
        len(partition.nodes),
        [node.name for node in partition.input_nodes],
        partition.output_nodes,
    )
