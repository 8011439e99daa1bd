"""Place a model that is too large for all devices together: some parts load their parameters from main memory.

Two placements are tried, and the faster one is taken. In one everything that fits stays on the devices, and one device,
the one with the most memory that works, takes what is left; where none works, each takes as many times its memory as
all have to. The other is the fastest one there would be if memory did not count; no placement can be faster, whatever
is loaded, and where its loads hide behind what runs it is taken. What a device then has too much is cut into small
parts: as many of these as possible keep their parameters, evenly spread over the run from the first one on, and the
others load theirs one part ahead.

In training memory and seconds are those of a step: gradients of what is loaded go to main memory, where the optimizer
keeps what it keeps for it, and steps.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import attrs
from torch.fx import Node

from fxpasses.devices import Device, Topology
from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.by_device import place_measured
from fxpasses.partitioners.costs.device_times import makespan_of, times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures, Support
from fxpasses.partitioners.costs.kept_parts import KeptParts
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.placing.colocation import uncuttable
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.device_reasons import refuse_impossible
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.names.part_names import PartNames
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.tensor_sizes import tensor_bytes, tensors_in
from fxpasses.units import format_bytes

__all__ = ["OffloadedPlacement", "offload_where_too_small", "place_with_offloading"]

_PARTS_IN_MEMORY = (8, 16, 32, math.inf)
"""Into how many parts the free memory of a device may be divided: two of them are for loading, the others stay."""
_FINEST = (0.0, -1.0)
"""The most bytes of state in a part where nothing else fits: what needs none is apart from it, or everything is."""

_FASTER = 0.999
"""Smaller parts, of which there are more, have to take less than this share of the time."""

_STEPS = 4
"""Bisections of how much one device must take."""

_TIMES = ("latency", "throughput")
"""The objectives for which memory is only a limit."""

_SECONDS, _BRIEFLY = 0.1, 0.03
"""For a search, and for each of those that only say how much a device must take."""


@attrs.frozen(eq=False)
class OffloadedPlacement:
    """A placement, and the parts whose parameters are loaded when they run."""

    placement: DevicePlacement
    offloaded: tuple[str, ...]


def place_with_offloading(
    measured: MeasuredGraph,
    topology: Topology,
    *,
    objective: Objective = "latency",
    options: Mapping[str, Any] | None = None,
) -> OffloadedPlacement:
    """Place a model that does not fit the devices; its parameters stay in main memory where they have to.

    Args:
        measured: A graph, and the training step where it is placed for training.
        topology: The devices; every budget is kept, with the parameters of two offloaded parts at a time.
        objective: See :func:`~fxpasses.partitioners.by_device.place_by_device`.
        options: What else that function is asked for: pins, forbidden devices, groups, contiguity, seed.

    Raises:
        InfeasibleError: not even so on the only device: an operator with its parameters and those of the next one is
            too large; or on several ones an operator with its own.
        PlacementError: none was found on several devices.
    """
    options = {**(options or {}), "time_budget": _SECONDS}
    resident = measured.without_unread()
    if len(topology.devices) > 1:  # of one, it is told in the end what all that is alive beside it lacks
        _refuse_too_large(resident, topology, options.get("supports"))
    failures: list[PlacementError] = []
    found: list[OffloadedPlacement] = []
    free = _without_budgets(resident, topology, objective, options) if objective in _TIMES else None
    if free is not None:
        with contextlib.suppress(InfeasibleError):
            found.append(offload_where_too_small(measured, free))
        options["contiguity"] = free.contiguity  # others take long to be ruled out, again and again
    is_hidden = bool(found) and free is not None and found[0].placement.objective_value <= free.objective_value
    for some in () if is_hidden else _too_small(topology):
        shared = _with_least_on(resident, topology, some, objective, options)
        try:
            found.append(offload_where_too_small(measured, next(shared)))
        except PlacementError as error:  # none exists, or none was found
            failures.append(error)
            continue
        with contextlib.suppress(PlacementError):
            found += [offload_where_too_small(measured, longer) for longer in shared]
        break
    if not found:
        raise _none_found(min(failures, key=_missing), topology)
    best = min(found, key=lambda each: (each.placement.objective_value, len(each.offloaded)))
    bound = 0.0
    if free is not None and free.contiguity == best.placement.contiguity:
        bound = min(free.bound, best.placement.objective_value)
    return attrs.evolve(best, placement=attrs.evolve(best.placement, bound=bound))


def _refuse_too_large(measured: MeasuredGraph, topology: Topology, supports: Support | None) -> None:
    """Refuse an operator that no device has room for, with its parameters alone."""
    figures, loaded = measured.figures, _loaded_sizes(measured.figures)
    least = [
        {storage: min(size, loaded.get(storage, size)) for storage, size in held.items()} for held in figures.constants
    ]
    try:
        refuse_impossible(attrs.evolve(figures, constants=least), topology, supports)
    except InfeasibleError as error:
        if error.missing_bytes is not None:
            missing = format_bytes(error.missing_bytes)
            error.message = (
                f"All devices are {missing} too little even if all parameters stay on the CPU: {error.message} "
                "Give one of them more memory, or make the inputs smaller."
            )
        raise


def _loaded_sizes(figures: GraphFigures) -> dict[int, int]:
    """The fewest bytes that are loaded of each storage: a tensor of the model may be a piece of a large one."""
    found: dict[int, int] = {}
    for node in figures.graph_module.graph.find_nodes(op="get_attr"):
        storages, tensors = figures.effects.storages(node), tensors_in(node.meta.get("val"))
        size = tensor_bytes(tensors[0]) if len(tensors) == 1 else 0
        found.update((storage, min(size, found.get(storage, size))) for storage in storages)
    return found


def _too_small(topology: Topology) -> Iterator[tuple[Device, ...]]:
    """Which devices may take more than they hold: one of them, the largest first, else all."""
    for device in sorted(topology.devices, key=lambda device: -device.memory):
        yield (device,)
    if len(topology.devices) > 1:
        yield topology.devices


def _missing(error: PlacementError) -> float:
    missing = error.missing_bytes if isinstance(error, InfeasibleError) else None
    return math.inf if missing is None else missing


def _none_found(nearest: PlacementError, topology: Topology) -> PlacementError:
    """Of several devices, not all ways to share the operators were looked at."""
    if len(topology.devices) == 1 or math.isinf(_missing(nearest)):
        return nearest
    text = f"In the nearest placement that was found, {nearest.message} A device_map may share the operators otherwise."
    return PlacementError(text, reason=nearest.reason)


def _without_budgets(
    measured: MeasuredGraph, topology: Topology, objective: Objective, options: Mapping[str, Any]
) -> DevicePlacement:
    """The best placement on devices that hold everything."""
    return _with_memory(measured, topology, dict.fromkeys(each.name for each in topology.devices), objective, options)


def _with_memory(
    measured: MeasuredGraph,
    topology: Topology,
    memory: Mapping[str, int | None],
    objective: Objective,
    options: Mapping[str, Any],
) -> DevicePlacement:
    """A placement for devices of which some have another budget, on the real ones."""
    devices = tuple(
        attrs.evolve(each, available_mem_bytes=memory.get(each.name, each.available_mem_bytes))
        for each in topology.devices
    )
    placement = place_measured(measured, Request(Topology(devices, topology.links), objective, **options))
    real = {part: topology[each.name] for part, each in placement.device_of.items()}
    return attrs.evolve(placement, device_of=real, topology=topology)


def _with_least_on(
    measured: MeasuredGraph,
    topology: Topology,
    some: Sequence[Device],
    objective: Objective,
    options: Mapping[str, Any],
) -> Iterator[DevicePlacement]:
    """Placements that give some devices as little more than they hold as they can, each as many times its memory.

    How little that is, short searches tell; the first placement is theirs, and the other one of a longer search.
    """
    held = {each.name: max(1.0, each.memory) for each in some}

    def enlarged(times: float, **asked: Any) -> DevicePlacement:
        memory = {name: None if math.isinf(times) else int(times * size) for name, size in held.items()}
        return _with_memory(measured, topology, memory, objective, {**options, **asked})

    best, least, is_shared = enlarged(math.inf), min(held.values()), False
    if len(topology.devices) > 1 and math.isfinite(least):
        low, high = 1.0, float(measured.timed.bytes_of(range(len(measured.figures.nodes)))) / least
        for _ in range(_STEPS):
            middle = (low + high) / 2
            try:
                best = enlarged(middle, time_budget=_BRIEFLY, effort=0.0, explain="never", is_brief=True)
                high, is_shared = middle, True
            except PlacementError:  # none exists, or none was found
                low = middle
    yield best
    if is_shared:
        yield enlarged(high, explain="never")


def offload_where_too_small(measured: MeasuredGraph, placement: DevicePlacement) -> OffloadedPlacement:
    """Cut the parts of each device that holds too much, and offload as few of them as its budget allows.

    Args:
        measured: The graph, and the training step where it is placed for training.
        placement: Which operator runs where; stays so.

    Raises:
        InfeasibleError: a device is too small even for the parameters of two of its smallest parts at a time.
    """
    offloaded: tuple[str, ...] = ()
    uses = _uses(measured, placement)
    for device in placement.topology.devices:
        held = uses.memory(offloaded).get(device.name)
        if held is not None and held.peak > device.memory:
            placement, chosen = _offload_one(measured, placement, device, uses, offloaded)
            offloaded += chosen
            uses = _uses(measured, placement)
    return OffloadedPlacement(_told(measured, placement, uses, offloaded), offloaded)


def _uses(measured: MeasuredGraph, placement: DevicePlacement) -> ParameterUses:
    """What the parts use of the model's state."""
    placed = (measured.figures.graph_module, placement.assignment, placement.device_of)
    return ParameterUses.of(*placed, measured.figures.memory, measured.step)


