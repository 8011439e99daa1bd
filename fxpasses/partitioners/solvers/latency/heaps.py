"""Heaps of nodes in flat arrays, compiled: what has the smallest key, then the smallest number, comes first."""

from __future__ import annotations

from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["heap_add", "heap_take"]


@inlined
def heap_add(heap: Ints, heap_key: Floats, size: int, node: int, key: float) -> int:
    """Put a node into a heap of the smallest key, then of the smallest number; its new size."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if heap_key[above] < key or (heap_key[above] == key and heap[above] < node):
            break
        heap[place], heap_key[place] = heap[above], heap_key[above]
        place = above
    heap[place], heap_key[place] = node, key
    return size + 1


@inlined
def heap_take(heap: Ints, heap_key: Floats, size: int) -> int:
    """Take the first node out of a heap; its new size. The node stands behind the heap then."""
    first, first_key = heap[0], heap_key[0]
    size -= 1
    node, key = heap[size], heap_key[size]
    place, below = 0, 1
    while below < size:
        if below + 1 < size and (
            heap_key[below + 1] < heap_key[below]
            or (heap_key[below + 1] == heap_key[below] and heap[below + 1] < heap[below])
        ):
            below += 1
        if key < heap_key[below] or (key == heap_key[below] and node < heap[below]):
            break
        heap[place], heap_key[place] = heap[below], heap_key[below]
        place, below = below, 2 * below + 1
    if size:
        heap[place], heap_key[place] = node, key
    heap[size], heap_key[size] = first, first_key
    return size
