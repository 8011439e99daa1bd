"""What a node costs: floating-point operations, bytes moved, bytes kept, seconds on a device.

Everything is counted on the node's own fake values, so that exported graphs (``aten.linear``,
``aten.scaled_dot_product_attention``), decomposed ones and torch-level ones are all understood. Symbolic sizes count
at their hint; a size without a hint counts at its upper bound.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.devices import Device
from fxpasses.effects.calls import PLAIN, CallEffects
from fxpasses.effects.operators import ALWAYS_VIEWS, MAY_HAND_BACK
from fxpasses.effects.purity import rule_for_target
from fxpasses.errors import MissingMetadataError, came_from
from fxpasses.metadata import MetaKey, value_of
from fxpasses.outlining.regions import is_region, switches_regions
from fxpasses.partitioners.costs.counted_runs import taken_apart, within_module
from fxpasses.partitioners.costs.kernels.described_values import Like, described
from fxpasses.partitioners.costs.kernels.dry_runs import dry_run, makes_a_copy
from fxpasses.partitioners.costs.operation_counts import COUNTERS, body_runs, shape_of
from fxpasses.partitioners.costs.row_writes import adds_to_rows, elements_written
from fxpasses.partitioners.costs.traffic import (
    BAGS,
    LOOKUPS,
    bytes_moved,
    bytes_of_rows,
    rows_looked_up,
    state_bytes,
)
from fxpasses.partitioners.costs.transform_counts import TRANSFORM_COUNTERS
from fxpasses.partitioners.grouping.keep_together import runs_anywhere
from fxpasses.partitioners.tensor_sizes import (
    Sizes,
    concrete_value,
    tensor_bytes,
    tensors_in,
)
from fxpasses.partitioners.vmap_rows import note_rows_once, rows_of
from fxpasses.values.recorded_values import has_value

__all__ = [
    "COST",
    "SECONDS",
    "STEP_WORKSPACE",
    "WORKSPACE",
    "NodeCost",
    "StepWorkspace",
    "cost_of",
    "measure_node",
    "measured_on",
    "require_value",
    "seconds_of",
    "seconds_on",
]


@attrs.frozen
class NodeCost:
    """What one node does, whatever device it runs on.

    Args:
        flops: Floating-point operations; a multiply-add counts as two.
        bytes_read: Bytes of the tensors it reads.
        bytes_written: Bytes that it writes; views write none.
        output_bytes: Bytes of its result, whether or not they are newly allocated.
        parameter_bytes: Bytes of the parameters, buffers and constants among what it reads.
        dtype: The type it computes in, as ``torch`` calls it (``"bfloat16"``); ``""`` when it computes nothing.
    """

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    output_bytes: int = 0
    parameter_bytes: int = 0
    dtype: str = ""

    def __add__(self, other: NodeCost) -> NodeCost:
        return NodeCost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.output_bytes + other.output_bytes,
            self.parameter_bytes + other.parameter_bytes,
            self.dtype if self.flops >= other.flops else other.dtype,
        )


COST = MetaKey[NodeCost](
    "fxpasses.cost", made_by="MeasureCosts()", to_json=attrs.asdict, from_json=lambda facts: NodeCost(**facts)
)
"""What a node does, whatever device it runs on."""

SECONDS = MetaKey[Mapping[str, float]]("fxpasses.seconds", made_by="ProfileCosts(devices)", to_json=dict)
"""Measured seconds of a node, by the name of the device."""

WORKSPACE = MetaKey[Mapping[str, int]]("fxpasses.workspace", made_by="ProfileCosts(devices)", to_json=dict)
"""Bytes that a node needs at one time beside its operands and its result, by the name of the device.

