"""Ready-made checks: plain statements about a graph, that raise when they do not hold.

Give them to a manager (``PassManager([...], checks=[lint, metadata_is_complete])``), or call them yourself
(``lint(graph_module)``).
"""

from fxpasses.checks.budgets import at_most
from fxpasses.checks.graphs import (
    fake_values_agree,
    is_functional,
    metadata_is_complete,
    no_call_modules,
    obeys_its_stage,
    one_device_per_part,
    only_ops,
    partitions_are_convex,
)
from fxpasses.checks.linting import lint, well_formed
from fxpasses.checks.outputs import same_outputs
from fxpasses.checks.repeating import is_deterministic, is_idempotent
from fxpasses.checks.sessions import InputCheck, PassCheck
from fxpasses.checks.signatures import same_signature, signature_is_valid

__all__ = [
    "InputCheck",
    "PassCheck",
    "at_most",
    "fake_values_agree",
    "is_deterministic",
    "is_functional",
    "is_idempotent",
    "lint",
    "metadata_is_complete",
    "no_call_modules",
    "obeys_its_stage",
    "one_device_per_part",
    "only_ops",
    "partitions_are_convex",
    "same_outputs",
    "same_signature",
    "signature_is_valid",
    "well_formed",
]
