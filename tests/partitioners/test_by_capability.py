"""Proposals by capability: torch's own where torch's are the fewest, right where torch's are wrong, and fast."""

from __future__ import annotations

import inspect
import operator
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import chain_of, long_chain, named, names_in, random_dag, supports, supports_nodes, trace
from programs import observe, random_program, same
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner as TorchPartitioner
from work import lines_run

from fxpasses.errors import CaptureError, CycleError, PartitionError
from fxpasses.partitioners import (
    Assignment,
    CapabilityBasedPartitioner,
    CapabilityOptions,
    Device,
    OperatorSupportBase,
    Partition,
    Partitioner,
    PartitionerConfig,
    TransferCost,
    constants_by_size,
    create_op_support,
    fuse_by_partitions,
    partition_by_capability,
    partition_for_backends,
    topo_sort,
    validate_partition,
)


def listing(partitions: list[Any]) -> list[Any]:
    """All that a list of partitions says."""
    return [(partition.id, list(partition.nodes.items())) for partition in partitions]


# Torch's own answers with vertical fusion alone since 2.13.
MODES = [False, True] if "skip_horizontal_fusion" in inspect.signature(TorchPartitioner).parameters else [False]


class AddMulSupport(OperatorSupportBase):
    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node.op == "call_function" and node.target in (operator.add, operator.mul)


def test_classic_add_mul_partitions() -> None:
    """The classic: an add/mul support, its two partitions, and the fused module."""
    module, _ = trace(lambda x, y: ((x + y) * 2).relu() * y + 1)
    expected = module(torch.ones(2), torch.arange(2.0))
    partitioner = CapabilityBasedPartitioner(module, AddMulSupport())

    partitions = partitioner.propose_partitions()
    fused = partitioner.fuse_partitions(partitions)

    assert [["mul_1", "add_1"], ["add", "mul"]] == names_in(partitions)
    assert torch.equal(expected, fused(torch.ones(2), torch.arange(2.0)))
    assert ["x", "y", "fused_1", "relu", "fused_0", "output"] == [node.name for node in fused.graph.nodes]


def test_classic_single_nodes_are_left_out_unless_allowed() -> None:
    """A part of one call is given up, unless that is allowed for all or for its operator; views do not count."""
    module, node = trace(lambda x: torch.relu(torch.sin(x)) + x.view(-1))

    def propose(**arguments: Any) -> list[list[str]]:
        return names_in(CapabilityBasedPartitioner(module, supports(torch.sin), **arguments).propose_partitions())

    assignment = CapabilityBasedPartitioner(module, supports(torch.sin)).propose()

    assert propose() == []
    assert propose(allows_single_node_partition=True) == [["sin"]]
    assert propose(allowed_single_node_partition_ops=["torch.sin"]) == [["sin"]]
    assert propose(allowed_single_node_partition_ops=["torch.sin"], non_compute_ops=["torch.sin"]) == []
    assert assignment.why(node["sin"]) == (
        "its block is too small: 1 function call that compute, at least 2 are needed unless "
        "allows_single_node_partition is set"
    )


@settings(max_examples=120 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False), single=st.booleans(), one_output=st.booleans())
def test_equals_torch_where_torch_is_minimal(rng: random.Random, single: bool, one_output: bool) -> None:
    """On graphs without tuples the list is torch's: the same parts, nodes, places, numbers and order."""
    module, support, _ = random_dag(rng, rng.randrange(2, 30), one_output=one_output)

    ours = CapabilityBasedPartitioner(module, support, single).propose_partitions()
    theirs = TorchPartitioner(module, support, single).propose_partitions()

    assert listing(theirs) == listing(ours)


