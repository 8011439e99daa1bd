"""Every error that fxpasses raises, in one tree.

.. code-block:: text

    FxPassesError
    ├── PassError                  a pass raised, or broke its contract
    ├── CheckError                 one or more checks refused a graph (all failures together)
    ├── PipelineError              a pipeline that cannot work: order, properties, unknown names
    │   └── PipelineSyntaxError    pipeline text that does not parse (points at the character)
    ├── GraphError                 a graph that is not well formed, or an edit that would make it so
    │   ├── CycleError             nodes that would wait for each other (carries the path)
    │   └── FakeValueError         fake tensors that are missing, mixed, or cannot be computed
    ├── MissingMetadataError       a typed ``node.meta`` entry that no pass has written yet
    ├── PatternError               a pattern, replacement or rule that cannot work
    ├── PartitionError             a proposal that overlaps, is empty, or is not convex
    ├── SplitError                 a graph that cannot be split or unflattened as asked
    ├── PlacementError             a placement problem that is malformed
    │   └── InfeasibleError        no placement exists (says by how many bytes, and which op)
    ├── PlanError                  a plan file that does not fit the model
    ├── StageError                 pipeline stages that cannot be cut, built or run
    ├── CaptureError               a model that ``torch.export`` cannot capture
    └── InputError                 a command line, file or argument that makes no sense

Each also subclasses the builtin that a caller would already catch. The message says what, where and what to do; the
facts are attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.fx import Node

__all__ = [
    "CaptureError",
    "CheckError",
    "CycleError",
    "FakeValueError",
    "FxPassesError",
    "GraphError",
    "InfeasibleError",
    "InputError",
    "MissingMetadataError",
    "PartitionError",
    "PassError",
    "PatternError",
    "PipelineError",
    "PipelineSyntaxError",
    "PlacementError",
    "PlanError",
    "SplitError",
    "StageError",
    "also_as",
    "came_from",
    "user_line",
]


class FxPassesError(Exception):
    """Base of all errors of this package.

    Args:
        message: What went wrong, where, and what to do.
        node: The graph node it is about, if it is about one.
        pass_name: The pass that was running, if one was.
        index: The position of that pass in its pipeline, counted from 0.
        reason: The bare fact, without the where and the advice.
    """

    def __init__(
        self,
        message: str = "",
        *,
        node: Node | None = None,
        pass_name: str | None = None,
        index: int | None = None,
        reason: str | None = None,
    ) -> None:
        Exception.__init__(self, message)  # not super(): also_as() may mix in a class whose constructor has other rules
        self.message = message
        self.node = node
        self.pass_name = pass_name
        self.index = index
        self.reason = reason if reason is not None else message

    def __str__(self) -> str:
        return self.message


class PassError(FxPassesError, RuntimeError):
    """A pass raised, returned the wrong type, or said something untrue about its result."""


class CheckError(FxPassesError, RuntimeError):
    """One or more checks refused a graph; ``failures`` holds every one of them as ``(check name, exception)``."""

    def __init__(self, message: str = "", *, failures: Sequence[tuple[str, BaseException]] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.failures = tuple(failures)


class PipelineError(FxPassesError, ValueError):
    """A pipeline that cannot work: contradictory order, missing properties, an unknown name."""


class PipelineSyntaxError(PipelineError):
    """Pipeline text that does not parse; ``column`` counts from 0."""

    def __init__(self, message: str = "", *, text: str = "", column: int = 0, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.text = text
        self.column = column


class GraphError(FxPassesError, ValueError):
    """A graph that is not well formed, or an edit that would make it so."""


class CycleError(GraphError):
    """Nodes or groups that would have to wait for each other; ``path`` starts and ends at the same place."""

    def __init__(self, message: str = "", *, path: Sequence[Any] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.path = tuple(path)


class FakeValueError(GraphError):
    """Fake tensors that are missing, come from several modes, or cannot be computed."""


class MissingMetadataError(FxPassesError, KeyError):
    """A typed ``node.meta`` entry that is not there; the message names the pass that writes it."""


class PatternError(FxPassesError, ValueError):
    """A pattern, replacement or rule that cannot work."""


class PartitionError(FxPassesError, ValueError):
    """A proposal that overlaps, is empty, holds foreign nodes, or is not convex."""


class SplitError(FxPassesError, ValueError):
    """A graph that cannot be split, merged or unflattened as asked."""


class PlacementError(FxPassesError, ValueError):
    """A placement problem that is malformed."""


class InfeasibleError(PlacementError):
    """No placement exists; ``missing_bytes`` says by how much, and ``first`` what is too much, as a sentence.

    The bytes are those of the first reason that is found: what one node needs beyond the largest device that may run
    it, what all need beyond all devices together, or what the nearest placement lacks on the device that lacks most.
    They are None where no memory would help, or nobody asked.
    """

    def __init__(
        self, message: str = "", *, missing_bytes: int | None = None, first: str | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.missing_bytes = missing_bytes
        self.first = first


class PlanError(FxPassesError, ValueError):
    """A plan file that does not fit the model it is applied to."""


class StageError(FxPassesError, RuntimeError):
    """Pipeline stages that cannot be cut, built or run."""


class CaptureError(FxPassesError, RuntimeError):
    """A model that ``torch.export`` cannot capture; shows its reason and the user's own source line."""


class InputError(FxPassesError, ValueError):
    """A command line, a file or an argument that makes no sense."""


ErrorT = TypeVar("ErrorT", bound=FxPassesError)
_MIXED: dict[tuple[type, type], type] = {}


def also_as(kind: type[ErrorT], cause: BaseException) -> type[ErrorT]:
    """Give the subclass of ``kind`` that ``except type(cause)`` catches as well.

    Wrapping an error must not hide it from the ``except`` clause that a caller already has.

    >>> error = also_as(PassError, ValueError("nothing to swap"))("pass 'swap' failed")
    >>> isinstance(error, PassError), isinstance(error, ValueError)
    (True, True)
    """
    other = type(cause)
    if issubclass(kind, other) or not isinstance(cause, Exception):
        return kind
    if (kind, other) not in _MIXED:
        try:
            mixed = type(kind.__name__, (kind, other), {"__init__": kind.__init__, "__str__": kind.__str__})
            mixed("probe")
        except TypeError:  # two C layouts that do not mix, or a constructor with rules of its own
            mixed = kind
        _MIXED[kind, other] = mixed
    return _MIXED[kind, other]


def came_from(node: Node) -> str:
    """`` (from file:line in function: code)`` for a sentence about ``node``; empty when it has no trace."""
    line = user_line(node)
    return f" (from {line})" if line else ""


def user_line(node: Node) -> str | None:
    """The last line of the user's own source that made ``node``, as ``file:line in function: code``.

    Read from ``node.meta["stack_trace"]``; lines of torch's own modules count only where there is nothing else. None
    when the node has no trace.
    """
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    frames = [position for position, line in enumerate(lines) if line.startswith("File ")]
    if not frames:
        return None
    written = [frame for frame in frames if "<eval_with_key>" not in lines[frame]] or frames  # not generated code
    position = ([frame for frame in written if "/site-packages/torch/" not in lines[frame]] or written)[-1]
    where = lines[position].removeprefix("File ").replace('"', "").replace(", line ", ":").replace(", in ", " in ")
    code = lines[position + 1] if position + 1 < len(lines) else ""
    return f"{where}: {code}" if code else where
