"""One stage as a module: a part of a split, what it receives, and what it hands on, hop by hop."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.attributes import find_attribute
from fxpasses.effects import analyze_effects
from fxpasses.errors import StageError
from fxpasses.input_contract import InputContract
from fxpasses.partitioners.cost import tensors_in
from fxpasses.passes.splitting import Split
from fxpasses.pipelining.split_points import where
from fxpasses.pipelining.travelling import Traveller, arrive, depart

__all__ = ["Route", "StageModule", "make_routes", "refuse_torn_writes"]


@attrs.frozen
class Route:
    """What goes in and out of one stage; values have slots, numbers that hold for the whole pipeline.

    Args:
        is_first: Whether it takes the user's inputs.
        received: What comes from the stage before; nothing for the first one.
        entering: The slot of each flattened input of the user; only for the first stage.
        called_with: The slots that the part takes, in its order.
        made: The slots that the part makes.
        makes_tuple: Whether the part gives a tuple.
        sent: What goes to the next stage; nothing for the last one.
        leaving: The slots or constants of the flattened output of the user, only for the last stage.
    """

    is_first: bool
    received: tuple[Traveller, ...]
    entering: tuple[int, ...]
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


def refuse_torn_writes(graph_module: GraphModule, stage_of: Mapping[Node, int]) -> None:
    """Refuse cuts between a tensor and an in-place write to it: stages do not share memory.

    Raises:
        StageError: A write to what another stage holds.
    """
    effects = analyze_effects(graph_module)
    held: dict[int, tuple[int, str]] = {}
    state: dict[int, None] = {}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            held.update((storage, (0, f"the input {node.name}")) for storage in effects.storages(node))
        elif node.op == "get_attr":
            state.update(dict.fromkeys(effects.storages(node)))
    written: dict[int, tuple[int, str]] = {}
    for node, stage in stage_of.items():
        touches = effects.of(node)
        for storage in (*effects.storages(node), *touches.reads, *touches.writes):
            if storage < 0:
                continue  # the random generator and the outside world
            first, name = held.setdefault(storage, (stage, node.name))
            writer = written.get(storage)
            if storage in touches.writes and first != stage:
                raise StageError(
                    f"{where(node)} writes in place to what stage {first} holds ({name}), but runs in stage {stage}; "
                    "move the split point",
                    node=node,
                )
            if writer is not None and storage in state and writer[0] != stage:
                raise StageError(
                    f"{where(node)} in stage {stage} reads a buffer that {writer[1]} writes in stage {writer[0]}; "
                    "move the split point",
                    node=node,
                )
            if storage in touches.writes:
                written[storage] = (stage, node.name)


def make_routes(split: Split) -> list[Route]:
    """Plan what each stage of a split receives, calls and hands on.

    Raises:
        StageError: A value crosses that is no tensor of known size, or the output holds a parameter.
    """
    graph = split.graph_module.graph
    slots = {node: slot for slot, node in enumerate(graph.nodes)}
    inputs = graph.find_nodes(op="placeholder")
    calls = list(split.calls.values())  # in execution order, which is that of the stages
    born = dict.fromkeys(inputs, 0)
    for stage, call in enumerate(calls):
        born.update(dict.fromkeys([call, *_items(call)], stage))
    leaves = _output_leaves(graph.output_node())
    last_use: dict[Node, int] = {}
    for stage, call in enumerate(calls):
        last_use.update(dict.fromkeys(call.all_input_nodes, stage))
    last_use.update({leaf: len(calls) - 1 for leaf in leaves if isinstance(leaf, Node)})
    _refuse_foreign(last_use, born)
    flowing = differentiable_values(split.source)
    crossing = [
        [
            _traveller(split, node, slots[node], flowing)
            for node in slots
            if born.get(node, stage) < stage <= last_use.get(node, -1)
        ]
        for stage in range(len(calls) + 1)
    ]
    return [
        Route(
            is_first=stage == 0,
            received=tuple(crossing[stage]),
            entering=tuple(slots[node] for node in inputs) if stage == 0 else (),
            called_with=tuple(slots[node] for node in call.args if isinstance(node, Node)),
            made=tuple(slots[node] for node in (_items(call) or [call])),
            makes_tuple=bool(_items(call)),
            sent=tuple(crossing[stage + 1]),
            leaving=tuple(_leaf(leaf, slots) for leaf in leaves) if call is calls[-1] else None,
        )
        for stage, call in enumerate(calls)
    ]


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


def differentiable_values(graph_module: GraphModule) -> dict[Node, None]:
    """The nodes through which a gradient can flow to a parameter or to an input, as the operators let it."""
    effects = analyze_effects(graph_module)
    flowing: dict[Node, None] = {}
    storages: dict[int, None] = {}  # written with what flows
    for node in graph_module.graph.nodes:
        is_real = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors_in(node.meta.get("val")))
        if node.op == "get_attr":
            starts = is_real and isinstance(find_attribute(graph_module, str(node.target)).value, torch.nn.Parameter)
        else:
            starts = is_real and node.op == "placeholder"
        fed = any(
            used in flowing or not storages.keys().isdisjoint(effects.storages(used)) for used in node.all_input_nodes
        )
        if fed:
            storages.update(dict.fromkeys(storage for storage in effects.of(node).writes if storage >= 0))
        if starts or (is_real and fed and not _stops_gradients(node)):
            flowing[node] = None
    written = [node for node in graph_module.graph.nodes if not storages.keys().isdisjoint(effects.storages(node))]
    return {**flowing, **dict.fromkeys(written)}


def _stops_gradients(node: Node) -> bool:
    if node.target is torch.ops.aten.detach.default:
        return True
    return getattr(node.target, "__name__", "") == "wrap_with_set_grad_enabled" and node.args[0] is False


def _traveller(split: Split, node: Node, slot: int, flowing: Mapping[Node, None]) -> Traveller:
    maker = _maker(split, node)
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise StageError(
            f"{where(maker)} is needed in a later stage, but it is {_kind(value)} and only tensors travel; "
            "move the split point",
            node=node,
        )
    if not all(isinstance(size, int) for size in value.shape):
        raise StageError(
            f"{where(maker)} has the size {tuple(value.shape)}, which depends on the input; stages need fixed sizes",
            node=node,
        )
    differentiable = maker in flowing and (value.is_floating_point() or value.is_complex())
    return Traveller.of(slot, maker.name, value, differentiable=differentiable, is_input=node.op == "placeholder")


def _kind(value: Any) -> str:
    return "no recorded value" if value is None else f"of type {type(value).__name__}"


class StageModule(torch.nn.Module):
    """A stage as schedules run it: the first takes the user's inputs, the last gives the user's outputs.

    In between it takes the tensors that the stage before sends and gives those that the next stage takes. Its
    parameters and buffers are those of the part, under the names that they have in the model.

    Args:
        part: The part of the split.
        route: What goes in and out.
        contract: The inputs that the model was captured with.
        out_spec: The structure of the model's output.
        aliases: Other names of tied parameters in the model, by the name in the part.
    """

    def __init__(
        self,
        part: GraphModule,
        route: Route,
        contract: InputContract,
        out_spec: pytree.TreeSpec,
        aliases: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__()
        object.__setattr__(self, "part", part)  # not a child: its attributes are this module's own
        for held in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, held, getattr(part, held))
        self.route = route
        self.contract = contract
        self.out_spec = out_spec
        self.aliases = {name: tuple(others) for name, others in aliases.items()}
        self.training = part.training
        self.register_state_dict_post_hook(_add_aliases)  # type: ignore[no-untyped-call]  # torch's
        self.register_load_state_dict_pre_hook(_drop_aliases)  # type: ignore[no-untyped-call]  # torch's

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage; see the class for what it takes and gives."""
        values = self._enter(args, kwargs)
        result = self.part(*(values[slot] for slot in self.route.called_with))  # type: ignore[operator]
        values.update(zip(self.route.made, result if self.route.makes_tuple else (result,), strict=True))
        if self.route.leaving is not None:
            leaves = [leaf.constant if leaf.slot is None else values[leaf.slot] for leaf in self.route.leaving]
            return pytree.tree_unflatten(leaves, self.out_spec)
        return depart(self.route.sent, [values[traveller.slot] for traveller in self.route.sent])

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any]:
        if self.route.is_first:
            ordered, _ = self.contract.bind(args, kwargs)
            flat = [leaf for value in ordered for leaf in pytree.tree_leaves(value)]
            return dict(zip(self.route.entering, flat, strict=True))
        slots = [traveller.slot for traveller in self.route.received]
        if len(args) != len(slots):
            names = ", ".join(traveller.name for traveller in self.route.received)
            raise StageError(
                f"the stage takes {len(slots)} tensors from the one before ({names}), but {len(args)} came"
            )
        return dict(zip(slots, arrive(self.route.received, args), strict=True))


def _add_aliases(module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name, others in module.aliases.items():
        if prefix + name in state:
            state.update((prefix + other, state[prefix + name]) for other in others)


def _drop_aliases(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, others in module.aliases.items():
        found = [state.pop(prefix + other) for other in others if prefix + other in state]
        if found:
            state.setdefault(prefix + name, found[0])