@settings(max_examples=120 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False), single=st.booleans(), vertical=st.sampled_from(MODES))
def test_never_worse_than_torch_with_tuples(rng: random.Random, single: bool, vertical: bool) -> None:
    """With tuples too, at least as many nodes are covered, in at most as many parts; if equal, as torch lists them."""
    module, support, _ = random_dag(rng, rng.randrange(2, 30), getitems=True)

    ours = CapabilityBasedPartitioner(module, support, single, skip_horizontal_fusion=vertical).propose_partitions()
    flags = {"skip_horizontal_fusion": True} if vertical else {}
    theirs = TorchPartitioner(module, support, single, **flags).propose_partitions()
    covered, their_covered = (sum(part.size() for part in parts) for parts in (ours, theirs))

    if is_acyclic(module, theirs):
        assert (covered, -len(ours)) >= (their_covered, -len(theirs))
        assert len(ours) <= len(theirs)
        if (covered, len(ours)) == (their_covered, len(theirs)):
            assert listing(theirs) == listing(ours)


def is_acyclic(module: GraphModule, partitions: list[Any]) -> bool:
    """Whether torch's answer is a legal one (in vertical mode it now and then is not)."""
    try:
        Assignment.of(module, [list(partition.nodes) for partition in partitions])
    except CycleError:
        return False
    return True


def effect_free(outputs: list[torch.Tensor], module: torch.nn.Module) -> list[torch.Tensor]:
    """An observation without the state of the module, whose order fusing may change, but with its sum."""
    count = len([*module.parameters(), *module.buffers()])
    state = outputs[len(outputs) - 1 - count : -1]
    unique = sorted({(tuple(each.shape), float(each.double().sum())) for each in state})
    total = torch.tensor([value for _, value in unique], dtype=torch.double)
    return [*outputs[: len(outputs) - 1 - count], outputs[-1], total]


OPTIONS = st.builds(
    CapabilityOptions,
    min_block_size=st.sampled_from([1, 1, 3]),
    horizontal=st.booleans(),
    fewer_borders=st.booleans(),
    tensors_only_at_borders=st.sampled_from([None, True]),
)


@settings(max_examples=100 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False), options=OPTIONS, single=st.booleans())
def test_complaint_01_effects_are_kept(rng: random.Random, options: CapabilityOptions, single: bool) -> None:
    """Complaint 1: fused programs with views, writes, random numbers and asserts mean what they meant before.

    Each supported call is in exactly one part or has a reason, and the parts are convex together.
    """
    program = random_program(rng, size=rng.randrange(2, 12))
    module = program.graph_module
    before = effect_free(observe(module, program.inputs), module)
    support = supports_nodes({node: rng.random() < 0.65 for node in module.graph.nodes})
    partitioner = CapabilityBasedPartitioner(module, support, single, options=options)

    assignment, partitions = partitioner.propose(), partitioner.propose_partitions()
    unexplained = [node for node in assignment.outside if node.op != "get_attr" and node not in assignment.reasons]
    checked = Assignment.of(module, assignment.partition_of, assignment.order)
    partitioner.fuse_partitions(partitions)

    assert unexplained == []
    assert assignment == checked
    assert same(before, effect_free(observe(module, program.inputs), module))


def gradients(module: GraphModule, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Gradients of the inputs, or the type of the error that autograd raises for this program."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    try:
        outputs = module(*(leaf * 1 for leaf in leaves))
        total = sum(output.double().sum() for output in outputs if output.requires_grad)
        return torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, torch.Tensor) else None
    except RuntimeError as error:
        return type(error)


