"""Write down what each node costs, once, so that everything that places, cuts or reports reads the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_args

import attrs
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import InputError
from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.node_costs import COST, NodeCost, measure_node, require_value
from fxpasses.partitioners.symbol_bounds import note_limits
from fxpasses.partitioners.tensor_sizes import Sizes, storage_bytes, tensors_in
from fxpasses.partitioners.vmap_rows import note_rows
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.programs.current_program import program_of
from fxpasses.values import has_value, nested_graph_modules, propagate_values, record_copies_back

__all__ = ["MeasureCosts", "measure_graph"]

_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def _constant_bytes(graph_module: GraphModule, effects: EffectAnalysis) -> dict[int, int]:
    """Bytes of each storage that is a parameter, a buffer or a constant: an attribute, or a lifted input."""
    program = program_of(graph_module)
    lifted = {
        spec.arg.name
        for spec in (program.graph_signature.input_specs if program is not None else ())
        if spec.kind in _LIFTED
    }
    held = [
        node
        for node in graph_module.graph.nodes
        if node.op == "get_attr" or (node.op == "placeholder" and node.name in lifted)
    ]
    return {
        storage: storage_bytes(tensor)
        for node in held
        for tensor in tensors_in(value_of(node))
        for storage in effects.storages(node)
    }


def measure_graph(graph_module: GraphModule, *, sizes: Sizes = "hint") -> dict[Node, NodeCost]:
    """The cost of each node, in graph order; nothing is written. O(nodes + edges).

    Args:
        graph_module: A graph whose nodes carry values. Parameters count once for a node, however it views them.
        sizes: How symbolic sizes count: ``"hint"``, as in the example inputs, or ``"upper"``, as their bound.

    Raises:
        MissingMetadataError: A node has no value to count on.
    """
    note_limits(graph_module)
    note_rows(graph_module)
    effects = analyze_effects(graph_module, program=program_of(graph_module))
    constants = _constant_bytes(graph_module, effects)
    costs = {}
    for node in graph_module.graph.nodes:
        require_value(node)
        cost = measure_node(node, sizes=sizes)
        if node.op != "call_module" and (cost.flops or cost.bytes_read):
            cost = attrs.evolve(cost, parameter_bytes=_bytes_used(node, effects, constants))
        costs[node] = cost
    return costs


def _bytes_used(node: Node, effects: EffectAnalysis, constants: Mapping[int, int]) -> int:
    storages = dict.fromkeys(storage for used in node.all_input_nodes for storage in effects.storages(used))
    return sum(constants[storage] for storage in storages if storage in constants)


def _known_sizes(_pass: object, _field: object, sizes: object) -> None:
    if sizes not in get_args(Sizes):
        raise InputError(f"MeasureCosts counts symbolic sizes as 'hint' or as 'upper', not {sizes!r}.")


def _one_for_each_input(_pass: object, _field: object, examples: Any) -> None:
    if examples is not None and not isinstance(examples, (tuple, list)):
        raise InputError(
            f"example_inputs is a tuple with one value for each input, not a {type(examples).__name__}; of one input, "
            "write (x,)."
        )


@attrs.frozen
class MeasureCosts(PassBase):
    """Write each node's cost under :data:`~fxpasses.partitioners.COST`: operations, bytes, the type it computes in.

    Args:
        sizes: How symbolic sizes count: ``"hint"``, as in the example inputs, or ``"upper"``, as their bound. Memory,
            which nodes do not carry, is followed as in the example inputs.
        example_inputs: Inputs for graphs that were traced without values; these get values too.

    Bodies of control flow are measured as well. Metadata alone is no change of the graph, so the pass never reports
    one.
    """

    visit_nested: ClassVar[bool] = False  # bodies get their values with the graph that calls them

    sizes: Sizes = attrs.field(default="hint", validator=_known_sizes)
    example_inputs: Sequence[Any] | None = attrs.field(
        default=None, kw_only=True, eq=False, repr=False, validator=_one_for_each_input
    )

    def call(self, graph_module: GraphModule) -> PassResult:
        """Measure every node."""
        graph_modules = list(nested_graph_modules(graph_module))
        if self.example_inputs is not None and not all(map(_has_inputs, graph_modules)):
            propagate_values(graph_module, self.example_inputs)
        record_copies_back(graph_module)
        _give_each_node_its_own_entries(graph_modules)
        for inner in graph_modules:
            for node, cost in measure_graph(inner, sizes=self.sizes).items():
                COST.write(node, cost)
        return PassResult(graph_module, False)


def _has_inputs(graph_module: GraphModule) -> bool:
    return all(map(has_value, graph_module.graph.find_nodes(op="placeholder")))


def _give_each_node_its_own_entries(graph_modules: Sequence[GraphModule]) -> None:
    """``torch.export`` leaves a result of a region and the node that picks it out of the region with one ``meta``."""
    owner: dict[int, Node] = {}
    for node in (node for graph_module in graph_modules for node in graph_module.graph.nodes):
        if owner.setdefault(id(node.meta), node) is not node:
            node.meta = node.meta.copy()