def _told(
    measured: MeasuredGraph, placement: DevicePlacement, uses: ParameterUses, offloaded: Sequence[str]
) -> DevicePlacement:
    """Count the loads, too, and say why; what was proven about the placement without them still holds."""
    if not offloaded:
        return placement
    loads = uses.loads(offloaded)
    placed = (measured.timed, placement.assignment, placement.device_of, placement.topology, loads)
    seconds, load = times_of(*placed)
    value = placement.objective_value
    if placement.objective == "throughput":
        value = max(load.values())
    elif placement.objective == "latency":
        value = makespan_of(*placed)
    elif placement.objective == "memory":
        value = float(max(held.peak for held in uses.memory(offloaded).values()))
    return attrs.evolve(
        placement,
        reasons=_reasons(placement, set(offloaded)),
        load=load,
        seconds=seconds,
        objective_value=value,
        bound=min(placement.bound, value),
    )


def _reasons(placement: DevicePlacement, offloaded: Set[str]) -> dict[str, str]:
    """Why the parts of a device that is too small are as they are; the others keep what was said of them."""
    too_small = {placement.device_of[part].name for part in offloaded}
    reasons = dict(placement.reasons)
    for part, device in placement.device_of.items():
        if part in offloaded:
            budget = format_bytes(device.memory)
            reasons[part] = f"its parameters stay on the CPU and are loaded one part ahead: {device.name} has {budget}"
        elif device.name in too_small:
            reasons[part] = f"its parameters fit {device.name} beside those that are loaded"
    return reasons


