"""Whether torch can take the backward of a stage apart: for what the stage received, and for its weights.

It looks for the operators at which weights meet what depends on the inputs, and goes back from each of them by itself.
Where two of them lead to one weight, the second goes through what the first has freed, and torch stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from fxpasses.editing.attributes import find_attribute

if TYPE_CHECKING:
    from fxpasses.pipelining.stages import StageModule

__all__ = ["meetings", "uses_weights_once"]


def uses_weights_once(stage: StageModule) -> bool:
    """Whether each trained weight of a stage, and each value made of weights alone, goes to one operator. O(nodes)."""
    part, uses = stage.part, Counter[Hashable]()
    for node in part.graph.find_nodes(op="call_module"):
        uses.update(id(each) for each in part.get_submodule(str(node.target)).parameters() if each.requires_grad)
    held = _held_by(stage)
    for node, is_trained in _made_of_weights(stage, held).items():
        if is_trained and node in held:
            uses[id(held[node])] += len(node.users) + (node.op == "placeholder")
        elif is_trained:
            uses[node] = len(node.users)
    return max(uses.values(), default=0) <= 1


def meetings(stage: StageModule) -> list[Node]:
    """The operators at which trained weights meet what depends on the inputs, in graph order. O(nodes).

    Between its halves a backward keeps the gradients of what they make.
    """
    made = _made_of_weights(stage, _held_by(stage))
    found = dict.fromkeys(user for node, is_trained in made.items() if is_trained for user in node.users)
    return [node for node in stage.part.graph.nodes if node in found and node not in made and node.op != "output"]


def _held_by(stage: StageModule) -> dict[Node, Any]:
    """What a stage holds or is sent as state, by the nodes that stand for it."""
    part = stage.part
    sent = {slot: find_attribute(part, name).value for slot, name in stage.route.held}
    inputs = zip(part.graph.find_nodes(op="placeholder"), stage.route.called_with, strict=True)
    held = {node: find_attribute(part, str(node.target)).value for node in part.graph.find_nodes(op="get_attr")}
    return {**held, **{node: sent[slot] for node, slot in inputs if slot in sent}}


def _made_of_weights(stage: StageModule, held: Mapping[Node, Any]) -> dict[Node, bool]:
    """What no input leads to, and whether a trained weight does."""
    made: dict[Node, bool] = {}
    for node in stage.part.graph.nodes:
        if node in held:
            made[node] = isinstance(held[node], torch.nn.Parameter) and held[node].requires_grad
        elif node.op not in ("output", "call_module") and (used := node.all_input_nodes) and made.keys() >= set(used):
            made[node] = any(made[each] for each in used)
    return made
