"""Compute a value again where it is used: ``replicate`` copies nodes into the parts that use them, in place.

It is written in :mod:`fxpasses.partitioners.placing.replication.replicas`, because proposals count with replicas, too.
"""

from fxpasses.partitioners.placing.replication.replicas import replicate, why_not_replicable

__all__ = ["replicate", "why_not_replicable"]
