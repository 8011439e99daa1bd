"""The accelerator partitioner on graphs of every tracer, on what torch's cannot take, and on bad input."""

from __future__ import annotations

import contextlib
import copy
import io
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.experimental import partitioner_utils
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree

from fxpasses.devices import Device, fake_devices
from fxpasses.editing.attributes import find_attribute
from fxpasses.errors import CycleError, FakeValueError, InfeasibleError, MissingMetadataError, PlacementError
from fxpasses.partitioners import accelerator
from fxpasses.partitioners.accelerator import (
    NodeLatency,
    PartitionerConfig,
    PartitionMode,
    estimate_latencies,
    get_size_of_all_nodes,
    get_size_of_node,
)
from fxpasses.partitioners.accelerator.configurations import read_config
from fxpasses.partitioners.costs.node_costs import cost_of, seconds_on
from fxpasses.passes import MeasureCosts

MODES = (PartitionMode.size_based, PartitionMode.cost_aware, PartitionMode.kl_based)


def devices(*sizes: int | None) -> list[Device]:
    return [Device(f"dev_{number}", size, number) for number, size in enumerate(sizes)]


def partition(graph: Any, config: PartitionerConfig, **options: Any) -> tuple[accelerator.Partitioner, Any]:
    partitioner = accelerator.Partitioner()
    return partitioner, partitioner.partition_graph(graph, None, config, **options)


def needed(graph: Any, *inputs: torch.Tensor) -> int:
    """Bytes of the whole graph on one device."""
    return partition(graph, PartitionerConfig(devices(None)), example_inputs=inputs)[0].partitions[0].used_mem_bytes


def shares(whole: int, *parts: float) -> list[Device]:
    return devices(*[int(whole * part) for part in parts])


def check_outputs(result: Any, model: torch.nn.Module, *inputs: torch.Tensor) -> None:
    ours, theirs = result.module_with_submodules(*inputs), model(*inputs)
    for mine, its in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        torch.testing.assert_close(mine, its)


def chain() -> torch.nn.Module:
    return torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(16, 16), torch.nn.ReLU())])


def convolutions() -> torch.nn.Module:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 10),
    )
    return model.eval()


