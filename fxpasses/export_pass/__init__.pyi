from .base import ExportedProgramPassBase, ExportedProgramPassResult, ExportPass, PassResult, map_args
from .proxy_values import PROTECTED_KEYS, Argument, ExportPassBaseError, Fn, NodeMetadata, ProxyValue, Value

__all__ = [
    "PROTECTED_KEYS",
    "Argument",
    "ExportPass",
    "ExportPassBaseError",
    "ExportedProgramPassBase",
    "ExportedProgramPassResult",
    "Fn",
    "NodeMetadata",
    "PassResult",
    "ProxyValue",
    "Value",
    "map_args",
]
