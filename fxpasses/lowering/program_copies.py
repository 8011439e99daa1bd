"""A program that lowering may change: with a graph of its own, in the form that torch can save."""

from __future__ import annotations

import copy
import functools
import keyword

from torch._higher_order_ops.wrap import wrap_with_autocast
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.errors import CaptureError, FakeValueError, came_from
from fxpasses.outlining.copying import copy_graph_module
from fxpasses.outlining.regions import is_marker
from fxpasses.passes.opening_regions import CloseRegions
from fxpasses.programs.calling_convention import keep_conditions
from fxpasses.values.fake_modes import nested_graph_modules
from fxpasses.values.fake_values import refresh_values

__all__ = ["copied_program", "with_autocast_types", "with_keywords_given", "with_regions_closed", "with_true_users"]


def copied_program(program: ExportedProgram) -> ExportedProgram:
    """The same program with graphs of its own; tensors are shared. Linear in nodes."""
    graph_module, _nodes = copy_graph_module(program.graph_module)
    graph_module.meta.update(program.graph_module.meta)
    copied = ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=copy.copy(program.state_dict),
        range_constraints=dict(program.range_constraints),
        module_call_graph=list(program.module_call_graph),
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )
    keep_conditions(program, copied)
    return copied


def with_true_users(program: ExportedProgram) -> ExportedProgram:
    """The program, changed in place where nodes do not know their users: torch 2.13 loses some around region bodies."""
    for graph_module in (module for module in program.graph_module.modules() if isinstance(module, GraphModule)):
        nodes = graph_module.graph.nodes
        if any(node not in used.users for node in nodes for used in node.all_input_nodes):
            for node in nodes:
                node.users.clear()
            for node in nodes:
                for used in node.all_input_nodes:
                    used.users[node] = None
    return program


def with_regions_closed(program: ExportedProgram) -> ExportedProgram:
    """The program with a body for each region that torch left open, as it does around a ``cond``; changed in place.

    Torch cannot save the markers of an open region.
    """
    if not any(map(is_marker, program.graph.nodes)):
        return program
    return CloseRegions()(program).exported_program or program


def with_autocast_types(program: ExportedProgram) -> ExportedProgram:
    """The program with the types that autocast gives its values; changed in place.

    By bytecode (``strict=True``) torch 2.13 records values as if there were no autocast. Where types are converted it
    asserts those, and takes a conversion that is needed for one that is not: what is captured then is another model.
    Programs with ``torch.vmap`` stay as they are.

    Raises:
        CaptureError: an assertion of the program does not hold.
    """
    graph_modules = list(nested_graph_modules(program.graph_module))
    has_autocast = any(
        module.graph.find_nodes(op="call_function", target=wrap_with_autocast) for module in graph_modules
    )
    if has_autocast and not any(map(_opens_levels, graph_modules)):
        try:
            refresh_values(program.graph.nodes)
        except FakeValueError as error:
            where = came_from(error.node) if error.node is not None else ""
            raise CaptureError(
                f"The program was captured as if there were no autocast{where}, as torch.export does with strict=True: "
                f"{error.reason.rstrip('.')}. Capture the model with strict=False.",
                reason="types inside of autocast are not what was recorded",
                node=error.node,
            ) from error
    return program


def _opens_levels(graph_module: GraphModule) -> bool:
    """Whether it runs something inside of ``torch.vmap`` or of a derivative, which cannot run by itself."""
    targets = (getattr(node.target, "__name__", "") for node in graph_module.graph.nodes)
    return any(name.endswith("_increment_nesting") for name in targets)


def with_keywords_given(program: ExportedProgram) -> ExportedProgram:
    """The program with a value for each argument that is called as a word of Python (``from``); changed in place.

    Torch 2.13 cannot read a saved program in which such an argument is left at its default: ``x.uniform_()``.
    """
    for graph_module in (module for module in program.graph_module.modules() if isinstance(module, GraphModule)):
        for node in graph_module.graph.nodes:
            if isinstance(node.target, OpOverload) and len(node.args) < (count := _up_to_keyword(node.target)):
                missing = node.target._schema.arguments[len(node.args) : count]
                kwargs = dict(node.kwargs)
                node.args = (*node.args, *(kwargs.pop(each.name, each.default_value) for each in missing))
                node.kwargs = kwargs
    return program


@functools.cache
def _up_to_keyword(operator: OpOverload) -> int:
    """How many arguments have to be given so that those that are called as a word of Python are."""
    named = [keyword.iskeyword(argument.name) for argument in operator._schema.arguments]
    return len(named) - named[::-1].index(True) if any(named) else 0
