"""What a rule can do with a match other than replacing it by a graph: outline it, or fold it to a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.fx import Node, map_arg

from fxpasses.arguments import getitem_users
from fxpasses.editing import add_constant, create_node, extract_submodule
from fxpasses.editing.submodules import get_attribute
from fxpasses.errors import CycleError, GraphError
from fxpasses.partitioners.matching import PatternMatch

if TYPE_CHECKING:
    from fxpasses.passes.rewriting.replacing import Replacer

__all__ = ["Action", "FoldToConstant", "Outline"]


@attrs.frozen
class Action:
    """Something done with the nodes of a match."""

    def apply(self, match: PatternMatch, replacer: Replacer) -> list[Node]:
        """Do it; give the new nodes.

        Raises:
            Refused: It cannot be done here; the graph is as it was.
        """
        raise NotImplementedError


@attrs.frozen
class Outline(Action):
    """Move the matched nodes into a submodule, and call it in their place.

    Args:
        name: The name of the submodule; made unique by a number.
    """

    name: str = "outlined"

    def apply(self, match: PatternMatch, replacer: Replacer) -> list[Node]:
        """Extract the nodes."""
        from fxpasses.passes.rewriting.replacing import Refused

        replacer.uses.settle()
        inside = sorted(match.nodes)
        given = [node for node in inside if any(user not in match.nodes for user in node.users)]
        try:
            call = extract_submodule(replacer.graph_module, inside, self.name)
        except (CycleError, GraphError) as error:
            raise Refused(f"the nodes cannot be taken out: {error.reason}") from error
        parts = getitem_users(call) if len(given) > 1 else {}
        made = [call, *(part for found in parts.values() for part in found)]
        replacer.near.replace(inside, made)
        by = {node: parts[place][0] if place in parts else call for place, node in enumerate(given)}
        replacer.uses.now.update(by)
        return made


@attrs.frozen
class FoldToConstant(Action):
    """Compute the match now and keep the result as a constant of the module.

    Only what is really constant is folded: every input is a literal or a tensor of the module that nothing writes.

    Args:
        parameters: Also fold parameters, which training would change.
    """

    parameters: bool = False

    def apply(self, match: PatternMatch, replacer: Replacer) -> list[Node]:
        """Evaluate the nodes of the match."""
        from fxpasses.passes.rewriting.replacing import Refused

        inside = sorted(match.nodes)
        replacer.uses.settle_at(inside)
        values: dict[Node, Any] = {}
        for node in dict.fromkeys(i for n in inside for i in n.all_input_nodes if i not in match.nodes):
            values[node] = self._constant(node, replacer)
        effects = replacer.view.effects
        for node in inside:
            if effects is not None and not effects.is_removable(node):
                raise Refused(f"{node.name} has effects, so it cannot be computed beforehand")
        with torch.no_grad():
            for node in inside:
                values[node] = _run(node, values, replacer)
        return self._install(match, values, replacer)

    def _constant(self, node: Node, replacer: Replacer) -> Any:
        from fxpasses.passes.rewriting.replacing import Refused

        if node.op != "get_attr":
            raise Refused(f"{node.name} is not constant")
        held = get_attribute(replacer.graph_module, str(node.target), None)
        if isinstance(held, torch.nn.Parameter) and held.requires_grad and not self.parameters:
            raise Refused(
                f"{node.name} is a parameter that may be trained; FoldToConstant(parameters=True) folds it too"
            )
        if replacer.memory.writers_of(node):
            raise Refused(f"{node.name} is written by {replacer.memory.writers_of(node)[0].name}")
        return held

    def _install(self, match: PatternMatch, values: dict[Node, Any], replacer: Replacer) -> list[Node]:
        from fxpasses.passes.rewriting.replacing import Refused

        results = dict.fromkeys(match.results)
        for result in results:
            if not isinstance(values[result], torch.Tensor):
                raise Refused(f"{result.name} is no tensor, so it cannot be kept as a constant")
        made, by = [], {}
        for result in results:
            value = values[result]
            assert isinstance(value, torch.Tensor)  # the loop above has looked
            name = add_constant(replacer.graph_module, f"_folded_{result.name}", value.detach())
            with replacer.graph.inserting_before(min(match.nodes)):
                by[result] = create_node(replacer.graph, "get_attr", name, replaces=sorted(match.nodes))
            made.append(by[result])
        replacer.hand_over(match, made, by)
        return made


def _run(node: Node, values: dict[Node, Any], replacer: Replacer) -> Any:
    args = map_arg(node.args, values.__getitem__)
    kwargs = map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_function":
        assert callable(node.target)  # what call_function means
        return node.target(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    module = get_attribute(replacer.graph_module, str(node.target))
    return module(*args, **kwargs)
