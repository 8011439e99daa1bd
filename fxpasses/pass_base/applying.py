"""Run one pass on one graph, and find out what it really did.

This is the inner step that :class:`~fxpasses.PassBase` (called alone) and :class:`~fxpasses.PassManager` share:
``requires`` on the input, ``call`` on the nested graphs and the graph, ``ensures`` on the *result*, and then a look at
the graph to see whether it changed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, cast

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.errors import FxPassesError, InputError, PassError, also_as, user_line
from fxpasses.journal import Snapshot
from fxpasses.journal.comparing import same_structure
from fxpasses.metadata import running_pass
from fxpasses.outlining.body_constants import hand_in_constants
from fxpasses.outlining.owning import own_bodies
from fxpasses.pass_base import naming
from fxpasses.pass_base.base import (
    ExportedProgramPassBase,
    ExportedProgramPassResult,
    FunctionPass,
    PassBase,
    PassResult,
)
from fxpasses.pass_base.recompiling import RecompileQueue, deferred_recompile
from fxpasses.programs.current_program import working_on

__all__ = [
    "Outcome",
    "apply_pass",
    "as_pass_error",
    "call_alone",
    "call_program_pass_alone",
    "cause_of",
    "graphs_in",
    "has_targets",
    "is_program_pass",
    "reaches_nested",
    "result_of",
    "sync_program",
    "unpack",
]


@attrs.frozen
class Outcome:
    """What a pass returned, before anybody looked whether it is true."""

    graph_module: GraphModule
    program: ExportedProgram | None
    claimed: bool | None
    inner_report: Any = None


def unpack(subject: Any) -> tuple[GraphModule, ExportedProgram | None]:
    """The graph module to work on, and the program it belongs to.

    Raises:
        InputError: It is neither a GraphModule, an ExportedProgram, nor a result (also a ``TypeError``).
    """
    program = subject if isinstance(subject, ExportedProgram) else getattr(subject, "exported_program", None)
    if isinstance(program, ExportedProgram):
        return program.graph_module, program
    module = subject if isinstance(subject, GraphModule) else getattr(subject, "graph_module", None)
    if isinstance(module, GraphModule):
        return module, None
    hint = "; trace or export it first" if isinstance(subject, torch.nn.Module) else ""
    raise also_as(InputError, TypeError())(
        f"passes run on a GraphModule, an ExportedProgram or a PassResult, not on {type(subject).__name__}{hint}"
    )


def graphs_in(module: GraphModule) -> list[GraphModule]:
    """The module and every graph module inside it, outermost first, each once."""
    seen: dict[int, GraphModule] = {}
    for inner in module.modules():
        if isinstance(inner, GraphModule):
            seen.setdefault(id(inner), inner)
    return list(seen.values())


def is_program_pass(pass_: Any) -> bool:
    """Whether the pass works on whole ExportedPrograms (ours, or one of ExecuTorch's by the name of its base)."""
    return isinstance(pass_, ExportedProgramPassBase) or any(
        base.__name__ == "ExportedProgramPassBase" for base in type(pass_).__mro__
    )


def has_targets(pass_: Any, graphs: Sequence[GraphModule]) -> bool:
    """Whether any graph has one of the pass's ``target_ops``; looked up in torch's side table, not by a walk."""
    wanted = getattr(pass_, "target_ops", None)
    if wanted is None:
        return True
    return any(_has_target(module, target) for module in graphs for target in wanted)


def reaches_nested(pass_: Any) -> bool:
    """Whether the graphs inside are given to the pass, or are walked by it."""
    return bool(getattr(pass_, "visit_nested", True) or getattr(pass_, "walks_nested", False))


def _has_target(module: GraphModule, target: Any) -> bool:
    table = module.graph._find_nodes_lookup_table.table
    if isinstance(target, str):
        if any(node.target == target for op in ("call_method", "call_module") for node in table.get((op, None), ())):
            return True
        return any(bool(nodes) and str(called) == target for (_op, called), nodes in table.items())
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        calls = table.get(("call_module", None), ())
        return any(isinstance(module.get_submodule(str(node.target)), target) for node in calls)
    if isinstance(target, torch._ops.OpOverloadPacket):
        overloads = [getattr(target, name) for name in target.overloads()]  # type: ignore[no-untyped-call]
        return any(table.get(("call_function", one)) for one in [target, *overloads])
    return bool(table.get(("call_function", target)))


def apply_pass(pass_: Any, module: GraphModule, program: ExportedProgram | None, *, queue: RecompileQueue) -> Outcome:
    """Run ``requires``, ``call`` and ``ensures`` of one pass of any kind.

    Raises:
        PassError: It returned something that is no result.
        Exception: Whatever the pass raised.
    """
    with running_pass(naming.pass_name(pass_)), working_on(program):
        if is_program_pass(pass_):
            return _apply_program_pass(pass_, program)
        if isinstance(pass_, PassBase) and type(pass_).__call__ is PassBase.__call__:
            return _apply_ours(pass_, module, queue)
        return _apply_callable(pass_, module, queue)


def _apply_ours(pass_: PassBase, module: GraphModule, queue: RecompileQueue) -> Outcome:
    pass_.requires(module)
    inner_changed = _visit_nested(pass_.call, pass_, module, queue) if pass_.visit_nested else False
    outcome = _read(pass_, pass_.call(module), module)
    pass_.ensures(outcome.graph_module)
    return attrs.evolve(outcome, claimed=True if inner_changed else outcome.claimed)


def _apply_callable(pass_: Callable[..., Any], module: GraphModule, queue: RecompileQueue) -> Outcome:
    in_place = _may_return_none(pass_)
    if in_place:

        def call(inner: GraphModule) -> Any:
            returned = pass_(inner)
            return inner if returned is None else returned

        _visit_nested(call, pass_, module, queue)
        return _read(pass_, call(module), module)
    return _read(pass_, pass_(module), module)


def _may_return_none(pass_: Any) -> bool:
    """Functions may work in place without a word; objects with ``call`` and ``requires`` are passes and must not."""
    return (
        inspect.isroutine(pass_)
        or isinstance(pass_, (functools.partial, FunctionPass))
        or not (hasattr(pass_, "call") and hasattr(pass_, "ensures"))
    )


def _visit_nested(call: Callable[[GraphModule], Any], pass_: Any, module: GraphModule, queue: RecompileQueue) -> bool:
    """Give the pass every graph inside, innermost first; True if it says that one of them changed."""
    changed = False
    for inner in reversed(graphs_in(module)[1:]):
        if not has_targets(pass_, [inner]):
            continue
        queue.hold(inner)
        outcome = _read(pass_, call(inner), inner)
        changed = changed or bool(outcome.claimed)
        if outcome.graph_module is not inner:
            _replace_module(module, inner, outcome.graph_module)
            changed = True
    return changed


def _replace_module(root: GraphModule, old: GraphModule, new: GraphModule) -> None:
    for holder in list(root.modules()):
        for name, child in list(holder._modules.items()):
            if child is old:
                holder._modules[name] = new


def _read(pass_: Any, returned: Any, module: GraphModule) -> Outcome:
    """Take what a pass returned apart, whichever framework it was written for."""
    if isinstance(returned, GraphModule):
        claimed = None if returned is module else True
        return Outcome(returned, None, claimed)
    inner = getattr(returned, "graph_module", None)
    if isinstance(inner, GraphModule) and hasattr(returned, "modified"):
        claimed = None if not returned.modified and getattr(returned, "is_vague", False) else bool(returned.modified)
        return Outcome(inner, None, claimed, getattr(returned, "report", None))
    raise also_as(PassError, TypeError())(_wrong_return(pass_, returned), reason="wrong return type")


def _wrong_return(pass_: Any, returned: Any) -> str:
    name = naming.pass_name(pass_)
    advice = "return PassResult(graph_module, modified), or the GraphModule"
    if returned is None:
        return (
            f"call of pass '{name}' returned None; {advice} (only a plain function may return None, for 'changed in "
            "place'; pass_result_wrapper() makes one of it)"
        )
    return (
        f"The result of the pass {name} should be type PassResult, but it is {type(returned).__name__}; {advice}. "
        "Please wrap it with pass_result_wrapper() if it is a function that returns something else."
    )


def _apply_program_pass(pass_: Any, program: ExportedProgram | None) -> Outcome:
    if program is None:
        raise also_as(PassError, TypeError())(
            f"pass '{naming.pass_name(pass_)}' works on an ExportedProgram, but the pipeline was given a GraphModule; "
            "give it the ExportedProgram",
            reason="needs an ExportedProgram",
        )
    if isinstance(pass_, ExportedProgramPassBase) and type(pass_).__call__ is ExportedProgramPassBase.__call__:
        pass_.requires(program)
        returned = pass_.call(program)
    else:
        returned = pass_(program)
    after = getattr(returned, "exported_program", returned)
    if not isinstance(after, ExportedProgram):
        raise also_as(PassError, TypeError())(
            f"call of pass '{naming.pass_name(pass_)}' returned {type(returned).__name__}; return "
            "ExportedProgramPassResult(exported_program, modified)",
            reason="wrong return type",
        )
    if isinstance(pass_, ExportedProgramPassBase):
        pass_.ensures(after)
    return Outcome(after.graph_module, after, getattr(returned, "modified", None))


def sync_program(program: ExportedProgram, module: GraphModule) -> ExportedProgram:
    """The program with ``module`` as its graph and a signature that fits it.

    A module that was edited in place stays the graph of the very program it came from, which is brought up to date; a
    new module makes a new program, and the given one is left alone.
    """
    from fxpasses.programs.edits import with_graph_module

    signature = program.graph_signature
    for specs in ("input_specs", "output_specs"):
        if not isinstance(getattr(signature, specs), list):  # passes in the wild assign tuples
            setattr(signature, specs, list(getattr(signature, specs)))
    return with_graph_module(program, module)


def result_of(module: GraphModule, modified: bool, program: ExportedProgram | None, report: Any = None) -> PassResult:
    """A result with what else is known about it."""
    result = PassResult(module, modified)
    extended: Any = result
    if program is not None:
        extended.exported_program = program
    if report is not None:
        extended.report = report
    return result


def call_alone(pass_: Any, subject: Any) -> PassResult:
    """What calling a pass by itself does: run it, establish the truth, and on failure put the graph back."""
    module, program = unpack(subject)
    if not has_targets(pass_, graphs_in(module) if reaches_nested(pass_) else [module]):
        return result_of(module, False, program)
    outcome, modified, program = _run_alone(pass_, module, program)
    return result_of(outcome.graph_module, modified, program)


def call_program_pass_alone(pass_: ExportedProgramPassBase, program: ExportedProgram) -> ExportedProgramPassResult:
    """What calling a program pass by itself does."""
    module, given = unpack(program)
    if given is not None and not has_targets(pass_, graphs_in(module)):
        return ExportedProgramPassResult(given, False)
    outcome, changed, _given = _run_alone(pass_, module, given)
    after = cast("ExportedProgram", outcome.program)
    return ExportedProgramPassResult(after, changed or (after is not given and bool(outcome.claimed)))


def _run_alone(
    pass_: Any, module: GraphModule, program: ExportedProgram | None
) -> tuple[Outcome, bool, ExportedProgram | None]:
    """What a pass returned, whether it changed anything, and the program in step with a graph that it changed."""
    own_bodies(module)
    snapshot = Snapshot.take(module if program is None else program)
    failed = True
    try:
        with deferred_recompile() as queue:
            queue.hold(module)
            outcome = apply_pass(pass_, module, program, queue=queue)
            modified = is_modified(snapshot, module, outcome.graph_module)
            if modified:
                if not is_program_pass(pass_):
                    hand_in_constants(outcome.graph_module)
                mark_changed(queue, module, snapshot, outcome.graph_module)
                if program is not None and not is_program_pass(pass_):
                    program = sync_program(program, outcome.graph_module)
        failed = False
    except Exception as error:  # a pass may raise anything; all of it is reported as one PassError
        raise as_pass_error(error, pass_) from cause_of(error)
    finally:
        if failed:
            snapshot.restore()
    return outcome, modified, program


def is_modified(snapshot: Snapshot, before: GraphModule, after: GraphModule) -> bool:
    """Whether the graph is another one than when the snapshot was taken; a new module is compared by structure."""
    return snapshot.changed() or (after is not before and not same_structure(before, after))


def mark_changed(queue: RecompileQueue, before: GraphModule, snapshot: Snapshot, after: GraphModule) -> None:
    """Note every graph whose code may be out of date: the outer one, those that changed, and all of a new module."""
    if after is not before:
        changed = graphs_in(after)
    else:
        paths = {"", *snapshot.changed_paths()}
        changed = [inner for path, inner in after.named_modules() if path in paths and isinstance(inner, GraphModule)]
    for inner in changed:
        queue.mark(inner)


# --- errors ---------------------------------------------------------------------------------------------------------


def as_pass_error(
    error: Exception,
    pass_: Any,
    *,
    index: int | None = None,
    position: str = "",
    previous: Sequence[str] = (),
    restored: bool = True,
) -> FxPassesError:
    """One error that says which pass failed, where in the graph, on which line of the user's, and why.

    It can be caught as the cause's own type too. An error that is already one of ours about this pass is not wrapped
    again: it only learns its position.
    """
    name = naming.pass_name(pass_)
    node = getattr(error, "node", None) or node_in_traceback(error.__traceback__)
    after = f" after the following passes: {list(previous)}" if index is not None else ""
    where = f" (position {position})" if position else ""
    lines = [f"An error occurred when running the '{name}' pass{where}{after}: {_told(error)}"]
    if node is not None:
        lines.append(f"  at node: {_shown(node)}")
        if line := user_line(node):
            lines.append(f"  from: {line}")
    if restored:
        lines.append("  the graph is as it was before")
    kind = type(error) if isinstance(error, PassError) else also_as(PassError, error)
    wrapped = kind("\n".join(lines), node=node, pass_name=name, index=index, reason=_told(error))
    wrapped.__dict__.update({fact: value for fact, value in vars(error).items() if fact not in vars(wrapped)})
    return wrapped  # its facts, such as the path of a cycle, stay facts


def _told(error: BaseException) -> str:
    if isinstance(error, PassError):
        return error.reason if error.pass_name is not None else error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def cause_of(error: Exception) -> BaseException | None:
    """What to chain: the error itself, unless it already wraps the one it reports."""
    if isinstance(error, PassError) and error.pass_name is not None:
        return error.__cause__
    return error


def _shown(node: Node) -> str:
    try:
        return node.format_node() or node.name
    except (AttributeError, TypeError, RuntimeError, ValueError):  # the pass may have left it half made
        return node.name


def node_in_traceback(traceback: TracebackType | None) -> Node | None:
    """The node a failing pass had in hand: the local ``node`` (or the only one) of the innermost frame that has one."""
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        if frame.f_globals.get("__name__", "").startswith(("torch.fx", "fxpasses.pass_base.applying")):
            continue
        values = frame.f_locals
        if isinstance(values.get("node"), Node):
            return cast("Node", values["node"])
        nodes = [value for value in values.values() if isinstance(value, Node)]
        if len(nodes) == 1:
            return nodes[0]
    return None
