"""Views of a captured part that hold in whatever layout a value really comes.

A capture leaves out ``contiguous()`` where the value was contiguous then. With other kernels, those of a GPU for
attention, say, or with an input of other strides it is not, and the ``view`` behind it fails where the model would not.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch.fx import GraphModule

from fxpasses.effects import EffectAnalysis, analyze_effects

__all__ = ["steady_views"]

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_RESHAPE = torch.ops.aten.reshape.default


def steady_views(graph_module: GraphModule) -> None:
    """Let views copy where they have to. Linear in nodes and edges.

    A view through which somebody may write stays: a write to a copy would be lost.

    Args:
        graph_module: One graph of a part.
    """
    views = [node for target in _VIEWS for node in graph_module.graph.find_nodes(op="call_function", target=target)]
    if not views:
        return
    effects = analyze_effects(graph_module)
    fixed = effects.written_storages | _shown(graph_module, effects)
    for view in views:
        if fixed.isdisjoint(effects.storages(view)):
            view.target = _RESHAPE


def _shown(graph_module: GraphModule, effects: EffectAnalysis) -> set[int]:
    """The memory that others see in two ways: as two results, or as a result and what it was before."""
    output = graph_module.graph.output_node()
    times = Counter(storage for result in output.all_input_nodes for storage in set(effects.storages(result)))
    before = {
        storage
        for node in graph_module.graph.nodes
        if node.op in ("placeholder", "get_attr")
        for storage in effects.storages(node)
    }
    return {storage for storage, count in times.items() if count > 1 or storage in before}
