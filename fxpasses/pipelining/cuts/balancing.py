"""Cut a model into stages of which the slowest is as fast as can be, and say how far from the best that may be."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import StageError
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.device_times import predict_times
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.solvers.gaps import gap_above

__all__ = ["Balance", "balanced_stages"]

_CHEAPER = (1.0, 1e-1, 1e-2, 1e-6)
"""What links cost, as a share, until every stage gets work: a small model is quickest on fewer stages than wanted."""


@attrs.frozen(eq=False)
class Balance:
    """An automatic cut.

    Args:
        stage_of: The stage of each operator.
        loads: Predicted seconds of each stage for one micro-batch: its operators, and what comes in and goes out.
        bound: No cut into so many stages, or fewer, has a slowest stage below it.
        devices: The name of each stage's device.
    """

    stage_of: Mapping[Node, int]
    loads: tuple[float, ...]
    bound: float
    devices: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How far the slowest stage is above the bound, as a share of it."""
        return gap_above(max(self.loads, default=0.0), self.bound)


def balanced_stages(
    graph_module: GraphModule,
    num_stages: int | None,
    devices: Sequence[Device] | None,
    links: Iterable[Link] = (),
    *,
    time_budget: float = 1.0,
) -> Balance:
    """Find the stage of each node such that the slowest stage is as fast as can be.

    Args:
        graph_module: The model's graph, its nodes with ``val``.
        num_stages: How many stages; or give devices.
        devices: What the stages run on; the order of the stages is the one that is best.
        links: Connections between the devices; pairs without one use the default.
        time_budget: About how many seconds the search may take.

    Raises:
        StageError: Neither a number nor devices, or more stages than can be cut.
        InfeasibleError: The devices' memory does not suffice.
    """
    if devices is None:
        if not isinstance(num_stages, int) or isinstance(num_stages, bool) or num_stages < 1:
            raise StageError(f'split_spec="auto" needs num_stages, a number from 1 on, or devices; not {num_stages!r}')
        devices = [Device(f"stage{index}") for index in range(num_stages)]
    elif num_stages not in (None, len(devices)):
        raise StageError(f"num_stages is {num_stages}, but there are {len(devices)} devices; leave one of them out")
    wanted = len(devices)
    possible = sum(map(is_compute, graph_module.graph.nodes))
    if wanted > possible:
        raise StageError(f"the model has {possible} operators and cannot be cut into {wanted} stages")
    topology = Topology.of(devices, links)
    placement, bound = _each_used(graph_module, topology, time_budget)
    if len(placement.assignment) < wanted:
        raise StageError(
            f"the model can be cut into {len(placement.assignment)} stages, not into {wanted}: "
            "what writes in place, and tuples, stay in one stage, and a stage more would not make the slowest faster"
        )
    _seconds, load = predict_times(graph_module, placement.assignment, placement.device_of, topology, shared=())
    number = {part: index for index, part in enumerate(placement.assignment.order)}
    return Balance(
        {node: number[part] for node, part in placement.assignment.partition_of.items()},
        tuple(load[device.name] for device in placement.device_of.values()),
        bound,
        tuple(device.name for device in placement.device_of.values()),
    )


def _each_used(graph_module: GraphModule, topology: Topology, time_budget: float) -> tuple[DevicePlacement, float]:
    """A placement that uses every device, if there is one, and the bound for the links as they are."""
    bound: float | None = None
    for share in _CHEAPER:
        links = [
            attrs.evolve(link, bandwidth=link.bandwidth / share, latency=link.latency * share)
            for link in _all_links(topology)
        ]
        placement = place_by_device(
            graph_module,
            topology.devices,
            links,
            objective="throughput",
            time_budget=time_budget,
            sends_state=False,  # a stage has its own copy of a tied parameter
        )
        bound = placement.bound if bound is None else bound
        if len(placement.assignment) == len(topology.devices):
            break
    assert bound is not None  # there is at least one share
    return placement, bound


def _all_links(topology: Topology) -> list[Link]:
    pairs = itertools.permutations((device.name for device in topology.devices), 2)
    return [attrs.evolve(topology.link(*pair), first=pair[0], second=pair[1]) for pair in pairs]
