"""What is known about the values of nodes, and how more becomes known from example inputs."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from fxpasses.editing.attributes import find_attribute
from fxpasses.errors import FakeValueError, MissingMetadataError, PlacementError, also_as, came_from, user_line
from fxpasses.guards import is_guard
from fxpasses.metadata import value_of
from fxpasses.outlining.copying import copy_graph_module
from fxpasses.outlining.regions import switches_regions
from fxpasses.partitioners.tensor_sizes import tensor_bytes
from fxpasses.seeding import seeded
from fxpasses.values import has_value, propagate_values
from fxpasses.wording import listed

__all__ = [
    "NOTHING",
    "TensorMeta",
    "check_graph",
    "get_tensor_meta",
    "missing_values",
    "record_shapes",
    "record_values",
    "recorded",
    "refuse_unknown",
    "unknown_nodes",
    "valued",
]

NOTHING = object()
LITTLE_INPUT, LITTLE_STATE = 2**16, 2**28
"""Bytes of inputs and of parameters up to which a graph runs for real more quickly than with fakes."""


def check_graph(graph: object) -> None:
    """Look whether there is a graph.

    Raises:
        PlacementError: It is neither a GraphModule nor an ExportedProgram (also a ``TypeError``).
    """
    if not isinstance(graph, (GraphModule, ExportedProgram)):
        raise also_as(PlacementError, TypeError())(
            f"fx_module is a {type(graph).__name__}; trace it with torch.fx.symbolic_trace or torch.export.export"
        )


def recorded(fx_module: GraphModule, node: Node) -> Any:
    """The value, its description, or the attribute itself; ``NOTHING`` where none is known."""
    if has_value(node):
        return value_of(node)
    if "tensor_meta" in node.meta:
        return node.meta["tensor_meta"]
    if node.op == "get_attr":
        return find_attribute(fx_module, str(node.target)).value
    if node.target is torch.ops.aten.copy_.default:  # torch records nothing where it writes a buffer of a program back
        return recorded(fx_module, node.args[0])  # type: ignore[arg-type]  # a node
    if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
        return None  # torch records nothing for an assertion in a program that was decomposed
    if node.target is operator.setitem or switches_regions(node):
        return None  # nor dynamo for what gives nothing
    return NOTHING


class TensorMeta(NamedTuple):
    """What ``node.meta["tensor_meta"]`` says about a tensor; the fields are torch's."""

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: torch.memory_format | None
    is_quantized: bool
    qparams: dict[str, Any]


def get_tensor_meta(node: Node) -> Any:
    """Shape and dtype of a node's value, as ``node.meta["tensor_meta"]`` has them or else as its value says.

    Raises:
        MissingMetadataError: Neither is recorded (also a ``RuntimeError``).
    """
    if found := node.meta.get("tensor_meta") or described(value_of(node)):
        return found
    raise missing_values([node])


def record_values(fx_module: GraphModule, args: Sequence[Any]) -> None:
    """Propagate example inputs: as fakes, and for real on a copy of the module where fakes do not do.

    Raises:
        FakeValueError: There are too many or too few inputs, or the graph cannot run on them (also of the kind that is
            raised there).
    """
    _check_inputs(fx_module, args)
    with contextlib.suppress(FakeValueError):
        propagate_values(fx_module, args)
    if unknown_nodes(fx_module):
        _run_for_real(fx_module, args)
    for node in fx_module.graph.nodes:
        if found := described(value_of(node)):
            node.meta["tensor_meta"] = found


def record_shapes(fx_module: GraphModule, args: Sequence[Any]) -> None:
    """The same where only shapes are asked for: what is little runs for real, in less time than fakes take.

    Raises:
        FakeValueError: As :func:`record_values`.
    """
    _check_inputs(fx_module, args)
    if unknown_nodes(fx_module) and _is_little(fx_module, args):
        _run_for_real(fx_module, args)
    else:
        record_values(fx_module, args)


def _check_inputs(fx_module: GraphModule, args: object) -> None:
    if not isinstance(args, Sequence):
        error = also_as(FakeValueError, TypeError())
        raise error(f"the example inputs are a {type(args).__name__}; write a list, with one for each input")
    placeholders = fx_module.graph.find_nodes(op="placeholder")
    needed = [node for node in placeholders if not node.args]
    if not len(needed) <= len(args) <= len(placeholders):
        names = ", ".join(node.name for node in placeholders)
        raise also_as(FakeValueError, RuntimeError())(
            f"the graph takes {len(placeholders)} inputs ({names}), but got {len(args)} examples"
        )


def _is_little(fx_module: GraphModule, args: Sequence[Any]) -> bool:
    """Whether real tensors are quicker than fakes, which take half a millisecond for each node."""
    given = [leaf for leaf in pytree.tree_leaves(list(args)) if isinstance(leaf, torch.Tensor)]
    held = [*fx_module.parameters(), *fx_module.buffers()]
    if any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in held):
        return False
    return sum(map(tensor_bytes, given)) <= LITTLE_INPUT and sum(map(tensor_bytes, held)) <= LITTLE_STATE


