"""Three passes, each written in another way."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch.fx import GraphModule

from fxpasses.export_pass import Argument, ExportPass, NodeMetadata
from fxpasses.pass_base import as_pass

aten = torch.ops.aten


@attrs.frozen
class UseRelu(ExportPass):
    """Replace in-place relu by relu."""

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: NodeMetadata) -> Argument:
        if op == aten.relu_.default:
            op = aten.relu.default
        return super().call_operator(op, args, kwargs, meta)


@attrs.frozen
class ScaleByConstant(ExportPass):
    """Multiply the result of every addition.

    Args:
        factor: By what.
        only: The operators it is done for.
    """

    factor: float = 2.0
    only: tuple[str, ...] = ("aten.add.Tensor",)

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: NodeMetadata) -> Argument:
        result = super().call_operator(op, args, kwargs, meta)
        if str(op) not in self.only:
            return result
        return super().call_operator(aten.mul.Tensor, (result, self.factor), {}, meta)


@as_pass
def use_tanh(graph_module: GraphModule) -> None:
    """Replace sigmoid by tanh."""
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.sigmoid.default):
        node.target = aten.tanh.default