Measured in inference; a pass of a backend may write what its own kernels need.
"""


@attrs.frozen
class StepWorkspace:
    """Bytes that a node needs in a training step beside its operands, its result and their gradients.

    Args:
        inside: The most at one time in its forward, beside what it keeps.
        kept: What it keeps for its backward beside operands and result: masks, statistics, converted copies.
        backward: The most at one time in its backward. There may be fewer: what it reads may be gone before the last of
            what it makes is there.
    """

    inside: int
    kept: int
    backward: int


STEP_WORKSPACE = MetaKey[Mapping[str, StepWorkspace]](
    "fxpasses.step_workspace",
    made_by="ProfileCosts(devices, training=True)",
    to_json=lambda known: {name: attrs.asdict(needed) for name, needed in known.items()},
    from_json=lambda facts: {name: StepWorkspace(**needed) for name, needed in facts.items()},
)
"""What a node needs in a training step, by the name of the device; a pass of a backend may write it, too."""


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _values(argument: Any, sizes: Sizes = "hint") -> Any:
    """The recorded values of the nodes in an argument, with numbers for symbols."""
    return map_arg(argument, lambda node: concrete_value(value_of(node), sizes))


def _is_view(node: Node) -> bool:
    """Whether a node only looks at its input in another way: its schema says so, and it makes no copy after all."""
    if isinstance(node.target, torch._ops.OpOverload):
        if _name_of(node.target) in ALWAYS_VIEWS:
            return True
        schema = node.target._schema
        is_alias = not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)
        if not is_alias and _name_of(node.target) in MAY_HAND_BACK:
            return (ran := dry_run(node)) is not None and not ran.made
        return is_alias and not makes_a_copy(node)
    if node.target is operator.getitem:
        return not makes_a_copy(node)
    if node.op == "call_module":
        return _hands_back(node)
    effects = _effects_of(node)
    is_off = "dropout" in _name_of(node.target) and effects.is_pure
    if effects.looks_only or (is_off and any(effects.aliases)):
        return True
    return (ran := dry_run(node)) is not None and not ran.made


def _effects_of(node: Node) -> CallEffects:
    """What calling a function or a method does; nothing but a result where nobody says."""
    rule = rule_for_target(node.op, node.target) if node.op in ("call_function", "call_method") else None
    return PLAIN if rule is None else rule(node)


def _switches_process(node: Node) -> bool:
    """Whether a function opens a level of ``torch.vmap``, sets a seed, or the like: called to count it, it would."""
    if isinstance(node.target, torch._ops.OpOverload):
        return False
    effects = _effects_of(node)
    return effects.region is not None or (effects.world and effects.random)


def _hands_back(node: Node) -> bool:
    """Whether a called module gives what it takes: a dropout that is off, an identity, a shape that needs no copy."""
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else torch.nn.Module()
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return not module.training
    if isinstance(module, torch.nn.Flatten):
        made = (described(tensor) for used in node.all_input_nodes for tensor in tensors_in(value_of(used)))
        return all(isinstance(each, Like) and each.is_dense for each in made)
    return isinstance(module, (torch.nn.Identity, torch.nn.Unflatten))


def _higher_order_cost(node: Node, inputs: Sequence[Any], sizes: Sizes) -> NodeCost:
    """A conditional costs its dearer branch; a loop its body for each row of what it scans, or once.

    Attention with a score function costs both its products, and the function for each score.
    """
    owner, name = node.graph.owning_module, _name_of(node.target)
    bodies = [] if owner is None else [body for used in node.all_input_nodes if (body := _body_of(used, owner))]
    costs = [sum((measure_node(inner, sizes=sizes) for inner in body.graph.nodes), NodeCost()) for body in bodies]
    cost = max(costs, key=lambda each: (each.flops, each.bytes_read + each.bytes_written), default=NodeCost())
    rounds = body_runs(name, inputs)
    if (counter := COUNTERS.get(name)) is not None:
        return NodeCost(counter(inputs, None) + cost.flops * rounds)
    return attrs.evolve(
        cost,
        flops=cost.flops * rounds,
        bytes_read=cost.bytes_read * rounds,
        bytes_written=cost.bytes_written * rounds,
    )


def _body_of(node: Node, owner: GraphModule) -> GraphModule | None:
    if node.op != "get_attr":
        return None
    value: Any = owner
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, GraphModule) else None


def measure_node(node: Node, *, sizes: Sizes = "hint") -> NodeCost:
    """Count what one node does, from the fake values of its arguments and its result.

    Args:
        node: Any node; placeholders, attributes, outputs and markers of regions cost nothing.
        sizes: How symbolic sizes count.

    Returns:
        The cost. A node without a recorded value counts as free; :func:`cost_of` refuses it.
    """
    cost, rows = _measured_once(node, sizes), rows_of(node, sizes=sizes)
    if rows > 1 and is_region(node):  # what is inside has rows of its own
        return attrs.evolve(cost, output_bytes=rows * cost.output_bytes)
    return cost if rows == 1 else _in_rows(cost, rows, _rows_read(node, sizes))


def _in_rows(cost: NodeCost, rows: int, rows_read: float) -> NodeCost:
    """What an operator inside of ``torch.vmap`` does for all rows at once."""
    return attrs.evolve(
        cost,
        flops=rows * cost.flops,
        bytes_read=round(rows_read * cost.bytes_read),
        bytes_written=rows * cost.bytes_written,
        output_bytes=rows * cost.output_bytes,
    )


def _rows_read(node: Node, sizes: Sizes) -> float:
    """How many rows its operands have, on average by their bytes: what has none is read once."""
    operands = [(used, sum(map(tensor_bytes, tensors_in(value_of(used))))) for used in node.all_input_nodes]
    total = sum(size for _used, size in operands)
    return sum(size * rows_of(used, sizes=sizes) for used, size in operands) / total if total else 1.0


def _measured_once(node: Node, sizes: Sizes) -> NodeCost:
    if switches_regions(node) or _switches_process(node):
        return NodeCost()
    output = concrete_value(value_of(node), sizes)
    written = sum(map(tensor_bytes, tensors_in(output)))
    if node.op in ("placeholder", "get_attr", "output"):
        return NodeCost(output_bytes=written if node.op != "output" else 0)
    is_asked = runs_anywhere(node) and node.target is not operator.getitem
    if is_asked or _is_view(node):
        return NodeCost(output_bytes=written)
    inputs, named = _values(node.args, sizes), _values(node.kwargs, sizes)
    operands = [*_operands(inputs), *_operands(tuple(named.values()))]
    constants = state_bytes(node) if node.op == "call_module" else _attribute_bytes(node)
    name = _name_of(node.target)
    elements = None if node.op == "call_module" else elements_written(name, inputs, named, operands)
    if elements is None:
        read, traffic = bytes_moved(node, name, operands, written)
    else:
        read, traffic = bytes_of_rows(operands, elements, adds=adds_to_rows(name, inputs, named))
    dtype = _computing_dtype(node, operands, tensors_in(output))
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        body = _higher_order_cost(node, inputs, sizes)
        read, moved = max(read, body.bytes_read), max(written, body.bytes_written)
        return NodeCost(body.flops, read, moved, written, constants, body.dtype or dtype)
    flops = _flops(node, inputs, named, output, sizes) if elements is None else elements
    return NodeCost(flops, read, traffic, written, constants, dtype)


_PRODUCTS = (torch.nn.Linear, torch.nn.Bilinear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def _operands(inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [tensor for value in inputs for tensor in tensors_in(value)]


def _attribute_bytes(node: Node) -> int:
    attributes = [used for used in node.all_input_nodes if used.op == "get_attr"]
    return sum(tensor_bytes(tensor) for used in attributes for tensor in tensors_in(value_of(used)))


def _computing_dtype(node: Node, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> str:
    """The type of the first floating-point tensor, else of the first; of a product under autocast, that of its result.

    Autocast casts operands inside of the call: ``float32`` goes in, and what is computed and comes out is shorter.
    """
    tensors = [*operands, *results]
    floating = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
    chosen = next(iter(floating or tensors), None)
    if chosen is not None and results and _formula_of(_name_of(node.target)) in COUNTERS:
        is_cast = chosen.dtype is torch.float32 and results[0].dtype in (torch.bfloat16, torch.float16)
        chosen = results[0] if is_cast else chosen
    return "" if chosen is None else str(chosen.dtype).removeprefix("torch.")


def _flops(node: Node, inputs: Sequence[Any], named: Mapping[str, Any], output: Any, sizes: Sizes) -> int:
    name = _name_of(node.target)
    counter = COUNTERS.get(_formula_of(name))
    if node.op == "call_module":
        return int(_module_flops(node, inputs, named, output, sizes))
    if named and (counter is not None or name in TRANSFORM_COUNTERS):
        inputs = _in_order(name, inputs, named)
    operands = _operands(inputs)
    if name in LOOKUPS:
        return sum(math.prod(shape_of(tensor)) for tensor in tensors_in(output))
    if name in BAGS and operands:
        return rows_looked_up(name, operands)[0]
    if counter is not None and len(operands) >= 2:
        return int(counter(inputs, output)) * _per_product(operands)
    if (transform := TRANSFORM_COUNTERS.get(name)) is not None and operands:
        return transform(inputs, output)
    if counted := taken_apart(node.target, inputs, named):
        return counted * _per_product(operands)
    return max((math.prod(shape_of(tensor)) for tensor in [*operands, *tensors_in(output)]), default=0)


def _formula_of(name: str) -> str:
    """What writes its result into an operand counts as what makes a new one: ``addmm_`` as ``addmm``."""
    return name if name.endswith("__") else name.removesuffix("_")


def _in_order(name: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """The inputs with named ones where the operator has them: ``bmm(a, mat2=b)`` as ``bmm(a, b)``; others are None."""
    packet = getattr(torch.ops.aten, _formula_of(name), None)
    for overload in () if packet is None else packet.overloads():
        arguments = getattr(packet, overload)._schema.arguments
        fields = ["input" if field.name == "self" else field.name for field in arguments if not field.kwarg_only]
        given = {"input" if key == "self" else key: value for key, value in named.items()}
        if last := max((fields.index(key) + 1 for key in given if key in fields), default=0):
            return [*inputs, *(given.get(field) for field in fields[len(inputs) : last])]
    return inputs


def _per_product(operands: Sequence[torch.Tensor]) -> int:
    """Real multiply-adds of one multiply-add: complex numbers take four."""
    return 4 if any(tensor.is_complex() for tensor in operands) else 1


def _module_flops(node: Node, inputs: Sequence[Any], named: Mapping[str, Any], output: Any, sizes: Sizes) -> int:
    """A leaf module: what its weight does to each output position, or what torch, or its own graph, makes of it."""
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else torch.nn.Module()
    if isinstance(module, GraphModule):
        return sum(measure_node(inner, sizes=sizes).flops for inner in module.graph.nodes)
    elements = sum(math.prod(shape_of(tensor)) for tensor in tensors_in(output))
    if isinstance(module, _PRODUCTS):
        return 2 * elements * math.prod(shape_of(module.weight)[1:])
    if isinstance(module, torch.nn.EmbeddingBag):
        return sum(math.prod(shape_of(each)) for each in _operands(inputs[:1])) * module.embedding_dim
    return within_module(module, inputs, named) or elements


def require_value(node: Node) -> None:
    """Refuse a node whose result somebody uses and nobody knows.

    Raises:
        MissingMetadataError: It has no recorded value; the message names the pass that records them.
    """
    if has_value(node) or node.op in ("get_attr", "output") or not node.users or switches_regions(node):
        return
    where = came_from(node)
    raise MissingMetadataError(
        f"node {node.name!r}{where} has no value to count a cost on; run MeasureCosts(example_inputs=...) first, or "
        "export the model",
        node=node,
        reason="'val' is missing",
    )


def cost_of(node: Node) -> NodeCost:
    """What ``MeasureCosts`` wrote, or else what :func:`measure_node` counts now.

    Raises:
        MissingMetadataError: Neither a cost nor a value is recorded; the message names the pass that writes them.
    """
    known = COST.get(node)
    if known is None:
        require_value(node)
        note_rows_once(node.graph)  # else it would hang on who asked before
        return measure_node(node)
    return known


def seconds_of(node: Node, device: Device) -> float:
    """Seconds of a node on a device: measured by ``ProfileCosts`` if it was, else by :func:`seconds_on`."""
    measured = SECONDS.get(node, {}).get(device.name)
    return seconds_on(cost_of(node), device) if measured is None else measured


@contextmanager
def measured_on(graph: Graph, speeds: Mapping[str, float]) -> Iterator[None]:
    """Inside, devices run what was measured there so many times as fast; by their names."""
    before = {node: measured for node in graph.nodes if speeds and (measured := SECONDS.get(node))}
    try:
        for node, measured in before.items():
            SECONDS.write(node, {name: seconds / speeds.get(name, 1.0) for name, seconds in measured.items()})
        yield
    finally:
        for node, measured in before.items():
            SECONDS.write(node, measured)


def seconds_on(cost: NodeCost, device: Device) -> float:
    """Seconds by the roofline model: the slower of arithmetic and memory, plus the launch.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    if cost.flops == 0 and cost.bytes_written == 0:
        return 0.0
    moved = cost.bytes_read + cost.bytes_written
    return device.overhead + max(cost.flops / device.peak_flops(cost.dtype), moved / device.bandwidth)
