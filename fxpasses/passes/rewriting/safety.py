"""May this replacement stand for this match, given what else the graph does to the same memory?

Order is the business of ``placing.py``. Here are the questions that order does not answer: does the replacement
write the same inputs as the match did, where somebody can see it; and if a result shares memory with an input on one
side only, does anything write that memory? And if two inputs are one memory, do both sides treat it alike?
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from torch.fx import Graph, Node

from fxpasses.partitioners.matching import GraphView, PatternMatch
from fxpasses.passes.rewriting.replacements import BoundReplacement, ReplacementGraph

__all__ = ["MemoryUse"]


@attrs.define(eq=False)
class MemoryUse:
    """Who writes and who reads which storage of one graph, looked up when first needed."""

    view: GraphView
    _writers: dict[int, list[Node]] | None = attrs.field(init=False, default=None)
    _patterns: dict[Graph, ReplacementGraph] = attrs.field(init=False, factory=dict)
    _returned: list[Node] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        outputs = [node for node in self.view.nodes[-1:] if node.op == "output"]
        self._returned = [leaf for output in outputs for leaf in output.all_input_nodes]  # before any is replaced

    def look(self) -> None:
        """See what each node does, while all of them still have the inputs that the analysis knows."""
        self.writers  # noqa: B018 - asks for every node

    @property
    def writers(self) -> dict[int, list[Node]]:
        """The nodes that write each storage; empty for a functional graph."""
        if self._writers is None:
            self._writers = {}
            effects = self.view.effects
            for node in self.view.nodes if effects is not None else ():
                for storage in effects.of(node).writes if effects is not None else ():
                    self._writers.setdefault(storage, []).append(node)
        return self._writers

    def writers_of(self, node: Node) -> list[Node]:
        """The nodes that write what ``node`` gives."""
        return [writer for storage in sorted(self._storages(node)) for writer in self.writers.get(storage, ())]

    def objection(self, match: PatternMatch, bound: BoundReplacement, holds_for_shared: bool = False) -> str | None:
        """Why the replacement would change what happens to memory; None if it does not."""
        if self.view.effects is None or not (self.writers or bound.graph.written_inputs):
            return None
        reason = self._writes_differ(match, bound) or self._sharing_differs(match, bound)
        return reason if reason or holds_for_shared else self._steps_differ(match, bound)

    def note_writes(self, match: PatternMatch, bound: BoundReplacement, made: list[Node]) -> None:
        """Remember that a replacement writes its inputs: who reads them stays on its side."""
        effects = self.view.effects
        stand_in = max(match.nodes, key=self.view.position.__getitem__)
        for storage in sorted({s for p in bound.graph.written_inputs for s in self._storages(bound.values.get(p))}):
            self.writers.setdefault(storage, []).append(stand_in)
            for node in self.view.nodes if effects is not None else ():
                if effects is not None and node not in match.nodes and storage in effects.of(node).reads:
                    self.view.later.setdefault(node, []).extend(made)
                    for new in made:
                        self.view.earlier.setdefault(new, []).append(node)

    def _storages(self, value: Any) -> frozenset[int]:
        known = isinstance(value, Node) and value in self.view.position and self.view.effects is not None
        return frozenset(self.view.effects.storages(value)) if known and self.view.effects is not None else frozenset()

    def _writes_differ(self, match: PatternMatch, bound: BoundReplacement) -> str | None:
        effects = self.view.effects
        assert effects is not None  # objection() has looked
        inside = set(match.nodes)
        inputs = {s: node for node in _nodes(match) if node not in inside for s in self._storages(node)}
        unknown = [node for node in inside if not effects.call(node).is_known]  # may write, as the replacement does
        before = {s for node in inside.difference(unknown) for s in effects.of(node).writes if s in inputs}
        maybe = {s for node in unknown for s in effects.of(node).writes}
        after = {s for p in bound.graph.written_inputs for s in self._storages(bound.values.get(p))}
        for storage, verb in [
            *((s, "writes") for s in before - after),
            *((s, "does not write") for s in after - before - maybe),
        ]:
            if (witness := self._witness(storage, inside)) is not None:
                other = "the replacement does not" if verb == "writes" else "the replacement does"
                name = inputs[storage].name if storage in inputs else "an input"
                return f"the match {verb} {name} in place and {other}; {witness}"
        return None

    def _witness(self, storage: int, inside: set[Node]) -> str | None:
        """Somebody outside the match who can see a write to the storage."""
        effects = self.view.effects
        assert effects is not None  # objection() has looked
        first = min(self.view.position[node] for node in inside)
        for place, node in enumerate(self.view.nodes):
            if node in inside:
                continue
            if node.op == "output":
                shown = (leaf for leaf in self._returned if leaf not in inside)
                if (leaf := next((n for n in shown if storage in effects.storages(n)), None)) is not None:
                    return f"{leaf.name} shares its memory and is returned"
            if node.op in ("placeholder", "get_attr") and storage in effects.storages(node):
                return f"{node.name} belongs to the caller or the module"
            if place > first and storage in effects.of(node).reads:
                return f"{node.name} reads it afterwards"
        return None

    def _steps_differ(self, match: PatternMatch, bound: BoundReplacement) -> str | None:
        """Inputs that are one memory here must be read and written in the same order on both sides.

        A rule holds for inputs that are distinct in memory. It still holds for others if nothing of that memory is
        looked at again once one of them was written, or if both sides do the same to it.
        """
        pattern = self._pattern_of(match)
        if pattern is None or len(match.inputs) != len(bound.graph.placeholders):
            return None
        old, new = pattern.steps, bound.graph.steps
        for first, second in self._shared_inputs(match):
            pair = (first, second)
            before, after = ([step for step in steps if step[0] in pair] for steps in (old, new))
            if _in_runs(before) != _in_runs(after) and (_looks_again(before) or _looks_again(after)):
                names = " and ".join(dict.fromkeys(match.inputs[place].name for place in pair))
                return (
                    f"two inputs of the pattern are one memory here ({names}), "
                    "which the replacement reads and writes in another order"
                )
        return None

    def _pattern_of(self, match: PatternMatch) -> ReplacementGraph | None:
        """The graph of the pattern, read as replacements are; None for patterns that are no graphs."""
        if (graph := match.pattern.graph) is None:
            return None
        if graph not in self._patterns:
            self._patterns[graph] = ReplacementGraph.of(graph)
        return self._patterns[graph]

    def _shared_inputs(self, match: PatternMatch) -> list[tuple[int, int]]:
        storages = [self._storages(value) for value in match.inputs]
        places = range(len(storages))
        return [(a, b) for a in places for b in places[a + 1 :] if storages[a] & storages[b]]

    def _sharing_differs(self, match: PatternMatch, bound: BoundReplacement) -> str | None:
        inside = set(match.nodes)
        first = min(self.view.position[node] for node in inside)
        pattern = self._pattern_of(match)
        for place, (result, new) in enumerate(zip(match.results, bound.graph.results, strict=False)):
            for placeholder, value in bound.values.items():
                of_input, of_result = self._storages(value), self._storages(result)
                shared = bool(of_input & of_result) and (pattern is None or pattern.shares(place, match.inputs, value))
                if not of_input or shared == bound.graph.may_live_in(new, placeholder):
                    continue
                writer = self._writer_after(of_input | of_result, first, inside)
                if writer is not None:
                    more, less = ("match", "replacement") if shared else ("replacement", "match")
                    return (
                        f"{result.name} shares memory with {value.name} in the {more} but not in the {less}, "
                        f"and {writer.name} writes it"
                    )
        return None

    def _writer_after(self, storages: Iterable[int], first: int, inside: set[Node]) -> Node | None:
        for storage in sorted(storages):
            for writer in self.writers.get(storage, ()):
                if writer not in inside and self.view.position[writer] > first:
                    return writer
        return None


def _in_runs(steps: list[tuple[int, bool]]) -> list[frozenset[int] | int]:
    """Reads between two writes together, as their order makes no difference."""
    runs: list[frozenset[int] | int] = []
    for place, writes in steps:
        if writes:
            runs.append(place)
        elif runs and isinstance(runs[-1], frozenset):
            runs[-1] |= {place}
        else:
            runs.append(frozenset({place}))
    return runs


def _looks_again(steps: list[tuple[int, bool]]) -> bool:
    """Whether something is done to one input after another one was written."""
    written: set[int] = set()
    for place, writes in steps:
        if written - {place}:
            return True
        if writes:
            written.add(place)
    return False


def _nodes(match: PatternMatch) -> Iterable[Node]:
    return dict.fromkeys(node for owned in match.nodes for node in (*owned.all_input_nodes,))
