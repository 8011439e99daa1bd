"""Follow the properties of a graph through a pipeline: refuse one that cannot work, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from torch.fx import GraphModule

from fxpasses.errors import PassError, PipelineError
from fxpasses.pass_base.naming import pass_name
from fxpasses.pass_manager.groups import PassGroup, Skip, When
from fxpasses.pass_manager.properties import Property

__all__ = ["Established", "PropertyPlan", "plan_properties"]


@attrs.frozen
class _Need:
    """A property that the input must have, because ``label`` needs it and no earlier pass provides it."""

    wanted: Property
    pass_name: str
    label: str
    provided_later_by: str | None


@attrs.define
class Established:
    """The properties that hold at this point of a run."""

    holding: dict[Property, str] = attrs.field(factory=dict)
    lost: dict[Property, str] = attrs.field(factory=dict)

    def names(self) -> tuple[str, ...]:
        """Their names, in the order in which they were established."""
        return tuple(str(one) for one in self.holding)

    def names_after(self, remembered: Iterable[str]) -> tuple[str, ...]:
        """The names of what holds now, with what an earlier pipeline left and nothing destroyed since."""
        lost = {str(one) for one in self.lost}
        return tuple(dict.fromkeys([*(name for name in remembered if name not in lost), *self.names()]))

    def demand(self, pass_: Any, module: GraphModule) -> None:
        """Raise unless all that the pass needs holds; what can be checked is checked."""
        for wanted in _declared(pass_, "needs"):
            if wanted in self.holding:
                continue
            try:
                _check(wanted, module)
            except Exception as error:  # a property's check may raise anything: that is how it says no
                raise _unmet(pass_, wanted, self.lost.get(wanted), error) from error
            self.holding[wanted] = "the graph itself"

    def update(self, pass_: Any, module: GraphModule) -> None:
        """Note what the pass destroyed and provided; a promise that can be checked is checked."""
        name = pass_name(pass_)
        for destroyed in _declared(pass_, "destroys"):
            self.holding.pop(destroyed, None)
            self.lost[destroyed] = name
        for provided in _declared(pass_, "provides"):
            if provided.check is not None:
                try:
                    provided.check(module)
                except Exception as error:  # as above
                    raise PassError(
                        f"pass '{name}' provides the property '{provided}', but its result does not have it: {error}",
                        node=getattr(error, "node", None),
                        reason=f"provides '{provided}', but its result does not have it: {error}",
                    ) from error
            self.holding[provided] = name
            self.lost.pop(provided, None)

    def failed(self, pass_: Any) -> None:
        """Note that a pass did not run, so what it provides is not there."""
        for provided in _declared(pass_, "provides"):
            self.lost.setdefault(provided, f"{pass_name(pass_)} (which failed)")


@attrs.frozen
class PropertyPlan:
    """What a pipeline asks of its input."""

    needs: tuple[_Need, ...] = ()

    def establish(self, module: GraphModule) -> Established:
        """Look whether the input has what the pipeline asks of it.

        Raises:
            PipelineError: It has not; names the pass that needs it, and the pass that provides it too late, if any.
        """
        established = Established()
        remembered = module.meta.get("fxpasses.properties", ())
        for need in self.needs:
            if need.wanted in established.holding:
                continue
            if need.wanted.check is None and str(need.wanted) in remembered:
                established.holding[need.wanted] = "an earlier pipeline"
                continue
            try:
                _check(need.wanted, module)
            except Exception as error:  # a property's check may raise anything: that is how it says no
                raise PipelineError(_refusal(need, error), pass_name=need.pass_name) from error
            established.holding[need.wanted] = "the input"
        return established


def plan_properties(root: PassGroup) -> PropertyPlan:
    """Walk a pipeline in the order it runs and follow what each pass needs, provides and destroys.

    What runs only on a condition provides nothing for sure, but may destroy; what repeats is walked twice.

    Raises:
        PipelineError: A pass needs what an earlier one destroys; both are named. Or a group holds itself.
    """
    for _ in root.walk():  # a group that holds itself is refused here
        pass
    sequence = _in_order(root)
    if not any(_declared(pass_, kind) for _, pass_, _ in sequence for kind in ("needs", "provides", "destroys")):
        return PropertyPlan()
    provided: set[Property] = set()
    destroyed: dict[Property, str] = {}
    needs: dict[Property, _Need] = {}
    for place, (label, pass_, sure) in enumerate(sequence):
        for wanted in _declared(pass_, "needs"):
            if wanted in destroyed:
                raise PipelineError(
                    f"pass '{pass_name(pass_)}' (position {label}) needs the property '{wanted}', which pass "
                    f"'{destroyed[wanted]}' before it destroys; swap them, or put a pass that provides it between them",
                    pass_name=pass_name(pass_),
                )
            if wanted not in provided and wanted not in needs:
                later = _provider(sequence[place + 1 :], wanted)
                needs[wanted] = _Need(wanted, pass_name(pass_), label, later)
        for gone in _declared(pass_, "destroys"):
            provided.discard(gone)
            destroyed[gone] = pass_name(pass_)
        if sure:
            for made in _declared(pass_, "provides"):
                provided.add(made)
                destroyed.pop(made, None)
    return PropertyPlan(tuple(needs.values()))


def _in_order(root: PassGroup) -> list[tuple[str, Any, bool]]:
    """Every leaf as it runs, with its position and whether it runs for sure; loops twice."""
    found: list[tuple[str, Any, bool]] = []
    waiting: list[tuple[str, Any, bool]] = [("", root, True)]
    while waiting:
        label, pass_, sure = waiting.pop()
        if isinstance(pass_, Skip):
            continue
        if not isinstance(pass_, PassGroup):
            found.append((label, pass_, sure))
            continue
        sure = sure and not isinstance(pass_, When)
        inner = [(f"{label}.{i}" if label else str(i), one, sure) for i, one in enumerate(pass_.passes)]
        waiting.extend(reversed(inner * (2 if pass_.steps > 1 else 1)))
    return found


def _provider(later: Sequence[tuple[str, Any, bool]], wanted: Property) -> str | None:
    return next((pass_name(pass_) for _, pass_, _ in later if wanted in _declared(pass_, "provides")), None)


def _declared(pass_: Any, kind: str) -> tuple[Property, ...]:
    found = getattr(pass_, kind, None)
    if isinstance(found, Property):
        return (found,)
    return tuple(one for one in found if isinstance(one, Property)) if isinstance(found, (tuple, list)) else ()


def _check(wanted: Property, module: GraphModule) -> None:
    if wanted.check is None:
        raise LookupError("nothing provided it, and a graph does not show whether it has it")
    wanted.check(module)


def _unmet(pass_: Any, wanted: Property, lost_to: str | None, error: Exception) -> PassError:
    why = f"which was lost to pass '{lost_to}'" if lost_to else f"which the graph does not have: {error}"
    said = f"pass '{pass_name(pass_)}' needs the property '{wanted}', {why}"
    return PassError(said, reason=said)


def _refusal(need: _Need, error: Exception) -> str:
    hint = (
        f"pass '{need.provided_later_by}' provides it, but runs later; move it before '{need.pass_name}'"
        if need.provided_later_by
        else "put a pass that provides it before"
    )
    return (
        f"pass '{need.pass_name}' (position {need.label}) needs the property '{need.wanted}', which no pass before it "
        f"provides and the input does not have: {error}; {hint}"
    )
