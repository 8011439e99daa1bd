from .building import PICKED, add_provenance, build_parts, call_meta, copy_node, outline, output_meta, pick_leaves

__all__ = [
    "PICKED",
    "add_provenance",
    "build_parts",
    "call_meta",
    "copy_node",
    "outline",
    "output_meta",
    "pick_leaves",
]
