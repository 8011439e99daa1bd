"""From a model to the graph that is placed: captured, cleaned up by passes, with its own state; and the clock of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.effects import analyze_effects
from fxpasses.errors import InputError, PipelineError, PipelineSyntaxError, PlanError, also_as
from fxpasses.lowering.captured_again import with_own_names
from fxpasses.lowering.given_inputs import GivenInputs
from fxpasses.lowering.model_placement import graph_paths, module_paths
from fxpasses.lowering.own_buffers import own_buffers
from fxpasses.lowering.program_copies import (
    copied_program,
    with_autocast_types,
    with_keywords_given,
    with_regions_closed,
    with_true_users,
)
from fxpasses.outlining.opening import open_regions
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.costs.node_costs import COST, cost_of
from fxpasses.partitioners.placing.worthwhile_cuts import is_worth_cutting
from fxpasses.partitioners.symbol_bounds import note_limits
from fxpasses.partitioners.vmap_rows import note_rows
from fxpasses.pass_manager import PassManager
from fxpasses.programs.capturing import capture
from fxpasses.programs.input_contract import InputContract
from fxpasses.programs.program_modules import module_of_program
from fxpasses.registry import parse_pipeline, pipeline_text
from fxpasses.report.summary import PassRow, StepRow
from fxpasses.values import has_value

if TYPE_CHECKING:
    from fxpasses.plan import Plan

__all__ = [
    "DEFAULT_PIPELINE",
    "Clock",
    "Pipeline",
    "Prepared",
    "Progress",
    "pipeline_of",
    "prepare",
    "run_passes",
    "stateful",
]

DEFAULT_PIPELINE = "remove-no-ops,eliminate-dead-code,snapshot-state"

Progress = Callable[[str], None]

Pipeline = str | PassManager | Sequence[Any]
"""The clean-up passes: a text, a manager, or a list of passes."""


@attrs.define
class Clock:
    """The steps so far; tells whoever watches when one begins."""

    progress: Progress | None
    rows: list[StepRow] = attrs.field(factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        if self.progress is not None:
            self.progress(name)
        begin = time.perf_counter()
        yield
        self.rows.append(StepRow(name, time.perf_counter() - begin))


@attrs.frozen(eq=False)
class Prepared:
    """A model that is ready to be placed.

    Args:
        captured: The program as it was captured.
        program: The program after the passes.
        graph_module: The same with its state in attributes; buffers that it writes to are its own copies.
        passes: What each pass did.
        pipeline: The passes as text, where they have one.
        modules: The paths of the model's modules, those included that leave no operator behind.
        graphs: Those of them that are graphs which were captured before.
    """

    captured: ExportedProgram
    program: ExportedProgram
    graph_module: GraphModule
    passes: tuple[PassRow, ...]
    pipeline: str | None
    modules: tuple[str, ...]
    graphs: tuple[str, ...]


def _check_examples(model: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    """Torch captures a graph without its hooks; that of a lowered model knows what its own graph is good for."""
    for hook in model._forward_pre_hooks.values() if isinstance(model, GraphModule) else ():
        if isinstance(hook, GivenInputs):
            hook.contract.bind(args or (), kwargs or {})


def prepare(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    pipeline: Pipeline = DEFAULT_PIPELINE,
    dynamic_shapes: Any = None,
    strict: bool = False,
    clock: Clock | None = None,
) -> Prepared:
    """Capture a model and clean it up; a program that is given stays as it is.

    The arguments are those of :func:`fxpasses.lower`.

    Raises:
        InputError: missing or unfitting inputs.
        CaptureError: torch cannot export the model.
        PipelineError: the pipeline cannot work.
    """
    clock = clock or Clock(None)
    _check_examples(model, args, kwargs)
    with clock.step("capture"):
        captured = capture(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
        with_own_names(captured, model)
    if args is not None or kwargs is not None:
        InputContract.of(captured).bind(tuple(args or ()), dict(kwargs or {}))
    with clock.step("passes"):
        manager = _manager(pipeline)
        own = copied_program(captured) if captured is model else with_true_users(captured)
        program, rows = run_passes(with_keywords_given(with_autocast_types(with_regions_closed(own))), manager)
    with clock.step("measure"):
        graph_module = stateful(program)
    text = pipeline if isinstance(pipeline, str) else _text_of(manager)
    modules, graphs = tuple(module_paths(model, captured)), tuple(graph_paths(model))
    return Prepared(captured, program, graph_module, rows, text, modules, graphs)


def run_passes(program: ExportedProgram, pipeline: Pipeline) -> tuple[ExportedProgram, tuple[PassRow, ...]]:
    """Run the clean-up passes; give the program after them, and what each did."""
    manager = _manager(pipeline)
    result = manager(program)
    cleaned = result.exported_program or program
    rows = tuple(
        PassRow(
            record.name,
            record.seconds,
            record.nodes_before,
            record.nodes_after,
            record.skipped or (str(record.edits) if record.modified else "nothing"),
        )
        for record in result.records
    )
    return cleaned, rows


def pipeline_of(plan: Plan | None) -> str:
    """The passes that a plan names; the usual ones where it names none.

    Raises:
        PipelineSyntaxError: what it names does not parse, or is not there; a PlanError, too.
    """
    if plan is None or plan.pipeline is None:
        return DEFAULT_PIPELINE
    try:
        parse_pipeline(plan.pipeline)
    except PipelineSyntaxError as error:
        read = "" if plan.file is None else f"\nIt was read from {plan.file!r}."
        raise also_as(PipelineSyntaxError, PlanError())(
            f"In this plan pipeline: {error}{read}", text=error.text, column=error.column, reason=error.reason
        ) from error
    return plan.pipeline


def _manager(pipeline: Pipeline) -> PassManager:
    if isinstance(pipeline, PassManager):
        return pipeline
    if isinstance(pipeline, str):
        manager: PassManager = parse_pipeline(pipeline)
        manager.run_checks_after_each_pass = True
        return manager
    if isinstance(pipeline, Sequence):
        return PassManager(list(pipeline), run_checks_after_each_pass=True)
    raise InputError(f"A pipeline is a text, a PassManager or a list of passes, not {type(pipeline).__name__}.")


def _text_of(manager: PassManager) -> str | None:
    """The pipeline as text; None where a pass of it has no name."""
    try:
        return pipeline_text(manager)
    except (PipelineError, TypeError):
        return None


def stateful(program: ExportedProgram) -> GraphModule:
    """The program as a module that holds its state, regions with work to share out opened.

    Buffers that it writes to are its own copies.

    What each operator costs is noted here, so that all that places, simulates and reports measures nothing again.

    Raises:
        CaptureError: a module, parameter or buffer has a name that graph modules use themselves.
    """
    graph_module = module_of_program(program)
    graph_module._forward_pre_hooks.clear()
    graph_module._forward_pre_hooks_with_kwargs.clear()
    open_regions(graph_module, is_worth_cutting)
    with torch.inference_mode(False):  # what is made inside of one cannot be written to outside
        own_buffers(graph_module, analyze_effects(graph_module).written_tensors())
    note_limits(graph_module)
    note_rows(graph_module)
    for node in graph_module.graph.nodes:
        if is_compute(node) and has_value(node) and not COST.has(node):
            COST.write(node, cost_of(node))
    return graph_module
