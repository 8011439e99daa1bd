"""A placement problem without torch: a graph with costs, devices and links; and what a solver answers.

The load of a device is the seconds of its nodes, plus each value that leaves it, once (over the slowest of the links
that it takes), plus each value that enters it, once: the cost model of Tarnawski et al., "Efficient algorithms for
device placement of DNN graph operators", NeurIPS 2020, with links. Its bytes are what its nodes keep, each thing that
they share once, and the largest number of bytes that is alive while one of them runs.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

import attrs
import networkx as nx

from fxpasses.devices import Device, Link, Topology, as_given
from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers.gaps import gap_above
from fxpasses.units import plain_number

__all__ = ["USUAL_SECONDS", "Node", "PlacementProblem", "PlacementSolution", "as_groups"]

Node = Hashable

OBJECTIVES = ("throughput", "latency", "memory", "devices")
CONTIGUITIES = ("pipeline", "convex", "free")
EXPLAIN = ("always", "proven", "never")
ENOUGH = 0.5
"""Seconds of budget from which on integer programs get all their seconds; the default of what places graphs."""
LEAST_EFFORT = 0.2
"""What they get in any case: enough for problems of ten nodes."""
LONGEST = 1e9
"""Seconds: no budget is longer."""
USUAL_SECONDS = 1.0
"""The time budget where none is given."""
PROGRAM = 1.5
"""Seconds that a program gets beside those of the budget: what proves most problems of sixteen nodes."""


def _devices(given: Iterable[Device]) -> tuple[Device, ...]:
    return _listed("devices", "devices", given)


def _links(given: Iterable[Link]) -> tuple[Link, ...]:
    return _listed("links", "links", given)


def _seconds(given: Any) -> Any:
    """A number as Python has it; what is longer than anybody waits is that long, so that steps can be counted."""
    number = plain_number(given)
    return LONGEST if isinstance(number, float) and LONGEST < number < math.inf else number


def as_groups(groups: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
    """Groups as tuples; a text in the place of a group is refused, which would be taken for its letters."""
    groups = _listed("colocate", "groups", groups)
    for group in groups:
        if isinstance(group, str) or not isinstance(group, Iterable):
            kind = "a text" if isinstance(group, str) else "no group"
            raise PlacementError(f"`colocate` is a list of groups, and {group!r} is {kind}; write [[{group!r}, ...]].")
    return tuple(tuple(group) for group in groups)


def _listed(field: str, what: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Iterable):
        raise PlacementError(f"`{field}` is a list of {what}, not {given!r}.")
    return tuple(given)


@attrs.frozen(eq=False)
class PlacementProblem:
    """What to place, where, and what counts.

    The attributes of a node of ``graph``, all optional:

    * ``seconds``: a number, or a mapping from device names to numbers; a device that the mapping leaves out, or gives
      as None or ``inf``, cannot run the node;
    * ``kept_bytes``: what the node keeps on its device; parts of a byte count as a whole one;
    * ``shared_bytes``: a mapping of keys to bytes: what a device keeps once, however many of its nodes name the key
      (tied weights, for example);
    * ``live_bytes``: what is alive while the node runs; a device needs the largest of its nodes;
    * ``output_bytes`` (which go over the links) or ``output_seconds`` (the same over each link): its output; a node
      with both takes the sum of these times;
    * ``backward_of``: the forward node that this node is the backward of. They share a device, and the condition on the
      order of devices holds for the forward nodes; values between backward nodes flow the other way and count as well;
    * ``replicable``: True lets the node be computed again on devices that use its output, instead of sending it there;
      its own inputs then have to be there. That counts under ``throughput``, for pipelines and free placements.

    Args:
        graph: The nodes; an edge says that one needs the other's output. Nodes on a cycle stay together; under
            ``latency`` they run one after the other as one, and what they make leaves at the end.
        devices: Their names and memory count; a node's seconds are its own.
        links: Bandwidth and latency between devices; pairs left out use the default link.
        objective: ``throughput``: the smallest largest load of a device; ``latency``: the shortest time for one sample,
            in which a device runs one node at a time and copies go on beside the nodes; ``memory``: the smallest
            largest number of bytes that a device keeps; ``devices``: the fewest devices, and on these the smallest
            largest load that is found. Budgets are kept under each.
        contiguity: ``pipeline``: each device takes a convex set, and the devices need no value back from later ones;
            ``convex``: each device takes a convex set, but values may flow both ways between two of them, so that a
            device must run its nodes one by one (as parts that run as a whole, they would wait for each other);
            ``free``: any device takes any nodes, as a pipeline over many samples that visits a device several times.
        colocate: Groups of nodes that share a device.
        pinned: The device of a node, by name.
        forbidden: Devices that a node must not be on, by name.
        time_budget: About how many seconds the exact search may take; for free placements and latencies, the search.
            It is turned into a number of steps, so that the answer does not depend on how fast the machine is; 0 leaves
            the exact search out, and the others at their first steps.
        seed: For whatever is drawn.
        effort: The share of their seconds that integer programs get, from 0 (none is asked) to 1. By default it follows
            ``time_budget``: all from half a second on, in proportion below, a fifth at least. All of them are the time
            budget and 1.5 seconds for each program; some answers need several. With less than a fifth, the bound of a
            latency of many nodes is what is known for nothing, and that nothing fits may not be proven.
        explain: Whether an error says what the nearest placement lacks, which may take as long as the search:
            ``always``, ``proven`` (only where it is proven that there is none), or ``never``.

    Raises:
        PlacementError: a node, a device, a number or an option that makes no sense, or that is not there yet.
        InputError: no device, two of one name, or a link to a device that is not there.
    """

    graph: nx.DiGraph[Any]
    devices: tuple[Device, ...] = attrs.field(converter=_devices)
    links: tuple[Link, ...] = attrs.field(default=(), converter=_links)
    objective: str = "throughput"
    contiguity: str = attrs.field(default="pipeline", kw_only=True)
    colocate: tuple[tuple[Node, ...], ...] = attrs.field(default=(), kw_only=True, converter=as_groups)
    pinned: Mapping[Node, str] = attrs.field(factory=dict, kw_only=True)
    forbidden: Mapping[Node, Collection[str]] = attrs.field(factory=dict, kw_only=True)
    time_budget: float = attrs.field(default=USUAL_SECONDS, kw_only=True, converter=_seconds)
    seed: int = attrs.field(default=0, kw_only=True, converter=plain_number)
    effort: float | None = attrs.field(default=None, kw_only=True)
    explain: str = attrs.field(default="always", kw_only=True)

    def __attrs_post_init__(self) -> None:
        Topology.of(self.devices, self.links)
        if not isinstance(self.graph, nx.DiGraph) or self.graph.is_multigraph():
            raise PlacementError(f"The graph is a networkx.DiGraph, not {type(self.graph).__name__}.")
        _check_choice("objective", self.objective, OBJECTIVES)
        _check_choice("contiguity", self.contiguity, CONTIGUITIES)
        _check_choice("explain", self.explain, EXPLAIN)
        budget, seed = self.time_budget, self.seed
        if not _is_number(budget, numbers.Real) or not 0 <= budget <= sys.float_info.max:
            raise PlacementError(f"The time budget is a number of seconds, not {budget!r}.")
        if not _is_number(seed, numbers.Integral) or seed < 0:
            raise PlacementError(f"The seed is a whole number from 0 on, not {seed!r}.")
        effort = self.effort
        if effort is not None and (not _is_number(effort, numbers.Real) or not 0 <= effort <= 1):
            raise PlacementError(f"The effort is a share from 0 to 1, not {effort!r}.")
        for field, table in (("pinned", self.pinned), ("forbidden", self.forbidden)):
            if not isinstance(table, Mapping):
                raise PlacementError(f"`{field}` is a dict by nodes, not {table!r}.")
        self._check_nodes("colocate", (node for group in self.colocate for node in group))
        self._check_nodes("pinned", self.pinned)
        self._check_nodes("forbidden", self.forbidden)
        for node, device in self.pinned.items():
            self._check_device("pinned", node, device)
        for node, devices in self.forbidden.items():
            if isinstance(devices, str) or not isinstance(devices, Collection):
                raise PlacementError(f"`forbidden` maps {node!r} to {devices!r}; give a list of device names.")
            for device in devices:
                self._check_device("forbidden", node, device)

    @property
    def program_effort(self) -> float:
        """The share of their seconds that integer programs get: ``effort``, or what ``time_budget`` says."""
        if self.effort is not None:
            return self.effort
        return min(1.0, max(LEAST_EFFORT, self.time_budget / ENOUGH))

    @property
    def has_little_effort(self) -> bool:
        """Whether an answer is wanted, and no proof: with less effort than any ``time_budget`` means."""
        return self.program_effort < LEAST_EFFORT

    @property
    def wants_answer_only(self) -> bool:
        """Whether no bound is of use, nor why there is no answer."""
        return self.has_little_effort and self.explain == "never"

    @property
    def program_seconds(self) -> float:
        """How long an integer program may take, about."""
        return self.program_effort * (PROGRAM + self.time_budget)

    def _check_nodes(self, field: str, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self.graph:
                raise PlacementError(f"`{field}` names {node!r}, which is not a node of the graph.")

    def _check_device(self, field: str, node: Node, device: str) -> None:
        if all(device != known.name for known in self.devices):
            names = ", ".join(known.name for known in self.devices)
            raise PlacementError(
                f"`{field}` puts {node!r} together with the device {as_given(device)}; there are {names}."
            )


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_choice(field: str, value: str, known: tuple[str, ...]) -> None:
    if isinstance(value, str) and value in known:
        return
    raise PlacementError(f"There is no {field} {value!r}; there is {', '.join(known)}.")


@attrs.frozen
class PlacementSolution:
    """Where each node goes, and what that is predicted to cost.

    Args:
        device_of: The device of each node, by name, in the order of the graph.
        order: The devices that are used, in the order in which values flow through them, if these do not go back and
            forth.
        objective_value: Seconds of the busiest device (``throughput``), bytes of the fullest (``memory``), or how many
            devices are used (``devices``).
        bound: No placement of this kind can be below it. Under ``devices`` it is about their number, and so are ``gap``
            and ``is_optimal``: of the largest load on so many devices they say nothing.
        load: Seconds of each device: its nodes and the values that leave and enter it.
        compute: Seconds of each device's nodes alone.
        kept_bytes: Bytes that each device needs.
        replicas: The further devices on which a node is computed again; its output is sent from that in ``device_of``.
        schedule: Under ``latency``, when each node starts, in seconds; the copy of a value starts when its node ends.
    """

    device_of: Mapping[Node, str]
    order: tuple[str, ...]
    objective_value: float
    bound: float
    load: Mapping[str, float]
    compute: Mapping[str, float]
    kept_bytes: Mapping[str, int]
    replicas: Mapping[Node, tuple[str, ...]] = attrs.field(factory=dict, kw_only=True)
    schedule: Mapping[Node, float] = attrs.field(factory=dict, kw_only=True)

    @property
    def gap(self) -> float:
        """How far above the bound the answer is, as a share of it: 0 is proven optimal."""
        return gap_above(self.objective_value, self.bound)

    @property
    def is_optimal(self) -> bool:
        """Whether the bound proves that no placement of this kind is better.

        Up to rounding, that is: 1e-9 of it, or 1e-6 where an integer program decides.
        """
        return self.gap <= 1e-9

    def nodes(self, device: str) -> list[Node]:
        """The nodes on one device, in the order of the graph."""
        return [node for node, name in self.device_of.items() if name == device]