class Language(torch.nn.Module):
    """Tied embeddings, a layer that is called twice, a buffer, a tuple taken apart, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(40, 8)
        self.layer = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(8))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.embedding(tokens) * self.scale
        hidden = self.layer(torch.relu(self.layer(hidden)))
        left, right = hidden.chunk(2, -1)
        return self.head(torch.cat([right, left], -1)), hidden


TRACERS: dict[str, Callable[..., Any]] = {
    "symbolic_trace": lambda model, *inputs: symbolic_trace(model),
    "program": lambda model, *inputs: export(model, inputs),
    "module": lambda model, *inputs: export(model, inputs).module(),
    "make_fx": lambda model, *inputs: make_fx(model)(*inputs),
}


def weights_in(partition: accelerator.Partition) -> int:
    """Bytes of the parameters of a partition, which every tracer writes in its own way."""
    found = {}
    for node in partition.nodes:
        if node.op in ("get_attr", "call_module"):
            held = pytree.tree_leaves(find_attribute(node.graph.owning_module, node.target).value)[0]
            tensors = held.parameters() if isinstance(held, torch.nn.Module) else [held]
            found.update((tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor.requires_grad)
    return sum(found.values())


@pytest.mark.parametrize(
    ("model", "inputs", "parts"),
    [
        pytest.param(chain(), (torch.rand(2, 16),), (0.5, 0.3, 0.5), id="chain"),
        pytest.param(chain(), (torch.rand(2, 3, 16),), (0.4, 0.4, 0.4), id="chain, 3d"),
        pytest.param(convolutions(), (torch.rand(2, 3, 16, 16),), (0.7, 0.7), id="convolutions"),
        pytest.param(Language(), (torch.randint(40, (2, 5)),), (0.7, 0.7), id="language"),
    ],
)
def test_one_model_traced_several_ways_is_placed_the_same(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], parts: tuple[float, ...]
) -> None:
    """Complaint 30: symbolic_trace, export and make_fx give the same placement and equal outputs."""
    answers = {}
    memory = shares(needed(export(model, inputs)), *parts)
    for name, trace in TRACERS.items():
        partitioner, result = partition(trace(model, *inputs), PartitionerConfig(memory), example_inputs=inputs)
        check_outputs(result, model, *inputs)
        answers[name] = [(each.logical_device_ids, weights_in(each)) for each in partitioner.partitions]

    assert len(answers["program"]) > 1
    assert answers["symbolic_trace"] == answers["program"] == answers["module"] == answers["make_fx"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("trace", TRACERS.values(), ids=TRACERS)
def test_every_mode_takes_every_tracer(mode: PartitionMode, trace: Callable[..., Any]) -> None:
    """Complaint 29: guards of exported modules stay at the top level and are no reason to fail."""
    model, tokens = Language(), torch.randint(40, (2, 5))
    graph = trace(model, tokens)
    if isinstance(graph, GraphModule):
        get_size_of_all_nodes(graph, [tokens] if trace is TRACERS["symbolic_trace"] else None)
        latencies = estimate_latencies(graph, Device("cpu"))
    else:
        latencies = estimate_latencies(graph.graph_module, Device("cpu"))
    config = PartitionerConfig(
        shares(needed(export(model, (tokens,))), 0.7, 0.7),
        mode,
        transfer_rate_bytes_per_sec=1e9,
        node_to_latency_mapping=latencies,
    )

    partitioner, result = partition(graph, config)

    check_outputs(result, model, tokens)
    assert len(partitioner.partitions) > 1
    assert not any("guard" in node.name for each in partitioner.partitions for node in each.nodes)


@pytest.mark.parametrize("trace", TRACERS.values(), ids=TRACERS)
def test_embeddings_are_found_in_every_graph(trace: Callable[..., Any]) -> None:
    """Tables are embedding modules, functions or operators; they are spread the same."""

    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(500, 4) for _ in range(4))
            self.dense = torch.nn.Linear(16, 4)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.dense(torch.cat([table(rows + 1) for table in self.tables], dim=1))

    model, rows = Tables(), torch.randint(400, (2, 3))
    config = PartitionerConfig(devices(17_500, 17_500, 17_500), PartitionMode.sparse_nn)

    partitioner, result = partition(trace(model, rows), config, example_inputs=(rows,))

    check_outputs(result, model, rows)
    where = [(each.logical_device_ids, weights_in(each)) for each in partitioner.partitions]
    assert [([0], 16_000), ([0, 1], 0), ([0, 1], 272), ([1], 16_000)] == sorted(where)


def test_tied_and_shared_weights_count_once() -> None:
    """A layer that is called twice, and two layers with one weight, keep it once."""
    model, tokens = Language(), torch.randint(40, (2, 5))
    graph = symbolic_trace(model)

    partitioner, _ = partition(graph, PartitionerConfig(devices(100_000)), example_inputs=(tokens,))

    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    activations = 2 * 5 * (8 + 8 * 8 + 4 * 8 + 6 * 0)  # tokens are int64; views of hidden hold nothing
    assert partitioner.partitions[0].used_mem_bytes >= weights
    assert partitioner.partitions[0].used_mem_bytes < weights + 40 * activations
    before = partitioner.partitions[0].used_mem_bytes
    partitioner.partitions[0].recalculate_mem_size()
    assert before == partitioner.partitions[0].used_mem_bytes


@pytest.mark.parametrize("constants", ["pass_in", "share"])
@pytest.mark.parametrize("trace", [TRACERS["symbolic_trace"], TRACERS["program"]], ids=["symbolic_trace", "program"])
def test_gradients_reach_the_models_own_parameters(trace: Callable[..., Any], constants: Any) -> None:
    """Partitions share the parameters; tied and shared ones add their gradients up."""
    model, tokens = Language(), torch.randint(40, (2, 5))
    graph = trace(model, tokens)
    memory = shares(needed(export(model, (tokens,))), 0.7, 0.7)
    _, result = partition(graph, PartitionerConfig(memory), example_inputs=(tokens,), constants=constants)
    gradients = []

    for run in (model, result.module_with_submodules):
        model.zero_grad()
        sum(out.square().sum() for out in run(tokens)).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})

    assert 2 == len(result.dag.nodes)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_parts_can_hold_their_parameters() -> None:
    """``constants="share"`` moves parameters of exported graphs into the parts; the default passes them in."""
    model, x = chain(), torch.rand(2, 16)
    program = export(model, (x,))
    config = PartitionerConfig(shares(needed(program), 0.6, 0.6))

    _, passed = partition(program, config)
    _, shared = partition(program, config, constants="share")

    check_outputs(shared, model, x)
    assert ["input_1", "submod_0"] == [str(node.input_nodes[0]) for node in shared.dag.nodes]
    assert {1} == {len(node.input_nodes) for node in shared.dag.nodes}
    assert 1 < min(len(node.input_nodes) for node in passed.dag.nodes)


def test_dynamic_shapes_count_at_their_hint() -> None:
    """Symbolic sizes are placed as in the example, and the module runs with others."""
    model, x = chain(), torch.rand(4, 16)
    program = export(model, (x,), dynamic_shapes=({0: Dim("batch", max=64)},))

    partitioner, result = partition(program, PartitionerConfig(shares(needed(program), 0.6, 0.6)))

    assert len(partitioner.partitions) > 1
    check_outputs(result, model, torch.rand(7, 16))


def test_writes_in_place_keep_their_place() -> None:
    """What an older name of a storage still reads stays with the write; a buffer's users stay together."""

    class Writing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            self.seen.add_(hidden.sum(0).detach())
            changed = hidden.clone()
            changed.relu_()
            return self.second(changed) + self.seen + changed

    x = torch.rand(2, 8)
    expected = Writing()
    ours = Writing()
    ours.load_state_dict(expected.state_dict())
    program = export(ours, (x,))
    partitioner, result = partition(program, PartitionerConfig(shares(needed(program), 0.9, 0.5)))

    outputs = [(result.module_with_submodules(x), expected(x)) for _ in range(2)]

    assert 2 == len(partitioner.partitions)
    for mine, its in outputs:
        torch.testing.assert_close(mine, its)
    homes = [each.partition_id for each in partitioner.partitions for node in each.nodes if str(node.target) == "seen"]
    assert 1 == len(homes)


def test_control_flow_is_placed_whole() -> None:
    """A conditional is one node; its branches go with it."""

    class Choosing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            hidden = torch.cond(hidden.sum() > 0, torch.sin, torch.cos, (hidden,))
            return self.second(hidden)

    model, x = Choosing().requires_grad_(False), torch.rand(2, 8)

    for constants in ("pass_in", "share"):
        partitioner, result = partition(export(model, (x,)), PartitionerConfig(devices(600, 600)), constants=constants)
        check_outputs(result, model, x)
        check_outputs(result, model, -x)
        assert 2 == len(partitioner.partitions)


