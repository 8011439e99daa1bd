"""Passes that hold passes: named stages, loops until nothing changes, conditions; and how their lists are edited.

>>> def fold(graph_module): ...
>>> def fuse(graph_module): ...
>>> stage = Stage("clean up", [fold])
>>> stage.insert_after("fold", fuse)
>>> stage
Stage('clean up', [fold, fuse])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
from torch.fx import GraphModule

from fxpasses.checks.graphs import carry_legality, only_ops
from fxpasses.checks.sessions import check_name, run_checks
from fxpasses.errors import PassError, PipelineError, also_as
from fxpasses.instruments.records import text_table
from fxpasses.pass_base import PassBase, PassResult, naming
from fxpasses.pass_base.naming import pass_name, same_name

__all__ = ["FixedPoint", "PassGroup", "Skip", "Stage", "When", "flatten"]


@attrs.frozen(repr=False)
class Skip(PassBase):
    """A pass that stays in its pipeline but does not run."""

    skipped: Any

    @property
    def pass_name(self) -> str:
        """The name of the pass that is skipped."""
        return pass_name(self.skipped)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Do nothing."""
        return PassResult(graph_module, False)

    def __repr__(self) -> str:
        return f"Skip({shown(self.skipped)})"


class PassGroup(PassBase):
    """A list of passes that is a pass itself.

    Lists and tuples inside ``passes`` are flattened. Passes are found by position (an int, as in a list), by the
    object, by name (``"RemoveDetach"`` or ``"remove-detach"``), or by a path into groups (``"clean up/RemoveDetach"``).
    """

    steps: int = 1

    def __init__(self, passes: Iterable[Any] | None = None) -> None:
        self.passes: list[Any] = list(flatten(passes or []))

    def __call__(self, graph_module: Any) -> PassResult:
        """Run the passes in order, as :class:`~fxpasses.PassManager` does."""
        from fxpasses.pass_manager.running import run_pipeline

        return run_pipeline(self, graph_module)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Run the passes in order."""
        return self(graph_module)

    def applies(self, graph_module: GraphModule) -> bool:
        """Whether the group runs at all on this graph."""
        return True

    def add_pass(self, _pass: Any) -> None:
        """Append a pass, or each of a list of passes."""
        self.passes.extend(flatten([_pass]))
        self.passes_changed()

    def insert_before(self, where: Any, *passes: Any) -> None:
        """Insert passes before the one at ``where``.

        Raises:
            PipelineError: There is no such pass, or more than one of that name.
        """
        group, index = self.find(where)
        group.passes[index:index] = flatten(passes)
        self.passes_changed()

    def insert_after(self, where: Any, *passes: Any) -> None:
        """Insert passes after the one at ``where``; see :meth:`insert_before`."""
        group, index = self.find(where)
        group.passes[index + 1 : index + 1] = flatten(passes)
        self.passes_changed()

    def replace(self, where: Any, *passes: Any) -> None:
        """Put passes in the place of the one at ``where``; see :meth:`insert_before`."""
        group, index = self.find(where)
        group.passes[index : index + 1] = flatten(passes)
        self.passes_changed()

    def remove(self, where: Any) -> Any:
        """Take the pass at ``where`` out, and give it; see :meth:`insert_before`."""
        group, index = self.find(where)
        removed = group.passes.pop(index)
        self.passes_changed()
        return removed

    def skip(self, where: Any) -> None:
        """Keep the pass at ``where`` in its place, but do not run it; a name skips every pass of that name."""
        places = self._all(where) if isinstance(where, str) else []
        for group, index in [(place.holder, place.index) for place in places] or [self.find(where)]:
            if not isinstance(group.passes[index], Skip):
                group.passes[index] = Skip(group.passes[index])
        self.passes_changed()

    def find(self, where: Any) -> tuple[PassGroup, int]:
        """The list that holds a pass, and its index there.

        Raises:
            PipelineError: There is no such pass (also an ``IndexError`` or ``KeyError``), or several have that name.
        """
        if isinstance(where, int) and not isinstance(where, bool):
            if not -len(self.passes) <= where < len(self.passes):
                raise also_as(PipelineError, IndexError())(
                    f"there is no pass at position {where}; the pipeline has {len(self.passes)}: {self._names()}"
                )
            return self, where % len(self.passes)
        found = self._all(where)
        if len(found) > 1:
            places = ", ".join(place.label for place in found)
            raise PipelineError(
                f"{len(found)} passes are called '{where}' (at {places}); give the position, or the path of one of them"
            )
        return found[0].holder, found[0].index

    def walk(self) -> Iterator[tuple[str, Any]]:
        """Every pass with its position as text, groups before what they hold."""
        for place in self._places():
            yield place.label, place.pass_

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """The passes that are no groups, in order."""
        return ((label, pass_) for label, pass_ in self.walk() if not isinstance(pass_, PassGroup))

    def passes_changed(self) -> None:
        """Called after the list was edited through one of the methods."""

    def _all(self, where: Any) -> list[_Place]:
        wanted = where.split("/") if isinstance(where, str) else None
        found = []
        for place in self._places():
            if wanted is None:
                matches = place.pass_ is where or bool(place.pass_ == where)
            else:
                matches = len(place.path) >= len(wanted) and all(map(same_name, wanted, place.path[-len(wanted) :]))
            if matches:
                found.append(place)
        if not found:
            asked = where if isinstance(where, str) else pass_name(where)
            raise also_as(PipelineError, KeyError())(
                f"there is no pass '{asked}' in the pipeline; there are: {self._names()}"
            )
        return found

    def _places(self) -> Iterator[_Place]:
        waiting = _places_in(self)[::-1]
        while waiting:
            place = waiting.pop()
            yield place
            if isinstance(place.pass_, PassGroup):
                if any(place.pass_ is holder for holder in place.holders):
                    raise PipelineError(
                        f"'{pass_name(place.pass_)}' (position {place.label}) holds itself; take it out"
                    )
                waiting.extend(reversed(_places_in(place.pass_, f"{place.label}.", place.path, place.holders)))

    def _names(self) -> str:
        return ", ".join(pass_name(pass_) for _, pass_ in self.walk()) or "none"

    def _state(self) -> dict[str, Any]:
        """What tells this group from others of its class; for digests, equality and printing."""
        return {"passes": self.passes, "steps": self.steps}

    def __len__(self) -> int:
        return len(self.passes)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.passes)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._state() == other._state()

    def __hash__(self) -> int:
        return hash((type(self), len(self.passes)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_list(self.passes)})"

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The pipeline as a table: position, name, options, what each pass needs, provides and destroys."""
        rows = [_row(label, pass_) for label, pass_ in self.walk()]
        return text_table(("position", "pass", "options", "needs", "provides", "destroys"), rows)


