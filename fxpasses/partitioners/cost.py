"""What a node costs: floating-point operations, bytes moved, bytes kept, seconds on a device.

Everything is counted on the node's own fake values, so that exported graphs (``aten.linear``,
``aten.scaled_dot_product_attention``), decomposed ones and torch-level ones are all understood. Symbolic sizes count
at their hint; a size without a hint counts at its upper bound.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from fxpasses.devices import Device

__all__ = [
    "NodeCost",
    "concrete_size",
    "measure_node",
    "seconds_on",
    "storage_bytes",
    "tensor_bytes",
    "tensors_in",
]

UNKNOWN_SIZE = 4096
"""What an unbacked size without any bound counts as."""


@attrs.frozen
class NodeCost:
    """What one node does, whatever device it runs on.

    Args:
        flops: Floating-point operations; a multiply-add counts as two.
        bytes_read: Bytes of the tensors it reads.
        bytes_written: Bytes that it writes; views write none.
        output_bytes: Bytes of its result, whether or not they are newly allocated.
    """

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    output_bytes: int = 0

    def __add__(self, other: NodeCost) -> NodeCost:
        return NodeCost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.output_bytes + other.output_bytes,
        )


def concrete_size(size: Any, default: int = UNKNOWN_SIZE) -> int:
    """A symbolic size at its hint, else at its upper bound, else ``default``."""
    if isinstance(size, int):
        return int(size)
    node = getattr(size, "node", None)
    if node is None:
        return default
    if (hint := getattr(node, "hint", None)) is not None:
        return int(hint)
    bound = node.shape_env.bound_sympy(node.expr).upper if getattr(node, "shape_env", None) is not None else None
    return int(bound) if bound is not None and bound.is_finite and bound < 2**40 else default


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value of any nesting, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple, dict)):
        return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return []


def tensor_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements, for real, fake, symbolic and sparse-free quantised tensors."""
    return math.prod(concrete_size(size) for size in tensor.shape) * tensor.element_size()


def storage_bytes(tensor: torch.Tensor) -> int:
    """The bytes that keeping a tensor alive keeps: its whole storage, of which it may be a small view."""
    try:
        size = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return tensor_bytes(tensor)
    return concrete_size(size, tensor_bytes(tensor))


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(concrete_size(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()


def _product_flops(inputs: Sequence[Any], output: Any) -> int:
    """Matrix products in all their forms: two operations for each output element and inner index."""
    first = _shape(inputs[0])
    inner = first[-1] if first else 1
    return 2 * math.prod(_shape(output)) * inner


def _added_product_flops(inputs: Sequence[Any], output: Any) -> int:
    return _product_flops(inputs[1:], output)


def _convolution_flops(inputs: Sequence[Any], output: Any) -> int:
    """Each output element gathers ``weight[0].numel()`` products (Dumoulin & Visin, arXiv:1603.07285)."""
    weight = _shape(inputs[1])
    return 2 * math.prod(_shape(output)) * math.prod(weight[1:])


def _transposed_convolution_flops(inputs: Sequence[Any], _output: Any) -> int:
    return 2 * math.prod(_shape(inputs[0])) * math.prod(_shape(inputs[1])[1:])


def _any_convolution_flops(inputs: Sequence[Any], output: Any) -> int:
    transposed = len(inputs) > 6 and inputs[6] is True
    return (_transposed_convolution_flops if transposed else _convolution_flops)(inputs, output)


def _attention_flops(inputs: Sequence[Any], _output: Any) -> int:
    """``Q·Kᵀ`` and ``P·V``, heads grouped or not; the mask does not shorten it."""
    *batch, rows, width = _shape(inputs[0])
    columns = _shape(inputs[1])[-2]
    return 2 * math.prod(batch) * rows * columns * (width + _shape(inputs[2])[-1])


Counter = Callable[[Sequence[Any], Any], int]
_COUNTERS: dict[str, Counter] = {
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "_int_mm", "__matmul__", "mv", "dot", "vdot"), _product_flops),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), _added_product_flops),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution_flops),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        _transposed_convolution_flops,
    ),
    **dict.fromkeys(("convolution", "_convolution"), _any_convolution_flops),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        _attention_flops,
    ),
}


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _values(argument: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.meta.get("val") if isinstance(leaf, Node) else leaf, argument)


def _is_view(target: Any) -> bool:
    """Whether an operator only looks at its input in another way (schema: returns an alias, writes nothing)."""
    if isinstance(target, torch._ops.OpOverload):
        schema = target._schema
        return not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)
    return target is operator.getitem


