from .base import (
    ExportedProgramPassBase,
    ExportedProgramPassResult,
    FunctionPass,
    PassBase,
    PassResult,
    PassType,
    as_pass,
    pass_result_wrapper,
)

__all__ = [
    "ExportedProgramPassBase",
    "ExportedProgramPassResult",
    "FunctionPass",
    "PassBase",
    "PassResult",
    "PassType",
    "as_pass",
    "pass_result_wrapper",
]
