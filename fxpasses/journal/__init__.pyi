from .changes import Changes
from .snapshots import Snapshot

__all__ = [
    "Changes",
    "Snapshot",
]
