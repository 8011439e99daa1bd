"""What a run of a pipeline tells: one record per pass, with what it changed, cost and was warned about."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from torch.fx import Graph, GraphModule

from fxpasses.journal import Changes
from fxpasses.pass_base.naming import pass_name

__all__ = ["CheckOutcome", "Edits", "PassRecord", "Remark", "RunReport", "count_nodes", "count_ops"]

SHOWN_EDITS = 50


@attrs.frozen
class CheckOutcome:
    """What one check said after a pass: ``error`` is None when it was content."""

    name: str
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the check was content."""
        return self.error is None


@attrs.frozen
class Remark:
    """A sentence a pass left about a node, such as why it was not fused."""

    text: str
    node: str | None = None
    pass_name: str | None = None
    line: str | None = None

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.text}" + (f" ({self.line})" if self.line else "")


@attrs.frozen
class Edits:
    """Names of the nodes and attributes that a pass touched; at most fifty of a kind, and how many there were."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    written_in_place: tuple[str, ...] = ()
    counts: Mapping[str, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, changes: Changes) -> Edits:
        """Condense the journal's account, so that records never keep removed nodes alive."""
        kinds = ("added", "removed", "altered", "moved", "attributes", "written_in_place")
        found = {kind: getattr(changes, kind) for kind in kinds}
        shown = {kind: tuple(itertools.islice(names, SHOWN_EDITS)) for kind, names in found.items()}
        return cls(**shown, counts={kind: len(names) for kind, names in found.items() if names})

    @classmethod
    def between(cls, before: GraphModule, after: GraphModule) -> tuple[Edits, list[str]]:
        """Compare two modules by the names of their nodes; also give the names that were added or altered."""
        old, new = _calls_by_name(before), _calls_by_name(after)
        found = {
            "added": [name for name in new if name not in old],
            "removed": [name for name in old if name not in new],
            "altered": [name for name in new if name in old and old[name] != new[name]],
            "attributes": ["graph_module"],
        }
        shown = {kind: tuple(names[:SHOWN_EDITS]) for kind, names in found.items()}
        counts = {kind: len(names) for kind, names in found.items() if names}
        return cls(**shown, counts=counts), [*found["added"], *found["altered"]]

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in self.counts.items()) or "nothing"


@attrs.frozen
class PassRecord:
    """One pass, once.

    Attributes:
        name: What the pass is called.
        options: Its options by name.
        position: Where it stands in its pipeline; more than one number for a pass inside a group.
        step: Which round of its (innermost) repeating group this was, counted from 0.
        seconds: Wall-clock time of ``requires``, ``call`` and ``ensures``.
        nodes_before, nodes_after: Nodes in all graphs, nested ones included.
        ops_before, ops_after: How often each op occurs.
        modified: Whether the graph changed; established by looking.
        claimed: What the pass said; None if it said nothing.
        skipped: Why it did not run, or why what it did was taken back; None if it ran.
        checks: Every check after the pass, with its outcome.
        warnings: What the framework noticed, as sentences.
        edits: What changed, in names.
        remarks: What the pass had to say.
        statistics: What the pass counted.
    """

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    position: tuple[int, ...] = ()
    step: int = 0
    seconds: float = 0.0
    nodes_before: int = 0
    nodes_after: int = 0
    ops_before: Mapping[str, int] = attrs.field(factory=dict, repr=False)
    ops_after: Mapping[str, int] = attrs.field(factory=dict, repr=False)
    modified: bool = False
    claimed: bool | None = None
    skipped: str | None = None
    checks: tuple[CheckOutcome, ...] = ()
    warnings: tuple[str, ...] = ()
    edits: Edits = attrs.field(factory=Edits)
    remarks: tuple[Remark, ...] = ()
    statistics: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def label(self) -> str:
        """The position as text, such as ``2.0``."""
        return ".".join(str(number) for number in self.position)

    def as_dict(self) -> dict[str, Any]:
        """The record as plain values, for JSON."""
        plain = attrs.asdict(self)
        plain["options"] = {name: _plain(value) for name, value in self.options.items()}
        plain["op_changes"] = self.op_changes()
        return plain

    def op_changes(self) -> dict[str, int]:
        """How many more (or fewer) of each op there are than before; only what differs."""
        names = sorted({*self.ops_before, *self.ops_after})
        changes = {name: self.ops_after.get(name, 0) - self.ops_before.get(name, 0) for name in names}
        return {name: change for name, change in changes.items() if change}


@attrs.frozen
class RunReport:
    """All records of one run, and what the framework has to say about the whole of it."""

    records: tuple[PassRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    settled: bool = True
    properties: tuple[Any, ...] = ()

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The remarks of all passes, in order."""
        return tuple(remark for record in self.records for remark in record.remarks)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "records": [record.as_dict() for record in self.records],
            "warnings": list(self.warnings),
            "seconds": self.seconds,
            "settled": self.settled,
            "properties": [str(one) for one in self.properties],
        }

    def __str__(self) -> str:
        head = ("position", "pass", "seconds", "nodes", "modified", "edits")
        rows = [
            (
                record.label,
                record.name,
                f"{record.seconds:.4f}",
                f"{record.nodes_before} -> {record.nodes_after}",
                record.skipped or ("yes" if record.modified else "no"),
                str(record.edits),
            )
            for record in self.records
        ]
        return "\n".join([text_table(head, rows), *(f"warning: {warning}" for warning in self.warnings)])


def text_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Lay out rows under a head, in columns as wide as their widest entry."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def count_nodes(graphs: list[GraphModule]) -> int:
    """How many nodes the graphs have together."""
    return sum(len(module.graph.nodes) for module in graphs)


def count_ops(graphs: list[GraphModule]) -> dict[str, int]:
    """How often each op occurs, by name in sorted order; function calls are counted from torch's side table."""
    counts: Counter[str] = Counter()
    for module in graphs:
        _count_ops_of(module.graph, counts)
    return dict(sorted(counts.items()))


def _count_ops_of(graph: Graph, counts: Counter[str]) -> None:
    table = graph._find_nodes_lookup_table.table
    for (op, target), nodes in list(table.items()):
        if not nodes:
            continue
        if op == "call_function":
            counts[_op_name(target)] += len(nodes)
        elif op in ("call_method", "call_module"):
            counts.update(f"{op}:{node.target}" for node in nodes)
        else:
            counts[op] += len(nodes)


def _calls_by_name(root: GraphModule) -> dict[str, tuple[Any, ...]]:
    calls = {}
    for path, module in root.named_modules():
        if isinstance(module, GraphModule):
            prefix = f"{path}/" if path else ""
            for node in module.graph.nodes:
                calls[prefix + node.name] = (node.op, str(node.target), str(node.args), str(node.kwargs))
    return calls


def _op_name(target: Any) -> str:
    name = getattr(target, "name", None)
    if callable(name) and hasattr(target, "_schema"):
        return str(target)
    return pass_name(target) if callable(target) else str(target)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
