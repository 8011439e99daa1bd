"""The instruments that are there: each is one class that says what it watches."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

import attrs
from torch.fx import GraphModule

from fxpasses.errors import PipelineError
from fxpasses.instruments.events import Instrument, PassEvent
from fxpasses.instruments.records import Remark, RunReport, text_table
from fxpasses.journal.comparing import graph_diff, graph_text

__all__ = [
    "BisectLimit",
    "DrawGraphs",
    "DumpFolder",
    "JsonLog",
    "Remarks",
    "ShowGraph",
    "Statistics",
    "Timing",
    "graph_diff",
]


@attrs.define
class TimedPass:
    """How long one pass or group took."""

    name: str
    label: str
    step: int
    depth: int
    seconds: float = 0.0
    failed: bool = False


class Timing(Instrument):
    """Times every pass and group, checks and bookkeeping included; :meth:`tree` shows them as they are nested."""

    def __init__(self) -> None:
        self.entries: list[TimedPass] = []
        self._open: list[tuple[TimedPass, float]] = []

    def before(self, event: PassEvent) -> None:
        """Start the clock of this pass."""
        entry = TimedPass(event.name, event.label, event.step, len(self._open))
        self.entries.append(entry)
        self._open.append((entry, time.perf_counter()))

    def after(self, event: PassEvent) -> None:
        """Stop it."""
        entry, started = self._open.pop()
        entry.seconds = time.perf_counter() - started

    def failed(self, event: PassEvent) -> None:
        """Stop it, and note that the pass failed."""
        entry, started = self._open.pop()
        entry.seconds, entry.failed = time.perf_counter() - started, True

    @property
    def total(self) -> float:
        """Seconds of all passes together, groups not counted twice."""
        return sum(entry.seconds for entry in self.entries if entry.depth == 0)

    def tree(self) -> str:
        """One line for each pass, indented under its group, with its share of the total."""
        total = self.total or 1.0
        rows = [
            (
                f"{'  ' * entry.depth}{entry.name}" + (" (failed)" if entry.failed else ""),
                f"{entry.label}#{entry.step}",
                f"{entry.seconds * 1e3:.3f} ms",
                f"{entry.seconds / total:.1%}",
            )
            for entry in self.entries
        ]
        return text_table(
            ("pass", "position", "time", "share"), [*rows, ("total", "", f"{self.total * 1e3:.3f} ms", "")]
        )


class _Texts(Instrument):
    """Remembers the text of the graph before each pass."""

    def __init__(self, when: str) -> None:
        if when not in ("changed", "always"):
            raise PipelineError(f"when is {when!r}; use 'changed' or 'always'")
        self.when = when
        self._before: str | None = None

    def start(self, graph_module: GraphModule) -> None:
        """Note the text of the input."""
        self._before = graph_text(graph_module)

    def after(self, event: PassEvent) -> None:
        """Hand the two texts on, if they are wanted."""
        if event.record is None:
            return
        if not event.record.modified and self._before is not None:
            if self.when == "always":
                self.show(event, self._before, self._before)
            return
        before, self._before = self._before or "", graph_text(event.graph_module)
        self.show(event, before, self._before)

    def show(self, event: PassEvent, before: str, after: str) -> None:
        """What to do with the texts."""


class ShowGraph(_Texts):
    """Writes the graph after each pass, whole or as a unified diff.

    Args:
        how: ``"text"`` or ``"diff"``.
        when: After passes that ``"changed"`` something, or ``"always"``.
        stream: Where to; standard error by default.
        colour: Whether a diff is coloured; by default if the stream is a terminal.
    """

    def __init__(
        self,
        how: Literal["text", "diff"] = "diff",
        *,
        when: Literal["changed", "always"] = "changed",
        stream: TextIO | None = None,
        colour: bool | None = None,
    ) -> None:
        super().__init__(when)
        if how not in ("text", "diff"):
            raise PipelineError(f"how is {how!r}; use 'text' or 'diff'")
        self.how = how
        self.stream = stream
        self.colour = colour

    def show(self, event: PassEvent, before: str, after: str) -> None:
        """Write it."""
        stream = self.stream or sys.stderr
        head = f"--- after pass '{event.name}' (position {event.label}, step {event.step})"
        if self.how == "text":
            stream.write(f"{head}\n{after}\n")
            return
        diff = graph_diff(before, after) or "no change\n"
        coloured = stream.isatty() if self.colour is None else self.colour
        stream.write(f"{head}\n")
        _write_coloured(diff, stream) if coloured else stream.write(diff)


class DumpFolder(_Texts):
    """Writes the graph after each pass into a numbered file of its own.

    The input is ``000-input.txt``; after that ``003-1.0-step2-FuseAdds.txt`` is the third file, for the pass at
    position 1.0 in round 2 of its loop, so no round overwrites another. A pass that fails leaves ``…-failed.txt``, with
    the graph as it left it and what it raised.

    Args:
        folder: Where to; made if it is not there.
        when: After passes that ``"changed"`` something, or ``"always"``.
    """

    def __init__(self, folder: str | Path, *, when: Literal["changed", "always"] = "changed") -> None:
        super().__init__(when)
        self.folder = Path(folder)
        self.number = 0

    def start(self, graph_module: GraphModule) -> None:
        """Write the input."""
        super().start(graph_module)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.number = 0
        self._write("input", self._before or "")

    def show(self, event: PassEvent, before: str, after: str) -> None:
        """Write what the pass left."""
        self._write(f"{event.label}-step{event.step}-{_file_name(event.name)}", after)

    def failed(self, event: PassEvent) -> None:
        """Write what the pass left when it failed."""
        if not event.is_group:
            text = f"{graph_text(event.graph_module)}\n\n{event.error}\n"
            self._write(f"{event.label}-step{event.step}-{_file_name(event.name)}-failed", text)

    def _write(self, name: str, text: str) -> None:
        (self.folder / f"{self.number:03d}-{name}.txt").write_text(text + "\n", encoding="utf-8")
        self.number += 1


class DrawGraphs(Instrument):
    """Writes a Graphviz file for each pass that changed something: before and after, with the changed nodes marked.

    Removed nodes are red, added ones green, altered ones yellow on both sides.

    Args:
        folder: Where to; made if it is not there.
        render: Also make an image of this format (``"svg"``, ``"png"``); needs Graphviz's ``dot``.
    """

    def __init__(self, folder: str | Path, *, render: str | None = None) -> None:
        self.folder = Path(folder)
        self.render = render
        self._before: dict[str, _Drawn] = {}
        self._number = 0

    def start(self, graph_module: GraphModule) -> None:
        """Note the nodes of the input."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._before = _drawn(graph_module)
        self._number = 0

    def after(self, event: PassEvent) -> None:
        """Draw what changed."""
        if event.record is None or not event.record.modified:
            return
        before, self._before = self._before, _drawn(event.graph_module)
        name = f"{self._number:03d}-{event.label}-step{event.step}-{_file_name(event.name)}"
        self._number += 1
        drawing = _draw(event, before, self._before)
        drawing.save(f"{name}.dot", directory=str(self.folder))
        if self.render is not None:
            drawing.render(f"{name}.dot", directory=str(self.folder), format=self.render)


