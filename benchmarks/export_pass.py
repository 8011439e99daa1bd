"""ExportPass against ExecuTorch's, on an exported Llama of 16 layers, in one process.

Run ``python benchmarks/export_pass.py``. ExecuTorch is never a dependency; without it only our own times are shown. To
have both, install its wheel beside the environment and say where it is:

.. code-block:: sh

    pip install --no-deps --target PEERS executorch==1.4.1 flatbuffers ruamel.yaml pandas tabulate torchao \
        python-dateutil pytz tzdata six
    PYTHONPATH=PEERS python benchmarks/export_pass.py
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

import fxpasses.export_pass as ours

LAYERS = 16
ROUNDS = 5


def exported_llama(layers: int = LAYERS) -> torch.export.ExportedProgram:
    """A small Llama (hidden size 64) with all its layers; the sizes of the weights do not matter to a pass."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).eval()
    return torch.export.export(model, (torch.zeros(1, 16, dtype=torch.long),))


def subclasses(base: type) -> dict[str, Callable[[], Any]]:
    """The passes that are compared, written once, on top of either framework."""

    class NoOp(base):
        def call_operator(self, op, args, kwargs, meta):
            return super().call_operator(op, args, kwargs, meta)

    class OneNode(base):
        """Replace the last sigmoid-weighted unit of the graph, and nothing else."""

        def __init__(self):
            super().__init__()
            self.seen = 0

        def call_operator(self, op, args, kwargs, meta):
            if op == torch.ops.aten.silu.default:
                self.seen += 1
                if self.seen == LAYERS:
                    op = torch.ops.aten.relu.default
            return super().call_operator(op, args, kwargs, meta)

    class OneOp(base):
        """Replace an operator wherever it stands."""

        def call_operator(self, op, args, kwargs, meta):
            if op == torch.ops.aten.silu.default:
                op = torch.ops.aten.relu.default
            return super().call_operator(op, args, kwargs, meta)

    return {
        "no-op, no hook": base,
        "no-op, call_operator": NoOp,
        "one node replaced": OneNode,
        f"one op replaced ({LAYERS} nodes)": OneOp,
    }


def seconds(make_pass: Callable[[], Any], graph_module: GraphModule) -> float:
    """The median time of one run; each run gets a graph of its own."""
    times = []
    for _ in range(ROUNDS):
        subject = copied_graph(graph_module)
        run = make_pass()
        start = time.perf_counter()
        run(subject)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def copied_graph(graph_module: GraphModule) -> GraphModule:
    """Nodes of its own, the same tensors and values."""
    return GraphModule(graph_module, copy.deepcopy(graph_module.graph))


def peer() -> Any | None:
    """ExecuTorch's module, if it is installed."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        return importlib.import_module("executorch.exir.pass_base")
    except ImportError:
        return None
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    """Print the table; exit with 1 if a ratio is below what is promised."""
    graph_module = exported_llama().graph_module
    print(f"exported Llama, {LAYERS} layers, {len(graph_module.graph.nodes)} nodes, torch {torch.__version__}")
    theirs = peer()
    if theirs is None:
        print("executorch is not installed: only our own times (see the top of this file for how to add it)")
    mine = subclasses(ours.ExportPass)
    other = subclasses(theirs.ExportPass) if theirs is not None else {}
    print(f"{'':34}{'fxpasses':>12}{'executorch':>14}{'ratio':>10}")
    worst = float("inf")
    for name, make_pass in mine.items():
        took = seconds(make_pass, graph_module)
        row = f"{name:34}{took * 1e3:>9.2f} ms"
        if name in other:
            theirs_took = seconds(other[name], graph_module)
            worst = min(worst, theirs_took / took)
            row += f"{theirs_took * 1e3:>11.1f} ms{theirs_took / took:>9.0f}x"
        print(row)
    return 1 if worst < 10 else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
