"""Say in words why a plan does not fit a graph, and what may have happened to the model since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise

from fxpasses.errors import CycleError
from fxpasses.plan.fitting import Fit, fit
from fxpasses.plan.keys import covering_entries, path_in
from fxpasses.plan.parts import PartPlan
from fxpasses.plan.renaming import guess_renames, rename
from fxpasses.wording import listed

__all__ = ["hints", "misfit", "waiting"]


def hints(parts: Sequence[PartPlan], given: Fit, renames: Mapping[str, str]) -> dict[str, str]:
    """What may have happened to the model since, by what it is about: an operator, an entry, or "" for the whole.

    :func:`guess_renames` says what was renamed.
    """
    if renames:
        names = [(old or "the model", new or "the model") for old, new in renames.items()]
        said = ", ".join(f"{old!r} seems to be called {new!r} now" for old, new in names)
        adapts = "adapts the plan" if fit(rename(parts, renames), given.keys).is_complete else "lets more of it fit"
        return {"": f"{said}: plan.rename_modules({dict(renames)!r}) {adapts}"}
    if given.has_closed_region:
        return {"": "the graph has a region of autocast or of a grad mode as one operator: OpenRegions() opens it"}
    if given.names_closed_region:
        return {"": "regions of autocast and of grad modes are placed operator by operator: place the model again"}
    found = {}
    if given.homeless and _has_dead_code(given):
        return {
            "": "the graph has operators that nobody uses, which the passes of a plan take away: run them first, "
            "as parse_pipeline(plan.pipeline)(program).exported_program does"
        }
    for key in given.homeless[:1]:
        counted = sum(_stem(other) == _stem(key) for other in given.keys.values())
        known = [op for part in parts for op in part.ops if _stem(op) == _stem(key)]
        if known:
            operator = _stem(key).rpartition("/")[2]
            found[key] = f"{path_in(key) or 'the model'} has {counted} x {operator} now, the plan knows {len(known)}"
        elif close := get_close_matches(key, [op for part in parts for op in part.ops], n=2, cutoff=0.5):
            found[key] = f"nearest to {key} in the plan: {', '.join(close)}"
    for entry, _part in given.unused[:1]:
        there = dict.fromkeys(
            [*given.keys.values(), *(entry for key in given.keys.values() for entry in covering_entries(key))]
        )
        if close := get_close_matches(entry, list(there), n=2, cutoff=0.5):
            found[entry] = f"nearest to {entry} in the model: {', '.join(close)}"
    return found


def _has_dead_code(given: Fit) -> bool:
    """Whether a graph was exported, and no pass has cleaned it up since."""
    return any(node.op == "call_function" and not node.users and not node.is_impure() for node in given.keys)


def misfit(model: str, parts: Sequence[PartPlan], given: Fit) -> str:
    """One message about all that does not fit: what, and what may have happened."""
    renames = guess_renames(parts, given)
    if given.is_for_another_model and not renames:
        shown = listed([op for part in parts for op in part.ops]) or "no operator"
        there = listed(given.keys.values())
        return (
            f"This is a plan for {model}, another model: it names {shown}, and this model has {there}. "
            "Place this model, or take the plan that was written for it."
        )
    said = []
    if given.homeless:
        said.append(
            f"has no part for {listed(given.homeless)}; the model changed since: place it again, or add "
            f"{'the operator' if len(given.homeless) == 1 else 'the operators'} to a part"
        )
    if given.unused:
        it = "this line" if len(given.unused) == 1 else "these lines"
        entries = listed(entry for entry, _part in given.unused)
        said.append(
            f"names {entries}, which the model does not have; it changed since: place it again, or take {it} out"
        )
    for entry, first, second in given.doubled[:1]:
        said.append(f"gives {entry} to two parts, {first} and {second}; take it out of one")
    tips = "".join(f" ({tip})" for tip in hints(parts, given, renames).values())
    return f"The plan for {model} " + ", and ".join(said) + tips + "."


def waiting(error: CycleError, given: Fit) -> str:
    """Which parts would wait for each other, at which operators, and what to do."""
    steps = [(a, b) for a, b in pairwise(error.path) if given.part_of[a] != given.part_of[b]]
    parts = ", ".join(dict.fromkeys(given.part_of[node] for step in steps for node in step))
    said = ", ".join(
        f"{given.keys[later]} in {given.part_of[later]} for {given.keys[earlier]} in {given.part_of[earlier]}"
        for earlier, later in steps
    )
    return (
        f"the parts {parts} would wait for each other: {said}. A part runs as a whole, and a device may have several: "
        "put what waits into a further part on the same device, behind the part that it waits for."
    )


def _stem(key: str) -> str:
    return key.rpartition("#")[0]
