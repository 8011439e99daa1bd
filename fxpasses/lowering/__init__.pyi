from .end_to_end import lower, lower_with_plan
from .lowered_folder import load, save
from .lowered_module import LoweredModule
from .planned_models import Planned
from .planning import place
from .preparing import DEFAULT_PIPELINE

__all__ = [
    "DEFAULT_PIPELINE",
    "LoweredModule",
    "Planned",
    "load",
    "lower",
    "lower_with_plan",
    "place",
    "save",
]
