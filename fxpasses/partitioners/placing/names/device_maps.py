"""Device maps as data: which entry of a map covers a module, and the shortest map that says where operators are.

A device map is a dict from module paths to devices, as Hugging Face writes it; ``""`` is the model itself. The longest
path that covers a module counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from fxpasses.errors import PlanError

__all__ = ["DeviceMap", "covering", "holders", "map_of_operators"]

DeviceMap = Mapping[str, Any]
"""Module path (``""`` is the model) to a device's name, a ``torch.device`` or its text, or the number of a GPU."""


def holders(path: str) -> list[str]:
    """A module and all that hold it, innermost first.

    >>> holders("a.b")
    ['a.b', 'a', '']
    """
    steps = path.split(".") if path else []
    return [".".join(steps[:length]) for length in range(len(steps), -1, -1)]


def covering(path: str, entries: Container[str]) -> str | None:
    """The entry that counts for a module: the longest one that covers it; None if none does."""
    return next((step for step in holders(path) if step in entries), None)


def map_of_operators(operators: Iterable[tuple[str, str]], *, strict: bool = True) -> dict[str, str]:
    """Write the shortest map of this form: one entry for each largest module that sits on one device.

    A module whose own operators sit on one device while modules inside it sit elsewhere has an entry as well.

    >>> map_of_operators([("a.x", "left"), ("a.y", "left"), ("a", "left"), ("b", "right")])
    {'a': 'left', 'b': 'right'}

    Args:
        operators: The module path of each operator, or of a whole module, and its device; in execution order.
        strict: Refuse a module whose own operators sit on several devices. Otherwise one whose modules do so, too, has
            no entry (its own operators then stay with those before them); any other goes to the device that has most of
            them (the first one in execution order where several have).

    Raises:
        PlanError: ``strict``, and there is such a module.
    """
    own: dict[str, dict[str, int]] = {}
    below: dict[str, dict[str, None]] = {}
    inside: dict[str, dict[str, None]] = {}
    for path, device in operators:
        counts = own.setdefault(path, {})
        counts[device] = counts.get(device, 0) + 1
        for step in holders(path):
            below.setdefault(step, {})[device] = None
            if step != path:
                inside.setdefault(step, {})[device] = None
    if strict:
        _refuse_torn(own)
    entries: dict[str, str] = {}
    for path in sorted(below, key=lambda path: path.count(".") + bool(path)):  # stable: holders first
        covered = covering(path, entries)
        if covered is None and len(own.get(path, ())) > 1 and len(inside.get(path, ())) > 1:
            continue
        home = _device_of(path, own, below)
        if home is not None and (covered is None or entries[covered] != home):
            entries[path] = home
    return entries


def _device_of(path: str, own: Mapping[str, Mapping[str, int]], below: Mapping[str, Mapping[str, None]]) -> str | None:
    """The device of all that is in a module, else of most of its own operators; None where it has none."""
    if len(below[path]) == 1:
        return next(iter(below[path]))
    counts = own.get(path)
    return max(counts, key=counts.__getitem__) if counts else None


def _refuse_torn(own: Mapping[str, Mapping[str, int]]) -> None:
    for path, counts in own.items():
        if len(counts) > 1:
            which = f"module {path!r}" if path else "model itself"
            raise PlanError(
                f"The {which} has operators of its own on {', '.join(counts)}, which a device map says only where they "
                "stay with the operators before them; device_map(program) finds out whether they do, "
                "device_map(strict=False) gives the nearest map, and the plan itself (lower_with_plan) stays exact."
            )