def test_dynamo_graphs_are_placed() -> None:
    """Graphs of ``torch.compile`` have their values under another key."""
    model, x = chain(), torch.rand(2, 16)
    results = []

    def backend(graph_module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        results.append(partition(graph_module, PartitionerConfig(devices(3600, 3600, 3600))))
        return results[-1][1].module_with_submodules

    torch._dynamo.reset()
    out = torch.compile(model, backend=backend)(x)

    torch.testing.assert_close(out, model(x))
    assert [[0], [1], [2]] == [each.logical_device_ids for each in results[0][0].partitions]


def test_what_gives_nothing_has_no_bytes_in_graphs_of_dynamo() -> None:
    """Dynamo records no value for what sets a part of a tensor, and for markers of regions."""

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            product = x @ weight
        filled = product.clone()
        filled[0] = 1
        return filled.relu()

    results = []

    def backend(graph_module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        results.append(partition(graph_module, PartitionerConfig(devices(450, 450))))
        return results[-1][1].module_with_submodules

    x, weight = torch.rand(4, 8), torch.rand(8, 8)
    torch._dynamo.reset()
    out = torch.compile(forward, backend=backend)(x, weight)

    torch.testing.assert_close(out, forward(x, weight))
    assert 2 == len(results[0][0].partitions)


def test_a_partitioner_can_be_used_again() -> None:
    """The second call starts anew, and gives the same; the source keeps its nodes as they were."""
    graph = export(chain(), (torch.rand(2, 16),)).module()
    before = [set(vars(node)) for node in graph.graph.nodes]
    partitioner = accelerator.Partitioner()
    config = PartitionerConfig(shares(needed(graph), 0.6, 0.6))

    dags = [partitioner.partition_graph(graph, None, config).dag for _ in range(2)]

    assert 2 == len(partitioner.partitions)
    assert [str(node) for node in dags[0].nodes] == [str(node) for node in dags[1].nodes]
    assert before == [set(vars(node)) for node in graph.graph.nodes]


def test_devices_without_a_limit_take_everything() -> None:
    """``available_mem_bytes=None`` means no limit."""
    graph = export(chain(), (torch.rand(2, 16),))

    partitioner, _ = partition(graph, PartitionerConfig(devices(100, None), saturate_host=True))

    assert [[1]] == [each.logical_device_ids for each in partitioner.partitions]


def test_where_filling_devices_fails_another_packing_is_found() -> None:
    """In graph order the second device would have to take more than it can; other cuts fit."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        wide = torch.cat([x] * 8)
        narrow = wide.sum(0, keepdim=True)
        wider = torch.cat([narrow] * 10)
        return wider.sum(0)

    graph = symbolic_trace(forward)
    x = torch.rand(1, 100)

    partitioner, result = partition(graph, PartitionerConfig(devices(4400, 5600)), example_inputs=(x,))

    torch.testing.assert_close(result.module_with_submodules(x), forward(x))
    assert [[0], [1]] == [each.logical_device_ids for each in partitioner.partitions]


class Gated(nn.Module):
    """Two halves of one projection in ``bfloat16``, and a recurrent layer that gives a tuple inside of a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 16).bfloat16()
        self.remember = nn.LSTM(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.project(x.bfloat16()).chunk(2, -1)
        found, _ = self.remember((left * right).float())
        return found.transpose(0, 1) + x.transpose(0, 1)


def test_latencies_are_estimated_from_shapes_as_from_values() -> None:
    """After ``get_size_of_all_nodes`` as after ``MeasureCosts``: what the roofline says of the type, and the launch."""
    device = Device("accelerator", None, 0, flops=1e9, bandwidth=1e12, flops_by_dtype={"bfloat16": 1e12})
    shaped, valued = symbolic_trace(Gated()), symbolic_trace(Gated())
    get_size_of_all_nodes(shaped, [torch.ones(3, 2, 8)])
    MeasureCosts(example_inputs=(torch.ones(3, 2, 8),))(valued)

    found = {node.name: max(latency) for node, latency in estimate_latencies(shaped, device).items()}

    costs = {node.name: cost_of(node) for node in valued.graph.nodes if node.op.startswith("call")}
    assert {name: seconds_on(cost, device) for name, cost in costs.items()} == found
    assert found["project"] < found["remember"]
    assert all("val" not in node.meta for node in shaped.graph.find_nodes(op="call_module", target="project"))


class Picked(nn.Module):
    """Rows that data choose, doubled."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0].gt(0).nonzero()[:, 0]] * 2


def test_latencies_of_what_data_choose_are_those_of_what_it_is_picked_from() -> None:
    """It counted as 4,096 rows, unless the graph had been measured before."""
    device = Device("accelerator", None, 0, flops=1e9, bandwidth=1e12)
    graph = export(Picked(), (torch.ones(8, 16),), dynamic_shapes=[{0: Dim.AUTO}]).module(check_guards=False)

    found = {node.name: latency for node, latency in estimate_latencies(graph, device).items()}

    assert device.overhead + 8 * 16 / 1e9 == found["mul"].computer_latency_sec


def test_a_chain_of_many_nodes_needs_no_recursion() -> None:
    """Two thousand nodes are partitioned and measured with the default recursion limit."""
    graph = Graph()
    value = graph.placeholder("x")
    for _ in range(2000):
        value = graph.call_function(torch.relu, (value,))
    graph.output(value)
    module = GraphModule(torch.nn.Module(), graph)
    get_size_of_all_nodes(module, [torch.rand(4)])

    partitioner, result = partition(module, PartitionerConfig(devices(*[12_000] * 4)))
    latencies = dict.fromkeys(graph.find_nodes(op="call_function", target=torch.relu), NodeLatency(1, 2))
    mapping = accelerator.get_partition_to_latency_mapping(partitioner.partitions, latencies)

    assert 4_000 + 2 * 16 == accelerator.get_latency_of_partitioned_graph(partitioner.partitions, mapping, 1)
    assert 3 == len(result.dag.nodes)


class Changing(torch.nn.Module):
    """Counts its batches, writes to a buffer, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(4))
        self.layer, self.drop = torch.nn.Linear(4, 2), torch.nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        return self.drop(self.layer(normed + self.seen.add_(x.sum(0))))


@pytest.mark.parametrize("runs", ["for real", "as fakes"])
def test_sizes_leave_the_model_as_it_was(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little inputs run for real, but nothing sees them: no state, no random number; sizes are those of fakes."""
    if runs == "as fakes":
        monkeypatch.setattr("fxpasses.partitioners.accelerator.recording.LITTLE_INPUT", -1)
    model, x = Changing(), torch.rand(3, 4)
    before, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    graph = symbolic_trace(model)

    get_size_of_all_nodes(graph, [x])

    assert (runs == "as fakes") == all("val" in node.meta for node in graph.graph.nodes if node.op != "output")
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), drawn)
    norm = graph.graph.find_nodes(op="call_module", target="norm")[0]
    assert (48, 48 + 4 * 16 + 8) == tuple(norm.size_bytes) == get_size_of_node(graph, norm)
    assert (torch.Size([3, 4]), torch.float32) == norm.meta["tensor_meta"][:2]
    assert {"x": 48, "norm": 120, "seen": 16, "layer": 24 + 40, "drop": 24} == {
        node.name: node.size_bytes.total_size
        for node in graph.graph.nodes
        if node.name in ("x", "norm", "seen", "layer", "drop")
    }


def test_state_without_numbers_is_measured() -> None:
    """A model on ``meta`` has nothing to run for real."""
    with torch.device("meta"):
        graph = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 2)))

    get_size_of_all_nodes(graph, [torch.rand(3, 4, device="meta")])

    assert 24 + 40 == graph.graph.find_nodes(op="call_module")[0].size_bytes.total_size


def test_what_no_fake_can_run_is_run_for_real() -> None:
    """A user's function that looks at numbers is measured on a copy of the module."""

    def positive(x: torch.Tensor) -> torch.Tensor:
        return x.new_tensor([number for number in x.tolist() if number > 0])

    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(positive, (x,)))
    module = GraphModule(torch.nn.Module(), graph)

    get_size_of_all_nodes(module, [torch.tensor([1.0, -1.0, 2.0])])

    assert [(12, 12), (8, 8)] == [tuple(node.size_bytes) for node in graph.nodes if node.op != "output"]


def copies_and_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.to(torch.float64), x.t().reshape(-1), x.t().contiguous(), x.half(), x.reshape(-1), x.float()


@pytest.mark.parametrize("decompose", [False, True], ids=["exported", "decomposed"])
def test_operators_that_copy_count_what_they_make(decompose: bool) -> None:
    """A ``to``, ``reshape`` or ``contiguous`` is no view where it makes new memory, whatever its schema says."""
    model, x = nn.Module(), torch.rand(32, 32)
    model.forward = copies_and_views
    program = export(model, (x,))
    module = (program.run_decompositions() if decompose else program).module()

    get_size_of_all_nodes(module)

    made = [node.size_bytes.total_size for node in module.graph.nodes if node.op == "call_function"]
    assert [8192, 4096, 4096, 2048] == [size for size in made if size]


def test_weights_that_are_cast_count_beside_what_they_are_cast_to() -> None:
    """A cast of a weight is computed; a view of one goes to each partition that uses it."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.t().half()

    x = torch.rand(4, 16).half()

    partitioner, result = partition(export(Cast(), (x,)), PartitionerConfig(devices(None)))

    assert 16 * 16 * (4 + 2) + 2 * 4 * 16 * 2 == partitioner.partitions[0].used_mem_bytes
    assert result.module_with_submodules(x).dtype == torch.float16


def test_elements_that_are_picked_by_a_list_count() -> None:
    """A slice is a view; what a list or a tensor picks is copied."""
    graph = symbolic_trace(lambda x: (x[:2], x[[0, 1, 2]]))

    partitioner, _ = partition(graph, PartitionerConfig(devices(None)), example_inputs=(torch.rand(8, 4),))

    assert 8 * 4 * 4 + 3 * 4 * 4 == partitioner.partitions[0].used_mem_bytes


def test_aot_takes_the_nodes_of_a_program() -> None:
    """Mappings over ``program.graph`` are understood; elements of tuples follow where the mapping leaves them out."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.sort(torch.relu(x))
        return values * 2 + places

    module = torch.nn.Module()
    module.forward = forward
    x = torch.rand(8)
    program = export(module, (x,))
    named = {node.name: node for node in program.graph.nodes}
    homes = {named["relu"]: 4, named["sort"]: 7, named["mul"]: 7, named["add"]: 7}
    config = PartitionerConfig(
        devices(100, 100),
        PartitionMode.aot_based,
        node_to_partition_mapping=homes,
        partition_to_logical_device_mapping={4: [1], 7: [0, 1]},
    )

    partitioner, result = partition(program, config)

    torch.testing.assert_close(result.module_with_submodules(x), forward(x))
    assert [("submod_4", [1]), ("submod_7", [0, 1])] == [
        (str(node), node.logical_device_ids) for node in result.dag.nodes
    ]
    assert {"sort", "getitem", "getitem_1", "mul", "add"} == {node.name for node in partitioner.partitions[1].nodes}


def test_elements_of_tuples_live_with_their_tuple() -> None:
    """Complaint 8: no tuple crosses a border, unused elements hold nothing."""

    class Taking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values, _places = torch.max(self.layer(x), dim=1)
            return self.layer(values.repeat(8).reshape(2, 8)) + 1

    model, x = Taking(), torch.rand(2, 8)
    graph = symbolic_trace(model)

    partitioner, result = partition(graph, PartitionerConfig(shares(needed(graph, x), 0.9, 0.9)), example_inputs=(x,))

    check_outputs(result, model, x)
    assert 2 == len(partitioner.partitions)
    for part in result.module_with_submodules.children():
        inputs = part.graph.find_nodes(op="placeholder")
        assert all(isinstance(node.meta["val"], torch.Tensor) for node in inputs)


def test_the_answer_is_the_same_in_every_process() -> None:
    """Complaint 9: hashes of strings and addresses of nodes decide nothing."""
    code = """
import torch
from fxpasses.partitioners import accelerator
from torch.fx import symbolic_trace
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(6))
    def forward(self, x):
        return sum(layer(x + place) for place, layer in enumerate(self.layers))
torch.manual_seed(0)
graph = symbolic_trace(Model())
accelerator.get_size_of_all_nodes(graph, [torch.rand(4)])
seconds = {node: accelerator.NodeLatency(3, 2) for node in graph.graph.nodes if node.op.startswith("call")}
for mode in ("size_based", "cost_aware", "kl_based"):
    partitioner = accelerator.Partitioner()
    devices = [accelerator.Device(str(number), 400, number) for number in range(3)]
    config = accelerator.PartitionerConfig(devices, accelerator.PartitionMode[mode], 8, seconds)
    result = partitioner.partition_graph(graph, None, config)
    print(result.module_with_submodules.code, [node.logical_device_ids for node in result.dag.nodes])
"""
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(code, {"__name__": "here"})
    there = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )

    assert here.getvalue() == there.stdout


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