class Statistics(Instrument):
    """Sums what passes count with :func:`statistic`, and what the op counts say, over all runs it watches."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.ops: Counter[str] = Counter()

    def after(self, event: PassEvent) -> None:
        """Add the counts of one pass."""
        if event.record is not None:
            self.counts.update({(event.name, name): amount for name, amount in event.record.statistics.items()})
            self.ops.update(event.record.op_changes())

    def table(self) -> str:
        """One line a statistic, then one an op that became more or fewer."""
        rows = [(str(amount), name, what) for (name, what), amount in sorted(self.counts.items())]
        rows += [(f"{change:+d}", "", op) for op, change in sorted(self.ops.items()) if change]
        return text_table(("count", "pass", "what"), rows)


class Remarks(Instrument):
    """Collects what passes say with :func:`remark`; writes it too, if it is given a stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.remarks: list[Remark] = []
        self.stream = stream

    def after(self, event: PassEvent) -> None:
        """Take the remarks of one pass."""
        for said in event.record.remarks if event.record is not None else ():
            self.remarks.append(said)
            if self.stream is not None:
                self.stream.write(f"{said.pass_name}: {said}\n")


class JsonLog(Instrument):
    """Writes a line of JSON for each event: started, before, after (with the record), failed, finished.

    Args:
        target: A stream, or the path of a file that is appended to.
    """

    def __init__(self, target: str | Path | TextIO) -> None:
        self.target = target

    def start(self, graph_module: GraphModule) -> None:
        """Log the start."""
        self._log({"event": "start", "nodes": len(graph_module.graph.nodes)})

    def before(self, event: PassEvent) -> None:
        """Log that a pass starts."""
        self._log({"event": "before", **_about(event)})

    def after(self, event: PassEvent) -> None:
        """Log that it ended, with its record."""
        record = {} if event.record is None else {"record": event.record.as_dict()}
        self._log({"event": "after", **_about(event), **record})

    def failed(self, event: PassEvent) -> None:
        """Log that it failed, and why."""
        self._log({"event": "failed", **_about(event), "error": str(event.error), "type": type(event.error).__name__})

    def finish(self, report: RunReport) -> None:
        """Log the end."""
        self._log({"event": "finish", "seconds": report.seconds, "warnings": list(report.warnings)})

    def _log(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, sort_keys=True) + "\n"
        if isinstance(self.target, (str, Path)):
            with Path(self.target).open("a", encoding="utf-8") as file:
                file.write(line)
        else:
            self.target.write(line)


