from .dense_view import Dependencies
from .merging import Merger

__all__ = [
    "Dependencies",
    "Merger",
]
