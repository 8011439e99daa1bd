"""Where a model is cut: at modules by name, at ``pipe_split()`` calls, or by balance.

Modules are found in the exported graph by the module stack that every node carries, so that cutting needs no change of
the caller's module, not even for a moment.
"""

from __future__ import annotations

import difflib
import enum
import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.errors import StageError, also_as, user_line
from fxpasses.metadata import module_stack
from fxpasses.outlining.regions import is_marker

__all__ = ["SplitPoint", "annotate_split_points", "pipe_split"]


class SplitPoint(enum.Enum):
    """Which side of a module a new stage begins at."""

    BEGINNING = 1
    END = 2


_ANNOTATED: weakref.WeakKeyDictionary[torch.nn.Module, SplitPoint] = weakref.WeakKeyDictionary()
"""What ``annotate_split_points`` was told; it lies beside the modules, which stay as they are."""

_MARKERS = ("fxpasses::pipe_split", "pippy::_pipe_split")
_TORCHS_HOME = "torch.distributed.pipelining"


@functools.cache
def _registered() -> torch.library.Library:
    """Register the marker when it is first used; the library lives as long as the cache holds it."""
    library = torch.library.Library("fxpasses", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's
    library.define("pipe_split() -> ()")  # type: ignore[no-untyped-call]
    library.impl("pipe_split", lambda: None, "BackendSelect")  # type: ignore[no-untyped-call]
    torch.library.register_fake("fxpasses::pipe_split", lambda: None, lib=library)
    torch.fx.node.has_side_effect(torch.ops.fxpasses.pipe_split.default)
    torch.fx.node.has_side_effect(pipe_split)
    return library


def register_marker() -> None:
    """See that ``torch.ops.fxpasses.pipe_split`` is there, and that no marker is taken for dead code."""
    _registered()


def pipe_split() -> None:
    """Begin a new stage here: written into a ``forward``; it does nothing when the model just runs."""
    register_marker()
    torch.ops.fxpasses.pipe_split()


def annotate_split_points(mod: torch.nn.Module, spec: Mapping[str, SplitPoint]) -> None:
    """Note where ``pipeline`` shall cut a model; the model itself is not changed, and a copy of it has no such notes.

    Args:
        mod: The model, or a part of it.
        spec: The side to cut at, by the qualified name of a submodule of ``mod``.

    Raises:
        StageError: A name that is no submodule (also an AttributeError), a value that is no SplitPoint (also a
            ValueError), or something else than a model and a dict (also a TypeError).
    """
    if not isinstance(mod, torch.nn.Module) or not isinstance(spec, Mapping):
        raise also_as(StageError, TypeError())(
            "annotate_split_points takes a model and a dict of split points by the names of its modules, not "
            f"{type(mod).__name__} and {type(spec).__name__}"
        )
    check_spec(mod, spec)
    for name, side in spec.items():
        _ANNOTATED[mod.get_submodule(name)] = side


def annotations_of(module: torch.nn.Module) -> dict[str, SplitPoint]:
    """The annotated submodules by name, in the order of ``named_modules``."""
    return {name: _ANNOTATED[part] for name, part in module.named_modules() if name and part in _ANNOTATED}


def check_spec(module: torch.nn.Module, spec: Mapping[str, SplitPoint]) -> None:
    """Refuse names that are no submodules and values that are no split points."""
    _check_names(spec, [name for name, _ in module.named_modules(remove_duplicate=False) if name], module)


def check_program_spec(program: ExportedProgram, spec: Mapping[str, SplitPoint]) -> None:
    """Refuse names that are no modules of the model that was captured, and values that are no split points."""
    waiting: list[Any] = [program.graph_module]
    known: dict[str, None] = {}
    while waiting:
        graph_module = waiting.pop()
        known.update((path, None) for node in graph_module.graph.nodes for path in paths_of(node) if path)
        waiting.extend(child for child in graph_module.children() if isinstance(child, GraphModule))
    _check_names(spec, list(known), program)


def _check_names(spec: Mapping[str, Any], known: Sequence[str], owner: object) -> None:
    for name, side in spec.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=3)
            hint = f"the nearest names are {', '.join(map(repr, nearest))}" if nearest else "no name comes near"
            raise also_as(StageError, AttributeError())(
                f"the split point {name!r} names no module of {type(owner).__name__}; {hint}"
            )
        if not isinstance(side, SplitPoint):
            ours = " of fxpasses.pipelining: torch's is another" if type(side).__name__ == SplitPoint.__name__ else ""
            raise also_as(StageError, ValueError())(
                f"the split point {name!r} is {side!r}; write SplitPoint.BEGINNING or SplitPoint.END{ours}"
            )


