"""What nodes of an abstract problem may carry: a slip in a name would count as nothing."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

from fxpasses import Device, Link
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners import PlacementProblem, solve_placement

READ = (
    "What is read of a node: seconds, kept_bytes, shared_bytes, live_bytes, output_bytes, output_seconds, backward_of, "
    "replicable."
)


def chain(**facts: Any) -> nx.DiGraph[str]:
    graph = nx.DiGraph([("a", "b")])
    for node in graph:
        graph.nodes[node].update(facts)
    return graph


def refusal(graph: nx.DiGraph[str]) -> str:
    with pytest.raises(PlacementError) as failure:
        solve_placement(PlacementProblem(graph, [Device("x"), Device("y")]))
    return str(failure.value)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("second", "seconds"),
        ("Seconds", "seconds"),
        ("output_byte", "output_bytes"),
        ("kept-bytes", "kept_bytes"),
        ("live_byte", "live_bytes"),
        ("shared_byte", "shared_bytes"),
        ("replicatable", "replicable"),
    ],
)
def test_a_name_that_looks_like_one_that_is_read_is_refused(slip: str, meant: str) -> None:
    costs = {"kept_bytes" if meant == "seconds" else "seconds": 1}

    message = refusal(chain(**costs, **{slip: 1}))

    assert f"Node 'a' has the attribute {slip!r}, which nobody reads; did you mean {meant!r}? {READ}" == message


def test_attributes_of_ones_own_are_left_alone() -> None:
    """Also one that looks like a name that is read, where the node carries that one, too."""
    graph = chain(seconds=1.0, second=2, name="layer", colour="red", reads=3, bytes=4, output="y")

    assert 1.0 == solve_placement(PlacementProblem(graph, [Device("x"), Device("y")])).objective_value


def test_costs_on_edges_are_refused() -> None:
    graph = chain(seconds=1.0)
    graph.edges["a", "b"]["output_bytes"] = 5

    assert (
        "The edge from 'a' to 'b' has 'output_bytes', and only nodes have costs: what goes over it is output_bytes or "
        "output_seconds of the node that makes it."
    ) == refusal(graph)


def test_a_device_in_the_place_of_its_name_is_told_shortly() -> None:
    assert "Node 'a' has seconds for the device 'x' as a Device, write its name; there are x, y." == refusal(
        chain(seconds={Device("x"): 1.0})
    )


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_whether_a_node_may_be_computed_again_is_a_bool(value: Any) -> None:
    assert f"Node 'a' has replicable={value!r}; give True or False." == refusal(chain(seconds=1, replicable=value))


def test_bytes_and_seconds_of_an_output_add_up() -> None:
    problem = PlacementProblem(
        chain(seconds=1.0, output_bytes=16, output_seconds=0.5),
        [Device("x"), Device("y")],
        [Link("x", "y", 64.0, 0.25)],
        pinned={"a": "x", "b": "y"},
    )

    assert 1.0 + 0.5 + 0.25 + 16 / 64.0 == solve_placement(problem).load["x"]


def test_a_graph_without_any_cost_is_refused() -> None:
    assert f"No node of the graph has a cost, so there is nothing to balance. {READ}" == refusal(chain())
    assert (
        f"No node of the graph has a cost (they have 'weight', 'time'), so there is nothing to balance. {READ}"
        == refusal(chain(weight=2, time=1))
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"devices": None}, "`devices` is a list of devices, not None."),
        ({"links": None}, "`links` is a list of links, not None."),
        ({"pinned": None}, "`pinned` is a dict by nodes, not None."),
        ({"forbidden": ["a"]}, "`forbidden` is a dict by nodes, not ['a']."),
        ({"forbidden": {"a": None}}, "`forbidden` maps 'a' to None; give a list of device names."),
        ({"forbidden": {"a": "x"}}, "`forbidden` maps 'a' to 'x'; give a list of device names."),
        ({"colocate": 1}, "`colocate` is a list of groups, not 1."),
        ({"colocate": [1]}, "`colocate` is a list of groups, and 1 is no group; write [[1, ...]]."),
        ({"colocate": ["ab"]}, "`colocate` is a list of groups, and 'ab' is a text; write [['ab', ...]]."),
    ],
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlacementError) as failure:
        PlacementProblem(chain(seconds=1), **{"devices": [Device("x"), Device("y")], **options})

    assert sentence == str(failure.value)


def test_a_node_without_seconds_may_be_forbidden_everywhere() -> None:
    """It takes none; what forbids it is told, not that they are missing."""
    graph = nx.DiGraph([("a", "b")])
    graph.nodes["b"]["seconds"] = 1.0

    for options in ({"forbidden": {"a": ["x", "y"]}}, {"forbidden": {"a": ["x"]}, "pinned": {"a": "x"}}):
        with pytest.raises(InfeasibleError, match=r"^'a' may run nowhere \(.*forbidden on x.*\): give it a device\.$"):
            solve_placement(PlacementProblem(graph, [Device("x"), Device("y")], **options))  # type: ignore[arg-type]


def test_a_budget_of_more_seconds_than_anybody_waits_is_cut() -> None:
    problem = PlacementProblem(chain(seconds=1.0), [Device("x"), Device("y")], time_budget=1e300)

    assert 1e9 == problem.time_budget
    assert 1.0 == solve_placement(problem).objective_value
