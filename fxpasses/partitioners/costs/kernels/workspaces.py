"""How many bytes an operator needs for itself: masks it converts, statistics, what the body of a conditional makes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import attrs
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, RegionKind, analyze_effects
from fxpasses.metadata import value_of
from fxpasses.outlining.regions import BODY_AT
from fxpasses.partitioners.costs.kernels.dry_runs import Autocast, DryRun, dry_run, makes_a_copy, run_body
from fxpasses.partitioners.costs.kernels.higher_order_steps import HIGHER_ORDER_STEPS
from fxpasses.partitioners.costs.kernels.kernel_results import note_made_within, result_bytes
from fxpasses.partitioners.costs.kernels.tangent_storages import join_tangent, unpacked
from fxpasses.partitioners.grouping.keep_together import is_getitem
from fxpasses.partitioners.jvp_tangents import tangent_levels
from fxpasses.partitioners.tensor_sizes import memory_bytes, tensors_in

__all__ = ["autocast_around", "autocasts_open_at", "homes_in_memory", "kept_cast_bytes", "workspace_bytes"]

_LOOPS = ("while_loop", "associative_scan")
_HAND_OUT = ("cond", *BODY_AT)
"""Operators whose results are those of a body."""


def workspace_bytes(node: Node, autocast: Autocast | None = None, *, with_scratch: bool = True) -> int:
    """The most bytes that a node needs at one time beside its inputs and its result.

    Args:
        node: A node whose inputs have recorded values. Only operators that torch takes apart when they run, and
            operators with a body, are asked; all others say 0. Symbolic sizes count at their hint.
        autocast: What it runs under; it then has copies of its operands in another type.
        with_scratch: Whether what kernels on the CPU need for themselves counts.
    """
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _around_bodies(node, autocast, with_scratch)
    ran = dry_run(node, autocast)
    return 0 if ran is None else _beside_result(ran, node, with_scratch)


def _beside_result(ran: DryRun, node: Node, with_scratch: bool) -> int:
    made = sum(result_bytes(node, range(len(tensors_in(value_of(node))))).values()) << len(tangent_levels(node))
    return ran.inside + (ran.scratch if with_scratch else 0) + max(0, ran.made - made)


def kept_cast_bytes(node: Node, autocast: Autocast | None) -> int:
    """Bytes of the parameters in another type that a node leaves behind for the rest of an autocast region."""
    if autocast is None or not autocast.cached or isinstance(node.target, torch._ops.HigherOrderOperator):
        return 0
    ran = dry_run(node, autocast)
    return 0 if ran is None else ran.kept


def autocast_around(node: Node, effects: EffectAnalysis) -> Autocast | None:
    """What a node runs under: the innermost autocast region that a marker has opened around it."""
    if not effects.region_stack(node):
        return None
    opened = autocasts_open_at(node, effects)
    return Autocast.of(opened[-1].args) if opened else None


def autocasts_open_at(node: Node, effects: EffectAnalysis) -> list[Node]:
    """The markers of the autocast regions around a node, outermost first."""
    return [marker for marker in effects.region_stack(node) if effects.of(marker).region is RegionKind.AUTOCAST]


def homes_in_memory(graph_module: GraphModule, effects: EffectAnalysis) -> dict[Node, tuple[int, ...]]:
    """The storages that each value really lives in.

    Effects count what may be one storage as one; here a ``reshape`` or a ``to`` that copies has a storage of its own,
    and so have the views of it, what comes out of a body that copies it, and what a ``while_loop`` makes in its last
    round. O(nodes and edges).
    """
    homes: dict[Node, tuple[int, ...]] = {}
    copies = itertools.count(1 << 40)  # effects number storages from 0
    joined: dict[int, int] = {}
    for node in graph_module.graph.nodes:
        bases = effects.bases(node)
        join_tangent(node, homes, joined)
        if (apart := unpacked(node, homes, joined)) is not None:
            homes[node] = apart
            continue
        if is_getitem(node) and not makes_a_copy(node):
            source = homes[node.all_input_nodes[0]]
            index = node.args[1]
            picked = isinstance(index, int) and len(source) > 1
            homes[node] = (source[index],) if picked else source
            continue
        call = effects.call(node) if node.op not in ("placeholder", "get_attr", "output") else None
        aliases = () if call is None else call.aliases
        viewed = [homes[operands[0]] if operands else () for operands in aliases]
        handed = _handed_out(node) if _is_handed_out(node) or _makes_rounds(node) else {}
        note_made_within(node, {slot: size for slot, (_label, size) in handed.items()})
        if any(viewed) and (_makes_rounds(node) or makes_a_copy(node)):
            homes[node] = tuple(next(copies) for _ in bases)
            continue
        if _is_handed_out(node):
            shared = dict[int, int]()
            for slot, (label, _size) in handed.items():
                shared.setdefault(label, next(copies) if any(viewed[slot : slot + 1]) else bases[slot])
            bases = tuple(shared[handed[slot][0]] if slot in handed else base for slot, base in enumerate(bases))
            viewed = [() if slot in handed else source for slot, source in enumerate(viewed)]
        if call is not None and call.is_known and not any(viewed) and len(bases) == 1:  # each of a list has its own
            bases = (*bases, *(next(copies) for _ in tensors_in(value_of(node))[1:]))
        known = [viewed[slot] if slot < len(viewed) else () for slot in range(len(bases))]
        homes[node] = tuple(known[slot][0] if known[slot] else base for slot, base in enumerate(bases))
    return homes


# ---------------------------------------------------------------------------------------------------------------------
# Bodies
# ---------------------------------------------------------------------------------------------------------------------


def _around_bodies(node: Node, autocast: Autocast | None, with_scratch: bool) -> int:
    """What the hungriest body makes; its result is the node's own, but for a loop, which makes one each round."""
    if getattr(node.target, "_name", "") in HIGHER_ORDER_STEPS and (ran := run_body(node, autocast)) is not None:
        return _beside_result(ran, node, with_scratch)
    if getattr(node.target, "_name", "") == "wrap_with_autocast":
        autocast = Autocast.of(node.args[: BODY_AT["wrap_with_autocast"]])
        if autocast.cached and (ran := run_body(node)) is not None:
            return ran.inside + (ran.scratch if with_scratch else 0)
        autocast = attrs.evolve(autocast, cached=False)
    alive = [_alive_within(body, autocast, with_scratch) for body in _bodies(node)]
    most = max((most for most, _made in alive), default=0)
    if getattr(node.target, "_name", "") in _LOOPS:
        return most + (torch.bool.itemsize if _makes_rounds(node) else 0)  # whether there is one more
    if _is_handed_out(node):
        return max((most - made for most, made in alive), default=0)
    return max(0, most - sum(map(memory_bytes, tensors_in(value_of(node)))))


