"""Solvers of placement problems, without torch: what goes on which device, and how far from the best that can be.

>>> import networkx as nx
>>> from fxpasses.devices import Device
>>> graph = nx.path_graph(["embed", "attention", "head"], create_using=nx.DiGraph)
>>> for seconds, node in zip([1.0, 2.0, 3.0], graph):
...     graph.nodes[node].update(seconds=seconds, kept_bytes=10, output_seconds=0.5)
>>> solution = solve_placement(PlacementProblem(graph, [Device("a", 25), Device("b", 25)]))
>>> solution.device_of, solution.objective_value, solution.is_optimal
({'embed': 'a', 'attention': 'a', 'head': 'b'}, 3.5, True)
"""

from fxpasses.partitioners.solvers.problem import PlacementProblem, PlacementSolution
from fxpasses.partitioners.solvers.solving import solve_placement

__all__ = ["PlacementProblem", "PlacementSolution", "solve_placement"]
