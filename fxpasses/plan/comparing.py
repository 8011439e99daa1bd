"""What differs between two plans: where operators run, devices and budgets, what crosses, what is predicted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fxpasses.devices import Device, Link
from fxpasses.partitioners.placing.names.device_maps import holders
from fxpasses.partitioners.placing.objective_values import objective_text
from fxpasses.plan.condensing import condensed, module_homes
from fxpasses.plan.contents import differences
from fxpasses.plan.keys import covering_entries, path_in, stable_keys
from fxpasses.plan.parts import PartPlan
from fxpasses.plan.writing import device_facts, link_facts
from fxpasses.units import format_bytes, format_seconds
from fxpasses.wording import listed

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from fxpasses.plan.plans import Plan

__all__ = ["Change", "Move", "PlanDiff", "diff"]

_MADE_SMALL = ("objective_value", "bound", "bound_once")
"""What is told in the unit of the objective."""
_RATES = ("bandwidth", "flops")


@attrs.frozen
class Move:
    """An operator, or a whole module (``path/*``), that runs on another device, or with its parameters elsewhere.

    A place is the device, and says if parameters stay in main memory; None where only one plan has the operator.
    """

    op: str
    before: str | None
    after: str | None


@attrs.frozen
class Change:
    """A fact that differs: of what, which one, and the two values; None where only one plan has it.

    The objectives of both plans say what was made small.
    """

    what: str
    field: str
    before: Any
    after: Any
    objectives: tuple[str, str] = ("", "")

    def sentence(self) -> str:
        """The change in words."""
        if self.field == "":
            return f"{self.what} is {'new' if self.before is None else 'gone'}"
        first, second = self.objectives
        before, after = _worded(self.field, self.before, first), _worded(self.field, self.after, second)
        return f"{self.what}: {self.field} {before} → {after}"


@attrs.frozen
class PlanDiff:
    """How one plan differs from another.

    Args:
        moves: Operators and modules that run elsewhere, or load their parameters in only one of the two.
        settings: Model, objective, and other facts about the whole.
        devices: Devices and links that came, went or changed.
        copies: Values that cross in only one of the two, or with other sizes.
        predicted: Predicted seconds and bytes that differ.
        again: What is computed again on a device in only one of the two.
        contents: Lines for whole modules that stand for other operators: how many of which kind.
    """

    moves: tuple[Move, ...] = ()
    settings: tuple[Change, ...] = ()
    devices: tuple[Change, ...] = ()
    copies: tuple[Change, ...] = ()
    predicted: tuple[Change, ...] = ()
    again: tuple[Change, ...] = ()
    contents: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        groups = (self.moves, self.settings, self.devices, self.contents, self.copies, self.predicted, self.again)
        return any(groups)

    def to_json(self) -> dict[str, Any]:
        """The differences as plain data."""
        return attrs.asdict(self, recurse=True, filter=lambda field, _value: field.name != "objectives")

    def lines(self) -> Iterator[str]:
        """The differences as lines of text, one group after the other."""
        for change in (*self.settings, *self.devices):
            yield change.sentence()
        for (before, after), ops in self._grouped().items():
            if before is None or after is None:
                where = f"only in the {'second' if before is None else 'first'} plan, on {after or before}"
                yield f"{listed(ops, 8)}: {where}"
            else:
                yield f"{before} → {after}: {listed(ops, 8)}"
        for change in (*self.contents, *self.again, *self.copies, *self.predicted):
            yield change.sentence()

    def _grouped(self) -> dict[tuple[str | None, str | None], list[str]]:
        groups: dict[tuple[str | None, str | None], list[str]] = {}
        for move in self.moves:
            groups.setdefault((move.before, move.after), []).append(move.op)
        return groups

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "The plans are the same."


def diff(first: Plan, second: Plan, graph_module: GraphModule | None = None) -> PlanDiff:
    """Compare two plans.

    Args:
        first: The plan before.
        second: The plan after.
        graph_module: The model. With it every operator is looked up; without it entries are compared with entries,
            which misses operators that only one of the plans covers.
    """
    moves = _moved_entries(first, second) if graph_module is None else _moved_operators(first, second, graph_module)
    facts = [
        (key, getattr(first, key), getattr(second, key))
        for key in ("model", "objective", "contiguity", "pipeline", "training")
    ]
    return PlanDiff(
        tuple(moves),
        tuple(Change("plan", key, before, after) for key, before, after in facts if before != after),
        tuple(_changed_devices(first, second)),
        tuple(_changed_copies(first, second)),
        tuple(_changed_figures(first, second)),
        tuple(_changed_replicas(first, second)),
        tuple(_changed_contents(first, second)),
    )


def _owners(plan: Plan) -> dict[str, str]:
    """Where each entry runs, and with its parameters in main memory or not."""
    return {entry: _place(part) for part in plan.parts for entry in part.ops}


def _place(part: PartPlan) -> str:
    return part.device if part.offload is None else f"{part.device} with parameters in main memory"


def _lookup(entry: str, owners: Mapping[str, str]) -> str | None:
    """The device of an entry in another plan, from the entry that counts for all of it."""
    return next((owners[each] for each in covering_entries(entry) if each in owners), None)


def _modules_of(owners: Iterable[str]) -> set[str]:
    """The modules that have entries, and all that hold these."""
    return {path for entry in owners for path in holders(path_in(entry))}


def _moved_entries(first: Plan, second: Plan) -> Iterator[Move]:
    """Compare entry by entry; where a plan has only entries below a module, these are compared instead."""
    before, after = _owners(first), _owners(second)
    modules_before, modules_after = _modules_of(before), _modules_of(after)
    for entry in dict.fromkeys([*before, *after]):
        here, there = _lookup(entry, before), _lookup(entry, after)
        if here == there:
            continue
        cut_finer = modules_before if here is None else modules_after if there is None else ()
        if not (entry.endswith("/*") and path_in(entry) in cut_finer):
            yield Move(entry, here, there)


def _moved_operators(first: Plan, second: Plan, graph_module: GraphModule) -> Iterator[Move]:
    """Look every operator up; modules of which all operators move alike are one move."""
    before, after = _owners(first), _owners(second)
    ways: dict[str, tuple[str | None, str | None]] = {}
    for key in stable_keys(graph_module).values():
        here, there = _lookup(key, before), _lookup(key, after)
        ways[key] = (here, there) if here != there else (None, None)
    owner = {key: json.dumps(way) for key, way in ways.items()}
    homes = module_homes(owner, strict=True)
    for way in dict.fromkeys(ways.values()):
        if way != (None, None):
            moved = [key for key in ways if ways[key] == way]
            yield from (Move(entry, *way) for entry in condensed(moved, owner, homes))


def _changed_devices(first: Plan, second: Plan) -> Iterator[Change]:
    yield from _changed_objects(_by_name(first.devices, "device"), _by_name(second.devices, "device"))
    yield from _changed_objects(
        _by_ends(first.links),
        _by_ends(second.links),
    )


def _by_ends(links: tuple[Link, ...]) -> dict[str, dict[str, Any]]:
    """A link counts both ways, so the order of its ends tells nothing unless another leads the other way."""
    found, ends = {}, {(link.first, link.second) for link in links}
    for link in links:
        both_ways = (link.second, link.first) not in ends
        first, second = sorted((link.first, link.second)) if both_ways else (link.first, link.second)
        turned = attrs.evolve(link, first=first, second=second)
        found[f"link {first}:{second}"] = {name: fact for name, fact in link_facts(turned).items() if name != "via"}
    return found


def _by_name(devices: tuple[Device, ...], what: str) -> dict[str, dict[str, Any]]:
    return {f"{what} {device.name}": device_facts(device) for device in devices}


def _changed_objects(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> Iterator[Change]:
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield Change(name, "", before.get(name), after.get(name))
            continue
        for key, value in before[name].items():
            if value != after[name][key]:
                yield Change(name, key, value, after[name][key])


def _changed_contents(first: Plan, second: Plan) -> Iterator[Change]:
    for difference in differences(first.contents, second.contents):
        for name, (before, after) in difference.counts.items():
            yield Change(f"operators of {listed(difference.lines)}", name, before, after)


def _changed_replicas(first: Plan, second: Plan) -> Iterator[Change]:
    before, after = _replicas(first), _replicas(second)
    for name in dict.fromkeys([*before, *after]):
        if (name in before) != (name in after):
            yield Change(name, "", name if name in before else None, name if name in after else None)


def _replicas(plan: Plan) -> dict[str, None]:
    return {f"replica of {entry} on {part.device}": None for part in plan.parts for entry in part.again}


def _changed_copies(first: Plan, second: Plan) -> Iterator[Change]:
    before, after = _copies(first), _copies(second)
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Change(f"copy of {name}", "size", before.get(name), after.get(name))
    if sum(before.values()) != sum(after.values()):
        yield Change("copies", "total size", sum(before.values()), sum(after.values()))


def _copies(plan: Plan) -> dict[str, int]:
    return {f"{copy['value']} from {copy['source']} to {copy['target']}": copy["size"] for copy in plan.copies}


_SEARCHED = _MADE_SMALL
"""What only a search says of a plan; one that is followed knows neither, and is no other plan for that."""


def _changed_figures(first: Plan, second: Plan) -> Iterator[Change]:
    before, after = dict(_figures(first.predicted)), dict(_figures(second.predicted))
    for what, key in dict.fromkeys([*before, *after]):
        here, there = before.get((what, key)), after.get((what, key))
        is_known = key not in _SEARCHED or None not in (here, there)
        if here != there and is_known:
            yield Change(what, key, here, there, (first.objective, second.objective))


def _figures(predicted: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    for key, value in predicted.items():
        if key != "devices":
            yield ("predicted", key), value
    for device, facts in predicted.get("devices", {}).items():
        for key, value in facts.items():
            yield (f"predicted for {device}", key), value


def _worded(field: str, value: Any, objective: str) -> str:
    if value is None:
        return {"available_mem_bytes": "no limit", "size": "nothing", "training": "none"}.get(field, "not known")
    if value == "inf" and field in _RATES:
        return "no limit"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "bytes" in field or "size" in field:
            return format_bytes(value)
        if field in _MADE_SMALL:
            return objective_text(objective, value)
        if field in ("seconds", "latency", "overhead"):
            return format_seconds(value)
        if field in _RATES:
            return f"{value:.4g}/s"
        return str(value) if isinstance(value, int) else f"{value:g}"
    return repr(value) if isinstance(value, str) else str(value)