def small() -> tuple[GraphModule, dict[str, Node]]:
    graph = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)))
    get_size_of_all_nodes(graph, [torch.rand(4)])
    return graph, {node.name: node for node in graph.graph.nodes}


AOT, COST, KL = PartitionMode.aot_based, PartitionMode.cost_aware, PartitionMode.kl_based
HOMES = {"_0": 0, "_1": 0, "_2": 1}
PLACES = {0: [0], 1: [1]}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"devices": []}, RuntimeError, r"No devices: PartitionerConfig\(devices=\[...\]\) needs at least one"),
        (
            {"devices": [Device("a", 1, 0), Device("b", 1, 0)]},
            RuntimeError,
            r"devices 'a' and 'b' both have the logical id 0; give each its own: Device\(name, bytes, logical_id\)",
        ),
        (
            {"devices": [Device("a", 1, 0), Device("a", 1, 1)]},
            RuntimeError,
            r"Two devices are called 'a'; give each its own name",
        ),
        ({"mode": 7}, RuntimeError, r"the mode is 7; there are PartitionMode.size_based, "),
        (
            {"devices": devices(40, 40)},
            InfeasibleError,
            r"^Devices do not have enough memory for the module: it needs 224 B, they have 80 B together; "
            r"144 B are missing$",
        ),
        (
            {"devices": devices(*[100] * 4)},
            InfeasibleError,
            r"_0 .*is too large to fit any device: it needs 112 B with its inputs, and the largest device that is left,"
            r" 'dev_0', has 100 B",
        ),
        (
            {"mode": PartitionMode.sparse_nn, "devices": devices(150, 160)},
            RuntimeError,
            r"All devices must have same memory size! 'dev_0' has 150 B, 'dev_1' 160 B; size_based takes unequal",
        ),
        (
            {"mode": COST},
            KeyError,
            r"node_to_latency_mapping has no latency for _0, _1, _2; give a NodeLatency for each node that computes, "
            r"for example with estimate_latencies\(module, device\)",
        ),
        (
            {"mode": KL, "node_to_latency_mapping": dict.fromkeys(HOMES, NodeLatency(1, 1))},
            ZeroDivisionError,
            r"transfer_rate_bytes_per_sec is 0.0; give the bytes per second between devices",
        ),
        (
            {"mode": KL, "node_to_latency_mapping": dict.fromkeys(HOMES, NodeLatency(-1, 1))},
            PlacementError,
            r"the latency of _0 is \(-1, 1\); seconds are not negative",
        ),
        (
            {"mode": KL, "node_to_latency_mapping": dict.fromkeys(HOMES, NodeLatency(float("nan"), 1))},
            TypeError,
            r"the latency of _0 is \(nan, 1\); seconds are numbers",
        ),
        (
            {"mode": KL, "node_to_latency_mapping": {"l": NodeLatency(1, 1)}, "transfer_rate_bytes_per_sec": 1},
            KeyError,
            r"no latency for _0, _1, _2; it has 'l', which is not a node of this graph; give a NodeLatency for each",
        ),
        (
            {"mode": KL, "node_to_latency_mapping": dict.fromkeys(HOMES, (1, 1)), "transfer_rate_bytes_per_sec": 1},
            TypeError,
            r"the latency of _0 is \(1, 1\); write NodeLatency\(mem_latency_sec, computer_latency_sec\)",
        ),
        (
            {"mode": KL, "node_to_latency_mapping": dict.fromkeys(HOMES, NodeLatency("1 s", 1))},  # type: ignore[arg-type]  # a text
            TypeError,
            r"the latency of _0 is \('1 s', 1\); seconds are numbers",
        ),
        (
            {
                "mode": COST,
                "node_to_latency_mapping": dict.fromkeys(HOMES, NodeLatency(1, 1)),
                "transfer_rate_bytes_per_sec": "1 GB/s",
            },
            TypeError,
            r"transfer_rate_bytes_per_sec is '1 GB/s'; give the bytes per second between devices",
        ),
        (
            {"devices": [partitioner_utils.Device("a", "1 GB", 0)]},  # type: ignore[arg-type]  # a text
            TypeError,
            r"device 'a' has '1 GB' bytes; write a number of bytes",
        ),
        (
            {"devices": [partitioner_utils.Device("a", 100, [0])]},  # type: ignore[arg-type]  # a list
            TypeError,
            r"device 'a' has the logical id \[0\]; write a number",
        ),
        (
            {"mode": AOT, "node_to_partition_mapping": HOMES | {"_1": [0]}},
            TypeError,
            r"node_to_partition_mapping puts _1 into \[0\]; write a number",
        ),
        ({"mode": AOT}, RuntimeError, r"aot_based needs node_to_partition_mapping=\{node: partition\}; it is empty"),
        (
            {"mode": AOT, "node_to_partition_mapping": {"_0": 0}, "partition_to_logical_device_mapping": PLACES},
            KeyError,
            r"node_to_partition_mapping has no partition for _1, _2",
        ),
        (
            {"mode": AOT, "node_to_partition_mapping": HOMES | {"elsewhere": 1}},
            KeyError,
            r"node_to_partition_mapping names 'elsewhere', which is not a node of this graph",
        ),
        (
            {"mode": AOT, "node_to_partition_mapping": HOMES | {"output": 1}},
            KeyError,
            r"node_to_partition_mapping names output, which stays at the top level",
        ),
        (
            {"mode": AOT, "node_to_partition_mapping": HOMES, "partition_to_logical_device_mapping": {0: [0]}},
            KeyError,
            r"partition_to_logical_device_mapping has no devices for partition 1",
        ),
        (
            {"mode": AOT, "node_to_partition_mapping": HOMES, "partition_to_logical_device_mapping": {0: [0], 1: [9]}},
            KeyError,
            r"partition_to_logical_device_mapping puts partition 1 on the logical device 9; there are 0, 1",
        ),
        (
            {"mode": AOT, "node_to_partition_mapping": HOMES, "partition_to_logical_device_mapping": {0: [0], 1: 1}},
            TypeError,
            r"partition_to_logical_device_mapping puts partition 1 on 1, which is no list; write \{1: \[1\]\}",
        ),
        (
            {"mode": AOT, "node_to_partition_mapping": HOMES, "partition_to_logical_device_mapping": None},
            TypeError,
            r"partition_to_logical_device_mapping is None; write a dict",
        ),
        (
            {"devices": 3},
            TypeError,
            r"devices is 3; write a list of fxpasses\.Device\(name, bytes, logical_id\)",
        ),
        (
            {
                "mode": AOT,
                "node_to_partition_mapping": {"_0": 0, "_1": 1, "_2": 0},
                "partition_to_logical_device_mapping": PLACES,
            },
            CycleError,
            r"partitions 0, 1 would wait for each other: _0 -> _1 -> _2",
        ),
    ],
)
def test_bad_configurations_are_told_in_a_sentence(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """The message says what, where and what to do; the error is also of the kind that torch raises."""
    graph, named = small()
    options = {"devices": devices(150, 150), **options}
    for field in ("node_to_latency_mapping", "node_to_partition_mapping"):
        if field in options:
            options[field] = {named.get(name, name): value for name, value in options[field].items()}

    with pytest.raises(kind, match=message) as caught:
        partition(graph, PartitionerConfig(**options))

    assert isinstance(caught.value, (PlacementError, CycleError))


def test_only_graphs_and_devices_are_taken() -> None:
    """A module has to be traced first, and a torch device is no description of one."""
    graph, _ = small()
    bare: Any = partitioner_utils.Device("a", 100, 0)
    model: Any = chain()

    with pytest.raises(TypeError, match="fx_module is a Sequential; trace it with"):
        partition(chain(), PartitionerConfig(devices(100)))
    with pytest.raises(TypeError, match=r"devices holds device\(type='cpu'\); write fxpasses.Device\(name, bytes, log"):
        partition(graph, PartitionerConfig([torch.device("cpu")]))
    with pytest.raises(TypeError, match="fx_module is a Sequential; trace it with"):
        get_size_of_all_nodes(model, [torch.rand(4)])
    with pytest.raises(TypeError, match=r"the device is Device\(.*\); write an fxpasses.Device, which tells how fast"):
        estimate_latencies(graph, bare)


def test_a_configuration_is_needed() -> None:
    graph, _ = small()

    with pytest.raises(
        TypeError, match=r"partitioner_config is None; write PartitionerConfig\(devices=\[...\]"
    ) as caught:
        accelerator.Partitioner().partition_graph(graph, None, None)

    assert isinstance(caught.value, PlacementError)


def test_devices_may_be_an_iterator() -> None:
    """They are counted, compared and used; the iterator gives them once."""
    graph, _ = small()

    partitioner, _ = partition(graph, PartitionerConfig(iter(devices(150, 150))))

    assert devices(150, 150) == partitioner.devices
    assert [[0], [1]] == [each.logical_device_ids for each in partitioner.partitions]


def test_configuration_and_mode_of_torch_are_taken() -> None:
    """Of torch's enum, which is another class, the mode of the same name; an import that was left costs nothing."""
    graph, _ = small()
    for mode in partitioner_utils.PartitionMode:
        assert mode.name == read_config(PartitionerConfig(devices(1), mode)).mode.name
    theirs = [
        partitioner_utils.Device(each.name, each.available_mem_bytes, each.logical_id) for each in devices(150, 150)
    ]

    partitioner, _ = partition(graph, partitioner_utils.PartitionerConfig(theirs))

    assert [[0], [1]] == [each.logical_device_ids for each in partitioner.partitions]


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        (
            [torch.rand(2, 9)],
            RuntimeError,
            r"^the graph cannot run on the example inputs: _0 was given input_1 of shape \(2, 9\), and says: mat1 and "
            r"mat2 shapes cannot be multiplied \(2x9 and 4x4\); give inputs such as the model takes$",
        ),
        (["text"], TypeError, r"^the graph cannot run on the example inputs: _0 was given no tensor, and says: "),
        ([], RuntimeError, r"^the graph takes 1 inputs \(input_1\), but got 0 examples$"),
        ([torch.rand(4)] * 2, RuntimeError, r"^the graph takes 1 inputs \(input_1\), but got 2 examples$"),
        (torch.rand(4), TypeError, r"^the example inputs are a Tensor; write a list, with one for each input$"),
    ],
)
def test_example_inputs_that_do_not_fit_are_told_in_a_sentence(
    inputs: Any, kind: type[Exception], message: str
) -> None:
    """The operator that refuses them is named, with what it was given; its own error is the cause."""
    graph = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))

    with pytest.raises(kind, match=message) as sizes:
        get_size_of_all_nodes(graph, inputs)
    with pytest.raises(kind, match=message):
        partition(graph, PartitionerConfig(devices(100)), example_inputs=inputs)

    assert isinstance(sizes.value, FakeValueError)
    assert "cannot run" not in message or isinstance(sizes.value.__cause__, kind)


