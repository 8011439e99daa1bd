"""Does the graph still compute the same? Outputs, and gradients on request, on inputs the user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.checks.evaluation import TOLERANCES, Evaluation, compare_tensors, evaluate
from fxpasses.checks.sessions import InputCheck
from fxpasses.errors import GraphError, PipelineError, also_as, came_from

__all__ = ["same_outputs"]


class same_outputs(InputCheck):  # noqa: N801 - reads as a statement: checks=[same_outputs(args)]
    """The check that a graph gives the same outputs as the input of the run, on the given arguments.

    It runs after every pass that changes something, so the first pass that goes wrong is named, and the first node
    whose value differs from what it was before that pass. The caller must get the outputs in the same places (tuples
    and lists are the same, dictionaries have the same keys), and inputs and buffers must be left as before, too. State
    that a run writes to is put back; random numbers are drawn from the same seed.

    Args:
        args: Inputs, as a call would give them.
        kwargs: Keyword inputs.
        tolerances: By dtype, how far values may be apart, absolutely and relatively; one number for all floats. What is
            not named keeps its default: 2e-5 for float32, 1e-9 for float64, 2e-3 for float16, 2e-2 for bfloat16.
        gradients: Compare the gradients of inputs and parameters too.
        nodes: Keep what every node gave, to name the first that differs; costs the memory of all activations.
    """

    wants_program = True
    every_change = True

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        tolerances: Mapping[torch.dtype, float] | float | None = None,
        *,
        gradients: bool = False,
        nodes: bool = True,
    ) -> None:
        if not isinstance(args, Sequence):  # a tensor is none
            raise also_as(PipelineError, TypeError())(
                f"same_outputs(args): args is a tuple of inputs, not a {type(args).__name__}; write same_outputs((x,))"
            )
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.tolerances = _tolerances(tolerances)
        self.gradients = gradients
        self.nodes = nodes

    def begin(self, subject: GraphModule | ExportedProgram) -> Callable[[Any], None]:
        """Run the input; give the check of what follows."""
        reference = self._evaluate(subject, self.nodes)
        latest = [reference.values]

        def check(after: GraphModule | ExportedProgram) -> None:
            now = self._evaluate(after, self.nodes)
            if (problem := self._problem(reference, now)) is not None:
                raise self._error(after, problem, latest[0], now.values)
            latest[0] = now.values

        return check

    def __call__(self, before: Any, after: Any) -> None:
        """Compare two modules or programs, outside of a manager.

        Raises:
            GraphError: They give different outputs.
        """
        self.begin(before)(after)

    def _evaluate(self, subject: GraphModule | ExportedProgram, values: bool) -> Evaluation:
        return evaluate(subject, self.args, self.kwargs, values=values, gradients=self.gradients)

    def _problem(self, reference: Evaluation, now: Evaluation) -> str | None:
        if len(reference.outputs) != len(now.outputs):
            return f"there are {len(now.outputs)} outputs instead of {len(reference.outputs)}"
        if (problem := _other_structure(reference.paths, now.paths)) is not None:
            return problem
        for index, (mine, theirs) in enumerate(zip(reference.outputs, _in_order_of(reference, now), strict=True)):
            if (how := compare_tensors(mine, theirs, self.tolerances)) is not None:
                return f"output {index} differs: {how}"
        for name, tensor in reference.left.items():
            if name in now.left and (how := compare_tensors(tensor, now.left[name], self.tolerances)) is not None:
                return f"{name} is left in another state: {how}"  # a pass may take buffers away
        for name, gradient in reference.gradients.items():
            if name not in now.gradients:
                if not name.startswith("parameter") or name in now.unreached:  # a pass may fold parameters away
                    return f"the gradient of {name} is gone"
            elif (how := compare_tensors(gradient, now.gradients[name], self.tolerances)) is not None:
                return f"the gradient of {name} differs: {how}"
        return None

    def _error(self, subject: Any, problem: str, before: dict[str, list[Any]], now: dict[str, list[Any]]) -> GraphError:
        module = subject.graph_module if isinstance(subject, ExportedProgram) else subject
        found = self._first_difference(module, before, now)
        if found is None:
            return GraphError(f"the graph gives other outputs than before: {problem}", reason=problem)
        node, how = found
        line = came_from(node)
        return GraphError(
            f"the graph gives other outputs than before: {problem}; the first node that differs is {node.name!r}{line}:"
            f" {how}",
            node=node,
            reason=problem,
        )

    def _first_difference(
        self, module: GraphModule, before: dict[str, list[Any]], now: dict[str, list[Any]]
    ) -> tuple[Node, str] | None:
        for node in module.graph.nodes:
            known = self._known_value(node, before)
            if known is None or node.name not in now:
                continue
            mine, theirs = known, now[node.name]
            if len(mine) != len(theirs):
                return node, f"{len(theirs)} values instead of {len(mine)}"
            for one, other in zip(mine, theirs, strict=True):
                if (how := compare_tensors(one, other, self.tolerances)) is not None:
                    return node, how
        return None

    @staticmethod
    def _known_value(node: Node, before: dict[str, list[Any]]) -> list[Any] | None:
        """What the node gave before the pass, or what the last node it stands for gave."""
        if node.name in before:
            return before[node.name]
        names = [source.name for source in node.meta.get("from_node") or []]
        return next((before[name] for name in reversed(names) if name in before), None)


def _other_structure(before: list[str] | None, now: list[str] | None) -> str | None:
    if before is None or now is None:  # of a program, whose outputs are flat
        return None
    for old, new in zip(before, now, strict=True):
        if old not in now:
            return f"the caller gets {f'result{new}'!r} instead of {f'result{old}'!r}"
    return None


def _in_order_of(reference: Evaluation, now: Evaluation) -> list[Any]:
    """The outputs in the order of the reference: that of the keys of a dictionary means nothing."""
    if reference.paths is None or now.paths is None or reference.paths == now.paths:
        return now.outputs
    by_path = dict(zip(now.paths, now.outputs, strict=True))
    return [by_path[path] for path in reference.paths]


def _tolerances(given: Mapping[torch.dtype, float] | float | None) -> dict[torch.dtype, float]:
    if given is None:
        return dict(TOLERANCES)
    if isinstance(given, Mapping):
        return {**TOLERANCES, **given}
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise also_as(PipelineError, TypeError())(
            f"same_outputs(tolerances=): a number, or a mapping from dtypes to numbers, not {given!r}"
        )
    return dict.fromkeys(TOLERANCES, float(given))