def _makes_rounds(node: Node) -> bool:
    """Whether a node is a loop whose result is made anew each round, also where effects call it what it began with."""
    return getattr(node.target, "_name", "") == "while_loop"


def _is_handed_out(node: Node) -> bool:
    """Whether the results of a node are those of its body, one for one."""
    return getattr(node.target, "_name", "") in _HAND_OUT


def _handed_out(node: Node) -> dict[int, tuple[int, int]]:
    """The results that a body makes anew, by their places: which of them share memory, and the bytes of that.

    They may be memory of what it is given to effects, and views of what is larger.
    """
    bodies = _bodies(node)[-1:] if _makes_rounds(node) else _bodies(node)
    found: dict[int, tuple[int, int]] = {}
    for body in bodies:
        for slot, home, size in _made_anew(body):
            _label, other = found.get(slot, (0, 0))
            found[slot] = (home if len(bodies) == 1 else slot, max(size, other))
    return found


def _made_anew(body: GraphModule) -> Iterator[tuple[int, int, int]]:
    """The results of a body that are not memory of what it is given, with their storages and the bytes of these."""
    homes = homes_in_memory(body, analyze_effects(body))
    given = _given(body, homes)
    sizes = _sizes(body, homes)
    results = [leaf for leaf in pytree.tree_leaves(body.graph.output_node().args) if isinstance(leaf, Node)]
    for slot, result in enumerate(result for result in results if tensors_in(value_of(result))):
        if homes[result] and given.isdisjoint(homes[result]):
            home = homes[result][0]
            yield slot, home, sizes.get(home, 0)


def _sizes(body: GraphModule, homes: Mapping[Node, tuple[int, ...]]) -> dict[int, int]:
    """The bytes of each storage that a body makes."""
    given = _given(body, homes)
    sizes: dict[int, int] = {}
    for node in body.graph.nodes:
        for home, made in result_bytes(node, homes[node]).items():
            if home not in given and home >= 0 and node.op != "output":
                sizes[home] = max(sizes.get(home, 0), made)
    return sizes


def _bodies(node: Node) -> list[GraphModule]:
    owner = node.graph.owning_module
    reads = [used for used in node.all_input_nodes if used.op == "get_attr"]
    held = [] if owner is None else [find_attribute(owner, str(used.target)).value for used in reads]
    return [body for body in held if isinstance(body, GraphModule)]


def _given(body: GraphModule, homes: Mapping[Node, tuple[int, ...]]) -> set[int]:
    """The storages of what a body does not make."""
    return {home for node in body.graph.nodes if node.op in ("placeholder", "get_attr") for home in homes[node]}


def _alive_within(body: GraphModule, autocast: Autocast | None, with_scratch: bool) -> tuple[int, int]:
    """The most bytes that a body makes and has at one time, and those of its results that it makes."""
    homes = homes_in_memory(body, analyze_effects(body))
    sizes = _sizes(body, homes)
    last: dict[int, Node] = {}
    for node in body.graph.nodes:
        for used in (node, *node.all_input_nodes):
            last.update((home, node) for home in homes[used] if home in sizes)
    alive: dict[int, int] = {}
    most = 0
    for node in body.graph.nodes:
        alive.update((home, sizes[home]) for home in homes[node] if home in sizes)
        most = max(most, sum(alive.values()) + workspace_bytes(node, autocast, with_scratch=with_scratch))
        alive = {home: size for home, size in alive.items() if last[home] is not node}
    results = dict.fromkeys(home for used in body.graph.output_node().all_input_nodes for home in homes[used])
    return most, sum(sizes.get(home, 0) for home in results)
