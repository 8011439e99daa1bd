"""Costs as metadata: who writes them, what they count, and what happens where they cannot be known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.passes.split_module import split_module

from fxpasses import Device, PassManager, parse_pipeline, pipeline_text
from fxpasses.errors import FakeValueError, InputError, MissingMetadataError, PassError
from fxpasses.partitioners import COST, SECONDS, NodeCost, cost_of
from fxpasses.passes import MeasureCosts, ProfileCosts, measure_graph
from fxpasses.programs import load, save
from fxpasses.values import propagate_values


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens)
        return hidden @ self.head.weight.t()


def named(graph_module: GraphModule, name: str) -> Node:
    return next(node for node in graph_module.graph.nodes if node.name == name)


def batched(module: nn.Module, width: int, most: int = 64) -> ExportedProgram:
    return export(module, (torch.randn(2, width),), dynamic_shapes=({0: Dim("batch", min=1, max=most)},))


def test_every_node_of_a_program_gets_a_cost_and_the_program_counts_as_unchanged() -> None:
    program = batched(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), 8)

    result = PassManager([MeasureCosts()])(program)

    assert not result.modified
    assert all(COST.has(node) for node in program.graph.nodes)
    assert NodeCost(2 * 2 * 8 * 16, 64 + 512 + 64, 128, 128, 512 + 64, "float32") == COST.read(
        named(program.graph_module, "linear")
    )


def test_symbolic_sizes_count_at_the_example_or_at_their_bound() -> None:
    program = batched(nn.Linear(8, 16), 8)

    MeasureCosts("upper")(program.graph_module)

    assert 64 * 2 * 8 * 16 == COST.read(named(program.graph_module, "linear")).flops
    assert 2 * 2 * 8 * 16 == measure_graph(program.graph_module)[named(program.graph_module, "linear")].flops


def test_graphs_of_dynamo_are_measured() -> None:
    """They keep values under another key, and none for markers of regions."""
    graphs: list[GraphModule] = []

    def keep(graph_module: GraphModule, _inputs: Sequence[Tensor]) -> GraphModule:
        graphs.append(graph_module)
        return graph_module

    class Cast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return x @ x

    torch._dynamo.reset()
    torch.compile(Cast(), backend=keep)(torch.ones(4, 4))
    (module,) = graphs
    PassManager([MeasureCosts(), ProfileCosts(Device("cpu"), repeats=1)])(module)

    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert [0, 2 * 4 * 4 * 4, 0] == [COST.read(node).flops for node in calls]
    assert [False, True, False] == [SECONDS.read(node)["cpu"] > 0 for node in calls]


def test_another_way_to_count_sizes_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^MeasureCosts counts symbolic sizes as 'hint' or as 'upper', not 'lower'\.$"
    ):
        MeasureCosts("lower")  # type: ignore[arg-type]


@pytest.mark.parametrize("examples", [torch.ones(2, 4), {"x": torch.ones(2, 4)}])
def test_examples_are_one_for_each_input(examples: Any) -> None:
    """The rows of a tensor are not the inputs of a graph."""
    sentence = f"example_inputs is a tuple with one value for each input, not a {type(examples).__name__}; of one input"

    with pytest.raises(InputError, match=sentence):
        MeasureCosts(example_inputs=examples)


def test_a_parameter_counts_however_it_is_viewed() -> None:
    program = export(Tied(), (torch.tensor([1, 2]),))
    module = program.module(check_guards=False)

    costs = {node.name: cost for node, cost in measure_graph(module).items()}

    assert [160, 160] == [costs["embedding"].parameter_bytes, costs["matmul"].parameter_bytes]
    assert 0 == costs["t"].parameter_bytes


def test_a_called_module_counts_its_own_parameters() -> None:
    graph_module = symbolic_trace(nn.Sequential(nn.Linear(8, 16)))

    MeasureCosts(example_inputs=(torch.randn(2, 8),))(graph_module)

    assert NodeCost(2 * 2 * 8 * 16, 64 + 576, 128, 128, 576, "float32") == COST.read(named(graph_module, "_0"))


def test_bodies_of_control_flow_are_measured_too() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda y: y @ y, lambda y: y + 1, (x,))

    program = export(Branches(), (torch.randn(4, 4),))

    MeasureCosts()(program.graph_module)

    inner = [module for module in program.graph_module.modules() if isinstance(module, GraphModule)][1:]
    assert 2 == len(inner)
    assert all(COST.has(node) for module in inner for node in module.graph.nodes)


def test_what_is_picked_out_of_a_region_does_not_cost_what_made_it() -> None:
    """``torch.export`` gives both nodes one ``meta``: work in a region of autocast counted twice."""

    class Region(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.linear(x)

    program = export(Region(), (torch.randn(2, 4),))

    MeasureCosts()(program.graph_module)

    flops = {node.name: COST.read(node).flops for node in program.graph.nodes if node.op == "call_function"}
    (body,) = [module for module in program.graph_module.children() if isinstance(module, GraphModule)]
    assert {"linear": 2 * 2 * 4 * 4, "getitem": 0} == flops
    assert 2 * 2 * 4 * 4 == COST.read(named(body, "linear")).flops


def test_the_type_that_is_computed_in_is_part_of_the_cost() -> None:
    program = export(nn.Linear(4, 4).bfloat16(), (torch.randn(2, 4, dtype=torch.bfloat16),))

    MeasureCosts()(program.graph_module)

    assert "bfloat16" == COST.read(named(program.graph_module, "linear")).dtype


def test_a_graph_without_values_is_refused_and_the_pass_that_helps_is_named() -> None:
    graph_module = symbolic_trace(nn.ReLU())

    with pytest.raises(PassError) as failure:
        MeasureCosts()(graph_module)
    with pytest.raises(MissingMetadataError) as direct:
        cost_of(named(graph_module, "relu"))

    expected = "has no value to count a cost on; run MeasureCosts(example_inputs=...) first, or export the model"
    assert f"node 'input_1' {expected}" in str(failure.value)
    assert expected in str(direct.value)


def test_graphs_that_a_graph_without_values_calls_get_values_and_costs_too() -> None:
    """torch's split_module leaves values out; the refusal told to run what had just been run."""
    traced = symbolic_trace(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    halves = split_module(traced, traced, lambda node: int(node.name == "_2"))

    MeasureCosts(example_inputs=(torch.randn(2, 8),))(halves)

    flops = [COST.read(node).flops for part in halves.children() for node in part.graph.nodes if node.op != "output"]
    assert [0, 2 * 2 * 8 * 16, 2 * 16, 0, 2 * 2 * 16 * 4] == flops
    assert 2 * 2 * 8 * 16 + 2 * 16 == COST.read(named(halves, "submod_0")).flops


def test_examples_that_do_not_fit_the_inputs_are_refused() -> None:
    with pytest.raises(FakeValueError) as failure:
        propagate_values(symbolic_trace(nn.ReLU()), ())

    assert "the graph takes 1 inputs (input_1), but got 0 examples" in str(failure.value)


def test_a_recurrent_layer_is_left_as_it_was() -> None:
    """It lists its weights a second time, and running it on fake values must not show there."""
    layer = nn.LSTM(8, 16)
    graph = Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
    traced = GraphModule(nn.ModuleDict({"layer": layer}), graph)

    (record,) = PassManager([MeasureCosts(example_inputs=(torch.randn(3, 2, 8),))])(traced).records

    assert () == record.warnings
    assert list(map(id, layer.parameters())) == list(map(id, layer._flat_weights))


def test_costs_come_back_from_a_saved_program(tmp_path: Path) -> None:
    program = batched(nn.Linear(8, 16), 8)
    MeasureCosts()(program.graph_module)

    save(program, tmp_path / "program.pt2")
    loaded = load(tmp_path / "program.pt2")

    linear = named(program.graph_module, "linear")
    assert COST.read(linear) == COST.read(named(loaded.graph_module, "linear"))


def test_the_pass_has_a_name_in_pipelines() -> None:
    assert "measure-costs{sizes=upper}" == pipeline_text(parse_pipeline("measure-costs{sizes=upper}"))


def test_a_value_that_changes_takes_its_cost_with_it() -> None:
    graph_module = symbolic_trace(nn.ReLU())
    MeasureCosts(example_inputs=(torch.randn(2, 8),))(graph_module)

    propagate_values(graph_module, (torch.randn(2, 16),))

    assert not COST.has(named(graph_module, "relu"))
    assert 4 * 2 * 16 == cost_of(named(graph_module, "relu")).output_bytes
