"""Let devices compute cheap nodes again instead of having their values sent, where that pays and every budget holds.

For each device a minimum cut says what to make there (:mod:`fxpasses.partitioners.placing.making_or_sending`): a mask,
position ids, a rotary table, a view, a cast. What is then used nowhere else moves there. The whole is taken only if it
is no worse by the objective, and keeps every budget with the bytes of what is computed again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Literal

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import MAIN_MEMORY, Device, Link, Topology, same_torch_device
from fxpasses.editing.attributes import find_attribute
from fxpasses.errors import CycleError, PartitionError
from fxpasses.metadata import value_of
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_times import critical_path, times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures, is_compute, value_bytes
from fxpasses.partitioners.costs.shared_state import sent_state
from fxpasses.partitioners.costs.training_steps import TrainingStep
from fxpasses.partitioners.placing.budget_checks import check_budgets, training_figures
from fxpasses.partitioners.placing.colocation import backward_partners, must_share
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.making_or_sending import NEVER, PICOSECONDS, cheapest
from fxpasses.partitioners.placing.objective_values import objective_value
from fxpasses.partitioners.placing.replicas import bytes_saved, crossing_bytes, why_not_replicable, with_replicas
from fxpasses.partitioners.placing.selectors import select
from fxpasses.partitioners.placing.wishes import Wish
from fxpasses.partitioners.solvers.proofs.bounds import load_bound
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of
from fxpasses.partitioners.tensor_sizes import tensors_in

__all__ = ["Replicate", "Replicated", "add_device_replicas"]

Replicate = Literal["cheaper", "always", "never"]
"""Whether a device computes again what it could have sent: where that takes less time, wherever it is cheap, never."""

FLOPS_A_BYTE = 16
"""Up to so many operations for a byte of its result a node is cheap by itself: no product, no large sum."""


@attrs.frozen(eq=False)
class Replicated:
    """A placement whose devices compute some nodes again.

    Args:
        found: The answer; its assignment names the replicas.
        figures: The graph with the replicas written into it, measured.
        assignment: The same answer over that graph.
        saved: Bytes that cross less in one run, by part that computes something again.
    """

    found: Found
    figures: GraphFigures
    assignment: Assignment
    saved: Mapping[str, int]


def add_device_replicas(figures: GraphFigures, wish: Wish, found: Found, how: Replicate) -> Replicated | None:
    """Choose replicas for a placement; None where there are none to choose.

    Args:
        figures: The measured graph.
        wish: What the caller asked for.
        found: A placement that keeps every budget.
        how: ``cheaper``: what takes fewer seconds to make than to send, if the objective gets no worse; ``always``: as
            few bytes as cheap nodes can save, whatever it takes.

    Returns:
        The placement with replicas, every budget kept.
    """
    if how == "never" or len(dict.fromkeys(found.runs.device_of.values())) < 2:
        return None
    try:
        return _best(figures, wish, found, _Choice.of(figures, wish, found.runs, how), how)
    except (CycleError, PartitionError):  # what only asserts is kept in order with other assertions, replicas included
        choice = _Choice.of(figures, wish, found.runs, how, only_pure=True)
    return _best(figures, wish, found, choice, how)


def _best(figures: GraphFigures, wish: Wish, found: Found, choice: _Choice, how: Replicate) -> Replicated | None:
    """The replicas of all devices, or of those for which they pay, one after the other."""
    devices = [device for device, made in choice.made.items() if made]
    if not devices:
        return None
    trial = _tried(figures, wish, found, choice, devices, how)
    if trial is not None:
        return trial
    taken: list[str] = []
    best: Replicated | None = None
    for device in devices if len(devices) > 1 else ():
        trial = _tried(figures, wish, found, choice, [*taken, device], how)
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
    def of(cls, figures: GraphFigures, wish: Wish, runs: Runs, how: Replicate, *, only_pure: bool = False) -> _Choice:
        """One minimum cut for each device."""
        home = {node: runs.device_of[str(part)] for node, part in runs.assignment.partition_of.items()}
        banned = _banned(figures, wish)
        if only_pure:
            banned.update({node: None for node in figures.nodes if not figures.effects.of(node).is_pure})
        prices = _Prices(figures, wish.topology, home, how, banned)
        names = dict.fromkeys(runs.device_of.values())
        made = {name: dict.fromkeys(prices.made_on(wish.topology[name])) for name in names}
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


@attrs.frozen(eq=False)
class _Prices:
    """What it costs to make a value on a device, and to send it there."""

    figures: GraphFigures
    topology: Topology
    home: Mapping[Node, str]
    how: Replicate
    banned: Mapping[Node, frozenset[str] | None]
    _replicable: dict[Node, bool] = attrs.field(factory=dict, init=False)

    def made_on(self, device: Device) -> list[Node]:
        """What a device makes itself of the values of others that it uses, and of what leads to them."""
        here = [node for node in self.figures.nodes if self.home[node] == device.name]
        needed = dict.fromkeys(
            used for node in here for used in node.all_input_nodes if self.home.get(used, device.name) != device.name
        )
        making = self._cone(needed, device, _Held.of(self.figures, here))
        far = {node for node in making if self.home.get(node, device.name) != device.name}
        if all(making[node] == NEVER for node in far):
            return []
        sending = {node: self.sending(node, device) for node in making}
        made, _there = cheapest(making, sending, needed)
        return sorted(node for node in made if node in far)

    def _cone(self, needed: Iterable[Node], device: Device, held: _Held) -> dict[Node, int]:
        """What leads to the needed values, and the price of making each; not beyond what is there or never made."""
        limit = sum(self.sending(node, device) for node in needed)
        largest = max(map(self.figures.sent, needed), default=0)
        making: dict[Node, int] = {}
        waiting = list(needed)
        while waiting:
            node = waiting.pop()
            if node in making:
                continue
            leaf = not is_compute(node)
            price = self._leaf(node, device, held, largest) if leaf else self.making(node, device)
            making[node] = price if price <= limit else NEVER
            if making[node] < NEVER and self.home.get(node) != device.name:
                waiting.extend(node.all_input_nodes)
        return making

    def sending(self, node: Node, device: Device) -> int:
        """The price of a value from its home; inputs and constants are not sent from device to device."""
        if not is_compute(node):
            return NEVER
        if self.home[node] == device.name:
            return 0
        value = value_of(node)
        if isinstance(value, (tuple, list)):
            return NEVER
        size = self.figures.sent(node)
        return self._price(self.topology.seconds(self.home[node], device.name, size), size) if size else 0

    def _price(self, seconds: float, size: int) -> int:
        return 1000 * size if self.how == "always" else round(seconds * PICOSECONDS)

    def making(self, node: Node, device: Device) -> int:
        """The price of computing a node on a device; one at least, so that ties are sent."""
        if self.home[node] == device.name:
            return 0
        if node not in self._replicable:
            self._replicable[node] = self._may(node)
        banned = self.banned.get(node, frozenset())
        if not self._replicable[node] or banned is None or device.name in banned:
            return NEVER
        if self.how == "always":
            return 1
        return 1 + round(self.figures.measured(node, device) * PICOSECONDS)

    def _may(self, node: Node) -> bool:
        cost = self.figures.costs[self.figures.position[node]]
        if self.how == "always" and cost.flops > FLOPS_A_BYTE * max(1, cost.output_bytes):
            return False
        return node not in self.figures.trained and not why_not_replicable(node, self.figures.effects)

    def _leaf(self, node: Node, device: Device, held: _Held, largest: int) -> int:
        """The price of an input or a constant on a device: nothing where it is used anyway."""
        size, tensors = value_bytes(node), tensors_in(value_of(node))
        if node in held.inputs or (
            node.op == "placeholder"
            and all(same_torch_device(tensor.device, device.torch_device) for tensor in tensors)
        ):
            return 0
        if node.op == "get_attr":
            if held.constants.issuperset(self.figures.effects.storages(node)):
                return 0
            attribute = find_attribute(self.figures.graph_module, str(node.target))
            if isinstance(attribute.value, torch.nn.Parameter) or size > largest:
                return NEVER
            if attribute.kind == "constant":
                return 0
            holder = next(self.home[user] for user in sorted(node.users) if user in self.home)
            return self._price(self.topology.seconds(holder, device.name, size), size)
        return self._price(Link(MAIN_MEMORY, device.name).seconds(size), size)


@attrs.frozen
class _Held:
    """What a device has anyway: the storages of its constants, and inputs."""

    constants: frozenset[int]
    inputs: frozenset[Node]

    @classmethod
    def of(cls, figures: GraphFigures, nodes: Iterable[Node]) -> _Held:
        """What some nodes use."""
        nodes = list(nodes)
        constants = frozenset(storage for node in nodes for storage in figures.constants[figures.position[node]])
        used = (used for node in nodes for used in node.all_input_nodes)
        return cls(constants, frozenset(node for node in used if node.op == "placeholder"))


def _banned(figures: GraphFigures, wish: Wish) -> dict[Node, frozenset[str] | None]:
    """The devices that a node must not be computed on again; None for all: its place is settled by somebody else."""
    banned: dict[Node, frozenset[str] | None] = {}
    asked = wish.supports is not None or any(device.supports is not None for device in wish.topology.devices)
    if asked:
        every = frozenset(device.name for device in wish.topology.devices)
        rows = figures.seconds(wish.topology.devices, wish.supports)
        banned = {node: every.difference(row) for node, row in zip(figures.nodes, rows, strict=True)}
    for key, names in wish.forbidden.items():
        more = frozenset([names] if isinstance(names, str) else names)
        for node in select(figures, key, "forbidden"):
            banned[node] = more | (banned.get(node) or frozenset())
    settled = [key for group in wish.colocate for key in group]
    for key, option in (*((key, "pinned") for key in wish.pinned), *((key, "colocate") for key in settled)):
        banned.update(dict.fromkeys(select(figures, key, option)))
    for backward, forward in backward_partners(figures).items():
        banned[backward] = banned[forward] = None
    return banned


def _tried(
    figures: GraphFigures, wish: Wish, found: Found, choice: _Choice, devices: list[str], how: Replicate
) -> Replicated | None:
    """The placement with the replicas of some devices, if it keeps the budgets and is as good."""
    assignment = choice.applied(devices)
    names = {str(part): found.runs.device_of[str(part)] for part in assignment.order}
    twin, written = with_replicas(figures.graph_module, assignment, names)
    measured, step = _measured_again(twin, wish.training, sends_state=figures.sends_state)
    runs = Runs(written, names)
    seen = check_budgets(measured, wish.topology, runs, step, always=True)
    if seen.over:
        return None
    now = objective_value(measured, wish.topology, wish.objective, runs, step)
    if how == "cheaper" and (
        now > found.value * (1 + 1e-12) or _seconds(measured, wish, runs) >= _seconds(figures, wish, found.runs)
    ):
        return None
    if _crossing(measured, wish, runs) >= _crossing(figures, wish, found.runs):
        return None
    saved = bytes_saved(written, names, measured.sent)
    bound = min(_bound(figures, wish, found), now)
    better = attrs.evolve(found, runs=Runs(assignment, names), value=now, bound=bound)
    return Replicated(better, measured, written, saved)


def _crossing(figures: GraphFigures, wish: Wish, runs: Runs) -> int:
    """Bytes that cross in one run: values, and buffers that several devices use."""
    device_of = {part: wish.topology[name] for part, name in runs.device_of.items()}
    state = sent_state(figures.shared_state, runs.assignment, device_of)
    values = crossing_bytes(runs.assignment, runs.device_of, figures.sent)
    return sum(values.values()) + sum(len(each.users) * figures.sent(each.names[0]) for each in state)


def _measured_again(
    twin: GraphModule, step: TrainingStep | None, *, sends_state: bool
) -> tuple[GraphFigures, TrainingStep | None]:
    figures = GraphFigures.of(twin, sends_state=sends_state)
    return (figures, None) if step is None else training_figures(figures, step.training)


def _seconds(figures: GraphFigures, wish: Wish, runs: Runs) -> float:
    """One part after the other."""
    device_of = {part: wish.topology[name] for part, name in runs.device_of.items()}
    return times_of(figures, runs.assignment, device_of, wish.topology)[0]


def _bound(figures: GraphFigures, wish: Wish, found: Found) -> float:
    """What no placement is below, however often it computes something: transfers do not count in it."""
    if wish.objective == "latency":
        return min(found.bound, critical_path(figures, wish.topology))
    if wish.objective == "throughput":
        problem = wish.problem(figures, "free", figures.needs)
        tables = tables_of(problem)
        return min(found.bound, load_bound(reduce_problem(problem, tables), tables.memory, "throughput"))
    return found.bound