@settings(max_examples=40 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_gradients_are_kept(rng: random.Random) -> None:
    """Fused programs with views and writes have the gradients that they had before."""
    program = random_program(rng, size=rng.randrange(2, 10), steps=("unary", "binary", "view", "in_place"))
    module = program.graph_module
    before = gradients(module, program.inputs)
    support = supports_nodes({node: rng.random() < 0.65 for node in module.graph.nodes})

    CapabilityBasedPartitioner(module, support, True).partition_and_fuse()
    after = gradients(module, program.inputs)

    if isinstance(before, tuple):
        # not bit for bit: autograd adds up the uses of a value in the order of their calls
        torch.testing.assert_close(before, after, equal_nan=True)
    else:
        assert before == after


def test_complaint_01_a_write_between_two_reads() -> None:
    """Complaint 1: ``x + 1`` and ``x + 2`` around an unsupported ``x.sin_()`` are two parts; the result is eager's."""

    def function(x):
        y = x + 1
        x.sin_()
        return y * 2, (x + 2) * 3

    module, _ = trace(function)
    expected = function(torch.ones(2))

    partitioner = CapabilityBasedPartitioner(module, supports(operator.add, operator.mul), True)
    partitions = partitioner.propose_partitions()
    found = partitioner.fuse_partitions(partitions)(torch.ones(2))

    assert [["mul", "add_1", "mul_1"], ["add"]] == names_in(partitions)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def propose_over_skips(size: int, unsupported: int) -> int:
    """The lines run for the proposals of a chain with skip edges and unsupported nodes."""
    graph = torch.fx.Graph()
    values = [graph.placeholder("x")]
    for place in range(size):
        values.append(graph.call_function(torch.add, (values[-1], values[max(0, place - 7)])))
    graph.output(values[-1])
    module = GraphModule(torch.nn.Module(), graph)
    verdicts = {node: place % (size // unsupported) != 0 for place, node in enumerate(values[1:])}

    partitions: list[Partition] = []
    partitioner = CapabilityBasedPartitioner(module, supports_nodes(verdicts))
    lines = lines_run(lambda: partitions.extend(partitioner.propose_partitions()))

    assert len(partitions) == unsupported
    return lines


def test_complaint_02_proposals_are_fast() -> None:
    """Complaint 2: with many unsupported nodes torch needs minutes; here the work grows with the nodes, not faster."""
    small, large = propose_over_skips(1_000, 50), propose_over_skips(4_000, 200)

    assert large < 4.4 * small
    assert large < 100 * 4_000


def test_complaint_38_long_chains_do_not_recurse() -> None:
    """Complaint 38: 20,000 nodes are proposed, edited and fused with a recursion limit of 200."""
    module, support = long_chain(20_000, unsupported_every=1_000)
    outcome: list[Any] = []

    def work() -> None:
        sys.setrecursionlimit(200)
        partitioner = CapabilityBasedPartitioner(module, support)
        partitions = partitioner.propose_partitions()
        partitioner.fuse_partitions(partitions)
        outcome.append(len(partitions))

    limit = sys.getrecursionlimit()
    thread = threading.Thread(target=work)
    try:
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)

    assert outcome == [20]


SEEDED = """
import random, sys, torch
sys.path.insert(0, {tests!r})
from partition_graphs import random_dag
from fxpasses.partitioners import CapabilityBasedPartitioner, CapabilityOptions
for seed in range(4):
    module, support, _ = random_dag(random.Random(seed), 40, getitems=True)
    options = CapabilityOptions(fewer_borders=seed % 2 == 1, min_block_size=1 + 2 * (seed == 3))
    partitioner = CapabilityBasedPartitioner(module, support, True, skip_horizontal_fusion=seed == 2, options=options)
    partitions = partitioner.propose_partitions()
    print([(part.id, list(part.nodes.items())) for part in partitions], dict(partitioner.propose().reasons))
    fused = partitioner.fuse_partitions(partitions)
    print(fused.code, [(name, child.code) for name, child in fused.named_children()])
"""


@pytest.mark.slow
def test_complaint_09_identical_in_many_processes() -> None:
    """Complaint 9: proposals, reasons and fused code are the same under twenty hash seeds."""
    script = SEEDED.format(tests=str(Path(__file__).parents[1]))

    def run(seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(run, range(20)))

    assert len(set(texts)) == 1
    assert "fused_0" in texts[0]


class TwoUsers(torch.nn.Module):
    """One weight in the lists of two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(2.0))

    def forward(self, x):
        first = torch.cat([x, self.w]).sin()
        return torch.cat([first.relu(), self.w]).sin()


@pytest.mark.parametrize("policy", ["share", "own", "duplicate", "pass_in", constants_by_size(4)])
def test_complaint_17_a_constant_of_two_parts(policy: Any) -> None:
    """Complaint 17: a weight in list arguments of two parts works under each policy; shared, its bytes count once."""
    module = torch.fx.symbolic_trace(TwoUsers())
    expected = module(torch.ones(2))
    partitioner = CapabilityBasedPartitioner(module, supports(torch.cat, "sin"), True)

    fused = partitioner.partition_and_fuse(constants=policy)
    inside = {id(value) for name in ("fused_0", "fused_1") for value in fused.get_submodule(name).parameters()}

    assert torch.equal(expected, fused(torch.ones(2)))
    assert len(inside) == {"duplicate": 2, "pass_in": 0}.get(policy, 1)
    if policy == "share":
        assert "w" not in dict(fused.named_parameters(recurse=False))


def test_complaint_36_full_support_is_one_part() -> None:
    """Complaint 36: a graph that is wholly supported is exactly one part, and no dependencies are looked at for it."""
    module, _ = trace(lambda x: ((x + 1).relu(), (x * 2).sin()))
    everything = create_op_support(lambda submodules, node: True)

    assignment = CapabilityBasedPartitioner(module, everything).propose()

    assert [["add", "relu", "mul", "sin"]] == [[node.name for node in part] for part in assignment.partitions.values()]
    assert assignment._dependencies is None


def test_complaint_36_no_part_for_dead_code() -> None:
    """Complaint 36: no part is proposed of dead code, and none is fused, though torch lists one."""

    def function(x):
        dead = ((x + 1) * 2).relu()
        (dead * 2) + 1
        return x.relu()

    module, node = trace(function)
    support = supports(operator.add, operator.mul)
    partitioner = CapabilityBasedPartitioner(module, support)

    assignment = partitioner.propose()
    fused = partitioner.partition_and_fuse()

    assert assignment.order == ()
    assert assignment.why(node["add"]) == "it is dead: no output and no effect depends on its block"
    assert not fused.graph.find_nodes(op="call_module", target="fused_0")


def test_complaint_36_small_blocks_are_given_up_and_joined() -> None:
    """Complaint 36: a block under the minimum is given up; its nodes join a larger one where that closes no cycle."""

    def function(x, y):
        first = (x + 1).sin().sin().sin()
        blocked = first.relu().sin()
        side = y.sin()
        return blocked, side + first

    module, node = trace(function)
    support = supports(operator.add, "sin")

    plain = partition_by_capability(module, support)
    merged = partition_by_capability(module, support, CapabilityOptions(min_block_size=3))

    assert [4, 3] == [len(part) for part in plain.partitions.values()]
    assert [4, 3] == [len(part) for part in merged.partitions.values()]
    larger = partition_by_capability(module, support, CapabilityOptions(min_block_size=4))
    assert [["add", "sin", "sin_1", "sin_2", "sin_4", "add_1"]] == [
        [each.name for each in part] for part in larger.partitions.values()
    ]
    assert larger.why(node["sin_3"]) == "its block is too small: 3 of at least 4 calls (min_block_size)"


def test_complaint_36_min_block_leaves_only_tensors_at_borders() -> None:
    """Complaint 36: with ``min_block_size`` no size, number or tuple crosses a border."""

    class Model(torch.nn.Module):
        def forward(self, x):
            y = x.sin().cos().sin().cos().sin()
            left, right = torch.split(y, 2, dim=1)
            return torch.cat([left, right], 1).reshape(x.shape[0] * 3).relu()

    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Model(), (torch.ones(8, 3),), dynamic_shapes=({0: batch},))
    module = program.graph_module
    support = create_op_support(lambda submodules, node: "relu" not in node.name and "reshape" not in node.name)

    assignment = partition_by_capability(module, support, CapabilityOptions(min_block_size=5))
    crossing = [
        node
        for name in assignment
        for node in [*assignment.inputs(name), *assignment.outputs(name)]
        if node.op != "placeholder"
    ]

    assert len(assignment) == 1
    assert all(isinstance(node.meta["val"], torch.Tensor) for node in crossing)


def test_horizontal_merging_on_and_off() -> None:
    """Branches that no edge connects are one part, or, without horizontal merging, each its own."""
    module, _ = trace(lambda x, y: ((x + 1) * 2, (y + 3) * 4, x.relu()))
    support = supports(operator.add, operator.mul)

    together = partition_by_capability(module, support)
    apart = partition_by_capability(module, support, CapabilityOptions(horizontal=False))

    assert [4] == [len(part) for part in together.partitions.values()]
    assert [2, 2] == [len(part) for part in apart.partitions.values()]


def test_groups_are_kept_together() -> None:
    """A group goes into one part whole, or stays outside whole and says why."""
    module, node = trace(lambda x: torch.cos(torch.sin(torch.relu(torch.sin(torch.sin(x)))) + 1))
    support = supports(torch.sin, operator.add, torch.cos)

    within = CapabilityOptions(keep_together=[[node["sin_2"], node["cos"]]])
    across = CapabilityOptions(keep_together=[[node["sin_1"], node["sin_2"]]])
    unsupported = CapabilityOptions(keep_together=[[node["relu"], node["sin_2"]]])

    def outside(options: CapabilityOptions) -> dict[str, str]:
        found = partition_by_capability(module, support, options)
        return {each.name: found.why(each) for each in found.outside if each.name != "relu"}

    assert outside(within) == {}
    assert outside(across) == {
        "sin_1": "group 0 is kept together and would close a cycle: sin_1 -> relu -> sin_2",
        "sin_2": "group 0 is kept together and would close a cycle: sin_1 -> relu -> sin_2",
    }
    assert outside(unsupported) == {"sin_2": "group 0 is kept together, and relu is outside"}


def test_patterns_are_kept_together() -> None:
    """Each match of a pattern is such a group."""
    module, node = trace(lambda x: torch.softmax(torch.matmul(x, x), -1) * torch.relu(x))
    pattern = torch.fx.symbolic_trace(lambda a, b: torch.softmax(torch.matmul(a, b), -1))
    options = CapabilityOptions(keep_patterns=[pattern])

    found = partition_by_capability(module, supports(torch.matmul, operator.mul), options)

    assert found.why(node["matmul"]) == "match 0 is kept together, and softmax is outside"
    assert [node["mul"]] == found.nodes(0)


def autocast_program() -> tuple[GraphModule, dict[str, Node]]:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    before = graph.call_function(torch.sin, (x,))
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False))
    product = graph.call_function(torch.mm, (before, before))
    middle = graph.call_function(torch.relu, (product,))
    second = graph.call_function(torch.mm, (middle, middle))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    after = graph.call_function(torch.sin, (second,))
    graph.output(after)
    module = GraphModule(torch.nn.Module(), graph)
    return module, named(module)


def test_regions_are_never_cut() -> None:
    """An autocast region goes into a part whole; one with an unsupported call inside keeps its markers outside."""
    module, node = autocast_program()
    expected = module(torch.eye(2))
    denied = CapabilityOptions(deny_names=["relu"])
    everything = create_op_support(lambda submodules, node: True)

    whole = partition_by_capability(module, everything, CapabilityOptions(deny_names=["sin"]))
    cut = partition_by_capability(module, everything, denied)
    fused = CapabilityBasedPartitioner(module, everything, True, options=denied).partition_and_fuse()

    assert ["_enter_autocast", "mm", "relu", "mm_1", "_exit_autocast", "sin_1"] == [
        each.name for each in whole.nodes(0)
    ]
    assert cut.why(node["_enter_autocast"]) == "region _enter_autocast is kept together, and relu is outside"
    assert torch.equal(expected, fused(torch.eye(2)))


def test_quantize_and_dequantize_stay_together() -> None:
    """A quantize whose dequantize is unsupported stays outside with it."""

    def function(x):
        quantized = torch.quantize_per_tensor(x.sin(), 0.1, 0, torch.qint8)
        return torch.dequantize(quantized).cos()

    module, node = trace(function)
    support = supports("sin", torch.quantize_per_tensor, "cos")

    kept = partition_by_capability(module, support, CapabilityOptions(keep_quantization=True))

    assert kept.why(node["quantize_per_tensor"]) == (
        "quantization quantize_per_tensor is kept together, and dequantize is outside"
    )
    assert [["sin"], ["cos"]] == [[each.name for each in part] for part in kept.partitions.values()]


def test_tuples_never_cross_a_border() -> None:
    """Elements live with their tuple, whatever the support says of them, also after small groups are dropped."""
    module, node = trace(lambda x: torch.split(x.sin(), 1)[0].relu())
    without_getitem = supports(torch.split, "sin", "relu")

    with_producer = partition_by_capability(module, without_getitem)
    without_producer = partition_by_capability(module, supports(operator.getitem, "relu"))

    assert [["sin", "split", "getitem", "relu"]] == [
        [each.name for each in p] for p in with_producer.partitions.values()
    ]
    assert without_producer.why(node["getitem"]) == "it is an element of split, which is outside"


def test_denials() -> None:
    """Options deny by name and by target; the reasons say so."""
    module, node = trace(lambda x: torch.sin(torch.cos(torch.sin(x))))
    everything = create_op_support(lambda submodules, node: True)

    found = partition_by_capability(
        module, everything, CapabilityOptions(deny_names=["sin_1"], deny_targets=[torch.cos])
    )

    assert found.why(node["sin_1"]) == "denied by name: sin_1"
    assert found.why(node["cos"]) == "denied by target: torch.cos"
    assert [node["sin"]] == found.nodes(0)


def test_cost_rule() -> None:
    """A part that saves less than its border copies cost is given up, with the numbers."""
    module, node = trace(lambda x: torch.sin(torch.relu(torch.cos(torch.sin(x)))))
    for each in module.graph.nodes:
        each.meta["val"] = torch.empty(1000)
    rule = TransferCost(seconds_saved=lambda each: 4e-6, bandwidth=2e9, latency=1e-6)

    found = partition_by_capability(module, supports(torch.sin, torch.cos), CapabilityOptions(cost_rule=rule))

    assert [[node["sin"], node["cos"]]] == list(found.partitions.values())
    assert found.why(node["sin_1"]) == (
        "its block does not pay: it saves 4 us, and copying 8000 bytes in 2 values costs 6 us"
    )


@settings(max_examples=40 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_fewer_borders_costs_no_part(rng: random.Random) -> None:
    """Looking for fewer border values keeps the nodes and the number of parts, and never adds border values."""
    module, support, _ = random_dag(rng, 25)

    def borders(assignment: Assignment) -> int:
        return sum(len(assignment.outputs(name)) for name in assignment)

    plain = partition_by_capability(module, support)
    better = partition_by_capability(module, support, CapabilityOptions(fewer_borders=True))
    checked = Assignment.of(module, better.partition_of, better.order)

    assert better == checked
    assert set(plain.partition_of) == set(better.partition_of)
    assert len(plain) == len(better)
    assert borders(better) <= borders(plain)


def test_remove_bookend_non_compute_ops() -> None:
    """Views at the border of a part are taken away; views between calls stay."""
    module, _ = trace(lambda x: torch.flatten(torch.sin(torch.flatten(torch.cos(torch.flatten(torch.flatten(x)))))))
    everything = create_op_support(lambda submodules, node: True)
    ours = CapabilityBasedPartitioner(module, everything, non_compute_ops=["torch.flatten"])
    theirs = TorchPartitioner(module, supports(torch.sin, torch.cos, torch.flatten), non_compute_ops=["torch.flatten"])
    partitions, torchs = ours.propose_partitions(), theirs.propose_partitions()

    ours.remove_bookend_non_compute_ops(partitions)
    theirs.remove_bookend_non_compute_ops(torchs)

    assert [["cos", "flatten_2", "sin"]] == names_in(partitions)
    assert names_in(torchs) == names_in(partitions)


def test_partition_is_torchs() -> None:
    """The list type behaves like torch's: ordered nodes, their places, add, remove, size."""
    _, node = trace(lambda x: x.sin().cos())
    partition = Partition(7, [node["sin"]], [2])

    partition.add_node(node["cos"], 1)
    partition.remove_node(node["sin"])

    assert (7, {node["cos"]: 1}, 1) == (partition.id, partition.nodes, partition.size())
    assert repr(partition) == "{cos: 1}"
    with pytest.raises(KeyError, match=r"partition 7 does not hold sin"):
        partition.remove_node(node["sin"])
    with pytest.raises(PartitionError, match=r"^nodes and node_orders must have the same length; got 1 nodes and 0"):
        Partition(1, [node["sin"]], [])


def test_validate_partition_and_topo_sort() -> None:
    """A group is valid if no path over data or effects leaves it and comes back; sorting keeps what it can."""
    _, node = trace(lambda x: ((x + 1).relu() * 2, x.sin_(), x + 2))
    relu, mul, add, add_1 = node["relu"], node["mul"], node["add"], node["add_1"]

    assert validate_partition([add, relu, mul])
    assert not validate_partition([add, mul])
    assert not validate_partition([add, add_1])
    assert topo_sort([mul, add_1, relu, add]) == [add_1, add, relu, mul]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda n: [[n["sin"]], []], "partition 1 is empty; leave it out"),
        (lambda n: [[trace(lambda x: x.sin())[1]["sin"]]], "partition 0 holds sin, a node of another graph"),
    ],
)
def test_fuse_refuses_bad_partitions(groups: Any, message: str) -> None:
    """Empty partitions and foreign nodes are refused before anything changes."""
    module, node = trace(lambda x: x.sin().cos().sin())
    text = str(module.graph)

    with pytest.raises(PartitionError) as caught:
        fuse_by_partitions(module, groups(node))

    assert message == str(caught.value)
    assert text == str(module.graph)


