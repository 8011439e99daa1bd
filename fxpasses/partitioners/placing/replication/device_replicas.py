"""Let devices compute cheap nodes again instead of having their values sent, where that pays and every budget holds.

For each device a minimum cut says what to make there
(:mod:`fxpasses.partitioners.placing.replication.making_or_sending`): a mask, position ids, a rotary table, a view, a
cast. What is then used nowhere else moves there. The whole is taken only if it is no worse by the objective, and keeps
every budget with the bytes of what is computed again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import attrs
from torch.fx import GraphModule, Node

from fxpasses.errors import CycleError, PartitionError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_times import critical_path, times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures, is_compute
from fxpasses.partitioners.costs.shared_state import sent_state
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.objective_values import objective_value
from fxpasses.partitioners.placing.replication.replica_prices import Prices, banned_from, may_be_made_again
from fxpasses.partitioners.placing.replication.replicas import bytes_saved, crossing_bytes, with_replicas
from fxpasses.partitioners.placing.requests import Replicate, Request
from fxpasses.partitioners.placing.searches.checked_answers import answer_if_any
from fxpasses.partitioners.placing.searches.few_ideals import least_pipeline
from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph, tells_lives
from fxpasses.partitioners.placing.training_figures import training_figures
from fxpasses.partitioners.solvers import solve_placement
from fxpasses.partitioners.solvers.proofs.bounds import load_bound
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

__all__ = ["Replicated", "add_device_replicas", "bound_with_replicas"]

PROVING = 0.25
"""What the bound gets of the seconds of a search."""


@attrs.frozen(eq=False)
class Replicated:
    """A placement whose devices compute some nodes again.

    Args:
        found: The answer; its assignment names the replicas.
        figures: The graph with the replicas written into it, measured.
        assignment: The same answer over that graph.
        saved: Bytes that cross less in one run, by part that computes something again.
        bound_once: What no placement without replicas is below.
    """

    found: Found
    figures: GraphFigures
    assignment: Assignment
    saved: Mapping[str, int]
    bound_once: float = 0.0


def add_device_replicas(figures: GraphFigures, request: Request, found: Found, how: Replicate) -> Replicated | None:
    """Choose replicas for a placement; None where there are none to choose.

    Args:
        figures: The measured graph.
        request: What the caller asked for.
        found: A placement that keeps every budget.
        how: ``cheaper``: what takes fewer seconds to make than to send, if the objective gets no worse; ``always``: as
            few bytes as cheap nodes can save, whatever it takes.

    Returns:
        The placement with replicas, every budget kept.
    """
    if how == "never" or len(dict.fromkeys(found.runs.device_of.values())) < 2:
        return None
    try:
        again = _best(figures, request, found, _Choice.of(figures, request, found.runs, how), how)
    except (CycleError, PartitionError):  # what only asserts is kept in order with other assertions, replicas included
        choice = _Choice.of(figures, request, found.runs, how, only_pure=True)
        again = _best(figures, request, found, choice, how)
    if again is None:
        return None
    bound = min(bound_with_replicas(figures, request, found), again.found.value)
    return attrs.evolve(again, found=attrs.evolve(again.found, bound=bound), bound_once=found.bound)


def _best(figures: GraphFigures, request: Request, found: Found, choice: _Choice, how: Replicate) -> Replicated | None:
    """The replicas of all devices, or of those for which they pay, one after the other."""
    devices = [device for device, made in choice.made.items() if made]
    if not devices:
        return None
    trial = _tried(figures, request, found, choice, devices, how)
    if trial is not None:
        return trial
    taken: list[str] = []
    best: Replicated | None = None
    for device in devices if len(devices) > 1 else ():
        trial = _tried(figures, request, found, choice, [*taken, device], how)
        if trial is not None:
            taken, best = [*taken, device], trial
    return best


@attrs.frozen(eq=False)
class _Choice:
    """What each device had better make itself; what must share a device with others keeps its home."""

    figures: GraphFigures
    runs: Runs
    home: Mapping[Node, str]
    made: Mapping[str, Mapping[Node, None]]
    glued: frozenset[Node]

    @classmethod
    def of(
        cls, figures: GraphFigures, request: Request, runs: Runs, how: Replicate, *, only_pure: bool = False
    ) -> _Choice:
        """One minimum cut for each device."""
        home = {node: runs.device_of[str(part)] for node, part in runs.assignment.partition_of.items()}
        banned = banned_from(figures, request)
        if only_pure:
            banned.update({node: None for node in figures.nodes if not figures.effects.of(node).is_pure})
        prices = Prices(figures, request.topology, home, how, banned)
        names = dict.fromkeys(runs.device_of.values())
        made = {name: dict.fromkeys(prices.made_on(request.topology[name])) for name in names}
        glued = frozenset(node for group in must_share(figures) for node in group)
        return cls(figures, runs, home, made, glued)

    def applied(self, devices: Iterable[str]) -> Assignment:
        """The placement with the replicas of some devices; a node that only these use moves to the first of them."""
        chosen = {name: self.made[name] for name in devices}
        assignment = self.runs.assignment
        rank = {str(part): index for index, part in enumerate(assignment.order)}
        part_of = {node: str(part) for node, part in assignment.partition_of.items()}
        at_home, parts = self._parts(chosen, rank, part_of)
        replicas: dict[Hashable, list[Node]] = {}
        moved: dict[Node, str] = {}
        for (node, _name), part in sorted(parts.items(), key=lambda entry: (rank[entry[1]], entry[0][0])):
            if not at_home[node] and node not in moved:
                moved[node] = part
            else:
                replicas.setdefault(part, []).append(node)
        homes = {**part_of, **moved}
        used = set(homes.values())
        order = [part for part in map(str, assignment.order) if part in used]
        return Assignment.of(
            assignment.graph, homes, order=order, dependencies=self.figures.dependencies, replicas=replicas
        )

    def _parts(
        self, chosen: Mapping[str, Mapping[Node, None]], rank: Mapping[str, int], part_of: Mapping[Node, str]
    ) -> tuple[dict[Node, bool], dict[tuple[Node, str], str]]:
        """Whether each node is still computed at home, and the part of each replica: the first that uses it."""
        at_home: dict[Node, bool] = {}
        parts: dict[tuple[Node, str], str] = {}
        for node in reversed(self.figures.nodes):
            again = [device for device, made in chosen.items() if node in made]
            for device in again:
                using = [part_of[user] for user in node.users if self.home.get(user) == device and at_home[user]]
                using += [parts[user, device] for user in node.users if (user, device) in parts]
                if using:
                    parts[node, device] = min(using, key=rank.__getitem__)
            at_home[node] = (
                not again
                or node in self.glued
                or any(
                    not is_compute(user)
                    or (at_home[user] and node not in chosen.get(self.home[user], ()))
                    or any(user in made and node not in chosen.get(device, ()) for device, made in chosen.items())
                    for user in node.users
                )
            )
        return at_home, parts


def _tried(
    figures: GraphFigures, request: Request, found: Found, choice: _Choice, devices: list[str], how: Replicate
) -> Replicated | None:
    """The placement with the replicas of some devices, if it keeps the budgets and is as good."""
    assignment = choice.applied(devices)
    names = {str(part): found.runs.device_of[str(part)] for part in assignment.order}
    twin, written = with_replicas(figures.graph_module, assignment, names)
    measured, step = _measured_again(twin, request, sends_state=figures.sends_state)
    runs = Runs(written, names)
    now = objective_value(measured, request.topology, request.objective, runs, step)
    if how == "cheaper" and (
        now > found.value * (1 + 1e-12) or _seconds(measured, request, runs) >= _seconds(figures, request, found.runs)
    ):
        return None
    if _crossing(measured, request, runs) >= _crossing(figures, request, found.runs):
        return None
    if check_budgets(measured, request.topology, runs, step, always=True).over:  # takes longest, so it comes last
        return None
    saved = bytes_saved(written, runs.devices(request.topology), measured.crossing, measured.shared_state)
    better = attrs.evolve(found, runs=Runs(assignment, names), value=now, bound=0.0)
    return Replicated(better, measured, written, saved)


def _crossing(figures: GraphFigures, request: Request, runs: Runs) -> int:
    """Bytes that cross in one run: values, and buffers that several devices use."""
    device_of = runs.devices(request.topology)
    state = sent_state(figures.shared_state, runs.assignment, device_of)
    values = crossing_bytes(runs.assignment, runs.device_of, figures.crossing)
    return sum(values.values()) + sum(len(each.users) * figures.crossing(each.names[0]) for each in state)


def _measured_again(
    twin: GraphModule, request: Request, *, sends_state: bool
) -> tuple[GraphFigures, TrainingStep | None]:
    figures = GraphFigures.of(twin, sends_state=sends_state, devices=request.topology.devices)
    if request.training is None:
        return figures, None
    step = TrainingStep.of(twin, request.training.training)
    return training_figures(figures, step), step


def _seconds(figures: GraphFigures, request: Request, runs: Runs) -> float:
    """One part after the other."""
    device_of = runs.devices(request.topology)
    return times_of(figures, runs.assignment, device_of, request.topology)[0]


def bound_with_replicas(figures: GraphFigures, request: Request, found: Found) -> float:
    """What no placement is below, however often it computes something.

    Of pipelines, what may be computed again need not cross; of others nothing need.
    """
    if request.objective == "latency":
        return min(found.bound, critical_path(figures, request.topology))
    if request.objective != "throughput":
        return found.bound
    if found.contiguity != "pipeline":
        problem = request.problem(figures, "free", figures.needs)
        tables = tables_of(problem)
        return min(found.bound, load_bound(reduce_problem(problem, tables), tables.memory, "throughput"))
    remade = attrs.evolve(figures, remade=may_be_made_again(figures, request))
    shorter = attrs.evolve(request, time_budget=PROVING * request.time_budget, explain="never")
    solution = answer_if_any(shorter.problem(remade, "pipeline", figures.needs), solve_placement)
    bound = 0.0 if solution is None else solution.bound
    if bound < found.bound and tells_lives(request):
        bound = max(bound, least_pipeline(ReducedGraph.of(remade, shorter)))
    return min(found.bound, bound)
