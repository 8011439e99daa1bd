"""Several backends in one graph."""

from __future__ import annotations

import operator
import random

import pytest
import torch
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import supports, supports_nodes, trace
from programs import observe, random_program, same

from fxpasses.errors import PartitionError
from fxpasses.partitioners import Assignment, CapabilityOptions, fuse_by_partitions, partition_for_backends


def function(x):
    first = torch.relu(torch.sin(x) + 1)
    second = torch.exp(torch.cos(first) * 2)
    return torch.tanh(second) + first


def test_complaint_23_every_node_has_one_owner_in_priority_order() -> None:
    """Complaint 23: three op sets that overlap; each node has one owner, the first that supports it."""
    module, node = trace(function)
    backends = {
        "npu": supports(torch.sin, operator.add, torch.cos),
        "gpu": supports(torch.cos, operator.mul, torch.exp, operator.add),
        "dsp": supports(torch.exp, torch.relu),
    }

    found = partition_for_backends(module, backends, fallback="cpu")
    reverse = partition_for_backends(module, backends, priority=["dsp", "gpu", "npu"])

    assert {
        "sin": "npu",
        "add": "npu",
        "relu": "dsp",
        "cos": "npu",
        "mul": "gpu",
        "exp": "gpu",
        "tanh": "cpu",
        "add_1": "npu",
    } == {name: found.backend_of(each) for name, each in node.items() if each.op == "call_function"}
    assert found.backend_of(node["x"]) is None
    assert {"dsp": ["relu", "exp"], "gpu": ["add", "cos", "mul", "add_1"], "npu": ["sin"], "cpu": ["tanh"]} == {
        backend: [each.name for each in module.graph.nodes if reverse.backend_of(each) == backend]
        for backend in ("dsp", "gpu", "npu", "cpu")
    }
    assert found.partitions_of("npu") == ["npu_0", "npu_1", "npu_2"]
    assert (
        found.why(node["mul"]) == "in partition 'gpu_0' (npu: unsupported by is_wanted; dsp: unsupported by is_wanted)"
    )


def test_complaint_23_parts_of_earlier_backends_stay_as_they_are() -> None:
    """Complaint 23: a later backend does not change the parts of an earlier one, whatever it supports."""
    module, node = trace(function)
    npu = supports(torch.sin, operator.add, torch.relu)
    everything = supports_nodes(dict.fromkeys(module.graph.nodes, True))

    alone = partition_for_backends(module, {"npu": npu}, fallback=None)
    both = partition_for_backends(module, {"npu": npu, "gpu": everything}, fallback=None)

    def parts_of_npu(found):
        return [found.assignment.nodes(name) for name in found.partitions_of("npu")]

    assert parts_of_npu(alone) == parts_of_npu(both)
    assert both.assignment.outside == []
    assert alone.backend_of(node["cos"]) is None
    assert alone.assignment.why(node["cos"]) == "npu: unsupported by is_wanted"


def test_transfers_are_counted_once_per_backend() -> None:
    """A value that several nodes of one backend use crosses once; its bytes are those of ``meta['val']``."""

    def shared(x):
        value = torch.sin(x)
        return torch.cos(value) + torch.relu(value)

    module, _ = trace(shared)
    for each in module.graph.nodes:
        each.meta["val"] = torch.empty(10)

    found = partition_for_backends(module, {"npu": supports(torch.sin)})

    assert [("sin", "npu", "cpu", 40)] == [
        (each.value.name, each.source, each.target, each.bytes) for each in found.transfers
    ]
    assert found.transfer_bytes == 40


def test_cost_moves_nodes_to_where_their_neighbours_are() -> None:
    """By cost, a node that two backends support goes where the fewest bytes cross."""
    module, node = trace(lambda x: torch.exp(torch.sin(torch.exp(torch.cos(x)))))
    for each in module.graph.nodes:
        each.meta["val"] = torch.empty(10)
    backends = {"npu": supports(torch.sin, torch.cos), "gpu": supports(torch.exp, torch.sin)}

    by_priority = partition_for_backends(module, backends)
    by_cost = partition_for_backends(module, backends, objective="cost")

    assert ("npu", "gpu") == (by_priority.backend_of(node["sin"]), by_cost.backend_of(node["sin"]))
    assert (120, 40) == (by_priority.transfer_bytes, by_cost.transfer_bytes)


def test_options_for_one_backend() -> None:
    """A backend with a minimum block size leaves small blocks to the next ones."""
    module, node = trace(function)
    backends = {"npu": supports(torch.sin, operator.add, torch.exp), "gpu": supports(torch.exp)}

    found = partition_for_backends(module, backends, options={"npu": CapabilityOptions(min_block_size=2)})

    assert [["sin", "add"]] == [
        [each.name for each in found.assignment.nodes(name)] for name in found.partitions_of("npu")
    ]
    assert found.backend_of(node["exp"]) == "gpu"
    assert found.backend_of(node["add_1"]) == "cpu"


@settings(max_examples=40 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False), objective=st.sampled_from(["priority", "cost"]))
def test_random_programs_keep_their_meaning(rng: random.Random, objective: str) -> None:
    """With effects and two backends, each call has one owner, parts are convex, and the fused module is equal."""
    program = random_program(rng, size=rng.randrange(2, 12))
    module = program.graph_module
    before = observe(module, program.inputs)
    count = len([*module.parameters(), *module.buffers()])
    backends = {
        name: supports_nodes({node: rng.random() < 0.5 for node in module.graph.nodes}) for name in ("npu", "gpu")
    }

    found = partition_for_backends(module, backends, objective=objective)
    calls = [node for node in module.graph.nodes if node.op.startswith("call")]
    owners = [found.backend_of(node) for node in calls]
    checked = Assignment.of(module, found.assignment.partition_of, found.assignment.order)
    fuse_by_partitions(module, list(found.assignment.partitions.values()))
    after = observe(module, program.inputs)

    assert None not in owners
    assert checked == found.assignment
    kept = len([*module.parameters(), *module.buffers()])
    assert same(before[: len(before) - 1 - count], after[: len(after) - 1 - kept])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"supports": {}}, "partition_for_backends got no backends; give at least one {name: support}"),
        (
            {"supports": {"a": supports(), "b": supports()}, "priority": ["a"]},
            "priority must list every backend once: it is ['a'], and the backends are ['a', 'b']",
        ),
        (
            {"supports": {"cpu": supports()}},
            "the fallback 'cpu' is also one of the backends; give it another name",
        ),
        (
            {"supports": {"a": supports()}, "objective": "speed"},
            'objective must be "priority" or "cost", not \'speed\'',
        ),
    ],
)
def test_bad_arguments(arguments, message: str) -> None:
    """Contradictory arguments are refused with what is wrong."""
    module, _ = trace(function)

    with pytest.raises(PartitionError) as caught:
        partition_for_backends(module, **arguments)

    assert message == str(caught.value)


def test_options_for_a_backend_that_is_not_there_are_refused() -> None:
    """They were ignored."""
    module, _node = trace(function)

    with pytest.raises(
        PartitionError, match=r"options are given for 'npv', which is no backend; there are npu; did you mean 'npu'\?"
    ):
        partition_for_backends(module, {"npu": supports(torch.sin)}, options={"npv": CapabilityOptions()})
