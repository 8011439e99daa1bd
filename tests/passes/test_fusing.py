"""``fuse_by_partitions`` replaces groups by calls of submodules, in place, and nothing else changes."""

from __future__ import annotations

import copy
import operator
import random
import sys

import pytest
import torch
from fuzz import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import random_program
from shapes import SHAPES, assert_same_behaviour, behaviour, behaviour_of_source, compute_nodes
from torch import nn
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.passes.utils import fuser_utils

from fxpasses.errors import CycleError, PartitionError
from fxpasses.passes import fuse_by_partitions

EXAMPLES = examples(100)


def thirds(graph_module):
    """Two partitions: the first and the last third of the nodes."""
    nodes = compute_nodes(graph_module)
    size = max(1, len(nodes) // 3)
    return [part for part in (nodes[:size], nodes[size:][-size:]) if part]


@pytest.mark.parametrize("name", SHAPES)
def test_fusing_keeps_outputs_and_gradients(name):
    """For every shape of graph, with a part at the front, one at the back, and left-over nodes between."""
    shape = SHAPES[name]
    for partitions in (thirds, lambda source: [compute_nodes(source)] if compute_nodes(source) else []):
        source = shape.capture()
        groups = partitions(source)
        done = fuse_by_partitions(source, groups)
        done.recompile()

        assert done is source
        done.graph.lint()
        alive = [] if name == "none_comes_out" else groups  # what nothing depends on is not made a part
        assert len(alive) == sum(child.startswith("fused_") for child, _ in done.named_children())
        assert_same_behaviour(behaviour_of_source(shape.name), behaviour(done, shape), state=False, exact=shape.exact)


@pytest.mark.parametrize("policy", ["share", "own"])
def test_fusing_can_move_constants_inside(policy):
    """With another policy, parameters live in the parts that read them and nowhere else."""
    for name in ("ExportedParameters", "TiedWeights", "KeyValueCache", "ConstantInTwoPlaces"):
        shape = SHAPES[name]
        source = shape.capture()
        bytes_before = {tensor.data_ptr() for tensor in source.state_dict().values()}
        done = fuse_by_partitions(source, thirds(source), constants=policy)
        done.recompile()
        state = [new for new, _ in (*done.named_parameters(), *done.named_buffers())]
        names = {new: new.split(".", 1)[1] if new.startswith("fused_") else new for new in state}

        assert bytes_before == {tensor.data_ptr() for tensor in done.state_dict().values()}
        assert_same_behaviour(behaviour_of_source(shape.name), behaviour(done, shape, names=names), state=False)


def test_nodes_outside_keep_their_identity_and_order():
    """Complaint 34: what is not fused is not touched."""
    source = SHAPES["diamond"].capture()
    nodes = list(source.graph.nodes)
    fused = [node for node in nodes if node.name in ("sin", "cos")]
    fuse_by_partitions(source, [fused])
    left = [node for node in nodes if node not in fused]

    assert left == [node for node in source.graph.nodes if node in left]
    assert ["x", "y", "mul", "fused_0", "getitem", "getitem_1", "matmul", "add", "output"] == [
        node.name for node in source.graph.nodes
    ]


def test_parts_are_moved_only_as_far_as_they_must():
    """Interleaved groups are gathered; a left-over node that needs a result waits for it."""

    def model(x, y):
        a = x + 1
        b = y.sin()
        c = b * 2
        d = a * c
        return d, c, b + 1

    source = symbolic_trace(model)
    a, _, _, d, _ = compute_nodes(source)
    done = fuse_by_partitions(source, [[a, d]])
    done.recompile()
    x, y = torch.rand(2), torch.rand(2)

    assert ["sin", "mul", "fused_0", "add_1"] == [node.name for node in compute_nodes(done)]
    torch.testing.assert_close(done(x, y), model(x, y))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6))
