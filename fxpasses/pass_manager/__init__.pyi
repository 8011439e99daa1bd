from .constraints import (
    ConstraintType,
    PassConstraint,
    all_of,
    must_also_run,
    must_be_adjacent,
    must_not_both,
    this_before_that_pass_constraint,
    topological_sort_passes,
    validate_constraints,
)
from .groups import FixedPoint, Stage, When
from .manager import ExportedProgramPassManager, PassManager, pass_result_wrapper
from .properties import FUNCTIONAL, NORMALIZED_ARGS, ON_DEVICES, SHAPES_KNOWN, Property, decomposed_to

__all__ = [
    "FUNCTIONAL",
    "NORMALIZED_ARGS",
    "ON_DEVICES",
    "SHAPES_KNOWN",
    "ConstraintType",
    "ExportedProgramPassManager",
    "FixedPoint",
    "PassConstraint",
    "PassManager",
    "Property",
    "Stage",
    "When",
    "all_of",
    "decomposed_to",
    "must_also_run",
    "must_be_adjacent",
    "must_not_both",
    "pass_result_wrapper",
    "this_before_that_pass_constraint",
    "topological_sort_passes",
    "validate_constraints",
]
