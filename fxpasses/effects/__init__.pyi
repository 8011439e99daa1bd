from .analysis import EffectAnalysis, analyze_effects, is_impure, register_effects, register_pure
from .calls import CallEffects, RegionKind, Registry
from .storages import NodeEffects

__all__ = [
    "CallEffects",
    "EffectAnalysis",
    "NodeEffects",
    "RegionKind",
    "Registry",
    "analyze_effects",
    "is_impure",
    "register_effects",
    "register_pure",
]
