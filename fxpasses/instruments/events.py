"""What observers of a run are told, and how a pass speaks to them: events, remarks, statistics.

An instrument is any object with some of the methods of :class:`Instrument`; nothing is called when there is none.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import attrs
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.errors import user_line
from fxpasses.instruments.records import PassRecord, Remark, RunReport
from fxpasses.metadata import current_pass

__all__ = [
    "Instrument",
    "PassEvent",
    "RewriteLimit",
    "Told",
    "ambient_instruments",
    "collecting",
    "observe",
    "remark",
    "rewrite_allowed",
    "statistic",
]

logger = logging.getLogger(__name__)


@attrs.define
class PassEvent:
    """A pass that is about to run, has run, or has failed.

    Attributes:
        name: What the pass is called.
        pass_: The pass.
        position: Where it stands, one number a level.
        step: Which round of its repeating group this is.
        number: How many passes of this run came before it, loops counted; None for a group.
        graph_module: The graph, before or after.
        program: The program it belongs to, if there is one.
        record: The record, after the pass; None before it and for groups.
        error: What went wrong, if something did.
    """

    name: str
    pass_: Any
    position: tuple[int, ...]
    step: int
    number: int | None
    graph_module: GraphModule
    program: ExportedProgram | None = None
    record: PassRecord | None = None
    error: BaseException | None = None

    @property
    def is_group(self) -> bool:
        """Whether this is about a group of passes."""
        return self.number is None

    @property
    def label(self) -> str:
        """The position as text, such as ``2.0``."""
        return ".".join(str(number) for number in self.position)


class Instrument:
    """An observer of a run; subclass it, or write any object with some of these methods."""

    def start(self, graph_module: GraphModule) -> None:
        """Before the first pass."""

    def should_run(self, event: PassEvent) -> bool:
        """Whether the pass may run at all; False from any instrument skips it."""
        return True

    def before(self, event: PassEvent) -> None:
        """Before each pass."""

    def after(self, event: PassEvent) -> None:
        """After each pass that succeeded."""

    def failed(self, event: PassEvent) -> None:
        """After each pass that failed, before its edits are taken back."""

    def finish(self, report: RunReport) -> None:
        """After the last pass, also when the run failed."""


_AMBIENT: ContextVar[tuple[Any, ...]] = ContextVar("fxpasses_instruments", default=())


@contextlib.contextmanager
def observe(*instruments: Any) -> Iterator[None]:
    """Every pipeline that runs inside is watched by these instruments too."""
    token = _AMBIENT.set((*_AMBIENT.get(), *instruments))
    try:
        yield
    finally:
        _AMBIENT.reset(token)


def ambient_instruments() -> tuple[Any, ...]:
    """The instruments of all open :func:`observe` blocks."""
    return _AMBIENT.get()


@attrs.define
class Told:
    """What a pass has told while it ran."""

    remarks: list[Remark] = attrs.field(factory=list)
    statistics: dict[str, int] = attrs.field(factory=dict)


_TOLD: ContextVar[Told | None] = ContextVar("fxpasses_told", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[Told]:
    """Collect the remarks and statistics of what runs inside."""
    told = Told()
    token = _TOLD.set(told)
    try:
        yield told
    finally:
        _TOLD.reset(token)


def remark(node: Node | None, text: str) -> None:
    """Say something about a node: why it was left alone, what was assumed.

    It ends up in the record of the running pass, with the user's source line; outside of a pipeline it is logged.

    Args:
        node: What it is about; None for the whole graph.
        text: A sentence, such as ``"not fused: has two users"``.
    """
    line = None if node is None else user_line(node)
    said = Remark(text, node=None if node is None else node.name, pass_name=current_pass(), line=line)
    if (told := _TOLD.get()) is not None:
        told.remarks.append(said)
    else:
        logger.info("%s", said)


def statistic(name: str, amount: int = 1) -> None:
    """Count something; the sum ends up in the record of the running pass."""
    if (told := _TOLD.get()) is not None:
        told.statistics[name] = told.statistics.get(name, 0) + amount
    else:
        logger.info("%s: %d", name, amount)


@attrs.define
class RewriteLimit:
    """Lets only the first ``limit`` rewrites inside happen, as LLVM's debug counters do; negative for all.

    >>> with RewriteLimit(1) as limit:
    ...     [rewrite_allowed("first"), rewrite_allowed("second")]
    [True, False]
    >>> limit.allowed
    ['first']
    """

    limit: int = -1
    allowed: list[str] = attrs.field(factory=list)
    _token: Any = None

    def __enter__(self) -> RewriteLimit:
        self._token = _REWRITES.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _REWRITES.reset(self._token)


_REWRITES: ContextVar[RewriteLimit | None] = ContextVar("fxpasses_rewrites", default=None)


def rewrite_allowed(what: str | Node) -> bool:
    """Whether a pass may rewrite ``what``; False only while somebody bisects. Passes ask once for each rewrite."""
    gate = _REWRITES.get()
    if gate is None:
        return True
    if 0 <= gate.limit <= len(gate.allowed):
        return False
    pass_name = current_pass()
    gate.allowed.append(f"{what}" + (f" in pass '{pass_name}'" if pass_name else ""))
    return True
