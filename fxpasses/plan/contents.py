"""What a line for a whole module stood for when a plan was written: how many operators of each kind.

Such a line covers whatever the module has, so a plan would fit a module in which an activation was swapped, or a layer
added, without a word. What each of its modules had is written beside the parts, and checking a plan compares it.
Views and sizes are left out: they take nothing, and which there are differs between versions of torch and between fixed
and dynamic sizes. A plan without it, or a line that was written by hand, covers what there is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.editing.attributes import find_attribute
from fxpasses.outlining.regions import is_region, switches_regions
from fxpasses.partitioners.placing.names.device_maps import holders
from fxpasses.plan.keys import op_name, path_in
from fxpasses.plan.parts import PartPlan
from fxpasses.plan.size_operators import handles_sizes

__all__ = ["Contents", "Difference", "contents_of", "contents_text", "differences", "parse_contents"]

Contents = Mapping[str, Mapping[str, int]]
"""By line (``layers.0/*``), how many operators of each kind the module has."""


def contents_of(parts: Iterable[PartPlan], keys: Mapping[Node, str]) -> dict[str, dict[str, int]]:
    """What the lines of a plan for whole modules stand for, whichever lines name single operators there.

    Args:
        parts: The parts of the plan.
        keys: The operators of the graph, as :func:`~fxpasses.plan.keys.stable_keys` names them.
    """
    lines = [op for part in parts for op in part.ops if op.endswith("/*")]
    found: dict[str, dict[str, int]] = {line: {} for line in lines}
    for node, key in keys.items():
        names = list(_operators(node))
        for counts in (found[line] for path in holders(path_in(key)) if (line := f"{path}/*") in found):
            for name in names:
                counts[name] = counts.get(name, 0) + 1
    return {line: dict(sorted(counts.items())) for line, counts in found.items()}


def _operators(node: Node) -> Iterator[str]:
    """What a node computes with: itself, but for views and sizes, and what is in the bodies that it runs."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.op in ("placeholder", "get_attr", "output") or handles_sizes(node) or switches_regions(node):
            continue
        if not (is_region(node) or _only_looks(node)):
            yield op_name(node)
        for body in _bodies(node):
            waiting += body.graph.nodes


def _only_looks(node: Node) -> bool:
    """Whether its schema says that it gives a view, if it can: that does not depend on sizes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    schema = node.target._schema
    return not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)


def _bodies(node: Node) -> Iterator[GraphModule]:
    if (root := node.graph.owning_module) is None:
        return
    for used in node.all_input_nodes:
        if used.op == "get_attr" and isinstance(body := find_attribute(root, str(used.target)).value, GraphModule):
            yield body


@attrs.frozen
class Difference:
    """Lines that stand for other operators now, all in the same way: of which kind how many there were, and are."""

    lines: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        return ", ".join(f"{now} x {name} ({before} before)" for name, (before, now) in self.counts.items())


def differences(before: Contents, now: Contents) -> list[Difference]:
    """Which lines stand for other operators now; only those of which both are known."""
    alike: dict[tuple[tuple[str, tuple[int, int]], ...], list[str]] = {}
    for line, had in before.items():
        has = now.get(line, had)
        names = sorted({*had, *has})
        counts = tuple((name, (had.get(name, 0), has.get(name, 0))) for name in names)
        if other := tuple(each for each in counts if each[1][0] != each[1][1]):
            alike.setdefault(other, []).append(line)
    return [Difference(tuple(lines), dict(counts)) for counts, lines in alike.items()]


def contents_text(counts: Mapping[str, int]) -> str:
    """How many operators of each kind, in one line.

    >>> contents_text({"gelu": 1, "linear": 2})
    '1 gelu, 2 linear'
    """
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def parse_contents(text: str) -> dict[str, int] | None:
    """Read such a line; None if it is none.

    >>> parse_contents("1 gelu, 2 linear"), parse_contents(""), parse_contents("gelu")
    ({'gelu': 1, 'linear': 2}, {}, None)
    """
    entries: Sequence[str] = text.split(",") if text.strip() else ()
    found = [re.fullmatch(r"\s*(\d{1,9}) +(\S+)\s*", entry) for entry in entries]
    return None if None in found else {each[2]: int(each[1]) for each in found if each is not None}