def _fallback_flops(node: Node, inputs: Sequence[Any], output: Any) -> int:
    """Count an operator that decomposes into counted ones by running it on meta tensors; else one per element."""
    target = node.target
    composite = isinstance(target, torch._ops.OpOverload) and target.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )
    if composite or getattr(target, "overloadpacket", None) in flop_registry:
        try:
            if counted := _run_on_meta(target, inputs, _values(node.kwargs)):
                return counted
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            pass  # an operator without a meta kernel: the element count below is the answer
    touched = [*tensors_in(list(inputs)), *tensors_in(output)]
    return max((math.prod(_shape(tensor)) for tensor in touched), default=0)


def _run_on_meta(target: Any, inputs: Sequence[Any], kwargs: Any) -> int:
    def to_meta(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return torch.empty(_shape(leaf), dtype=leaf.dtype, device="meta")
        return concrete_size(leaf) if isinstance(leaf, torch.SymInt) else leaf

    args, kwargs = pytree.tree_map(to_meta, (tuple(inputs), kwargs))
    if "device" in kwargs:
        kwargs["device"] = torch.device("meta")
    with FlopCounterMode(display=False) as counter:
        target(*args, **kwargs)
    return int(counter.get_total_flops())


def _body_cost(
    bodies: Iterable[Any], owner: GraphModule, *, together: Callable[[list[NodeCost]], NodeCost]
) -> NodeCost:
    costs = []
    for body in bodies:
        module = owner.get_submodule(str(body.target)) if isinstance(body, Node) else body
        if isinstance(module, GraphModule):
            total = NodeCost()
            for node in module.graph.nodes:
                total += measure_node(node)
            costs.append(total)
    return together(costs) if costs else NodeCost()


def _largest(costs: list[NodeCost]) -> NodeCost:
    return max(costs, key=lambda cost: (cost.flops, cost.bytes_read + cost.bytes_written))


def _higher_order_cost(node: Node, inputs: Sequence[Any]) -> NodeCost:
    """A conditional costs its dearer branch; a loop its body for each row of what it scans, or once."""
    owner = node.graph.owning_module
    if owner is None:
        return NodeCost()
    bodies = [argument for argument in node.all_input_nodes if _is_body(argument, owner)]
    cost = _body_cost(bodies, owner, together=_largest)
    if _name_of(node.target) in ("scan", "map_impl", "map") and (scanned := tensors_in(list(inputs))):
        rounds = _shape(scanned[0])[0] if _shape(scanned[0]) else 1
        cost = NodeCost(cost.flops * rounds, cost.bytes_read * rounds, cost.bytes_written * rounds, cost.output_bytes)
    return cost


def _is_body(node: Node, owner: GraphModule) -> bool:
    if node.op != "get_attr":
        return False
    value: Any = owner
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    return isinstance(value, GraphModule)


def measure_node(node: Node) -> NodeCost:
    """Count what one node does, from the fake values of its arguments and its result.

    Args:
        node: Any node; placeholders, attributes and outputs cost nothing.

    Returns:
        The cost. A node without a recorded value counts as free: run shape propagation first.
    """
    if node.op in ("placeholder", "get_attr", "output"):
        output_bytes = sum(map(tensor_bytes, tensors_in(node.meta.get("val"))))
        return NodeCost(output_bytes=output_bytes if node.op != "output" else 0)
    output = node.meta.get("val")
    written = sum(map(tensor_bytes, tensors_in(output)))
    if node.op == "call_function" and _is_view(node.target):
        return NodeCost(output_bytes=written)
    inputs = _values(node.args)
    read = sum(map(tensor_bytes, tensors_in([list(inputs), dict(_values(node.kwargs))])))
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        body = _higher_order_cost(node, inputs)
        return NodeCost(body.flops, max(read, body.bytes_read), max(written, body.bytes_written), written)
    counter = _COUNTERS.get(_name_of(node.target))
    if node.op == "call_module":
        flops = _module_flops(node, output)
    elif counter is not None and len(tensors_in(list(inputs))) >= 2:
        flops = counter(inputs, output)
    else:
        flops = _fallback_flops(node, inputs, output)
    return NodeCost(int(flops), read, written, written)


def _module_flops(node: Node, output: Any) -> int:
    """A leaf module: what its weight does to each output position, or the nodes of its own graph."""
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else None
    if isinstance(module, GraphModule):
        return sum(measure_node(inner).flops for inner in module.graph.nodes)
    elements = sum(math.prod(_shape(tensor)) for tensor in tensors_in(output))
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.dim() >= 2 and not isinstance(module, torch.nn.Embedding):
        return 2 * elements * math.prod(_shape(weight)[1:])
    return elements


def seconds_on(cost: NodeCost, device: Device) -> float:
    """Seconds by the roofline model: the slower of arithmetic and memory, plus the launch.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    if cost.flops == 0 and cost.bytes_written == 0:
        return 0.0
    moved = cost.bytes_read + cost.bytes_written
    return device.overhead + max(cost.flops / device.flops, moved / device.bandwidth)
