from .copied_back import record_copies_back
from .fake_modes import fake_mode_of, fake_of, nested_graph_modules, obtain_fake_mode, unify_fake_modes
from .fake_values import compute_value, give_value, propagate_values, refresh_callers, refresh_value, refresh_values
from .recorded_values import (
    describe_like,
    has_size_of_data,
    has_value,
    same_value,
    set_value,
    shape_env_of,
    value_of_arguments,
)

__all__ = [
    "compute_value",
    "describe_like",
    "fake_mode_of",
    "fake_of",
    "give_value",
    "has_size_of_data",
    "has_value",
    "nested_graph_modules",
    "obtain_fake_mode",
    "propagate_values",
    "record_copies_back",
    "refresh_callers",
    "refresh_value",
    "refresh_values",
    "same_value",
    "set_value",
    "shape_env_of",
    "unify_fake_modes",
    "value_of_arguments",
]