class Stage(PassGroup):
    """A named part of a pipeline, with what is legal at its end.

    Args:
        name: What it is called.
        passes: What it holds.
        allowed: The only ops that may be there when the stage ends, as :func:`fxpasses.checks.only_ops` takes them.
            The graph carries this along, for :func:`fxpasses.checks.obeys_its_stage`.
        denied: Ops that may not be there when the stage ends.
        checks: Further checks of the graph when the stage ends.
    """

    def __init__(
        self,
        name: str,
        passes: Iterable[Any] | None = None,
        *,
        allowed: Iterable[Any] | None = None,
        denied: Iterable[Any] = (),
        checks: Iterable[Callable[..., Any]] = (),
    ) -> None:
        if not isinstance(name, str):
            raise also_as(PipelineError, TypeError())(f"Stage(name, passes): the name is a {type(name).__name__}")
        super().__init__(passes)
        self.name = name
        self.allowed = None if allowed is None else tuple(allowed)
        self.denied = tuple(denied)
        self.checks = list(checks)

    @property
    def pass_name(self) -> str:
        """The name of the stage."""
        return self.name

    def check_legality(self, graph_module: GraphModule, program: Any = None) -> tuple[Any, Any]:
        """The outcomes and failures of what must hold when the stage ends."""
        checks = list(self.checks)
        if self.allowed is not None or self.denied:
            checks.insert(0, only_ops(self.allowed, self.denied))
            carry_legality(graph_module, self.name, self.allowed, self.denied)
        named = [(check_name(check), check, bool(getattr(check, "wants_program", False))) for check in checks]
        return run_checks(named, graph_module, program)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "name": self.name, "allowed": self.allowed, "denied": self.denied}

    def __repr__(self) -> str:
        legal = "" if self.allowed is None else f", allowed={list(map(str, self.allowed))!r}"
        denied = f", denied={list(map(str, self.denied))!r}" if self.denied else ""
        return f"Stage({self.name!r}, {_list(self.passes)}{legal}{denied})"