def _offload_one(
    measured: MeasuredGraph, placement: DevicePlacement, device: Device, uses: ParameterUses, before: tuple[str, ...]
) -> tuple[DevicePlacement, tuple[str, ...]]:
    figures = measured.figures
    units = list(_units(figures, placement, device))
    least = max(sum(_loadable(figures, members).values()) for _, members in units)
    room = device.memory - uses.course.memory(device.name).activations
    missing, best, value = math.inf, None, math.inf
    for limit in (*dict.fromkeys(max(least, room / parts) for parts in _PARTS_IN_MEMORY), *_FINEST):
        if best is not None and limit <= 0:
            break
        cut = _cut(figures, placement, device, units, limit)
        names = tuple(part for part, on in cut.device_of.items() if on.name == device.name)
        finer = _uses(measured, cut)
        choices = _choices(finer, device, names, before)
        if not choices:
            missing = min(missing, finer.memory((*before, *names))[device.name].peak - device.memory)
        for chosen in choices:
            took = _told(measured, cut, finer, (*before, *chosen)).objective_value
            if took < value * _FASTER:
                best, value = (cut, chosen), took
        if value <= placement.objective_value:  # all loads hide
            break
    if best is not None:
        return best
    raise InfeasibleError(
        f"{device.name} has {format_bytes(device.memory)}, which is {format_bytes(missing)} too little even if all "
        "parameters stay on the CPU: what is alive at one time, what the model writes to, and the parameters of two "
        f"parts that follow each other{'' if measured.step is None else ' and their gradients'} must fit; give it more "
        "memory, or make the inputs smaller.",
        missing_bytes=int(missing),
        reason=f"two parts at a time are too large for {device.name}",
    )