def test_random_programs_fused_at_random_mean_the_same(seed):
    """Complaint 1: fusing across a write is refused with a path, everything else is equal."""
    rng = random.Random(seed)
    program = random_program(rng, size=rng.randint(3, 14))
    source = program.graph_module
    nodes = compute_nodes(source)
    groups = {}
    for node in nodes:
        if rng.random() < 0.6:
            groups.setdefault(rng.randrange(3), []).append(node)
    torch.manual_seed(0)
    given_ = [tensor.clone() for tensor in program.inputs]
    expected = copy.deepcopy(source)(*given_), given_, torch.get_rng_state()
    text = str(source.graph)
    try:
        fuse_by_partitions(source, list(groups.values()))
    except CycleError as error:
        assert error.path  # noqa: PT017  # refusing is one of two right answers
        assert text == str(source.graph)
        return
    source.graph.lint()
    source.recompile()
    torch.manual_seed(0)
    inputs = [tensor.clone() for tensor in program.inputs]

    torch.testing.assert_close(
        (source(*inputs), inputs, torch.get_rng_state()), expected, rtol=0, atol=0, equal_nan=True
    )


def test_complaint_01_fusing_across_a_write_is_refused():
    """Complaint 1: ``x + 1`` and ``x + 2`` around ``x.sin_()`` are not fused into one."""

    def model(x):
        before = x + 1
        x.sin_()
        return before, x + 2

    source = symbolic_trace(model)
    before, sine, after = compute_nodes(source)
    with pytest.raises(CycleError, match=r"^partition 0 would wait for itself: add -> sin_ \(add reads x, .* -> add_1"):
        fuse_by_partitions(source, [[before, after]])
    fuse_by_partitions(source, [[before, sine], [after]])
    source.recompile()
    x = torch.rand(3)

    torch.testing.assert_close(source(x.clone()), model(x.clone()))


def test_complaint_08_getitem_goes_with_its_producer():
    """Complaint 8: elements are picked inside even if the partition left the getitem nodes out."""

    def model(x):
        parts = torch.split(x, 2)
        return [parts[0] + 1, parts[1] + 1]

    source = symbolic_trace(model)
    split_node = compute_nodes(source)[0]
    fuse_by_partitions(source, [[split_node]])
    source.recompile()

    assert "getitem" in source.fused_0.code
    torch.testing.assert_close(source(torch.arange(4.0)), [torch.tensor([1.0, 2]), torch.tensor([3.0, 4])])


def test_constants_that_are_named_in_a_partition_go_inside():
    """A get_attr node of a partition is read inside; one that is used outside, too, is read on both sides."""
    source = SHAPES["Parameters"].capture()
    x = torch.rand(4, 4)
    expected = source(x)
    weight = source.graph.find_nodes(op="get_attr")[0]
    first = weight.next
    fuse_by_partitions(source, [[weight, first]])
    source.recompile()

    assert [torch.equal(source.weight, source.fused_0.weight)] == [True]
    assert ["x"] == [node.name for node in source.fused_0.graph.find_nodes(op="placeholder")]
    torch.testing.assert_close(source(x), expected)


def test_a_part_without_uses_is_known_to_be_dead_or_not():
    """Dead-code elimination drops a fused part that only computes, and keeps one that writes."""

    def model(x):
        x.relu()
        x.add_(1)
        return x

    source = symbolic_trace(model)
    relu, add = compute_nodes(source)
    fuse_by_partitions(source, [[relu], [add]])
    source.graph.eliminate_dead_code()

    assert ["fused_1"] == [node.target for node in compute_nodes(source)]


def test_always_return_tuple():
    """One output is a tuple on request."""
    source = SHAPES["chain"].capture()
    x = torch.rand(4)
    expected = source(x)
    fuse_by_partitions(source, thirds(source), prefix="part_", always_return_tuple=True)
    source.recompile()

    assert isinstance(source.part_0(x), tuple)
    torch.testing.assert_close(source(x), expected)