def test_the_error_says_how_many_bytes_are_missing() -> None:
    """``missing_bytes`` and ``node`` carry the facts."""
    graph, named = small()

    with pytest.raises(InfeasibleError) as total:
        partition(graph, PartitionerConfig(devices(40, 40)))
    with pytest.raises(InfeasibleError) as single:
        partition(graph, PartitionerConfig(devices(100, 100, 100)))

    assert (144, None) == (total.value.missing_bytes, total.value.node)
    assert (12, named["_0"]) == (single.value.missing_bytes, single.value.node)


def test_nodes_without_values_are_named() -> None:
    """A graph without recorded values needs example inputs; the error is a RuntimeError, as in torch."""
    graph = symbolic_trace(chain())

    with pytest.raises(RuntimeError, match="the size of input_1, _0, _1, _2, _3 and 8 more is not known") as caught:
        partition(graph, PartitionerConfig(devices(100)))

    assert isinstance(caught.value, MissingMetadataError)
    assert "call get_size_of_all_nodes(module, example_inputs) first, or export the model" in str(caught.value)


def test_partitions_by_hand_that_wait_for_each_other_are_an_error() -> None:
    """Torch recurses for ever, or says 0 seconds."""
    _, named = small()
    one, other = accelerator.Partition(0), accelerator.Partition(1)
    for home, name in ((one, "_0"), (other, "_1"), (one, "_2")):
        home.add_node(named[name])
    accelerator.reorganize_partitions([one, other])
    mapping = dict.fromkeys([one, other], accelerator.PartitionLatency(1, 1, 1))

    assert accelerator.check_dependency(one)
    with pytest.raises(CycleError, match="partitions 0, 1 wait for each other"):
        accelerator.get_latency_of_partitioned_graph([one, other], mapping, 1)
    with pytest.raises(RecursionError, match="move the nodes of a circle into one partition"):
        accelerator.get_bfs_level_partition([one, other])