def _choices(
    uses: ParameterUses, device: Device, names: Sequence[str], before: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """The fewest parts to offload, evenly spread over the run, and a few more; nothing if all of them are too few.

    Where fewer parts stay at other places, more of the loads may hide.

    The first part stays where one can: nothing runs before it that its load could hide behind.
    """

    def offloaded(stay: int) -> tuple[str, ...]:
        count = len(names)
        from_end = range(count - 1, -1, -1)
        return tuple(
            name for name, i in zip(names, from_end, strict=True) if (i + 1) * stay // count == i * stay // count
        )

    def fits(stay: int) -> bool:
        return uses.memory((*before, *offloaded(stay)))[device.name].peak <= device.memory

    if not fits(0):
        return []
    low, high = 0, len(names)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    stays = filter(fits, dict.fromkeys((low, low // 2)))  # fewer, larger ones may be too much
    kept = (
        _topped_up(uses, device, offloaded(stay), before, smallest=smallest)
        for stay in stays
        for smallest in (False, True)
    )
    return list(dict.fromkeys(kept))


def _topped_up(
    uses: ParameterUses, device: Device, offloaded: tuple[str, ...], before: tuple[str, ...], *, smallest: bool
) -> tuple[str, ...]:
    """Let more parts keep their parameters as long as they fit, the largest ones or the smallest ones first.

    One at least is loaded, as with none what nobody reads would not be in main memory either.
    """
    parts, stay = KeptParts(uses, device.name, (*before, *offloaded)), set[str]()
    for part in sorted(offloaded, key=uses.bytes_of, reverse=not smallest):
        if len(stay) + 1 == len((*before, *offloaded)):
            break
        if uses.bytes_of(part) <= device.memory - parts.peak and parts.keep(part, device.memory):
            stay.add(part)
    return tuple(part for part in offloaded if part not in stay)


def _units(figures: GraphFigures, placement: DevicePlacement, device: Device) -> Iterator[tuple[str, list[Node]]]:
    """The smallest pieces that the parts of a device can be cut into, in order, each with its part."""
    glued = uncuttable(figures)
    for part in placement.assignment.order:
        if placement.device_of[str(part)].name != device.name:
            continue
        unit: list[Node] = []
        for node in placement.assignment.partitions[part]:
            if unit and not glued[figures.position[node]]:
                yield str(part), unit
                unit = []
            unit.append(node)
        yield str(part), unit


def _loadable(figures: GraphFigures, members: Sequence[Node]) -> dict[int, int]:
    """Bytes of the state that some nodes use and that no node writes to, by storage."""
    left_out = {*figures.effects.written_storages, figures.unread}
    uses = (figures.constants[figures.position[node]] for node in members)
    return {storage: size for use in uses for storage, size in use.items() if storage not in left_out}


def _cut(
    figures: GraphFigures,
    placement: DevicePlacement,
    device: Device,
    units: Sequence[tuple[str, list[Node]]],
    limit: float,
) -> DevicePlacement:
    """Cut the parts of a device so that each uses at most ``limit`` bytes of state."""
    pieces: dict[str, list[list[Node]]] = {}
    state: set[int] = set()
    size = 0
    for part, members in units:
        wanted = _loadable(figures, members)
        more = sum(each for storage, each in wanted.items() if storage not in state)
        if part not in pieces or size + more > limit:
            pieces.setdefault(part, []).append([])
            state, size, more = set(), 0, sum(wanted.values())
        state.update(wanted)
        size += more
        pieces[part][-1] += members
    return _renamed(placement, device, pieces)


def _renamed(placement: DevicePlacement, device: Device, pieces: dict[str, list[list[Node]]]) -> DevicePlacement:
    partition_of: dict[Node, str] = {}
    device_of: dict[str, Device] = {}
    reasons: dict[str, str] = {}
    kept = [part for part in map(str, placement.assignment.order) if part not in pieces]
    names = PartNames((each.name for each in placement.topology.devices), kept)
    for part in map(str, placement.assignment.order):
        for members in pieces.get(part, [placement.assignment.partitions[part]]):
            name = names.fresh(device.name) if part in pieces else part
            partition_of.update(dict.fromkeys(members, name))
            device_of[name] = placement.device_of[part]
            reasons[name] = placement.reasons.get(part, "")
    assignment = Assignment.of(placement.assignment.graph, partition_of, order=list(device_of))
    return attrs.evolve(placement, assignment=assignment, device_of=device_of, reasons=reasons)
