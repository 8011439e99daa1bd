"""Budgets: at most so many nodes, parts, copies, bytes or seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.checks.graphs import graphs_of
from fxpasses.checks.sessions import PassCheck
from fxpasses.errors import GraphError, PassError, PipelineError
from fxpasses.pass_base.naming import pass_name

__all__ = ["at_most"]

COPY_KEY = "fxpasses.copy"


def at_most(
    *,
    nodes: int | None = None,
    parts: int | None = None,
    copies: int | None = None,
    bytes: int | None = None,
    seconds: float | None = None,
) -> Any:
    """The check that a graph stays within a budget, and a pass within its time.

    Args:
        nodes: Nodes of all graphs, nested ones too.
        parts: Graph modules that the graph calls.
        copies: Copies between devices.
        bytes: Bytes of parameters, buffers and constants, shared ones counted once.
        seconds: Wall-clock seconds of any single pass; only seen by a manager.

    Returns:
        A check; with ``seconds``, one for managers.

    Raises:
        PipelineError: No budget, or a negative one.
    """
    budget = {"nodes": nodes, "parts": parts, "copies": copies, "bytes": bytes}
    given = {name: limit for name, limit in {**budget, "seconds": seconds}.items() if limit is not None}
    if not given:
        raise PipelineError("at_most() needs a budget: nodes, parts, copies, bytes or seconds")
    if any(limit < 0 for limit in given.values()):
        raise PipelineError(f"at_most() takes no negative budget: {given}")
    if seconds is not None:
        return _TimeBudget(seconds, {name: limit for name, limit in budget.items() if limit is not None})
    return _Budget({name: limit for name, limit in budget.items() if limit is not None})


@attrs.frozen
class _Budget:
    limits: dict[str, int]

    @property
    def pass_name(self) -> str:
        return f"at_most({', '.join(f'{name}={limit}' for name, limit in self.limits.items())})"

    def __repr__(self) -> str:
        return self.pass_name

    def __call__(self, subject: GraphModule | ExportedProgram) -> None:
        over = []
        for name, limit in self.limits.items():
            found = _COUNTERS[name](subject)
            if found > limit:
                over.append(f"{found} {name}, {found - limit} more than the budget of {limit}")
        if over:
            raise GraphError(f"over budget: {'; '.join(over)}")


class _TimeBudget(PassCheck):
    """Times passes, and counts what the graph has after them."""

    def __init__(self, seconds: float, limits: dict[str, int]) -> None:
        self.seconds = seconds
        self.rest = _Budget(limits) if limits else None
        self.pass_name = f"at_most(seconds={seconds})"

    def before_pass(self, pass_: Any, graph_module: GraphModule) -> float:
        """Start the clock."""
        return time.perf_counter()

    def after_pass(self, pass_: Any, before: float, graph_module: GraphModule) -> None:
        """Stop it."""
        taken = time.perf_counter() - before
        if taken > self.seconds:
            raise PassError(
                f"pass '{pass_name(pass_)}' took {taken:.3f} s, {taken - self.seconds:.3f} s more than the budget of "
                f"{self.seconds:g} s"
            )
        if self.rest is not None:
            self.rest(graph_module)


def _count_nodes(subject: GraphModule | ExportedProgram) -> int:
    return sum(len(module.graph.nodes) for _, module in graphs_of(subject))


def _count_parts(subject: GraphModule | ExportedProgram) -> int:
    root = next(module for _, module in graphs_of(subject))
    called = {str(node.target) for node in root.graph.find_nodes(op="call_module")}
    return sum(isinstance(root.get_submodule(name), GraphModule) for name in called)


def _count_copies(subject: GraphModule | ExportedProgram) -> int:
    return sum(COPY_KEY in node.meta for _, module in graphs_of(subject) for node in module.graph.nodes)


def _count_bytes(subject: GraphModule | ExportedProgram) -> int:
    storages = {}
    for tensor in _tensors(subject):
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _tensors(subject: GraphModule | ExportedProgram) -> Iterator[torch.Tensor]:
    if isinstance(subject, ExportedProgram):
        kept = (*subject.state_dict.values(), *subject.constants.values())
        yield from (entry for entry in kept if isinstance(entry, torch.Tensor))
        return
    for module in subject.modules():
        for group in (module._parameters, module._buffers, module.__dict__):
            yield from (entry for entry in group.values() if isinstance(entry, torch.Tensor))


_COUNTERS: dict[str, Callable[[Any], int]] = {
    "nodes": _count_nodes,
    "parts": _count_parts,
    "copies": _count_copies,
    "bytes": _count_bytes,
}