def test_fuse_refuses_overlaps_and_cycles() -> None:
    """Overlapping partitions and cyclic ones are refused, the latter with their path."""
    module, node = trace(lambda x: x.sin().cos().sin())
    text = str(module.graph)

    with pytest.raises(PartitionError, match=r"^partitions 0 and 1 overlap: both hold sin$"):
        fuse_by_partitions(module, [[node["sin"], node["cos"]], [node["sin"]]])
    with pytest.raises(CycleError, match=r"^partition 0 would wait for itself: sin -> cos -> sin_1"):
        fuse_by_partitions(module, [[node["sin"], node["sin_1"]]])

    assert text == str(module.graph)


def test_refuses_what_is_no_graph_module() -> None:
    """A partitioner wants a captured model and says how to get one; fusing wants its own list type."""
    with pytest.raises(PartitionError) as caught:
        CapabilityBasedPartitioner(torch.nn.ReLU(), AddMulSupport())
    with pytest.raises(PartitionError, match=r"^partition 0 is 3; it must be a Partition"):
        CapabilityBasedPartitioner(chain_of(torch.sin), AddMulSupport()).fuse_partitions([3])

    assert isinstance(caught.value, TypeError)
    assert str(caught.value) == (
        "a partitioner takes a torch.fx.GraphModule or an ExportedProgram, not ReLU; "
        "capture the model with torch.export or torch.fx.symbolic_trace first"
    )


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: validate_partition(3), "the nodes of a partition come in a list, not as 3"),
        (lambda: validate_partition([3]), "the nodes of a partition are torch.fx nodes, not 3"),
        (lambda: topo_sort(None), "the nodes to sort come in a list, not as None"),
        (lambda: topo_sort([3]), "the nodes to sort are torch.fx nodes, not 3"),
        (
            lambda: fuse_by_partitions(chain_of(torch.sin), None),
            "groups come in a list, not as None",
        ),
        (
            lambda: fuse_by_partitions(chain_of(torch.sin), [3]),
            "the nodes of group 0 come in a list, not as 3",
        ),
        (
            lambda: fuse_by_partitions(torch.nn.ReLU(), []),
            "fuse_by_partitions changes a GraphModule in place, got ReLU; trace or export the module first",
        ),
        (
            lambda: CapabilityBasedPartitioner(chain_of(torch.sin), AddMulSupport()).fuse_partitions(None),
            "partitions come in a list, not as None",
        ),
        (
            lambda: CapabilityBasedPartitioner(chain_of(torch.sin), AddMulSupport()).remove_bookend_non_compute_ops(3),
            "partitions come in a list, not as 3",
        ),
    ],
)
def test_arguments_of_another_type_are_refused_in_a_sentence(work: Any, message: str) -> None:
    """Where Python would say that something is not iterable: what is expected, and what came; a TypeError, too."""
    with pytest.raises(PartitionError) as caught:
        work()

    assert message == str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_what_torch_asserts_is_an_assertion_error_too() -> None:
    """Cycles, nodes of another graph and erased ones can be caught as before the import line was changed."""
    module, node = trace(lambda x: x.sin().cos().sin())
    with pytest.raises(AssertionError) as cycle:
        fuse_by_partitions(module, [[node["sin"], node["sin_1"]]])
    with pytest.raises(AssertionError) as foreign:
        fuse_by_partitions(module, [[trace(lambda x: x.sin())[1]["sin"]]])
    node["sin"].args = (node["sin_1"],)
    with pytest.raises(AssertionError) as circle:
        topo_sort([node["sin"], node["cos"], node["sin_1"]])

    assert isinstance(cycle.value, CycleError)
    assert ["sin", "cos", "sin_1"] == [each.name for each in cycle.value.path]
    assert isinstance(foreign.value, PartitionError)
    assert isinstance(circle.value, CycleError)
    assert "these nodes use each other in a circle: sin, cos, sin_1" == str(circle.value)


