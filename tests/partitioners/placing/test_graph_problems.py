"""Graphs as placement problems: what is one node, what it costs, what stays together, and the way back."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from lowering_models import Conditional, KeyValueCache, Mlp, Tied
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fxpasses import Device, InputError, MissingMetadataError, PlacementError, fake_devices
from fxpasses.effects import analyze_effects
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import Assignment, solve_placement
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.placing.colocation import backward_partners, kept_together, must_share
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.graph_problems import assignment_of, placement_problem
from fxpasses.passes import split
from fxpasses.passes.replicating import replicate, why_not_replicable
from fxpasses.units import KiB
from fxpasses.values import propagate_values


def exported(model: nn.Module, *args: Tensor, **options: Any) -> GraphModule:
    return torch.export.export(model, args, **options).module(check_guards=False)


def traced(model: nn.Module, *args: Tensor) -> GraphModule:
    graph_module = torch.fx.symbolic_trace(model)
    propagate_values(graph_module, args)
    return graph_module


def made(model: nn.Module, *args: Tensor) -> GraphModule:
    with torch.no_grad():
        return make_fx(model, tracing_mode="real")(*args)


def guarded(model: nn.Module, *args: Tensor) -> GraphModule:
    return torch.export.export(model, args).module()


def from_dynamo(model: nn.Module, *args: Tensor) -> GraphModule:
    seen: list[GraphModule] = []

    def backend(graph_module: GraphModule, _inputs: list[Tensor]) -> GraphModule:
        seen.append(graph_module)
        return graph_module

    torch.compile(model, backend=backend)(*args)
    return seen[0]


X = torch.randn(2, 64)


@pytest.mark.parametrize("capture", [exported, guarded, traced, made, from_dynamo])
def test_a_model_weighs_the_same_however_it_was_captured(capture: Any) -> None:
    """Complaint 30: exported, with guards, traced with values, from make_fx or dynamo: each weight counts once."""
    model = Mlp(2)
    problem = placement_problem(capture(model, X), fake_devices(2))

    shared: dict[object, int] = {}
    for _node, facts in problem.graph.nodes(data=True):
        shared.update(facts.get("shared_bytes", {}))
    assert X.nbytes + sum(parameter.nbytes for parameter in model.parameters()) == sum(shared.values())


def test_the_state_of_called_modules_counts_against_the_budget() -> None:
    graph_module = traced(Mlp(4), X)

    placement = place_by_device(graph_module, fake_devices(2, memory=40 * KiB))
    memory = predict_memory(graph_module, placement.assignment, placement.device_of)

    assert [2 * (64 * 64 + 64) * 4] * 2 == [held.parameters for held in memory.values()]


def test_an_answer_comes_back_as_parts_that_run_in_order() -> None:
    graph_module = exported(Mlp(4), X)

    solution = solve_placement(placement_problem(graph_module, fake_devices(2)))
    assignment = assignment_of(graph_module, solution)

    assert list(solution.order) == list(assignment.order)
    assert all(solution.device_of[node] == part for node, part in assignment.partition_of.items())


def test_tied_weights_are_one_key_and_one_node_that_makes_them() -> None:
    graph_module = exported(Tied(), torch.randint(0, 50, (3,)))
    problem = placement_problem(graph_module, fake_devices(2))
    keys = {
        node.target: {key for key, size in facts.get("shared_bytes", {}).items() if size == 50 * 32 * 4}
        for node, facts in problem.graph.nodes(data=True)
        if isinstance(node, Node)
    }
    (state,) = [node for node in problem.graph if not isinstance(node, Node)]

    embedded, multiplied = keys[torch.ops.aten.embedding.default], keys[torch.ops.aten.linear.default]
    assert embedded == multiplied != set()
    assert {"seconds": 0.0, "output_bytes": 50 * 32 * 4} == problem.graph.nodes[state]
    assert {torch.ops.aten.embedding.default, torch.ops.aten.linear.default} == {
        user.target for user in problem.graph.successors(state)
    }


def test_a_cache_stays_with_all_that_read_and_write_it() -> None:
    """A buffer that the model writes lives on one device, and so do those that read it afterwards."""
    graph_module = exported(KeyValueCache(), torch.randn(1, 2, 16), torch.tensor([2, 3]))
    figures = GraphFigures.of(graph_module)
    groups = kept_together(figures, must_share(figures))

    (keys,) = [group for group in groups if any("index_copy_" == node.name for node in group) and len(group) > 1][:1]
    assert "matmul" in {node.name for node in keys} or "transpose" in {node.name for node in keys}
    placed = assignment_of(graph_module, solve_placement(placement_problem(graph_module, fake_devices(3))))
    assert 1 == len({placed.partition_of[node] for node in keys})


class Chunks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.max(x, dim=0)
        return first.view(-1) + second


def test_a_tuple_stays_with_its_elements_and_a_view_with_its_base() -> None:
    graph_module = exported(Chunks(), X)
    figures = GraphFigures.of(graph_module)
    groups = [{node.name for node in group} for group in kept_together(figures, must_share(figures))]

    assert {"max_1", "getitem", "getitem_1"} in groups
    assert {"getitem", "view"} in groups


def test_a_view_waits_for_the_last_write_to_what_it_views() -> None:
    """The view reads nothing, and what is written goes through another one."""

    class ViewsLate(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            whole = x * 1
            whole[:, :2] = y.relu()[:, :2]
            return y.sin() + whole.t()

    problem = placement_problem(exported(ViewsLate(), torch.randn(4, 4), torch.randn(4, 4)), fake_devices(2))

    node = {each.name: each for each in problem.graph if isinstance(each, Node)}
    assert nx.has_path(problem.graph, node["copy_"], node["t"])


def test_an_order_edge_leads_through_a_marker_that_costs_nothing() -> None:
    class Draws(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand_like(x) + torch.rand_like(x.sum(0))

    graph = placement_problem(exported(Draws(), X), fake_devices(2)).graph

    (marker,) = [node for node in graph if isinstance(node, tuple)]
    assert {"seconds": 0.0} == graph.nodes[marker]
    assert ["rand_like_1"] == [node.name for node in graph.successors(marker)]


def test_branches_count_with_the_conditional_that_runs_them() -> None:
    with torch.no_grad():
        graph_module = exported(Conditional(), torch.randn(2, 16))

    solution = solve_placement(placement_problem(graph_module, fake_devices(2)))

    assert {"device0", "device1"} >= set(assignment_of(graph_module, solution).order)


def test_symbolic_sizes_count_at_their_hint() -> None:
    batch = torch.export.Dim("batch", max=64)
    graph_module = exported(Mlp(2), X, dynamic_shapes={"x": {0: batch}})
    fixed = placement_problem(exported(Mlp(2), X), fake_devices(2)).graph
    dynamic = placement_problem(graph_module, fake_devices(2)).graph

    assert [facts.get("output_bytes") for _, facts in fixed.nodes(data=True)] == [
        facts["output_bytes"] for _, facts in dynamic.nodes(data=True) if "output_bytes" in facts
    ]


def test_modules_and_nodes_can_be_pinned_forbidden_and_grouped() -> None:
    graph_module = exported(Mlp(4), X)
    nodes = {node.name: node for node in graph_module.graph.nodes}

    solution = solve_placement(
        placement_problem(
            graph_module,
            fake_devices(3),
            pinned={"layers.1": "device2"},
            forbidden={nodes["linear"]: ["device0"], "layers.3": "device1"},
            colocate=[["layers.2", nodes["relu_3"]]],
        )
    )

    assert "device2" == solution.device_of[nodes["linear_1"]]
    assert "device0" != solution.device_of[nodes["linear"]]
    assert "device1" != solution.device_of[nodes["linear_3"]]
    assert solution.device_of[nodes["linear_2"]] == solution.device_of[nodes["relu_3"]]


BAD_SELECTORS = {
    "a path of no module": (
        {"pinned": {"layer.1": "device0"}},
        r"^`pinned` names 'layer.1', ",
    ),
    "an unknown device": ({"pinned": {"layers.1": "gpu"}}, r"^`pinned` names the device 'gpu'; there are device0"),
    "forbidden on nothing": ({"forbidden": {"layers.0": ["gpu"]}}, r"^`forbidden` names the device 'gpu'; there are"),
}


@pytest.mark.parametrize("case", BAD_SELECTORS)
def test_a_selector_that_means_nothing_says_so(case: str) -> None:
    options, message = BAD_SELECTORS[case]
    with pytest.raises(PlacementError, match=message):
        placement_problem(exported(Mlp(2), X), fake_devices(2), **options)


def test_the_longest_path_of_several_pins_counts_whatever_their_order() -> None:
    """As in device maps: a pin of a module gave way to one of the module around it that was written later."""
    graph_module = exported(Mlp(3), X)
    nodes = {node.name: node for node in graph_module.graph.nodes}
    pins = {nodes["relu"]: "device2", "layers.1": "device1", "layers": "device0"}

    for pinned in (pins, dict(reversed(pins.items()))):
        problem = placement_problem(graph_module, fake_devices(3), pinned=pinned)
        found = {node.name: device for node, device in problem.pinned.items() if isinstance(node, Node)}

        assert ("device0", "device2", "device1") == (found["linear"], found["relu"], found["linear_1"])


def test_the_model_itself_can_be_pinned_like_in_a_device_map() -> None:
    """``""`` is all that no longer path covers; what must share a device with a covered operator goes with it."""

    class Chunks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.cut, self.last = nn.Linear(8, 8), Halves(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            low, high = self.cut(self.first(x))
            return self.last(low + high)

    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.chunk(2, -1)

    graph_module = torch.export.export(Chunks(), (torch.randn(2, 8),)).module()
    placement = place_by_device(graph_module, fake_devices(2), pinned={"": "device0", "cut": "device1"})
    forbidden = place_by_device(graph_module, fake_devices(2), forbidden={"": ["device0"]})
    homes = {node.name: str(part)[:7] for node, part in placement.assignment.partition_of.items()}

    assert {"device1"} == {homes[name] for name in homes if name.startswith(("chunk", "getitem"))}
    assert {"device0"} == {homes[name] for name in homes if name.startswith(("linear", "add"))}
    assert {"device1"} == {device.name for device in forbidden.device_of.values()}
    apart = place_by_device(graph_module, fake_devices(2), pinned={"first": "device0", "cut": "device1"})
    where = {node.name: str(part)[:7] for node, part in apart.assignment.partition_of.items()}

    assert ("device0", "device1") == (where["linear"], where["chunk"])  # though a view loses nothing with its base
    with pytest.raises(PlacementError, match="`pinned` names the device 'nowhere'"):
        place_by_device(graph_module, fake_devices(2), pinned={"": "nowhere"})
    devices = fake_devices(2)
    with pytest.raises(PlacementError, match="names the device 'device1' as a Device, write its name; there are dev"):
        place_by_device(graph_module, devices, pinned={"": devices[1]})  # type: ignore[dict-item]


class Torn(nn.Module):
    """A tuple is taken apart, and a buffer is written to and read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        top, bottom = x.chunk(2)
        self.seen.add_(top.sum())
        return bottom.max(0).values + top.min(0).values * self.seen


