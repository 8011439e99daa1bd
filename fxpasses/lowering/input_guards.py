"""The check of inputs as a node of the graph, for whoever runs that without calling the lowered model.

``torch.export.export``, an ``Interpreter`` and ``symbolic_trace`` take a graph without the hooks of its module. What
was captured for one size would give them wrong numbers of another.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.fx import GraphModule, Proxy, Tracer

from fxpasses.guards import GUARDS
from fxpasses.programs.input_contract import InputContract

__all__ = ["InputGuards", "guard_inputs"]


class InputGuards(torch.nn.Module):
    """Checks what a graph is run with: called like the guards that torch puts into exported modules.

    Args:
        contract: What the graph was captured with.
    """

    _is_impure = True  # nobody uses its result, and dead code is without effect

    def __init__(self, contract: InputContract) -> None:
        super().__init__()
        self.contract = contract

    def forward(self, *leaves: Any) -> None:
        """Check inputs, flat and in the order of the placeholders; a graph that is traced again checks them, too.

        Raises:
            InputError: they are not what the graph was captured with.
        """
        traced = next((leaf for leaf in leaves if isinstance(leaf, Proxy)), None)
        if traced is None:
            self.contract.check_leaves(leaves)
        else:
            tracer = cast("Tracer", traced.tracer)
            tracer.create_proxy("call_module", tracer.path_of_module(self), leaves, {})


def guard_inputs(graph_module: GraphModule, contract: InputContract) -> None:
    """Let a graph begin with the check; one without inputs has nothing to check."""
    inputs = graph_module.graph.find_nodes(op="placeholder")
    if not inputs:
        return
    graph_module.add_submodule(GUARDS, InputGuards(contract))
    with graph_module.graph.inserting_after(inputs[-1]):
        node = graph_module.graph.call_module(GUARDS, tuple(inputs))
    node.meta["val"] = None
