"""ExportPass against ExecuTorch's (1.4.1), on an exported Llama, in one process.

ExecuTorch is never a dependency; without it only our own times are shown. To have both, install its wheel beside the
environment and say where it is:

.. code-block:: sh

    pip install --no-deps --target PEERS executorch==1.4.1 flatbuffers ruamel.yaml pandas tabulate torchao \
        python-dateutil pytz tzdata six
    PYTHONPATH=PEERS python -m benchmarks export_pass
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
import warnings
from typing import Any

import torch
from torch.fx import GraphModule

import fxpasses.export_pass as ours
from benchmarks.harness import Duel, case
from benchmarks.models import narrow_llama

aten = torch.ops.aten


@functools.cache
def exported_llama(layers: int) -> GraphModule:
    """A small Llama (hidden size 64) with all its layers; the sizes of the weights do not matter to a pass."""
    return torch.export.export(narrow_llama(layers), (torch.zeros(1, 16, dtype=torch.long),)).graph_module


def copied_graph(graph_module: GraphModule) -> GraphModule:
    """Nodes of its own, the same tensors and values."""
    return GraphModule(graph_module, copy.deepcopy(graph_module.graph))


@functools.cache
def peer() -> Any | None:
    """ExecuTorch's module, if it is installed."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("executorch.exir.pass_base")
    except ImportError:
        print("executorch is not installed: only our own times (benchmarks/export_pass.py tells how to add it)")
        return None
    finally:
        logging.disable(logging.NOTSET)


def no_op(base: type) -> Any:
    """A hook that hands everything on."""

    class NoOp(base):
        def call_operator(self, op, args, kwargs, meta):
            return super().call_operator(op, args, kwargs, meta)

    return NoOp()


def replace_last(base: type, layers: int) -> Any:
    """Replace the activation of the last layer, and nothing else."""

    class ReplaceLast(base):
        def __init__(self):
            super().__init__()
            self.seen = 0

        def call_operator(self, op, args, kwargs, meta):
            if op == aten.silu.default:
                self.seen += 1
                if self.seen == layers:
                    op = aten.relu.default
            return super().call_operator(op, args, kwargs, meta)

    return ReplaceLast()


def replace_all(base: type) -> Any:
    """Replace the activation of every layer."""

    class ReplaceAll(base):
        def call_operator(self, op, args, kwargs, meta):
            return super().call_operator(aten.relu.default if op == aten.silu.default else op, args, kwargs, meta)

    return ReplaceAll()


def _duel(layers: int, make: Any, swapped: int) -> Duel:
    """``make(base)`` gives the pass on either framework; ``swapped`` activations are replaced."""
    module = exported_llama(layers)
    theirs = peer()

    def check(mine: Any, other: Any) -> None:
        assert mine.modified == bool(swapped)
        for result in (mine, other):
            if result is not None:
                graph = result.graph_module.graph
                assert len(graph.find_nodes(op="call_function", target=aten.relu.default)) == swapped
                assert len(graph.nodes) == len(module.graph.nodes)

    return Duel(
        ours=lambda subject: make(ours.ExportPass)(subject),
        peer=None if theirs is None else lambda subject: make(theirs.ExportPass)(subject),
        check=check,
        prepare=lambda: copied_graph(module),
    )


@case("ExportPass without a hook, Llama of N layers", sizes=(4, 16), promise=10)
def bare(size: int) -> Duel:
    return _duel(size, lambda base: base(), 0)


@case("ExportPass with a hook that changes nothing, Llama of N layers", sizes=(4, 16), promise=10)
def hooked(size: int) -> Duel:
    return _duel(size, no_op, 0)


@case("ExportPass that replaces one node, Llama of N layers", sizes=(4, 16), promise=10)
def one_node(size: int) -> Duel:
    return _duel(size, lambda base: replace_last(base, size), 1)


@case("ExportPass that replaces one op in each layer, Llama of N layers", sizes=(4, 16), promise=10)
def one_op(size: int) -> Duel:
    return _duel(size, replace_all, size)