@pytest.mark.parametrize("contiguity", ["pipeline", "free"])
@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("chunk", "getitem_1", "getitem_1 takes an element of the results of chunk"),
        ("getitem", "getitem_1", "both take an element of the results of chunk"),
        ("add_", "mul", "both use what add_ writes to"),
    ],
)
def test_pins_that_take_apart_what_belongs_together_are_refused_with_the_reason(
    first: str, second: str, why: str, contiguity: str
) -> None:
    graph_module = exported(Torn(), torch.randn(4, 4))
    named = {node.name: node for node in graph_module.graph.nodes}
    pins = {named[first]: "device0", named[second]: "device1"}

    with pytest.raises(InfeasibleError) as caught:
        placement_problem(graph_module, fake_devices(2), pinned=pins, contiguity=contiguity)

    assert str(caught.value).startswith(f"{first} (")
    assert str(caught.value).endswith(
        f") is pinned to device0 and {second} to device1, but they share a device: {why}. Pin both to one device, or "
        "only one of them."
    )
    assert caught.value.node is named[second]
    assert placement_problem(graph_module, fake_devices(2), pinned=dict.fromkeys(pins, "device1")).pinned


def test_an_input_cannot_be_pinned() -> None:
    graph_module = exported(Mlp(1), X)
    (x,) = graph_module.graph.find_nodes(op="placeholder")

    with pytest.raises(PlacementError, match=r"^`pinned` names x, which is no operator of this graph; inputs, attr"):
        placement_problem(graph_module, fake_devices(2), pinned={x: "device0"})


