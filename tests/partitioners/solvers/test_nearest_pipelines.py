"""What the pipeline lacks that comes nearest, where none keeps the budgets: told in bounded time."""

from __future__ import annotations

import networkx as nx
import pytest

from fxpasses.devices import Device, Link
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous.tight_memory import explaining


def refused() -> InfeasibleError:
    """Why twelve nodes of four bytes do not fit on two devices that have as many bytes, but not in fours."""
    graph = nx.DiGraph()
    for number in range(6):
        graph.add_node(number, seconds=1.0, kept_bytes=4, output_bytes=1)
        graph.add_node(f"{number} after", seconds=1.0, kept_bytes=4, output_bytes=1)
        graph.add_edge(number, f"{number} after")
    problem = PlacementProblem(graph, [Device("a", 26), Device("b", 22)], [Link("a", "b", 1e9)])
    with pytest.raises(InfeasibleError) as caught:
        solve_placement(problem)
    return caught.value


def test_what_the_nearest_lacks_is_looked_for_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On sixteen heads side by side it took half a minute, whatever the budget."""
    fewest = refused()
    assert "the one that comes nearest needs" in str(fewest)

    monkeypatch.setattr(explaining, "STEPS_A_SECOND", 0.0)
    hurried = refused()

    assert "which is proven: each lacks 1 byte or more on some device, and the nearest one" in str(hurried)
    assert hurried.missing_bytes >= fewest.missing_bytes > 0
