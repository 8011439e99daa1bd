"""From a captured model to its stages: where it is cut, what is computed again, and the split."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import StageError
from fxpasses.outlining.opening import open_regions
from fxpasses.outlining.regions import body_of_region, is_marker
from fxpasses.partitioners.assignment import Assignment
from fxpasses.passes.replicating import replicate
from fxpasses.passes.splitting import Split, split
from fxpasses.pipelining.cuts.automatic import automatic_cut
from fxpasses.pipelining.cuts.balancing import Balance, balanced_stages
from fxpasses.pipelining.cuts.gathering import gather_writes
from fxpasses.pipelining.cuts.multi_use import MultiUseParamSpec, sharing_policy
from fxpasses.pipelining.cuts.recomputing import cheaper_to_compute
from fxpasses.pipelining.cuts.split_points import (
    SplitPoint,
    compute_nodes,
    cuts_at_modules,
    is_split_marker,
    paths_of,
    register_marker,
    stages_from_cuts,
    take_markers,
)
from fxpasses.pipelining.cuts.torn_writes import refuse_torn_writes

__all__ = ["Recompute", "SplitPolicy", "Stages", "cut_into_stages"]

SplitPolicy = Callable[[GraphModule], GraphModule]
Recompute = Literal["cheaper", "never"]


@attrs.frozen(eq=False)
class Stages:
    """A model cut into stages.

    Args:
        cut: The split; its parts are the stages.
        recomputed: The names of what each stage computes again.
        balance: What is known of an automatic cut; None for others.
    """

    cut: Split
    recomputed: tuple[tuple[str, ...], ...]
    balance: Balance | None


def cut_into_stages(
    source: GraphModule,
    spec: Mapping[str, SplitPoint] | Literal["auto"],
    split_policy: SplitPolicy | None,
    *,
    num_stages: int | None = None,
    devices: Sequence[Device] | None = None,
    links: Iterable[Link] = (),
    multi_use_param_spec: MultiUseParamSpec | None = None,
    recompute: Recompute = "cheaper",
) -> Stages:
    """Cut a graph; see :func:`fxpasses.pipelining.pipeline` for what is given. The graph is changed in place."""
    if split_policy is not None:
        _ask_policy(split_policy, source)
    links = tuple(links)
    balance: Balance | None = None
    if spec == "auto":
        take_markers(source)
        stage_of, balance = automatic_cut(source, lambda graph: balanced_stages(graph, num_stages, devices, links))
    else:
        open_regions(source, lambda node: _holds_cut(node, spec))
        marked = take_markers(source)
        nodes = compute_nodes(source)
        stage_of = stages_from_cuts(nodes, [*marked, *cuts_at_modules(nodes, spec)])
    _keep_whole(source, stage_of)
    gather_writes(source, stage_of)
    refuse_torn_writes(source, stage_of)
    policy = sharing_policy(source, multi_use_param_spec)
    count = max(stage_of.values(), default=0) + 1
    again: dict[int, list[Node]] = {}
    if recompute == "cheaper" and count > 1:
        again = cheaper_to_compute(source, stage_of, _stage_topology(count, devices, links))
    names = tuple(tuple(node.name for node in again.get(stage, ())) for stage in range(count))
    if again:
        stage_of = dict(replicate(source, stage_of, again))  # type: ignore[arg-type]  # stages are numbers
    assignment = Assignment.of(source, stage_of, order=range(count) if stage_of else None)
    return Stages(split(source, assignment, constants=policy, names="submod_pp_{}".format), names, balance)


def _ask_policy(split_policy: SplitPolicy, source: GraphModule) -> None:
    register_marker()
    given: Any = split_policy(source)
    if given is not source:
        what = "another graph module" if isinstance(given, GraphModule) else f"a {type(given).__name__}"
        raise StageError(
            f"the split policy gave back {what}; it must put pipe_split calls into the graph module it gets, "
            "and give that back"
        )
    if not any(map(is_split_marker, _all_nodes(source))):
        warnings.warn(
            "The split policy put no marker into the graph, and so there is one stage. Markers are calls of "
            "fxpasses.pipelining.pipe_split and of torch.ops.fxpasses.pipe_split.",
            stacklevel=4,
        )


def _all_nodes(source: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of those in it."""
    for module in source.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _holds_cut(region: Node, spec: Mapping[str, SplitPoint]) -> bool:
    """Whether a split point or a marker lies inside a region, however deep."""
    waiting = [body_of_region(region)]
    while waiting:
        body = waiting.pop()
        if body is None:
            continue
        for node in body.graph.nodes:
            if is_split_marker(node) or any(path in spec for path in paths_of(node)):
                return True
        waiting.extend(child for child in body.children() if isinstance(child, GraphModule))
    return False


def _keep_whole(source: GraphModule, stage_of: dict[Node, int]) -> None:
    """A tuple is taken apart where it is made; a region's marker belongs to the stage of what stands before it."""
    stage = 0
    for node in source.graph.nodes:
        if node.op == "call_function" and node.target is operator.getitem and node in stage_of:
            made_by = node.all_input_nodes[0]
            stage_of[node] = stage_of.get(made_by, stage_of[node])
        elif is_marker(node):
            stage_of.setdefault(node, stage)
        stage = max(stage, stage_of.get(node, 0))


def _stage_topology(count: int, devices: Sequence[Device] | None, links: tuple[Link, ...]) -> Topology:
    if devices is None:
        return Topology.of([Device(f"stage{index}") for index in range(count)])
    if len(devices) != count:
        raise StageError(f"there are {len(devices)} devices for {count} stages; give one for each stage")
    return Topology.of(devices, links)
