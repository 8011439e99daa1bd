from .nodes import (
    add_constant,
    compute_value,
    create_node,
    erase_nodes,
    fake_mode_of,
    insert_after,
    insert_before,
    nested_graph_modules,
    refresh_callers,
    refresh_values,
    remove_unused_attributes,
    replace_node,
    replace_nodes,
)
from .submodules import extract_submodule, inline_submodule

__all__ = [
    "add_constant",
    "compute_value",
    "create_node",
    "erase_nodes",
    "extract_submodule",
    "fake_mode_of",
    "inline_submodule",
    "insert_after",
    "insert_before",
    "nested_graph_modules",
    "refresh_callers",
    "refresh_values",
    "remove_unused_attributes",
    "replace_node",
    "replace_nodes",
]
