from .names import (
    ENTRY_POINT_GROUP,
    PassEntry,
    PassOption,
    Registry,
    default_registry,
    parse_pipeline,
    pipeline_text,
    register_condition,
    register_pass,
)

__all__ = [
    "ENTRY_POINT_GROUP",
    "PassEntry",
    "PassOption",
    "Registry",
    "default_registry",
    "parse_pipeline",
    "pipeline_text",
    "register_condition",
    "register_pass",
]
