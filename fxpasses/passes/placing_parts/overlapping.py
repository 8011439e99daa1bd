"""Rewrite copies to and from devices with streams: begun early, awaited at the first use, released after the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.passes.placing_parts.copies import COPY_OF, LOAD_OF, Copy
from fxpasses.passes.placing_parts.copy_engine import (
    CopyEngine,
    await_copy,
    begin_copy,
    begin_load,
    finish_copies,
    let_read,
    release_copy,
)
from fxpasses.passes.placing_parts.shared_memory import SharedMemory
from fxpasses.passes.placing_parts.streams import Streams

__all__ = ["overlap_copies"]

ENGINE = "_copies"


def overlap_copies(graph_module: GraphModule, streams: Streams, spare: Mapping[str, float] | None = None) -> None:
    """Let copies run beside computation, on the devices that can.

    Args:
        graph_module: The top level with its copies and loads.
        streams: Which devices have streams, and how to use them.
        spare: Bytes that each device has left at its fullest. A copy begins right after its value is there as long as
            it fits into them, and otherwise right before its first use; without them all begin early. Loads are where
            they are, one part ahead: their bytes are counted already.
    """
    copies = [node for node in graph_module.graph.nodes if _sent(node) and _overlaps(node, streams)]
    if not copies:
        return
    name = ENGINE
    while hasattr(graph_module, name):
        name += "_"
    setattr(graph_module, name, CopyEngine(streams))
    first = next(node for node in graph_module.graph.nodes if node.op != "placeholder")
    with graph_module.graph.inserting_before(first):
        engine = graph_module.graph.get_attr(name)
    memory = SharedMemory.of(graph_module)
    left = None if spare is None else dict(spare)
    _Overlapping(graph_module, engine, streams, memory, left).run(copies)


def _sent(node: Node) -> Copy | None:
    for key in (COPY_OF, LOAD_OF):
        if key.has(node):
            return key.read(node)
    return None


def _device(value: Node) -> torch.device:
    return tensors_in(value.meta["val"])[0].device


def _overlaps(node: Node, streams: Streams) -> bool:
    return streams.queues(_device(node.all_input_nodes[0]), _device(node))


@attrs.define(eq=False)
class _Overlapping:
    """The rewriting of one graph."""

    graph_module: GraphModule
    engine: Node
    streams: Streams
    memory: SharedMemory
    spare: dict[str, float] | None
    position: dict[Node, int] = attrs.field(init=False)
    nodes: list[Node] = attrs.field(init=False)
    writers: list[tuple[Node, frozenset[int]]] = attrs.field(init=False)

    def run(self, copies: Sequence[Node]) -> None:
        self.nodes = list(self.graph_module.graph.nodes)
        self.position = {node: index for index, node in enumerate(self.nodes)}
        self.writers = [(node, written) for node in self.nodes if (written := self.memory.written_by(node))]
        tickets = [self._rewrite(node) for node in copies]
        with self.graph_module.graph.inserting_before(self.graph_module.graph.output_node()):
            self._call(finish_copies, *tickets)

    def _call(self, function: Any, *arguments: Any, name: str | None = None) -> Node:
        return self.graph_module.graph.create_node("call_function", function, (self.engine, *arguments), {}, name=name)

    def _rewrite(self, copy: Node) -> Node:
        """Begin, await, release; give the ticket."""
        value, target = copy.all_input_nodes[0], _device(copy)
        is_load = LOAD_OF.has(copy)
        users = sorted(copy.users, key=self.position.__getitem__)
        storages = self.memory.storages(value)
        writes = [node for node, written in self.writers if not storages.isdisjoint(written)]
        earliest = max(
            (node for node in [value, *writes] if self._is_before(node, copy)), key=self.position.__getitem__
        )
        early = not is_load and self._fits(copy)
        with self._after(earliest) if early else self.graph_module.graph.inserting_before(copy):
            ticket = self._call(begin_load if is_load else begin_copy, value, target, name=f"{copy.name}_begun")
        for writer in writes:  # those before the copy are before it begins, too
            if self._is_before(copy, writer):
                with self.graph_module.graph.inserting_before(writer):
                    self._call(let_read, ticket, _device(value))
        copy.target, copy.args, copy.kwargs = await_copy, (self.engine, ticket), {}
        if users:
            users[0].prepend(copy)
            if users[-1].op != "output":
                with self.graph_module.graph.inserting_after(users[-1]):
                    self._call(release_copy, ticket)
        return ticket

    def _is_before(self, one: Node, other: Node) -> bool:
        return self.position[one] < self.position[other]

    def _fits(self, copy: Node) -> bool:
        sent = _sent(copy)
        if self.spare is None or sent is None or sent.target not in self.spare:
            return True  # nobody counts the bytes of main memory
        if sent.size > self.spare[sent.target]:
            return False
        self.spare[sent.target] -= sent.size
        return True

    def _after(self, node: Node) -> Any:
        """The insertion point right after a node; after all placeholders for one of these, and after the engine."""
        if self._is_before(node, self.engine):
            node = self.engine
        return self.graph_module.graph.inserting_after(node)
