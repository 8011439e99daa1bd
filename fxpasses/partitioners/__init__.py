"""Proposals: a partitioner reads a graph and answers with an Assignment; it never mutates."""

from fxpasses.partitioners.matching import (
    InternalMatch,
    SubgraphMatcher,
    SubgraphMatcherWithNameNodeMap,
)

__all__ = [
    "InternalMatch",
    "SubgraphMatcher",
    "SubgraphMatcherWithNameNodeMap",
]
