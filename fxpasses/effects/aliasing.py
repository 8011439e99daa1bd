"""Which values live in which memory: small integers for storages, merged where two values may share one.

Two attributes, or two lifted parameters, that are tied share a storage because the real tensors do. Everything else
that may share memory is told by the caller with :meth:`Storages.unite`.
"""

from __future__ import annotations

import torch

__all__ = ["NO_STORAGE", "Storages", "storage_key"]

NO_STORAGE = -1
"""The storage of what holds no memory: numbers, shapes, None."""


def storage_key(tensor: torch.Tensor) -> tuple[str, int]:
    """What two tensors have in common exactly if they share memory.

    Wrapper subclasses without a storage of their own, and sparse tensors, are known by their identity.
    """
    try:
        return "storage", tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return "object", id(tensor)


class Storages:
    """A union-find over storages (Tarjan, 1975; path halving and union by index, so that the smaller id survives).

    Both operations are near-constant amortised; ids are given in the order of the calls, so equal graphs get equal ids.

    >>> storages = Storages()
    >>> base, other = storages.fresh(), storages.fresh()
    >>> storages.unite(base, other)
    0
    >>> storages.find(other)
    0
    """

    def __init__(self) -> None:
        self.parent: list[int] = []
        self._by_tensor: dict[tuple[str, int], int] = {}
        self._tensors: dict[int, torch.Tensor] = {}

    def fresh(self) -> int:
        """A storage that nothing shares yet."""
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, storage: int) -> int:
        """The id that stands for ``storage`` and all that was united with it."""
        parent = self.parent
        while storage >= 0 and parent[storage] != storage:
            parent[storage] = parent[parent[storage]]
            storage = parent[storage]
        return storage

    def unite(self, first: int, second: int) -> int:
        """Say that the two may share memory; gives the id of both. ``NO_STORAGE`` unites with nothing."""
        first, second = self.find(first), self.find(second)
        if first < 0 or second < 0:
            return max(first, second)
        keep, drop = min(first, second), max(first, second)
        self.parent[drop] = keep
        return keep

    def of_tensor(self, tensor: torch.Tensor) -> int:
        """The storage of a real tensor: the same for all tensors that share its memory."""
        storage = self.of_example(tensor)
        self._tensors.setdefault(storage, tensor)
        return storage

    def of_example(self, tensor: torch.Tensor) -> int:
        """The storage of what an example value stands for: the same for all examples that share memory."""
        key = storage_key(tensor)
        if key not in self._by_tensor:
            self._by_tensor[key] = self.fresh()
        return self._by_tensor[key]

    def real_tensors(self) -> dict[int, list[torch.Tensor]]:
        """The real tensors that were asked about, by the id that now stands for their storage."""
        found: dict[int, list[torch.Tensor]] = {}
        for storage, tensor in self._tensors.items():
            found.setdefault(self.find(storage), []).append(tensor)
        return found
