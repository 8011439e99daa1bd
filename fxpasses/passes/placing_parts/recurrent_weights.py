"""Keep the weights of each recurrent layer on a GPU in one piece, as cuDNN wants them.

``nn.LSTM`` does so whenever it is moved. Otherwise cuDNN puts them together in every run, and warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.arguments import bind_arguments
from fxpasses.editing.attributes import find_attribute

__all__ = ["RecurrentLayers", "compact_operands", "compact_recurrent_weights", "recurrent_layers"]

aten = torch.ops.aten

_KINDS: Mapping[Any, tuple[str, int]] = {
    aten.lstm.input: ("LSTM", 4),
    aten.gru.input: ("GRU", 3),
    aten.rnn_tanh.input: ("RNN_TANH", 1),
    aten.rnn_relu.input: ("RNN_RELU", 1),
}
"""The operators, cuDNN's name of each, and the gates that a weight holds."""


@attrs.frozen(eq=False)
class RecurrentLayers:
    """The weights that one operator takes, and what they are the weights of.

    Args:
        kind: cuDNN's name of it, such as ``"LSTM"``.
        weights: The tensors, as the operator takes them.
        per_layer: How many of them each layer has in each direction.
        input_size: The size of the first layer's inputs.
        hidden_size: The size of the state.
        projected_size: The size that an LSTM projects its state to; 0 where it does not.
        layers: The number of layers.
        batch_first: Whether the batch is the first dimension of the input.
        bidirectional: Whether each layer runs in both directions.
    """

    kind: str
    weights: Sequence[torch.Tensor]
    per_layer: int
    input_size: int
    hidden_size: int
    projected_size: int
    layers: int
    batch_first: bool
    bidirectional: bool

    def compact(self) -> None:
        """Move the weights into one piece of memory, each its own part of it; the tensors stay the same objects."""
        with torch.cuda.device(self.weights[0].device), torch.no_grad():
            torch._cudnn_rnn_flatten_weight(
                list(self.weights),
                self.per_layer,
                self.input_size,
                torch.backends.cudnn.rnn.get_cudnn_mode(self.kind),  # type: ignore[no-untyped-call]  # torch's
                self.hidden_size,
                self.projected_size,
                self.layers,
                self.batch_first,
                self.bidirectional,
            )


def compact_recurrent_weights(module: torch.nn.Module) -> None:
    """Put together what cuDNN reads together, in all graphs of a module. Does nothing for weights elsewhere."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            for layers in recurrent_layers(part):
                _compact(layers)


def compact_operands(node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Put together what cuDNN reads together among the values that a call is about to run on."""
    target: Any = node.target
    if target in _KINDS:
        names = (each.name for each in target._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        _compact(_layers_of(node, given["params"]))


def _compact(layers: RecurrentLayers) -> None:
    if _is_for_cudnn(layers.weights):
        layers.compact()


def _is_for_cudnn(weights: Sequence[torch.Tensor]) -> bool:
    """Whether all are where cuDNN reads them, of one type, not yet in one piece, and none is another one, too."""
    first = weights[0]
    return (
        first.is_cuda
        and len({weight.untyped_storage().data_ptr() for weight in weights}) > 1
        and all((weight.device, weight.dtype) == (first.device, first.dtype) for weight in weights)
        and torch.backends.cudnn.is_acceptable(first)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        and len({weight.data_ptr() for weight in weights}) == len(weights)
    )


def recurrent_layers(graph_module: GraphModule) -> Iterator[RecurrentLayers]:
    """The recurrent operators of a graph whose weights are held by it."""
    for target in _KINDS:
        for node in graph_module.graph.find_nodes(op="call_function", target=target):
            weights = [_held(graph_module, weight) for weight in bind_arguments(node)["params"]]
            held = [weight for weight in weights if weight is not None]
            if held and len(held) == len(weights):
                yield _layers_of(node, held)


def _layers_of(node: Node, held: Sequence[torch.Tensor]) -> RecurrentLayers:
    (kind, gates), given = _KINDS[node.target], bind_arguments(node)
    each = len(held) // (given["num_layers"] * (2 if given["bidirectional"] else 1))
    is_projected = each % 2 == 1
    return RecurrentLayers(
        kind=kind,
        weights=held,
        per_layer=each,
        input_size=held[0].shape[1],
        hidden_size=held[0].shape[0] // gates,
        projected_size=held[each - 1].shape[0] if is_projected else 0,
        layers=given["num_layers"],
        batch_first=given["batch_first"],
        bidirectional=given["bidirectional"],
    )


def _held(graph_module: GraphModule, weight: Any) -> torch.Tensor | None:
    """The tensor that a node reads from its module."""
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return None
    found = find_attribute(graph_module, str(weight.target)).value
    return found if isinstance(found, torch.Tensor) else None