@pytest.mark.skipif(not hasattr(fuser_utils, "heapq"), reason="torch's own fuser does not keep the order of nodes")
def test_torchs_own_gives_the_same_text():
    """For groups that both can fuse, the text is that of torch 2.13."""

    for name in ("chain", "diamond", "nested_outputs", "several_values", "WholeTuplesAcross"):
        texts = []
        for fuse in (fuse_by_partitions, fuser_utils.fuse_by_partitions):
            source = SHAPES[name].capture()
            nodes = compute_nodes(source)
            fuse(source, [dict.fromkeys(nodes)])
            source.recompile()
            texts.append(source.code + source.fused_0.code)

        assert texts[0] == texts[1]


def test_complaint_38_ten_thousand_parts_need_no_recursion():
    """Complaint 38: a chain of 20,000 nodes under a recursion limit of 200."""
    graph = Graph()
    value = graph.placeholder("x")
    for _ in range(20_000):
        value = graph.call_function(operator.add, (value, 1))
    graph.output(value)
    source = GraphModule(nn.Module(), graph)
    nodes = compute_nodes(source)
    fuse_by_partitions(symbolic_trace(lambda x: x + 1), [])
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        fuse_by_partitions(source, [nodes[place : place + 2] for place in range(0, len(nodes), 2)])
    finally:
        sys.setrecursionlimit(limit)

    assert 10_000 == len(compute_nodes(source))


def test_partitions_that_make_no_sense_are_refused():
    """Messages name the partition and the node; nothing is changed."""
    source, other = SHAPES["chain"].capture(), SHAPES["chain"].capture()
    a, b, c, *_ = compute_nodes(source)
    text = str(source.graph)
    with pytest.raises(PartitionError, match="partition 1 is empty; leave it out"):
        fuse_by_partitions(source, [[a], []])
    with pytest.raises(PartitionError, match="partitions 0 and 1 overlap: both hold relu"):
        fuse_by_partitions(source, [[a, b], [b]])
    with pytest.raises(PartitionError, match="partition 0 holds add, a node of another graph"):
        fuse_by_partitions(source, [compute_nodes(other)[:1]])
    with pytest.raises(CycleError, match="partition 0 would wait for itself: add -> relu -> mul"):
        fuse_by_partitions(source, [[a, c]])

    assert text == str(source.graph)


class Named(nn.Module):
    """Has what parts would be called: a child and a buffer."""

    def __init__(self):
        super().__init__()
        self.fused_0 = nn.Linear(3, 3)
        self.register_buffer("fused_1", torch.ones(3))

    def forward(self, x):
        return self.fused_0(x.sin().cos()).tanh() + self.fused_1


def test_parts_are_called_what_nothing_else_is():
    """A part took the place of a child of its name, of an earlier part, too."""
    graph_module = symbolic_trace(Named())
    x = torch.randn(2, 3)
    expected, state = graph_module(x), dict(graph_module.state_dict())

    def waves():
        return [[node] for node in graph_module.graph.nodes if node.target in ("sin", "cos", "tanh")]

    fuse_by_partitions(graph_module, waves()[:2])
    assert [name for name, _ in graph_module.named_children()] == ["fused_0", "fused_0_1", "fused_1_1"]
    fuse_by_partitions(graph_module, waves())

    assert [name for name, _ in graph_module.named_children()] == ["fused_0", "fused_0_1", "fused_1_1", "fused_0_2"]
    assert torch.equal(graph_module(x), expected)
    assert state.keys() == graph_module.state_dict().keys()
    assert isinstance(graph_module.fused_0, nn.Linear)


def test_a_prefix_that_no_child_can_have_is_made_one():
    graph_module = symbolic_trace(Named())
    x = torch.randn(2, 3)
    expected = graph_module(x)

    fuse_by_partitions(graph_module, [[node for node in graph_module.graph.nodes if node.target == "sin"]], "a.part_")

    assert [name for name, _ in graph_module.named_children()] == ["fused_0", "a_part_0"]
    assert torch.equal(graph_module(x), expected)