def test_takes_every_kind_of_graph() -> None:
    """Exported programs, their modules and graph modules, traces and make_fx graphs are all partitioned."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return (x + 1) * 2

    x = torch.ones(2)
    program = torch.export.export(Model(), (x,))
    everything = create_op_support(lambda submodules, node: node.op == "call_function")
    kinds = [program, program.module(), program.graph_module, torch.fx.symbolic_trace(Model()), make_fx(Model())(x)]

    proposed = [partition_by_capability(kind, everything) for kind in kinds]
    fused = CapabilityBasedPartitioner(program, everything).partition_and_fuse()

    assert [[2]] * 5 == [[len(part) for part in assignment.partitions.values()] for assignment in proposed]
    assert torch.equal(fused(x), Model()(x))
    assert "add" in {node.name for node in program.graph.nodes}


def test_graphs_without_calls() -> None:
    """An empty graph, and one that only returns something, have no parts, and fusing leaves them alone."""
    empty = GraphModule(torch.nn.Module(), torch.fx.Graph())
    everything = create_op_support(lambda submodules, node: True)

    for module in (empty, chain_of()):
        assert CapabilityBasedPartitioner(module, everything).propose_partitions() == []
        assert partition_for_backends(module, {"npu": everything}).assignment.order == ()
        assert partition_by_capability(module, everything, CapabilityOptions(min_block_size=3)).order == ()
        assert CapabilityBasedPartitioner(module, everything).partition_and_fuse() is module


def test_the_work_to_fuse_grows_with_the_partitions() -> None:
    """Four times the partitions are four times the work (a chain with 50,000 is in the benchmarks)."""

    def work(length: int) -> int:
        module, support = long_chain(length)
        partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
        return lines_run(partitioner.partition_and_fuse)

    work(100)  # what is imported on the way

    assert work(2_000) < 4.4 * work(500)


def test_a_program_with_a_name_that_code_cannot_have_is_refused() -> None:
    """Torch's own module of it ends in a bare ``SyntaxError``; so it did in both partitioners."""
    model, everything = torch.nn.Sequential(), create_op_support(lambda submodules, node: True)
    model.add_module("in", torch.nn.Linear(4, 4))
    program = torch.export.export(model, (torch.ones(2, 4),))
    devices = PartitionerConfig([Device("left", 10_000, 0), Device("right", 10_000, 1)])

    for partition in (
        lambda: CapabilityBasedPartitioner(program, everything),
        lambda: Partitioner().partition_graph(program, model, devices),
    ):
        with pytest.raises(
            CaptureError, match=r"^The model has a module, parameter or buffer called 'in', which torch"
        ):
            partition()
