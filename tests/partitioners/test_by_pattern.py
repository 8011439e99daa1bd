"""Partitions around matches and hand-made groups."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from partition_graphs import names_in, supports, trace
from torch.fx import Graph, GraphModule

from fxpasses.errors import PartitionError, PatternError
from fxpasses.partitioners import (
    CapabilityBasedPartitioner,
    GroupBasedPartitioner,
    any_chain,
    create_pattern_support,
    fuse_by_partitions,
    generate_grouped_partitions_from_list_of_nodes,
    generate_partitions_from_list_of_nodes,
    generate_pattern_op_partitions,
    partition_by_pattern,
)
from fxpasses.passes import split

aten = torch.ops.aten


class ConvLinear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.conv(x).relu().mean((2, 3))
        return self.second(self.first(y).sin()) + 1


def core_graph(model: torch.nn.Module, *inputs: torch.Tensor) -> GraphModule:
    return torch.export.export(model.eval(), inputs).run_decompositions().graph_module


def linear_pattern() -> Graph:
    return core_graph(torch.nn.Linear(4, 4), torch.ones(1, 4)).graph


def conv_pattern() -> Graph:
    return core_graph(torch.nn.Conv2d(3, 4, 3), torch.ones(1, 3, 8, 8)).graph


def test_classic_pattern_op_partitions() -> None:
    """The classic: linear and conv patterns, then with an extra op support that the matches grow by."""
    module = core_graph(ConvLinear(), torch.ones(1, 3, 8, 8))
    patterns = [linear_pattern(), conv_pattern()]

    plain = generate_pattern_op_partitions(module, patterns)
    grown = generate_pattern_op_partitions(module, patterns, op_support=supports(aten.add.Tensor, aten.relu.default))

    assert [["permute_1", "addmm_1"], ["permute", "addmm"], ["convolution"]] == sorted(names_in(plain), reverse=True)
    assert [["permute_1", "addmm_1", "add"], ["permute", "addmm"], ["convolution", "relu"]] == sorted(
        names_in(grown), reverse=True
    )


def test_classic_fuses_and_runs() -> None:
    """A proposal by pattern fuses into a module with the same result."""
    program = torch.export.export(ConvLinear().eval(), (torch.ones(1, 3, 8, 8),))
    module = program.module()
    x = torch.randn(1, 3, 8, 8)
    expected = module(x)
    linear = torch.export.export(torch.nn.Linear(4, 4), (torch.ones(1, 4),)).graph
    partitioner = CapabilityBasedPartitioner(module, create_pattern_support([linear]), True)

    fused = partitioner.partition_and_fuse()

    assert torch.equal(expected, fused(x))
    assert [["linear_1"], ["linear"]] == [
        [node.name for node in fused.get_submodule(f"fused_{place}").graph.nodes if node.op == "call_function"]
        for place in range(2)
    ]


def test_listed_nodes_join_the_matches() -> None:
    """Lists of nodes are taken in beside the matches, under either name of the argument."""
    module, node = trace(lambda x: torch.cos(torch.relu(torch.sin(x)) + 1))
    pattern = torch.fx.symbolic_trace(lambda a: torch.sin(a))

    by_position = generate_pattern_op_partitions(module, [pattern], [[node["relu"], node["add"]]])
    by_name = generate_pattern_op_partitions(module, [pattern], partitions=[[node["relu"], node["add"]]])

    assert [["sin", "relu", "add"]] == names_in(by_position) == names_in(by_name)


def test_matches_stay_whole() -> None:
    """A match that would have to be cut stays outside, and its nodes say so."""
    module, node = trace(lambda x: torch.add(torch.mul(torch.sin(x), 2), torch.relu(x)))
    pattern = torch.fx.symbolic_trace(lambda a, b: torch.add(torch.mul(a, 2), b))

    apart = partition_by_pattern(module, [pattern], merge=False)
    merged = partition_by_pattern(module, [pattern], supports(torch.sin))

    assert [[node["mul"], node["add"]]] == list(apart.partitions.values())
    assert apart.why(node["sin"]) == "in no match of the given patterns"
    assert [[node["sin"], node["mul"], node["add"]]] == list(merged.partitions.values())


def test_nothing_to_go_by_is_an_error() -> None:
    """An empty list of patterns with nothing else is an error; a pattern without matches is an empty answer."""
    module, _ = trace(lambda x: torch.sin(x))
    message = "nothing to partition by: the list of patterns is empty; give patterns, lists of nodes or an op_support"

    with pytest.raises(PatternError) as caught:
        generate_pattern_op_partitions(module, [])
    with pytest.raises(PatternError, match=r"^partition_by_pattern got an empty list of patterns; give at least one$"):
        partition_by_pattern(module, [])

    assert message == str(caught.value)
    assert generate_pattern_op_partitions(module, [torch.fx.symbolic_trace(lambda a: torch.cos(a)).graph]) == []
    assert names_in(generate_pattern_op_partitions(module, [], op_support=supports(torch.sin))) == [["sin"]]


def test_partitions_from_lists_of_nodes() -> None:
    """Lists and an op support together give the largest partitions; lists may be cut, unless they are groups."""
    module, node = trace(lambda x: torch.cos(torch.sin(torch.relu(torch.sin(x))) + 1))
    across = [[node["sin"], node["sin_1"]]]

    loose = generate_partitions_from_list_of_nodes(module, across, supports(operator.add))
    grouped = generate_grouped_partitions_from_list_of_nodes(module, across, supports(operator.add))

    assert [["sin"], ["sin_1", "add"]] == sorted(names_in(loose))
    assert [["add"]] == names_in(grouped)
    with pytest.raises(PartitionError, match=r"^nothing to partition by: give lists of nodes or an op_support$"):
        generate_partitions_from_list_of_nodes(module)
    with pytest.raises(PartitionError, match=r"^a list of nodes holds 3, which is not a node of this graph$"):
        generate_partitions_from_list_of_nodes(module, [[3]])


def test_groups_are_lists_in_a_list() -> None:
    """A node in place of a list of nodes is told so, wherever groups are handed over."""
    module, node = trace(lambda x: torch.sin(x))
    for face in (
        generate_partitions_from_list_of_nodes,
        generate_grouped_partitions_from_list_of_nodes,
        lambda module, groups: generate_pattern_op_partitions(module, None, groups),
        lambda module, groups: GroupBasedPartitioner(module, supports(torch.sin), node_groups=groups),
        fuse_by_partitions,
        split,
    ):
        for groups, message in (
            ([node["sin"]], r"^the nodes of group 0 come in a list, not as the node 'sin'$"),
            (node["sin"], r"^groups come in a list, not as the node 'sin'$"),
        ):
            with pytest.raises(PartitionError, match=message) as caught:
                face(module, groups)

            assert isinstance(caught.value, TypeError)


def test_group_based_partitioner() -> None:
    """The supported nodes of a group go into one part, with what stands between them; two groups share no node."""
    module, node = trace(lambda x: (torch.sin(torch.cos(torch.sin(x))), torch.relu(x) + 1))
    support = supports(torch.sin, torch.cos, operator.add)
    groups = [[node["sin"], node["sin_1"], node["relu"]]]

    partitions = GroupBasedPartitioner(module, support, True, node_groups=groups).propose_partitions()

    assert any({"sin", "cos", "sin_1"} <= set(names) for names in names_in(partitions))
    with pytest.raises(PartitionError, match=r"^node sin is in two groups: 0 and 1$"):
        GroupBasedPartitioner(module, support, node_groups=[[node["sin"]], [node["cos"], node["sin"]]])


def test_pattern_support_chains_with_others() -> None:
    """A pattern support is a support like any other."""
    module = core_graph(ConvLinear(), torch.ones(1, 3, 8, 8))
    support: Any = any_chain(create_pattern_support([linear_pattern()]), supports(aten.sin.default))

    partitions = CapabilityBasedPartitioner(module, support).propose_partitions()

    assert [["permute", "addmm", "sin", "permute_1", "addmm_1"]] == names_in(partitions)
