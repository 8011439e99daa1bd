"""Draw a placed graph with Graphviz: parts grouped by device, copies as bold edges."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.wording import counted

if TYPE_CHECKING:
    import graphviz

__all__ = ["draw_parts", "write_drawing"]

_COLOURS = ("#d7e8f7", "#fde2cf", "#dcefd9", "#efdcef", "#fbf3c4", "#dadada", "#d2f1ee", "#f8d5dc")


def draw_parts(graph_module: GraphModule, device_of: Mapping[str, Device]) -> graphviz.Digraph:
    """Draw the top level of a placed graph: inputs, parts in a box for their device, copies, results.

    Args:
        graph_module: The placed graph.
        device_of: The device of each part.
    """
    import graphviz

    drawing = graphviz.Digraph(
        "lowered",
        graph_attr={"rankdir": "TB", "fontname": "Helvetica", "nodesep": "0.3", "ranksep": "0.35"},
        node_attr={
            "shape": "box",
            "style": "rounded,filled",
            "fillcolor": "white",
            "fontname": "Helvetica",
            "fontsize": "10",
        },
        edge_attr={"fontname": "Helvetica", "fontsize": "9"},
    )
    devices = list(dict.fromkeys(device.name for device in device_of.values()))
    for index, name in enumerate(devices):
        with drawing.subgraph(name=f"cluster_{index}") as box:
            colour = _COLOURS[index % len(_COLOURS)]
            box.attr(label=name, labeljust="l", style="rounded,filled", color=colour, fontname="Helvetica")
            for node in graph_module.graph.find_nodes(op="call_module"):
                if node.target in device_of and device_of[str(node.target)].name == name:
                    count = len(_compute_nodes(graph_module.get_submodule(str(node.target))))
                    box.node(node.name, f"{node.name}\n{counted(count, 'operator')}")
    for node in graph_module.graph.nodes:
        if node.op == "call_module" and node.target in device_of:
            pass  # drawn in its device's box
        elif node.op == "get_attr" and not node.users:
            continue  # a buffer that nothing uses
        elif node.op in ("placeholder", "output"):
            drawing.node(node.name, node.name, shape="ellipse")
        else:
            drawing.node(node.name, _label(node), shape="plain" if node.op == "get_attr" else "box", fontsize="9")
        for used in node.all_input_nodes:
            drawing.edge(used.name, node.name)
    return drawing


def _compute_nodes(part: object) -> list[Node]:
    if not isinstance(part, GraphModule):
        return []
    return [node for node in part.graph.nodes if is_compute(node)]


def _label(node: Node) -> str:
    value = node.meta.get("val")
    shape = "x".join(str(size) for size in getattr(value, "shape", ()))
    return f"{node.name}\n{shape}" if shape else node.name


def write_drawing(drawing: graphviz.Digraph, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``graph.dot``, and ``graph.svg`` where Graphviz's ``dot`` is found.

    Returns:
        The files written.
    """
    dot = Path(folder) / "graph.dot"
    dot.write_text(drawing.source, encoding="utf-8")
    if which("dot") is None:
        return [dot]
    svg = dot.with_suffix(".svg")
    svg.write_bytes(drawing.pipe(format="svg"))
    return [dot, svg]
