"""An Assignment: checked when it is made, convex after every edit, and able to say why."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import chain_of, random_dag, trace

from fxpasses.dependencies import Dependencies
from fxpasses.errors import CycleError, PartitionError
from fxpasses.partitioners import Assignment, partition_by_capability


def diamond() -> tuple[Any, dict[str, Any]]:
    def function(x):
        first = x + 1
        relu = first.relu()
        mul = relu * 2
        return mul.sin() + first

    return trace(function)


def is_sound(assignment: Assignment) -> bool:
    """Whether partitions are acyclic together, ordered, and hold each node once."""
    view = Dependencies.of(assignment.graph)
    number = {name: place for place, name in enumerate(assignment.order)}
    labels = [number.get(assignment.partition_of.get(node), -1) for node in view.nodes]
    listed = [node for nodes in assignment.partitions.values() for node in nodes]
    return (
        view.cycle(labels) is None
        and len(listed) == len(set(listed)) == len(assignment.partition_of)
        and all(assignment.partitions[name] for name in assignment.order)
        and Assignment.of(assignment.graph, assignment.partition_of, assignment.order) == assignment
    )


def test_tells_nodes_inputs_and_outputs_in_graph_order() -> None:
    """Nodes, inputs and outputs of a partition come in the order of the graph, whatever order they were given in."""
    module, node = diamond()

    assignment = Assignment.of(module, {node["add_1"]: "b", node["mul"]: "a", node["relu"]: "a", node["sin"]: "b"})

    assert assignment.order == ("a", "b")
    assert assignment.nodes("a") == [node["relu"], node["mul"]]
    assert assignment.inputs("b") == [node["add"], node["mul"]]
    assert assignment.outputs("a") == [node["mul"]]
    assert assignment.outside == [node["add"]]
    assert repr(assignment) == "Assignment({'a': 2 nodes, 'b': 2 nodes})"


def test_complaint_09_inputs_come_in_graph_order() -> None:
    """Complaint 9: the border lists ``ids, mask`` for a graph that takes them so, whichever it uses first."""
    module, node = trace(lambda ids, mask: torch.where(mask > 0, ids + 1, ids))

    assignment = Assignment.of(module, [[node["where"], node["gt"], node["add"]]])

    assert assignment.inputs(0) == [node["ids"], node["mask"]]


def test_constants_are_inputs_only_when_asked_for() -> None:
    """A ``get_attr`` node outside of all partitions moves to where it is used, so it crosses no border."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.w

    module = torch.fx.symbolic_trace(Model())
    node = {each.name: each for each in module.graph.nodes}

    assignment = Assignment.of(module, [[node["mul"]]])

    assert assignment.inputs(0) == [node["x"]]
    assert assignment.inputs(0, constants=True) == [node["x"], node["w"]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, n: [[n["add"]], [n["relu"], n["add"]]], "partitions 0 and 1 overlap: both hold add"),
        (lambda m, n: [[n["add"]], []], "partition 1 is empty; leave it out"),
        (
            lambda m, n: {n["x"]: "a"},
            "partition 'a' holds x, a node of kind placeholder; those stay in the top-level graph",
        ),
        (
            lambda m, n: {n["output"]: "a"},
            "partition 'a' holds output, a node of kind output; those stay in the top-level graph",
        ),
        (lambda m, n: {diamond()[1]["add"]: "a"}, "partition 'a' holds add, a node of another graph"),
        (lambda m, n: {"add": "a"}, "partition 'a' holds 'add', which is not a torch.fx.Node"),
    ],
)
def test_refuses_bad_partitions(make: Any, message: str) -> None:
    """Overlaps, empty partitions, placeholders, outputs and foreign nodes are refused with what is wrong."""
    module, node = diamond()

    with pytest.raises(PartitionError) as caught:
        Assignment.of(module, make(module, node))

    assert message == str(caught.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda assignment, node: assignment.why("mul"),
        lambda assignment, node: assignment.explain(node, "mul"),
        lambda assignment, node: assignment.drop("mul"),
        lambda assignment, node: assignment.drop(3),
        lambda assignment, node: assignment.drop([3]),
        lambda assignment, node: assignment.drop([[node]]),
    ],
)
def test_what_is_no_node_is_refused(ask: Any) -> None:
    """Names and numbers are no nodes; the message says where there are some."""
    module, node = diamond()
    assignment = Assignment.of(module, [[node["mul"]]])

    with pytest.raises(PartitionError, match=r"is no node but of type .*; take nodes from the graph") as caught:
        ask(assignment, node["mul"])

    assert isinstance(caught.value, TypeError)