def test_partitions_without_a_latency_are_named() -> None:
    """The message says who gives latencies."""
    one, two = accelerator.Partition(0), accelerator.Partition(1)

    with pytest.raises(KeyError, match="no latency for partitions 0, 1; get_partition_to_latency_mapping") as caught:
        accelerator.get_latency_of_partitioned_graph([one, two], {}, 1.0)

    assert isinstance(caught.value, PlacementError)


def test_partitions_on_unknown_devices_and_without_devices_are_errors() -> None:
    """The message names the partition and the devices there are."""
    graph, _ = small()
    partitioner, _ = partition(graph, PartitionerConfig(devices(150, 150)))
    partitioner.partitions[0].logical_device_ids = [7]

    with pytest.raises(PlacementError, match="partition 0 is on the logical device 7, but there are only 0, 1"):
        accelerator.get_device_partition_stats(partitioner.partitions, devices(150, 150))


def test_fake_devices_and_functional_models_work_together() -> None:
    """Devices made for planning have logical ids; a function is a model, too."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return functional.softmax(functional.gelu(x) @ x.T, dim=-1)

    graph = symbolic_trace(forward)
    x = torch.rand(8, 8)

    partitioner, result = partition(graph, PartitionerConfig(fake_devices(2, memory=1024)), example_inputs=(x,))

    torch.testing.assert_close(result.module_with_submodules(x), forward(x))
    assert [[0], [1]] == [each.logical_device_ids for each in partitioner.partitions]


class Counts(nn.Module):
    """A buffer is written in each call; torch.export writes it back by an operator without a recorded value."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return self.second(self.first(x) + self.count)


