"""What goes in and out of each stage, and on which hops each value travels."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fxpasses.errors import StageError
from fxpasses.partitioners.costs.training.gradients import differentiable_values
from fxpasses.passes.splitting import Split
from fxpasses.pipelining.cuts.split_points import where
from fxpasses.pipelining.sizes import Size, size_of, symbols_in
from fxpasses.pipelining.travelling import Traveller, told_by

__all__ = ["Leaf", "Route", "Worked", "make_routes"]


@attrs.frozen
class Worked:
    """A size that a stage works out from the shapes of what it received."""

    slot: int
    name: str
    size: Size


@attrs.frozen
class Route:
    """What goes in and out of one stage; values have slots, numbers that hold for the whole pipeline.

    Args:
        is_first: Whether it takes the user's inputs.
        received: What comes from the stage before; nothing for the first one.
        worked_out: Sizes that are read off what comes.
        entering: The slot of each flattened input of the user; only for the first stage.
        held: Parameters of its own that other stages get sent, by slot.
        called_with: The slots that the part takes, in its order.
        made: The slots that the part makes.
        makes_tuple: Whether the part gives a tuple.
        sent: What goes to the next stage; nothing for the last one.
        leaving: The slots or constants of the flattened output of the user, only for the last stage.
    """

    is_first: bool
    received: tuple[Traveller, ...]
    worked_out: tuple[Worked, ...]
    entering: tuple[int, ...]
    held: tuple[tuple[int, str], ...]
    called_with: tuple[int, ...]
    made: tuple[int, ...]
    makes_tuple: bool
    sent: tuple[Traveller, ...]
    leaving: tuple[Leaf, ...] | None


@attrs.frozen
class Leaf:
    """One leaf of the output: a slot, or a constant where the slot is None."""

    slot: int | None
    constant: Any = None


def make_routes(split: Split) -> list[Route]:
    """Plan what each stage of a split receives, calls and hands on.

    Raises:
        StageError: A value crosses that is no tensor or number, or of a size that only the data tell; or the output
            holds a parameter.
    """
    graph = split.graph_module.graph
    slots = {node: slot for slot, node in enumerate(graph.nodes)}
    inputs = graph.find_nodes(op="placeholder")
    calls = list(split.calls.values())  # in execution order, which is that of the stages
    held = _held_parameters(split, calls)
    born = _births(inputs, calls, held)
    leaves = _output_leaves(graph.output_node())
    last_use = _last_uses(calls, leaves)
    _refuse_foreign(last_use, born)
    flowing = differentiable_values(split.source)
    hops = [
        _hop(
            [
                _traveller(split, node, slots[node], flowing)
                for node in slots
                if born.get(node, stage) < stage <= last_use.get(node, -1)
            ]
        )
        for stage in range(len(calls) + 1)
    ]
    return [
        Route(
            is_first=stage == 0,
            received=hops[stage][0],
            worked_out=hops[stage][1],
            entering=tuple(slots[node] for node in inputs) if stage == 0 else (),
            held=tuple((slots[node], name) for node, (owner, name) in held.items() if owner == stage),
            called_with=tuple(slots[node] for node in call.args if isinstance(node, Node)),
            made=tuple(slots[node] for node in (_items(call) or [call])),
            makes_tuple=bool(_items(call)),
            sent=hops[stage + 1][0],
            leaving=tuple(_leaf(leaf, slots) for leaf in leaves) if call is calls[-1] else None,
        )
        for stage, call in enumerate(calls)
    ]


def _held_parameters(split: Split, calls: Sequence[Node]) -> dict[Node, tuple[int, str]]:
    """The reads of parameters that one stage holds and others use: whose they are, and their name there."""
    stages = {str(call.target): stage for stage, call in enumerate(calls)}
    found: dict[Node, tuple[int, str]] = {}
    for node in split.graph_module.graph.find_nodes(op="get_attr"):
        part, _, name = str(node.target).partition(".")
        if part in stages:
            found[node] = (stages[part], name)
    return found


def _births(inputs: Iterable[Node], calls: Sequence[Node], held: Mapping[Node, tuple[int, str]]) -> dict[Node, int]:
    born = dict.fromkeys(inputs, 0)
    born.update((node, stage) for node, (stage, _) in held.items())
    for stage, call in enumerate(calls):
        born.update(dict.fromkeys([call, *_items(call)], stage))
    return born


def _last_uses(calls: Sequence[Node], leaves: Sequence[Any]) -> dict[Node, int]:
    last: dict[Node, int] = {}
    for stage, call in enumerate(calls):
        last.update(dict.fromkeys(call.all_input_nodes, stage))
    last.update({leaf: len(calls) - 1 for leaf in leaves if isinstance(leaf, Node)})
    return last


def _hop(crossing: Sequence[Traveller | Worked]) -> tuple[tuple[Traveller, ...], tuple[Worked, ...]]:
    """What is sent on one hop, and which sizes the receiver works out from it."""
    tensors = [value for value in crossing if isinstance(value, Traveller) and not value.is_number]
    known = told_by(tensors)
    numbers = [value for value in crossing if isinstance(value, Worked)]
    told = [number for number in numbers if all(symbol in known for symbol in symbols_in([number.size]))]
    sent = [
        value.told_by(known) if isinstance(value, Traveller) else Traveller.number(value.slot, value.name, 0)
        for value in crossing
        if value not in told
    ]
    return tuple(sent), tuple(told)


def _items(call: Node) -> list[Node]:
    """The ``getitem`` nodes that take a part's tuple apart, by index."""
    items = [user for user in call.users if user.target is operator.getitem]
    return sorted(items, key=lambda item: int(item.args[1]))  # type: ignore[arg-type]  # always a number


