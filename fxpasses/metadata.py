"""Typed entries of ``node.meta``: who writes them, how they are read, how provenance is merged.

A pass leaves a fact for a later one under a :class:`MetaKey`; reading a missing entry is an error that names the pass
to run first.
"""

from __future__ import annotations