class BisectLimit(Instrument):
    """Lets only the first ``limit`` passes of each run happen, loops counted, as LLVM's ``-opt-bisect-limit`` does.

    Args:
        limit: How many passes may run; negative for all. :attr:`ran` tells afterwards how many did, and
            :attr:`last` which was the last.
    """

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.ran: list[str] = []

    def start(self, graph_module: GraphModule) -> None:
        """Count from the beginning."""
        self.ran = []

    def should_run(self, event: PassEvent) -> bool:
        """Whether the limit is not reached yet."""
        if 0 <= self.limit <= len(self.ran):
            return False
        self.ran.append(f"{event.name} (position {event.label}, step {event.step})")
        return True

    @property
    def last(self) -> str | None:
        """The last pass that ran."""
        return self.ran[-1] if self.ran else None


# --- helpers --------------------------------------------------------------------------------------------------------


def _write_coloured(diff: str, stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, force_terminal=True, soft_wrap=True, highlight=False)
    for line in diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(line, style=style))


def _about(event: PassEvent) -> dict[str, Any]:
    return {
        "pass": event.name,
        "position": event.label,
        "step": event.step,
        "number": event.number,
        "nodes": len(event.graph_module.graph.nodes),
    }


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in name)[:60]


@attrs.frozen
class _Drawn:
    """A node as it is drawn."""

    label: str
    inputs: tuple[str, ...]


def _drawn(root: GraphModule) -> dict[str, _Drawn]:
    drawn = {}
    for path, module in root.named_modules():
        if isinstance(module, GraphModule):
            prefix = f"{path}/" if path else ""
            for node in module.graph.nodes:
                inputs = tuple(prefix + used.name for used in node.all_input_nodes)
                target = getattr(node.target, "__name__", node.target)
                drawn[prefix + node.name] = _Drawn(f"{prefix}{node.name}\n{node.op}: {target}", inputs)
    return drawn


def _draw(event: PassEvent, before: Mapping[str, _Drawn], after: Mapping[str, _Drawn]) -> Any:
    import graphviz

    drawing = graphviz.Digraph(name=event.name, graph_attr={"rankdir": "TB", "label": f"{event.name} at {event.label}"})
    for side, mine, other, new in (("before", before, after, "salmon"), ("after", after, before, "palegreen")):
        with drawing.subgraph(name=f"cluster_{side}") as cluster:
            cluster.attr(label=side)
            for name, node in mine.items():
                colour = new if name not in other else ("white" if other[name] == node else "khaki")
                cluster.node(f"{side}:{name}".replace(":", "_"), node.label, style="filled", fillcolor=colour)
                for used in node.inputs:
                    cluster.edge(f"{side}:{used}".replace(":", "_"), f"{side}:{name}".replace(":", "_"))
    return drawing