def _output_leaves(output: Node) -> list[Any]:
    given = output.args[0]
    return list(given) if isinstance(given, (tuple, list)) else [given]


def _leaf(leaf: Any, slots: Mapping[Node, int]) -> Leaf:
    return Leaf(slots[leaf]) if isinstance(leaf, Node) else Leaf(None, leaf)


def _refuse_foreign(used: Mapping[Node, int], born: Mapping[Node, int]) -> None:
    for node in used:
        if node not in born:
            raise StageError(
                f"the model gives back {node.target!r} as it is, which no stage computes; "
                "leave it out of the output, or give back a copy",
                node=node,
            )


def _maker(split: Split, node: Node) -> Node:
    """The node of the source graph that computes a value of the top-level graph."""
    call, index = (node.all_input_nodes[0], int(node.args[1])) if node.target is operator.getitem else (node, None)  # type: ignore[arg-type]  # always a number
    if call.op != "call_module":
        return split.origins.get(node, node)
    part: Any = split.graph_module.get_submodule(str(call.target))
    given = part.graph.output_node().args[0]
    made = given if index is None else given[index]
    return split.origins.get(made, made)


def _traveller(split: Split, node: Node, slot: int, flowing: Mapping[Node, None]) -> Traveller | Worked:
    maker = _maker(split, node)
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt) and not free_unbacked_symbols(value):
        return Worked(slot, maker.name, size_of(value))
    if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Traveller.number(slot, maker.name, value)
    if not isinstance(value, torch.Tensor):
        raise StageError(
            f"{where(maker)} is needed in a later stage, but it is {_kind(value)} and only tensors and numbers travel; "
            "move the split point",
            node=node,
        )
    if free_unbacked_symbols((*value.shape, *value.stride())):  # where it lies in its storage does not matter
        raise StageError(
            f"{where(maker)} has the size {tuple(value.shape)}, which depends on the data; stages have to know the "
            "sizes of what comes ahead; move the split point",
            node=node,
        )
    differentiable = maker in flowing and (value.is_floating_point() or value.is_complex())
    return Traveller.of(slot, maker.name, value, differentiable=differentiable, is_input=node.op == "placeholder")


def _kind(value: Any) -> str:
    return "no recorded value" if value is None else f"of type {type(value).__name__}"
