"""ExecuTorch's own passes on our ExportPass, with only the import line changed; and our passes under its manager.

Both need ExecuTorch (``benchmarks/export_pass.py`` tells how to add it); without it nothing is compared.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

import fxpasses.export_pass as ours
from benchmarks.export_pass import no_op, peer, replace_all
from benchmarks.harness import Duel, case

THEIRS = {
    "executorch.backends.transforms.fuse_view_copy": "FuseViewCopyTransform",
    "executorch.backends.transforms.view_copy_to_squeeze_unsqueeze": "ViewCopyToSqueezeUnsqueezePass",
    "executorch.backends.transforms.mean_to_sum_div": "MeanToSumDiv",
    "executorch.backends.transforms.addmm_mm_to_linear": "AddmmToLinearTransform",
    "executorch.backends.transforms.remove_clone_ops": "RemoveCloneOpsTransform",
    "executorch.backends.transforms.remove_getitem_op": "RemoveGetItemPass",
    "executorch.backends.transforms.replace_scalar_with_tensor": "ReplaceScalarWithTensorArgPass",
    "executorch.exir.passes.scalar_to_tensor_pass": "ScalarToTensorPass",
    "executorch.exir.passes.sym_to_tensor_pass": "SymToTensorPass",
}


class Model(torch.nn.Module):
    """Something for each of them to find."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.norm(self.linear(x)).mean(-1, keepdim=True).clone()
        first, second = torch.split(y, [1, 3], dim=1)
        return (first * second + 2).view(-1, 3).squeeze(0).view(3, -1)


def program() -> torch.export.ExportedProgram:
    return torch.export.export(Model().eval(), (torch.randn(1, 4, 8),)).run_decompositions()


@contextmanager
def import_line_changed() -> Iterator[None]:
    """Inside, ``from executorch.exir.pass_base import ...`` imports our names where we have them."""
    real = sys.modules["executorch.exir.pass_base"]
    changed = types.ModuleType(real.__name__)
    changed.__dict__.update(vars(real), **{name: getattr(ours, name) for name in ours.__all__})
    sys.modules[real.__name__] = changed
    try:
        yield
    finally:
        sys.modules[real.__name__] = real


def fresh_class(module: str, name: str) -> type:
    """The class from a copy of its module, so that nobody else's is changed."""
    kept = sys.modules.pop(module, None)
    try:
        found: type = getattr(importlib.import_module(module), name)
        return found
    finally:
        sys.modules.pop(module, None)
        if kept is not None:
            sys.modules[module] = kept


def shape_of(module: GraphModule) -> tuple[Any, ...]:
    """What two results are compared by: which ops, and the types of the results."""
    ops = Counter(str(node.target) for node in module.graph.nodes if node.op == "call_function")
    kinds = [(value.meta["val"].shape, value.meta["val"].dtype) for value in module.graph.output_node().args[0]]
    return ops, kinds


def run_all(classes: list[type]) -> list[tuple[Any, ...]]:
    return [shape_of(make()(program().graph_module).graph_module) for make in classes]


def _same(mine: Any, theirs: Any) -> None:
    assert theirs is None or mine == theirs


@case("ExecuTorch's own passes on our ExportPass", sizes=(len(THEIRS),), rounds=1)
def their_passes(size: int) -> Duel:
    if peer() is None:
        return Duel(ours=list, peer=None, check=_same)
    with import_line_changed():
        on_ours = [fresh_class(module, name) for module, name in THEIRS.items()]
    on_theirs = [fresh_class(module, name) for module, name in THEIRS.items()]
    assert all(issubclass(made, ours.ExportPass) for made in on_ours)
    return Duel(ours=lambda: run_all(on_ours), peer=lambda: run_all(on_theirs), check=_same)


@case("our passes under ExecuTorch's managers", sizes=(2,), rounds=1)
def their_managers(size: int) -> Duel:
    theirs = peer()
    if theirs is None:
        return Duel(ours=list, peer=None, check=_same)
    managers = importlib.import_module("executorch.exir.pass_manager")

    def run(base: type) -> list[tuple[Any, ...]]:
        passes = [no_op(base), replace_all(base)]
        by_graph = managers.PassManager(passes)(program().graph_module)
        by_program = managers.ExportedProgramPassManager(passes)(program())
        return [shape_of(by_graph.graph_module), shape_of(by_program.exported_program.graph_module)]

    return Duel(ours=lambda: run(ours.ExportPass), peer=lambda: run(theirs.ExportPass), check=_same)
