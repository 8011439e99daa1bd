from .cleanup import (
    CSEPass,
    EliminateDeadCode,
    RemoveDetach,
    RemoveNoOps,
    SortTopologically,
    StripGuards,
    get_CSE_banned_ops,
    legalize_graph,
)
from .folding import FoldConstants
from .fuse_conv_bn import FuseConvBN
from .fusing import fuse_by_partitions
from .interpreter_modules import FlatArgsAdapter, InterpreterModule, InterpreterModuleDispatcher
from .measuring import MeasureCosts, measure_graph
from .merging import merge
from .opening_regions import CloseRegions, OpenRegions
from .placement import PlaceOnDevices
from .profiling.measurements import Measurements
from .profiling.profile_costs import ProfileCosts, profile_node
from .replicating import replicate
from .rewriting import (
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
from .snapshots import SnapshotState
from .splitting import Split, split, split_by_tags, split_module
from .unflattening import UnflattenedModule, swap_modules, unflatten

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
