"""A list that knows which of two items stands first, while items come, go and move.

See :class:`OrderedList`. It holds node numbers, as in :mod:`fxpasses.dependencies`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["OrderedList"]

_GAP = 1 << 20
_TOLERANCE = 1.4


class OrderedList:
    """A list of numbers in which "who stands first?" and "move these there" are both cheap.

    Each item has an integer label that grows along the list, so the question is one comparison. Labels have gaps;
    where a gap is too small for what comes in, the smallest range around it that is sparse enough is spread out anew
    (Bender, Cole, Demaine, Farach-Colton, Zito: "Two Simplified Algorithms for Maintaining Order in a List", ESA 2002).
    An insertion costs O(log n) amortised.

    Args:
        items: Distinct numbers below ``size``, in order.
        size: One more than the largest number that may ever be in the list.

    Attributes:
        label: For each item its label; meaningless for a number that is not in the list.

    >>> order = OrderedList([2, 0, 1], size=3)
    >>> order.move_after(1, [2])
    >>> order.items()
    [0, 1, 2]
    """

    def __init__(self, items: Sequence[int], size: int) -> None:
        ends = [size, *items, size]
        self._end = size
        self.label = [0] * (size + 1)
        self._next = [size] * (size + 1)
        self._previous = [size] * (size + 1)
        for place, item in enumerate(items, start=1):
            self.label[item] = place * _GAP
            self._next[item] = ends[place + 1]
            self._previous[item] = ends[place - 1]
        self._next[size], self._previous[size] = ends[1], ends[-2]
        self._top = (len(items) + 1) * _GAP

    def items(self) -> list[int]:
        """What is in the list, in order."""
        result = []
        item = self._next[self._end]
        while item != self._end:
            result.append(item)
            item = self._next[item]
        return result

    def previous(self, item: int) -> int | None:
        """What stands before ``item``, None for the first."""
        before = self._previous[item]
        return None if before == self._end else before

    def remove(self, item: int) -> None:
        """Take ``item`` out."""
        before, after = self._previous[item], self._next[item]
        self._next[before], self._previous[after] = after, before

    def replace(self, old: int, new: int) -> None:
        """Put ``new``, which is not in the list, where ``old`` stands; ``old`` leaves."""
        before, after = self._previous[old], self._next[old]
        self._next[before] = self._previous[after] = new
        self._next[new], self._previous[new] = after, before
        self.label[new] = self.label[old]

    def insert_after(self, place: int | None, items: Sequence[int]) -> None:
        """Put ``items``, which are not in the list, behind ``place`` (None: at the front)."""
        if not items:
            return
        before = self._end if place is None else place
        after = self._next[before]
        for item in items:
            self._next[before], self._previous[item] = item, before
            before = item
        self._next[before], self._previous[after] = after, before
        first = self._previous[items[0]]
        low = 0 if first == self._end else self.label[first]
        high = self._top if after == self._end else self.label[after]
        if high - low > len(items):
            self._spread(items, low, high)
        else:
            self._make_room(items, low)

    def move_after(self, place: int | None, items: Sequence[int]) -> None:
        """Move ``items``, which does not hold ``place``, so that they stand behind it in the order given."""
        for item in items:
            self.remove(item)
        self.insert_after(place, items)

    def _spread(self, items: Sequence[int], low: int, high: int) -> None:
        """Give labels strictly between ``low`` and ``high``, evenly."""
        span, count = high - low, len(items) + 1
        for place, item in enumerate(items, start=1):
            self.label[item] = low + span * place // count

    def _make_room(self, items: Sequence[int], low: int) -> None:
        """Find the smallest range of labels around ``low`` that is sparse enough, and spread its items anew."""
        left, right, count = self._previous[items[0]], self._next[items[-1]], len(items)
        inside_left, inside_right = items[0], items[-1]
        size, density = 1, 1.0
        while True:
            size, density = size * 2, density / _TOLERANCE
            start = low // size * size
            while left != self._end and self.label[left] >= start:
                count, inside_left, left = count + 1, left, self._previous[left]
            while right != self._end and self.label[right] < start + size:
                count, inside_right, right = count + 1, right, self._next[right]
            if left == right == self._end:
                start, size = 0, max(size, count * _GAP)
                self._top = size
            elif count + 1 > size * density:
                continue
            break
        run = [inside_left]
        while run[-1] != inside_right:
            run.append(self._next[run[-1]])
        self._spread(run, start - 1, start + size)