def test_refuses_an_erased_node() -> None:
    """A node that was erased from the graph is refused."""
    module, node = trace(lambda x: (x + 1, x * 2)[0])
    module.graph.erase_node(node["mul"])

    with pytest.raises(PartitionError, match=r"^partition 'a' holds mul, which was erased from the graph$"):
        Assignment.of(module, {node["mul"]: "a"})


def test_refuses_a_cycle_with_its_path() -> None:
    """A partition that a path leaves and re-enters is refused, and the path is an attribute."""
    module, node = diamond()

    with pytest.raises(CycleError) as caught:
        Assignment.of(module, {node["add"]: "a", node["mul"]: "a"})

    assert str(caught.value) == (
        "partition 'a' would wait for itself: add -> relu -> mul; take a node of this path out, or put all of it in"
    )
    assert caught.value.path == (node["add"], node["relu"], node["mul"])


def test_refuses_partitions_that_wait_for_each_other() -> None:
    """Two partitions, each convex alone, that wait for each other are refused."""
    module, node = trace(lambda x, y: ((x + 1).relu(), (y * 2).sin()))
    first, second = [node["add"], node["sin"]], [node["mul"], node["relu"]]

    with pytest.raises(CycleError, match=r"^partitions 0, 1 would wait for each other: "):
        Assignment.of(module, [first, second])


def test_an_order_edge_counts_like_data() -> None:
    """A write between two reads keeps them out of one partition, and the message says which write."""
    module, node = trace(lambda x: (x + 1, x.sin_(), x + 2)[::2])

    with pytest.raises(CycleError, match=r"sin_"):
        Assignment.of(module, [[node["add"], node["add_1"]]])


def test_checks_the_order_that_it_is_given() -> None:
    """An order that dependencies contradict, or that names other partitions, is refused."""
    module, node = diamond()
    grouping = {node["relu"]: "a", node["sin"]: "b"}

    with pytest.raises(PartitionError) as wrong:
        Assignment.of(module, grouping, order=["b", "a"])
    with pytest.raises(PartitionError, match=r"^the order leaves out partition 'b'$"):
        Assignment.of(module, grouping, order=["a"])
    with pytest.raises(PartitionError, match=r"^partition 'c' is empty; leave it out of the order$"):
        Assignment.of(module, grouping, order=["a", "b", "c"])

    assert str(wrong.value) == (
        "the order puts partition 'b' at place 0, but it waits for 'a'; an order that works is ['a', 'b']"
    )


def test_drop_cuts_into_convex_pieces() -> None:
    """Complaint 16: dropping a bridge node leaves convex pieces, and the node says that it was dropped."""
    module, node = diamond()
    whole = Assignment.of(module, [[node["add"], node["relu"], node["mul"], node["sin"]]])

    dropped = whole.drop(node["relu"], reason="needs another kernel")

    assert [[node["add"]], [node["mul"], node["sin"]]] == list(dropped.partitions.values())
    assert dropped.order == (0, 1)
    assert dropped.why(node["relu"]) == "needs another kernel"
    with pytest.raises(CycleError, match=r"^partition 0 would wait for itself: add -> relu -> mul"):
        whole.drop(node["relu"], pieces=False)


def test_merge_keeps_the_first_name_or_says_why_not() -> None:
    """Merging takes the first name; where it would close a cycle, the path is the error and nothing changes."""
    module, node = diamond()
    assignment = Assignment.of(module, {node["add"]: "a", node["relu"]: "b", node["sin"]: "c", node["add_1"]: "c"})

    assert assignment.merge("a", "b").order == ("a", "c")
    with pytest.raises(CycleError, match=r"relu -> mul -> sin"):
        assignment.merge("b", "c")


def test_move_to_an_old_and_to_a_new_partition() -> None:
    """A node moves between partitions, in from outside, and into a new one; the order follows."""
    module, node = diamond()
    assignment = Assignment.of(module, {node["relu"]: "a", node["sin"]: "b"})

    assert assignment.move(node["mul"], "a").nodes("a") == [node["relu"], node["mul"]]
    assert assignment.move(node["mul"], "new").order == ("a", "new", "b")
    with pytest.raises(PartitionError, match=r"^partition 'a' holds x, a node of kind placeholder"):
        assignment.move(node["x"], "a")