def compute_nodes(graph_module: GraphModule) -> list[Node]:
    """The nodes that run: all but inputs, attributes, the output, and what opens and closes regions."""
    apart = ("placeholder", "get_attr", "output")
    return [node for node in graph_module.graph.nodes if node.op not in apart and not is_marker(node)]


def is_split_marker(node: Node) -> bool:
    """Whether a node is a ``pipe_split``, ours or torch's: a call of the operator, or of the function itself."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).removesuffix(".default").replace(".", "::") in _MARKERS
    return node.op == "call_function" and (target is pipe_split or _is_torchs_pipe_split(target))


def _is_torchs_pipe_split(function: Any) -> bool:
    """Told by its name, as the module that it is from is heavy and not for us to import."""
    where_from = str(getattr(function, "__module__", None))
    return getattr(function, "__name__", None) == "pipe_split" and where_from.startswith(_TORCHS_HOME)


def paths_of(node: Node) -> list[str]:
    """The modules that a node is from, outermost first."""
    return [path for path, *_ in module_stack(node).values()]


def take_markers(graph_module: GraphModule) -> list[int]:
    """Remove every ``pipe_split`` from a graph; gives the compute node before which each stood, as a position."""
    cuts: list[int] = []
    position = 0
    for node in compute_nodes(graph_module):
        if is_split_marker(node):
            cuts.append(position)
            graph_module.graph.erase_node(node)
        else:
            position += 1
    return cuts


def cuts_at_modules(nodes: Sequence[Node], spec: Mapping[str, SplitPoint]) -> list[int]:
    """The positions before which a new stage begins.

    Raises:
        StageError: A module that never runs, or that runs several times.
    """
    calls: dict[str, dict[str, list[int]]] = {name: {} for name in spec}
    for position, node in enumerate(nodes):
        for call, (path, *_) in module_stack(node).items():  # a second call has another key
            if path in calls:
                calls[path].setdefault(call, []).append(position)
    return [_cut_at(name, side, list(calls[name].values())) for name, side in spec.items()]


def _cut_at(name: str, side: SplitPoint, calls: Sequence[Sequence[int]]) -> int:
    if not calls:
        raise StageError(
            f"the split point {name!r} runs no operator of its own in the graph; cut at the module around it"
        )
    if len(calls) > 1:
        raise StageError(
            f"the split point {name!r} runs {len(calls)} times, and so a cut there is no single place; "
            "call pipe_split() in the forward instead"
        )
    return calls[0][0] if side is SplitPoint.BEGINNING else calls[0][-1] + 1


def stages_from_cuts(nodes: Sequence[Node], cuts: Sequence[int]) -> dict[Node, int]:
    """The stage of each node; several cuts at one place count once.

    Raises:
        StageError: A stage without operators.
    """
    for cut in cuts:
        if cut in (0, len(nodes)):
            side = "before the first" if cut == 0 else "after the last"
            raise StageError(f"a split point lies {side} operator of the model, and so one stage would be empty")
    bounds = sorted(set(cuts))
    stage_of: dict[Node, int] = {}
    stage = 0
    for position, node in enumerate(nodes):
        stage += stage < len(bounds) and position == bounds[stage]
        stage_of[node] = stage
    return stage_of


def where(node: Node) -> str:
    """A node and the user's line behind it, for messages."""
    line = user_line(node)
    return f"{node.name} ({line})" if line else node.name
