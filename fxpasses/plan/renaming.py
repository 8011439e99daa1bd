"""Follow modules that have another name now: rename them in the entries of a plan, and guess which they are."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import attrs
from torch.fx import Node

from fxpasses.errors import PlanError
from fxpasses.partitioners.placing.names.device_maps import covering, holders
from fxpasses.plan.fitting import Fit, fit
from fxpasses.plan.keys import path_in
from fxpasses.plan.parts import PartPlan
from fxpasses.wording import did_you_mean

__all__ = ["guess_renames", "rename", "renamed_lines"]

MOST_RENAMES = 8
MOST_UNEXPLAINED = 0.2
"""Share of the entries that may stay unexplained when a model all of whose names differ counts as renamed."""


def rename(parts: Sequence[PartPlan], renames: Mapping[str, str]) -> list[PartPlan]:
    """The parts after modules were renamed, as the author of a plan says it.

    Raises:
        PlanError: no entry is in a module of that path, or two modules would become one.
    """
    after = _renamed(parts, _all_at_once(parts, renames))
    _refuse_twice(parts, after)
    return after


def renamed_lines(before: Sequence[PartPlan], after: Sequence[PartPlan]) -> dict[str, str]:
    """What the lines of parts are called after these were renamed."""
    pairs = zip(before, after, strict=True)
    return {was: now for old, new in pairs for was, now in zip(old.ops, new.ops, strict=True)}


def _renamed(parts: Sequence[PartPlan], renames: Mapping[str, str]) -> list[PartPlan]:
    """The parts after modules were renamed, all at once; ``""`` stands for the model itself."""
    return [
        attrs.evolve(
            part,
            ops=tuple(_renamed_entry(op, renames) for op in part.ops),
            again=tuple(_renamed_entry(op, renames) for op in part.again),
        )
        for part in parts
    ]


def _refuse_twice(before: Sequence[PartPlan], after: Sequence[PartPlan]) -> None:
    """Two modules that become one leave operators in two parts.

    Raises:
        PlanError: an entry is in two parts that was in one before.
    """
    home: dict[str, tuple[str, str]] = {}
    for old, new in zip(before, after, strict=True):
        for was, entry in zip(old.ops, new.ops, strict=True):
            part, first = home.setdefault(entry, (new.name, was))
            if part != new.name and first != was:
                raise PlanError(
                    f"{first} in {part} and {was} in {new.name} would both be {entry}; rename the other module, too."
                )


def _renamed_entry(entry: str, renames: Mapping[str, str]) -> str:
    """The innermost module that has another name counts."""
    path, _, rest = entry.rpartition("/")
    old = covering(path, renames)
    return entry if old is None else f"{_moved(path, old, renames[old])}/{rest}"


def _moved(path: str, old: str, new: str) -> str:
    """A path in a module after that was renamed."""
    return ".".join(step for step in (new, path[len(old) :].strip(".")) if step)


def _then(renames: Mapping[str, str], old: str, new: str, known: Container[str]) -> dict[str, str]:
    """All at once what some renames do, and one more after them, of modules that are known before them.

    >>> _then({"layers": "blocks"}, "blocks.0.fc", "blocks.0.up", {"layers.0.fc"}), _then({"a": "b"}, "b", "c", {"a"})
    ({'layers': 'blocks', 'layers.0.fc': 'blocks.0.up'}, {'a': 'c'})
    """
    together = {first: _moved(now, old, new) if old in holders(now) else now for first, now in renames.items()}
    origins = (_moved(old, now, first) for first, now in renames.items() if now in holders(old))
    together.setdefault(next((each for each in origins if each in known), old), new)
    return together


def _all_at_once(parts: Sequence[PartPlan], renames: Mapping[str, str]) -> dict[str, str]:
    """The same renames at once: two modules may change places; what only an earlier name makes is followed to there.

    Raises:
        PlanError: no entry is in a module of that path, and no earlier rename makes one.
    """
    known = _modules(parts)
    together: dict[str, str] = {}
    for old, new in renames.items():
        if old in known:
            together[old] = new
            continue
        made = _modules(_renamed(parts, together))
        if old not in made:
            raise PlanError(f"The plan names nothing in {old or 'the model itself'!r}{did_you_mean(old, list(made))}")
        together = _then(together, old, new, known)
    return together


def _modules(parts: Sequence[PartPlan]) -> dict[str, None]:
    """The modules that entries are in."""
    return dict.fromkeys(each for part in parts for op in (*part.ops, *part.again) for each in holders(path_in(op)))


def guess_renames(parts: Sequence[PartPlan], given: Fit) -> dict[str, str]:
    """Which modules seem to have another name now: renaming them lets more of the plan fit.

    Args:
        parts: The parts of the plan.
        given: How they fit without renaming.

    Returns:
        New name by old name, all at once, such as :func:`rename` takes; the one that explains most first.
    """
    known, nothing_fits = _modules(parts), given.fits_nothing
    renames: dict[str, str] = {}
    while len(renames) < MOST_RENAMES and given.homeless and given.unused:
        best = None
        for old, new in _candidates(given):
            tried = _then(renames, old, new, known)
            outcome = _fit_after(parts, tried, given.keys)
            if outcome is not None and _unexplained(outcome) < _unexplained(given if best is None else best[1]):
                best = tried, outcome
        if best is None:
            break
        renames, given = best
    entries = sum(len(part.ops) for part in parts)
    if nothing_fits and len(given.unused) > entries * MOST_UNEXPLAINED:
        return {}  # another model, where a few names happen to be alike
    return renames


def _fit_after(parts: Sequence[PartPlan], renames: Mapping[str, str], keys: Mapping[Node, str]) -> Fit | None:
    """How the parts fit once they are renamed; None if that is refused."""
    try:
        return fit(rename(parts, renames), keys)
    except PlanError:
        return None


def _unexplained(given: Fit) -> int:
    return len(given.homeless) + len(given.unused)


def _candidates(given: Fit, most: int = 6) -> list[tuple[str, str]]:
    """Pairs of module paths that differ in one step, or by steps in front, ordered by how often they occur."""
    votes: dict[tuple[str, str], int] = {}
    gone = dict.fromkeys(path_in(entry) for entry, _part in given.unused)
    come = dict.fromkeys(path for key in given.homeless for path in holders(path_in(key)))
    for old in list(gone)[:60]:
        for new in list(come)[:400]:
            if (pair := _difference(old, new)) is not None:
                votes[pair] = votes.get(pair, 0) + 1
    return sorted(votes, key=lambda pair: (-votes[pair], pair))[:most]


def _difference(old: str, new: str) -> tuple[str, str] | None:
    """The prefixes that differ between two paths, if that is all that differs."""
    if new.endswith(f".{old}") and old:
        return "", new.removesuffix(f".{old}")
    if old.endswith(f".{new}") and new:
        return old.removesuffix(f".{new}"), ""
    was, now = old.split("."), new.split(".")
    differing = [index for index, (a, b) in enumerate(zip(was, now, strict=False)) if a != b]
    if len(was) != len(now) or len(differing) != 1 or not old or not new:
        return None
    at = differing[0] + 1
    if was[at - 1].isdigit() and now[at - 1].isdigit():
        return None  # another layer, not a renamed one
    return ".".join(was[:at]), ".".join(now[:at])
