"""Transformations: each pass is one idea in one file."""

from fxpasses.partitioners.fusing import fuse_by_partitions
from fxpasses.passes.cleanup import (
    CSEPass,
    EliminateDeadCode,
    RemoveDetach,
    RemoveNoOps,
    SortTopologically,
    StripGuards,
    get_CSE_banned_ops,
    legalize_graph,
)
from fxpasses.passes.folding import FoldConstants
from fxpasses.passes.fuse_conv_bn import FuseConvBN
from fxpasses.passes.interpreter_modules import FlatArgsAdapter, InterpreterModule, InterpreterModuleDispatcher
from fxpasses.passes.measuring import MeasureCosts, measure_graph
from fxpasses.passes.merging import merge
from fxpasses.passes.opening_regions import CloseRegions, OpenRegions
from fxpasses.passes.placement import PlaceOnDevices
from fxpasses.passes.profiling.measurements import Measurements
from fxpasses.passes.profiling.profile_costs import ProfileCosts, profile_node
from fxpasses.passes.replicating import replicate
from fxpasses.passes.rewriting import (
    Action,
    ApplyRules,
    FoldToConstant,
    Match,
    Outline,
    ReplacedPatterns,
    RewriteReport,
    Rule,
    RuleCheck,
    RuleError,
    RuleSet,
    check_rule,
    replace_pattern,
    replace_pattern_with_filters,
)
from fxpasses.passes.snapshots import SnapshotState
from fxpasses.passes.splitting import Split, split, split_by_tags, split_module
from fxpasses.passes.unflattening import UnflattenedModule, swap_modules, unflatten

__all__ = [
    "Action",
    "ApplyRules",
    "CSEPass",
    "CloseRegions",
    "EliminateDeadCode",
    "FlatArgsAdapter",
    "FoldConstants",
    "FoldToConstant",
    "FuseConvBN",
    "InterpreterModule",
    "InterpreterModuleDispatcher",
    "Match",
    "MeasureCosts",
    "Measurements",
    "OpenRegions",
    "Outline",
    "PlaceOnDevices",
    "ProfileCosts",
    "RemoveDetach",
    "RemoveNoOps",
    "ReplacedPatterns",
    "RewriteReport",
    "Rule",
    "RuleCheck",
    "RuleError",
    "RuleSet",
    "SnapshotState",
    "SortTopologically",
    "Split",
    "StripGuards",
    "UnflattenedModule",
    "check_rule",
    "fuse_by_partitions",
    "get_CSE_banned_ops",
    "legalize_graph",
    "measure_graph",
    "merge",
    "profile_node",
    "replace_pattern",
    "replace_pattern_with_filters",
    "replicate",
    "split",
    "split_by_tags",
    "split_module",
    "swap_modules",
    "unflatten",
]