def _run_for_real(fx_module: GraphModule, args: Sequence[Any]) -> None:
    values = _Values(_replica(fx_module), graph=fx_module.graph)
    with torch.no_grad(), seeded():
        values.run(*copy.deepcopy(tuple(args)))
    for node, value in values.seen.items():
        if has_value(node):
            continue
        if found := described(value):
            node.meta["tensor_meta"] = found
        else:
            node.meta["val"] = value


def _replica(fx_module: GraphModule) -> torch.nn.Module:
    """All that a graph reads or calls, copied but for modules that running does not change."""
    read = {str(node.target).partition(".")[0] for node in fx_module.graph.find_nodes(op="get_attr")}
    names = {"_modules", "_parameters", "_buffers", *read}
    shared = {} if read else {id(module): module for module in fx_module.modules() if _is_stateless(module)}
    replica = torch.nn.Module()
    replica.training = fx_module.training
    vars(replica).update(copy.deepcopy({name: held for name, held in vars(fx_module).items() if name in names}, shared))
    return replica


def _is_stateless(module: torch.nn.Module) -> bool:
    """Whether it is one of torch's own that has nothing to change."""
    is_plain = type(module).__module__.startswith("torch.nn.modules.")
    return is_plain and not module._modules and not module._buffers


class _Values(Interpreter):
    """Runs a graph and keeps the shape, but not the numbers, of what each node gives."""

    def __init__(self, module: torch.nn.Module, graph: Graph) -> None:
        super().__init__(module, graph=graph)
        self.extra_traceback = False
        self.seen: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception as error:  # operators and users' modules raise what they like
            raise self._cannot_run(n, error) from error
        self.seen[n] = _mapped(_on_meta, result)
        return result

    def _cannot_run(self, node: Node, cause: Exception) -> FakeValueError:
        shapes = [
            f"{used.name} of shape {tuple(self.seen[used].shape)}"
            for used in node.all_input_nodes
            if isinstance(self.seen.get(used), torch.Tensor)
        ]
        where = came_from(node)
        reason = (str(cause).splitlines() or [""])[0] or type(cause).__name__
        return also_as(FakeValueError, cause)(
            f"the graph cannot run on the example inputs: {node.name}{where} was given "
            f"{', '.join(shapes) or 'no tensor'}, and says: {reason}; give inputs such as the model takes",
            node=node,
            reason=reason,
        )


def _on_meta(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") if not leaf.is_quantized else _describe(leaf)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_mapped(function, part) for part in value)
    return function(value)


def described(value: Any) -> Any:
    """``tensor_meta`` of a value; None where it has none."""
    if isinstance(value, torch.Tensor):
        return _describe(value)
    if type(value) in (tuple, list) and any(isinstance(part, torch.Tensor) for part in value):
        return tuple(_describe(part) if isinstance(part, torch.Tensor) else part for part in value)
    return value if isinstance(value, TensorMeta) else None


def _describe(tensor: torch.Tensor) -> TensorMeta:
    strided = tensor.layout == torch.strided
    stride = tuple(tensor.stride()) if strided else ()
    dense = strided and all(isinstance(size, int) for size in tensor.shape) and tensor.is_contiguous()
    memory_format = torch.contiguous_format if dense else None
    return TensorMeta(tensor.shape, tensor.dtype, tensor.requires_grad, stride, memory_format, tensor.is_quantized, {})


def valued(fx_module: GraphModule) -> dict[Node, Node]:
    """Each node with its copy in a graph where all have values: as long as only shapes are recorded, none has here."""
    _, copies = copy_graph_module(fx_module)
    for node, twin in copies.items():
        if not has_value(node) and "tensor_meta" in node.meta:
            twin.meta["val"] = _mapped(_as_shaped, node.meta["tensor_meta"])
    return copies


def _as_shaped(described: Any) -> Any:
    """A tensor without data; there are no quantized ones, so whole numbers as wide stand for those."""
    if isinstance(described, torch.Tensor) or not hasattr(described, "dtype"):
        return described
    whole = torch.int8 if described.dtype.itemsize == 1 else torch.int32
    dtype = whole if described.is_quantized else described.dtype
    if len(described.stride) != len(described.shape):  # it is sparse
        return torch.empty(described.shape, dtype=dtype, device="meta")
    return torch.empty_strided(described.shape, described.stride, dtype=dtype, device="meta")


def unknown_nodes(fx_module: GraphModule) -> list[Node]:
    """The nodes whose value is not recorded anywhere."""
    return [
        node
        for node in fx_module.graph.nodes
        if node.op != "output" and not is_guard(node) and recorded(fx_module, node) is NOTHING
    ]


def refuse_unknown(fx_module: GraphModule) -> None:
    """Complain about all nodes without a value at once.

    Raises:
        MissingMetadataError: There are some (also a ``RuntimeError``).
    """
    if missing := unknown_nodes(fx_module):
        raise missing_values(missing)


def missing_values(nodes: Sequence[Node]) -> MissingMetadataError:
    """The error that names some nodes without a value."""
    names = listed((node.name for node in nodes), 5)
    where = f" (first from {line})" if (line := user_line(nodes[0])) else ""
    error = also_as(MissingMetadataError, RuntimeError())
    return error(
        f"the size of {names} is not known{where}: no value was recorded; "
        "call get_size_of_all_nodes(module, example_inputs) first, or export the model",
        node=nodes[0],
        reason="no recorded value",
    )
