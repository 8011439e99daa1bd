"""Write an assignment down in few lines: a module of which all operators are in one part is one entry."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from fxpasses.devices import Device
from fxpasses.guards import is_guard
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.placing.names.device_maps import holders
from fxpasses.plan.keys import path_in, stable_keys
from fxpasses.plan.parts import PartPlan

__all__ = ["condensed", "module_homes", "parts_of"]


def parts_of(
    assignment: Assignment, device_of: Mapping[str, Device], offloaded: Collection[str] = ()
) -> tuple[PartPlan, ...]:
    """The parts of a plan that says what an assignment says; nothing of the call that checks the inputs.

    Args:
        assignment: Which node is in which part.
        device_of: The device of each part.
        offloaded: The parts whose parameters stay in main memory.
    """
    keys = stable_keys(assignment.graph)
    owner = {key: str(assignment.partition_of.get(node, "")) for node, key in keys.items()}
    homes = module_homes(owner)
    return tuple(
        PartPlan(
            str(name),
            device_of[str(name)].name,
            tuple(condensed([keys[node] for node in nodes if not is_guard(node)], owner, homes)),
            "cpu" if str(name) in offloaded else None,
            _condensed_again([keys[node] for node in assignment.replicas.get(name, ())], keys.values()),
        )
        for name, nodes in assignment.partitions.items()
    )


def _condensed_again(again: Sequence[str], keys: Iterable[str]) -> tuple[str, ...]:
    """Whole modules as one line, as far as all of their operators are computed again."""
    if not again:
        return ()
    chosen = set(again)
    owner = {key: "again" if key in chosen else "" for key in keys}
    return tuple(condensed(again, owner, module_homes(owner, strict=True)))


def condensed(keys: Sequence[str], owner: Mapping[str, str], homes: Mapping[str, str | None]) -> list[str]:
    """Write ``path/*`` for every largest module that belongs to one owner, but for single operators.

    Args:
        keys: The operators of one owner.
        owner: The owner of every operator of the graph.
        homes: To whom each module belongs, as :func:`module_homes` says.
    """
    entries: dict[str, None] = {}
    for key in keys:
        paths = reversed(holders(path_in(key)))
        whole = next((path for path in paths if homes[path] is not None), None)
        is_whole = whole is not None and homes[whole] == owner[key]
        entries[f"{whole}/*" if is_whole else key] = None
    return list(entries)


def module_homes(owner: Mapping[str, str], *, strict: bool = False) -> dict[str, str | None]:
    """To whom a module belongs: who has most of its own operators, and of those of each module inside; else None.

    Args:
        owner: The owner of every operator, by its key.
        strict: Who has all of them, not only most.
    """
    counts: dict[str, dict[str, int]] = {}
    for key, part in owner.items():
        own = counts.setdefault(path_in(key), {})
        own[part] = own.get(part, 0) + 1
    homes: dict[str, str | None] = {}
    for path, own in counts.items():
        first = max(own, key=own.__getitem__)
        total = sum(own.values())
        most = first if own[first] == total or (2 * own[first] > total and not strict) else None
        for holder in holders(path):
            homes[holder] = most if homes.get(holder, most) == most else None
    return homes