def test_a_graph_without_values_names_the_pass_that_records_them() -> None:
    with pytest.raises(MissingMetadataError, match=r"run MeasureCosts\(example_inputs=\.\.\.\) first"):
        placement_problem(torch.fx.symbolic_trace(Mlp(1)), fake_devices(2))


def test_a_device_that_takes_turns_gets_a_part_for_each() -> None:
    """Values flow back to a device: its second run is a part of its own, and no part needs a later one."""
    graph_module = exported(Mlp(3), X)
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    homes = dict(zip(nodes, ["a", "a", "b", "b", "a", "a"], strict=True))

    runs = runs_of(graph_module, homes)

    assert ["a", "b", "a_1"] == list(runs.assignment.order)
    assert {"a": "a", "b": "b", "a_1": "a"} == runs.device_of


def test_a_device_called_like_a_second_run_keeps_its_name() -> None:
    graph_module = exported(Mlp(3), X)
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    homes = dict(zip(nodes, ["a", "a", "a_1", "a_1", "a", "a"], strict=True))

    runs = runs_of(graph_module, homes)

    assert ["a", "a_1", "a_2"] == list(runs.assignment.order)
    assert "a" == runs.device_of["a_2"]


def test_the_backward_of_a_joint_graph_is_tied_to_its_forward() -> None:
    from torch._functorch.aot_autograd import aot_export_joint_simple

    def loss(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return ((x @ weight).relu().sum(),)

    args = [torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    graph_module = aot_export_joint_simple(loss, args, trace_joint=True)
    partners = backward_partners(GraphFigures.of(graph_module))

    assert {"threshold_backward": "relu"}.items() <= {b.name: f.name for b, f in partners.items()}.items()
    solution = solve_placement(placement_problem(graph_module, [Device("a"), Device("b")]))
    assert all(solution.device_of[b] == solution.device_of[f] for b, f in partners.items())


class Masked(nn.Module):
    """A mask that each layer uses: cheap to make, dear to send."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.arange(64).unsqueeze(0) < torch.arange(64).unsqueeze(1)
        for layer in self.layers:
            x = layer(x) * mask
        return x


def test_cheap_nodes_may_be_computed_again_instead_of_sent() -> None:
    """The mask is made on each device that uses it: nothing but the activation crosses, and the results are equal."""
    model, x = Masked(), torch.randn(64, 64)
    graph_module = exported(model, x)
    effects = analyze_effects(graph_module)
    options = {"replicable": lambda node: not why_not_replicable(node, effects)}
    devices = [Device(name, flops=1e9, overhead=1e-7) for name in "ab"]

    sent = solve_placement(placement_problem(graph_module, devices, time_budget=5))
    solution = solve_placement(placement_problem(graph_module, devices, time_budget=5, **options))

    assert "lt" in {str(node) for node in solution.replicas}
    assert solution.objective_value < sent.objective_value
    into: dict[str, list[Node]] = {}
    for node in solution.device_of:
        for device in solution.replicas.get(node, ()):
            into.setdefault(device, []).append(node)
    homes = replicate(graph_module, assignment_of(graph_module, solution), into)
    torch.testing.assert_close(split(graph_module, Assignment.of(graph_module, homes)).graph_module(x), model(x))


def _between(opener: Any, closer: Any, settings: tuple[Any, ...]) -> GraphModule:
    """Two products between markers, and an operator behind them."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    opened = graph.call_function(opener, settings)
    first = graph.call_function(torch.ops.aten.mm.default, (x, x))
    second = graph.call_function(torch.ops.aten.mm.default, (first, x))
    graph.call_function(closer, (opened,) if opened.target is not closer else settings)
    graph.output(graph.call_function(torch.ops.aten.relu.default, (second,)))
    graph_module = GraphModule(nn.Module(), graph)
    for node in graph.nodes:
        is_tensor = node.op == "placeholder" or isinstance(node.target, torch._ops.OpOverload)
        node.meta["val"] = torch.empty(8, 8, device="meta") if is_tensor else None
    return graph_module


def test_parts_enter_autocast_by_themselves() -> None:
    """Its markers are nowhere and hold nothing in place: a cut may fall inside."""
    autocast = torch.amp.autocast_mode
    graph_module = _between(autocast._enter_autocast, autocast._exit_autocast, ("cpu", torch.bfloat16, True, False))
    figures = GraphFigures.of(graph_module)
    first, second, third = figures.nodes
    crossed = Assignment.of(graph_module, {first: "left", second: "right", third: "left_1"})
    placement = place_by_device(graph_module, fake_devices(2), pinned={first: "device0", second: "device1"})

    assert [] == kept_together(figures, must_share(figures))
    assert ("left", "right", "left_1") == crossed.order
    assert {"device0", "device1"} == {device.name for device in placement.device_of.values()}
    assert torch.equal(graph_module(torch.eye(8)), split(graph_module, crossed).graph_module(torch.eye(8)))


def test_what_parts_cannot_switch_again_is_not_cut() -> None:
    """Operators between other switches of torch's state share a device."""
    deterministic = torch.use_deterministic_algorithms
    graph_module = _between(deterministic, deterministic, (False,))
    figures = GraphFigures.of(graph_module)
    switch, first, second, _switched_back, _third = figures.nodes

    assert any({switch, first, second} <= set(group) for group in kept_together(figures, must_share(figures)))


def test_a_pin_to_a_device_that_does_not_support_the_operator_is_told() -> None:
    def no_activations(_submodules: object, node: Node) -> bool:
        return "relu" not in str(node.target)

    devices = [Device("a", supports=no_activations), Device("b")]
    graph = torch.export.export(Mlp(2), (torch.randn(3, 64),)).module()
    relu = next(node for node in graph.graph.nodes if "relu" in str(node.target))

    with pytest.raises(InfeasibleError) as caught:
        place_by_device(graph, devices, pinned={relu: "a"})

    assert relu is caught.value.node
    said = str(caught.value)
    assert said.startswith("relu (aten.relu.default, from ")
    assert said.endswith(") is pinned to a, which does not support it; pin it to another device, or have a support it.")


def test_guards_are_of_no_module() -> None:
    """An error about a module names its operator, not the function that checks the inputs of the model."""
    batch = torch.export.Dim("batch", max=9)
    graph = torch.export.export(Mlp(2), (torch.randn(3, 64),), dynamic_shapes=({0: batch},)).module()

    with pytest.raises(InfeasibleError) as caught:
        place_by_device(graph, fake_devices(2), pinned={"layers.0": "device0"}, forbidden={"layers.0": ["device0"]})

    said = str(caught.value)
    assert said.startswith("linear (aten.linear.default, of module 'layers.0', from ")
    assert said.endswith(") may run nowhere (pinned to device0; forbidden on device0): give it a device.")
    assert "linear" == caught.value.node.name


def test_an_operator_that_is_forbidden_wherever_it_can_run_is_told() -> None:
    """One device is forbidden, the other cannot run it; where one is left, that is no error."""
    graph = torch.export.export(Mlp(2), (torch.randn(3, 64),)).module()
    relu = next(node for node in graph.graph.nodes if "relu" in str(node.target))
    devices = [Device("a"), Device("b", supports=lambda _submodules, node: node is not relu)]

    with pytest.raises(InfeasibleError) as caught:
        place_by_device(graph, devices, forbidden={relu: ["a"]})

    assert str(caught.value).endswith(") may run nowhere (forbidden on a; b cannot run it): give it a device.")
    assert place_by_device(graph, devices, forbidden={relu: ["b"]}).device_of


def test_an_answer_is_one_of_a_solver() -> None:
    graph = torch.export.export(torch.nn.Linear(4, 4), (torch.randn(2, 4),)).module(check_guards=False)
    with pytest.raises(InputError, match=r"^The answer of a solver is a PlacementSolution, not NoneType\.$"):
        assignment_of(graph, None)  # type: ignore[arg-type]