def test_a_decomposed_program_that_writes_a_buffer_is_partitioned() -> None:
    x, eager = torch.randn(2, 8), Counts()
    program = export(copy.deepcopy(eager), (x,)).run_decompositions()
    config = PartitionerConfig(devices(600, 600), PartitionMode.size_based)

    result = accelerator.Partitioner().partition_graph(program.module(check_guards=False), None, config)

    module = result.module_with_submodules
    assert {"submod_0", "submod_1"} <= {name for name, _ in module.named_children()}
    for _ in range(2):
        torch.testing.assert_close(eager(x), module(x))


def test_assertions_about_types_have_no_bytes() -> None:
    """A cast is decomposed with an assertion beside it, for which torch records no value."""

    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).to(torch.float64).float())

    x, model = torch.rand(4, 8), Casts()
    program = export(model, (x,)).run_decompositions()

    _, result = partition(program, PartitionerConfig(devices(1000, 1000)))

    check_outputs(result, model, x)
    assert 2 == len(result.dag.nodes)
    module = program.module()
    get_size_of_all_nodes(module)
    asserted = [node for node in module.graph.nodes if "assert" in node.name]
    assert [(0, 0), (0, 0)] == [tuple(node.size_bytes) for node in asserted]


class Late(nn.Module):
    """What a buffer held before is read at the end, what it gets is made in the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        before = self.mean.clone()
        hidden = torch.relu(x)
        self.mean.add_(hidden.sum(0))
        return self.layer(hidden) + before


@pytest.mark.parametrize("model", [Late, Counts])
@pytest.mark.parametrize("mode", [*MODES, PartitionMode.aot_based])
def test_mappings_over_a_decomposed_program_may_leave_out_what_it_writes_back(
    model: type[nn.Module], mode: PartitionMode
) -> None:
    """``module()`` copies to the buffer in a node that the program does not have; it goes where that can run."""
    x, eager = torch.rand(4, 8), model()
    program = export(copy.deepcopy(eager), (x,)).run_decompositions()
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    config = PartitionerConfig(
        devices(1000, 1000),
        mode,
        100.0,
        dict.fromkeys(calls, NodeLatency(1.0, 2.0)),
        {node: int(node.name in ("clone", "addmm", "add_1", "addmm_1")) for node in calls},
        {0: [0], 1: [1]},
    )

    _, result = partition(program, config)

    for _ in range(2):
        torch.testing.assert_close(result.module_with_submodules(x), eager(x))


def test_inputs_of_parts_stand_as_they_are_made() -> None:
    """Torch has them in the order of their first use: x before y, which the model takes first."""

    class Crossing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, y: Tensor, x: Tensor, z: Tensor) -> Tensor:
            first, second = self.a(x), self.b(y)
            return self.c(second + z) + torch.relu(first) * x

    model, inputs = Crossing(), tuple(torch.rand(4, 8) for _ in range(3))

    _, result = partition(symbolic_trace(model), PartitionerConfig(devices(1100, 1200, 1300)), example_inputs=inputs)

    check_outputs(result, model, *inputs)
    taken = {str(node): [used.name for used in node.input_nodes] for node in result.dag.nodes}
    assert {"submod_0": ["y", "x"], "submod_1": ["z", "a", "b"], "submod_2": ["x", "c", "relu"]} == taken
    assert all(list(node.submodule_node.args) == node.input_nodes for node in result.dag.nodes)


class Unread(torch.nn.Module):
    """Takes something that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("trace", [torch.fx.symbolic_trace, None], ids=["traced", "exported"])
@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_nobody_reads_need_no_room(mode: PartitionMode, trace: Any) -> None:
    """That no placement exists was said to be proven."""
    model, inputs = Unread(), (torch.randn(2, 8), torch.randn(50, 8))
    graph = export(model, inputs).module(check_guards=False) if trace is None else trace(model)
    get_size_of_all_nodes(graph, inputs)
    seconds = estimate_latencies(graph, Device("any"))
    config = PartitionerConfig(devices(600, 600), mode, 1e9, seconds)

    partitioner, result = partition(graph, config)

    assert [[0], [1]] == [each.logical_device_ids for each in partitioner.partitions]
    assert all(each.used_mem_bytes <= 600 for each in partitioner.partitions)
    check_outputs(result, model, *inputs)