class FixedPoint(PassGroup):
    """Passes that run again and again until nothing changes any more.

    Args:
        passes: What to repeat.
        max_steps: How often at most; a graph that still changes then is reported as a warning.
    """

    def __init__(self, passes: Iterable[Any] | None = None, max_steps: int = 10) -> None:
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise PipelineError(f"FixedPoint(passes, max_steps): max_steps is {max_steps!r}, but must be at least 1")
        super().__init__(passes)
        self.max_steps = max_steps

    @property
    def steps(self) -> int:  # type: ignore[override]
        """How often the passes run at most."""
        return self.max_steps

    def __repr__(self) -> str:
        return f"FixedPoint({_list(self.passes)}, max_steps={self.max_steps})"


class When(PassGroup):
    """Passes that run only on graphs for which a condition holds.

    Args:
        condition: Takes the GraphModule, gives a truth value.
        passes: What to run if it is true.
    """

    def __init__(self, condition: Callable[[GraphModule], Any], passes: Iterable[Any] | None = None) -> None:
        if not callable(condition):
            raise also_as(PipelineError, TypeError())(
                f"When(condition, passes): the condition is {condition!r}, but must be a function of the GraphModule"
            )
        super().__init__(passes)
        self.condition = condition

    def applies(self, graph_module: GraphModule) -> bool:
        """Ask the condition."""
        return bool(self.condition(graph_module))

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "condition": self.condition}

    def __repr__(self) -> str:
        return f"When({pass_name(self.condition)}, {_list(self.passes)})"


@attrs.frozen
class _Place:
    """Where a pass stands: its position as text, the names on the way to it, and the list that holds it."""

    label: str
    path: tuple[str, ...]
    holder: PassGroup
    index: int
    holders: tuple[PassGroup, ...]

    @property
    def pass_(self) -> Any:
        return self.holder.passes[self.index]


def _places_in(
    group: PassGroup, label: str = "", path: tuple[str, ...] = (), holders: tuple[PassGroup, ...] = ()
) -> list[_Place]:
    return [
        _Place(f"{label}{index}", (*path, pass_name(pass_)), group, index, (*holders, group))
        for index, pass_ in enumerate(group.passes)
    ]


def flatten(passes: Iterable[Any]) -> Iterator[Any]:
    """Every pass in nested lists and tuples, in order.

    Raises:
        PassError: One of them cannot be called (also a ``TypeError``).
    """
    waiting = [iter([passes] if callable(passes) else passes)]
    while waiting:
        for one in waiting[-1]:
            if isinstance(one, (list, tuple)):
                waiting.append(iter(one))
                break
            if not callable(one) or (isinstance(one, type) and issubclass(one, PassBase)):
                raise _no_pass(one)
            yield one
        else:
            waiting.pop()


def _no_pass(one: Any) -> PassError:
    if isinstance(one, type):
        return also_as(PassError, TypeError())(
            f"{one.__name__} is a class of passes; make one: {one.__name__}()", reason="a class, not a pass"
        )
    return also_as(PassError, TypeError())(
        f"a pass must be callable, but the list holds {one!r} (a {type(one).__name__}); give functions or passes",
        reason="not callable",
    )


def shown(pass_: Any) -> str:
    """A pass as it stands in a printed list: a function by its name, an object as the call that makes it."""
    if getattr(pass_, "__qualname__", None) is not None:
        return pass_name(pass_)
    return repr(pass_) if isinstance(pass_, PassBase) else naming.spelled(pass_)


def _list(passes: Sequence[Any]) -> str:
    return "[" + ", ".join(map(shown, passes)) + "]"


def _row(label: str, pass_: Any) -> tuple[str, ...]:
    depth = "  " * label.count(".")
    inner = pass_.skipped if isinstance(pass_, Skip) else pass_
    options = (
        "" if isinstance(inner, PassGroup) else ", ".join(f"{k}={v!r}" for k, v in naming.options_of(inner).items())
    )
    if isinstance(inner, PassGroup) and inner.steps != 1:
        options = f"steps={inner.steps}"
    declared = [
        ", ".join(str(one) for one in getattr(inner, kind, ()) or ()) for kind in ("needs", "provides", "destroys")
    ]
    mark = " (skipped)" if isinstance(pass_, Skip) else ""
    return (label, f"{depth}{pass_name(inner)}{mark}", options, *declared)
