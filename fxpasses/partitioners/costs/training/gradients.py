"""Where gradients flow in a forward graph."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, RegionKind, analyze_effects
from fxpasses.partitioners.tensor_sizes import tensors_in

__all__ = ["differentiable_values"]


def differentiable_values(graph_module: GraphModule, *, of_inputs: bool = True) -> dict[Node, None]:
    """The nodes through which a gradient can flow to a parameter or to an input, as the operators let it.

    Args:
        graph_module: The graph; parameters may be inputs whose recorded values require a gradient.
        of_inputs: Whether gradients of all inputs are wanted.
    """
    effects = analyze_effects(graph_module)
    flowing: dict[Node, None] = {}
    storages: dict[int, None] = {}  # written with what flows
    for node in graph_module.graph.nodes:
        is_real = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_in(node.meta.get("val")))
        if node.op == "get_attr":
            starts = is_real and isinstance(find_attribute(graph_module, str(node.target)).value, torch.nn.Parameter)
        elif node.op == "placeholder":
            starts = is_real and (of_inputs or any(tensor.requires_grad for tensor in tensors_in(node.meta["val"])))
        else:
            starts = is_real and node.op == "call_module" and _has_parameters(graph_module, node)
        fed = any(
            used in flowing or not storages.keys().isdisjoint(effects.storages(used)) for used in node.all_input_nodes
        )
        if fed:
            storages.update(dict.fromkeys(storage for storage in effects.of(node).writes if storage >= 0))
        if starts or (is_real and fed and not _stops_gradients(node, effects)):
            flowing[node] = None
    written = [
        node
        for node in graph_module.graph.nodes
        if (of_inputs or node.op not in ("placeholder", "get_attr"))
        and not storages.keys().isdisjoint(effects.storages(node))
    ]
    return {**flowing, **dict.fromkeys(written)}


def _has_parameters(graph_module: GraphModule, node: Node) -> bool:
    return next(graph_module.get_submodule(str(node.target)).parameters(), None) is not None


def _stops_gradients(node: Node, effects: EffectAnalysis) -> bool:
    if node.target is torch.ops.aten.detach.default:
        return True
    if getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled":
        return node.args[0] is False
    modes = [marker for marker in effects.region_stack(node) if effects.of(marker).region is RegionKind.GRAD_MODE]
    return bool(modes) and modes[-1].args[0] is False