def test_split_by_connection_and_by_hand() -> None:
    """A partition splits into what no edge connects, or into given pieces, of which the first keeps the name."""
    module, node = trace(lambda x, y: ((x + 1).relu(), (y * 2).sin()))
    assignment = Assignment.of(module, {node[name]: "p" for name in ("add", "relu", "mul", "sin")})

    by_connection, by_hand = assignment.split("p"), assignment.split("p", [[node["relu"]]])

    assert {"p": [node["add"], node["relu"]], "p_1": [node["mul"], node["sin"]]} == dict(by_connection.partitions)
    assert by_hand.nodes("p_1") == [node["relu"]]
    with pytest.raises(PartitionError, match=r"^cannot split partition 'p': x is "):
        assignment.split("p", [[node["x"]]])


def test_rename() -> None:
    """Partitions get other names, each its own."""
    module, node = diamond()
    assignment = Assignment.of(module, {node["relu"]: "a", node["sin"]: "b"})

    assert assignment.rename({"a": "left"}).order == ("left", "b")
    with pytest.raises(PartitionError, match=r"same name"):
        assignment.rename({"a": "b"})


def test_unknown_partition_lists_the_known_ones() -> None:
    """Asking for a partition that is not there names those that are."""
    module, node = diamond()
    assignment = Assignment.of(module, {node["relu"]: "a"})

    with pytest.raises(PartitionError, match=r"^there is no partition 'z'; the partitions are: 'a'$"):
        assignment.nodes("z")


def test_explains_two_nodes() -> None:
    """``explain`` tells of two nodes whether they are together, could be, or what path keeps them apart."""
    module, node = diamond()
    assignment = Assignment.of(module, {node["add"]: 0, node["mul"]: 1, node["sin"]: 1, node["add_1"]: 2})

    assert assignment.explain(node["mul"], node["sin"]) == "both are in partition 1"
    assert assignment.explain(node["sin"], node["add_1"]) == "partitions 1 and 2 could be merged without a cycle"
    assert assignment.explain(node["add"], node["mul"]) == "merging 0 and 1 would close a cycle: add -> relu -> mul"
    assert assignment.explain(node["add"], node["relu"]) == "relu is outside: no partitioner proposed it"


def random_edit(rng: random.Random, assignment: Assignment) -> Assignment:
    """One edit, or the same Assignment if there is nothing to edit or the edit would close a cycle."""
    nodes = [node for node in assignment.graph.nodes if node.op == "call_function"]
    edits = [lambda: assignment.move(rng.choice(nodes), rng.choice([*assignment.order, "fresh"]))]
    if len(assignment):
        edits.append(lambda: assignment.drop(rng.choice(list(assignment.partition_of))))
        edits.append(lambda: assignment.split(rng.choice(assignment.order)))
    if len(assignment) > 1:
        edits.append(lambda: assignment.merge(*rng.sample(assignment.order, 2)))
    try:
        return rng.choice(edits)()
    except CycleError:
        return assignment


@settings(max_examples=60 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_complaint_16_every_edit_keeps_partitions_convex(rng: random.Random) -> None:
    """Complaint 16: after any edits of any proposal, partitions are convex, in order, and hold each node once."""
    module, support, _ = random_dag(rng, rng.randrange(3, 16))
    assignment = partition_by_capability(module, support)

    for _ in range(6):
        assignment = random_edit(rng, assignment)

    assert is_sound(assignment)


@settings(max_examples=60 * FUZZ, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_if_acyclic_gives_what_of_gives_and_nothing_where_that_raises(rng: random.Random) -> None:
    module, _support, _ = random_dag(rng, rng.randrange(3, 12))
    nodes = [node for node in module.graph.nodes if node.op == "call_function" and rng.random() < 0.9]
    grouping = {node: rng.choice("ab") for node in nodes}
    try:
        expected = Assignment.of(module, grouping)
    except CycleError:
        expected = None

    assert expected == Assignment.if_acyclic(module, grouping)
    assert expected is None or expected.order == Assignment.if_acyclic(module, grouping).order  # type: ignore[union-attr]


def test_edits_of_a_long_chain_do_not_recurse() -> None:
    """Complaint 38: a partition of 20,000 nodes is dropped from, split and merged without recursion."""
    module = chain_of(*([torch.sin] * 20_000))
    nodes = list(module.graph.nodes)[1:-1]
    assignment = Assignment.of(module, [nodes])

    dropped = assignment.drop(nodes[10_000])

    assert [10_000, 9_999] == [len(part) for part in dropped.partitions.values()]
    assert len(assignment.split(0)) == 1
