"""Whether torch can take the backward of a stage apart: for what the stage received, and for its weights.

It looks for the operators at which weights meet what depends on the inputs, and goes back from each of them by itself.
Where two of them lead to one weight, the second goes through what the first has freed, and torch stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from fxpasses.editing.attributes import find_attribute

if TYPE_CHECKING:
    from fxpasses.pipelining.stages import StageModule

__all__ = ["uses_weights_once"]


def uses_weights_once(stage: StageModule) -> bool:
    """Whether each trained weight of a stage, and each value made of weights alone, goes to one operator. O(nodes)."""
    part, uses = stage.part, Counter[Hashable]()
    sent = {slot: find_attribute(part, name).value for slot, name in stage.route.held}
    inputs = dict(zip(part.graph.find_nodes(op="placeholder"), stage.route.called_with, strict=True))
    constant: dict[Node, bool] = {}  # what no input leads to; whether a trained weight does
    for node in part.graph.nodes:
        if node.op == "call_module":
            uses.update(id(each) for each in part.get_submodule(str(node.target)).parameters() if each.requires_grad)
        elif node.op == "get_attr" or inputs.get(node) in sent:
            value = find_attribute(part, str(node.target)).value if node.op == "get_attr" else sent[inputs[node]]
            constant[node] = isinstance(value, torch.nn.Parameter) and value.requires_grad
            if constant[node]:
                uses[id(value)] += len(node.users) + (node.op == "placeholder")
        elif node.op != "output" and node.all_input_nodes and all(used in constant for used in node.all_input_nodes):
            constant[node] = any(constant[used] for used in node.all_input_nodes)
            if constant[node]:
                uses[node] = len(node.users)
    return max(uses.values(), default=0) <= 1
