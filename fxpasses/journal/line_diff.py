"""A unified diff of two long texts in time that grows with their lines.

``difflib`` looks for the longest run of equal lines, then again on both sides of it. Where many lines changed, these
runs are short, and each search goes through all that is left: two graphs of 20000 nodes took 20 seconds. Long texts are
therefore cut first at the lines that both have exactly once, in the order that both have them in, which is Bram Cohen's
patience diff, and ``difflib`` compares what lies between. Graphs name their nodes, so most of their lines occur once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import Match, SequenceMatcher

__all__ = ["unified_lines"]

_LONG = 500
"""From how many lines on a text is cut first."""


def unified_lines(before: Sequence[str], after: Sequence[str], context: int = 2) -> Iterator[str]:
    """The lines of a unified diff, as ``difflib.unified_diff`` gives them; none if the texts are equal.

    O(n log n) for texts of n lines most of which occur once.
    """
    groups = list(_Anchored(before, after).get_grouped_opcodes(context))
    if groups:
        yield from ("--- before", "+++ after")
    for group in groups:
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@"
        for tag, begin, end, other_begin, other_end in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[begin:end])
                continue
            yield from (f"-{line}" for line in before[begin:end])
            yield from (f"+{line}" for line in after[other_begin:other_end])


def _range(begin: int, end: int) -> str:
    """Where lines are, as the unified format counts them: from 1, or after which line there are none."""
    length = end - begin
    if length == 1:
        return f"{begin + 1}"
    return f"{begin + 1 if length else begin},{length}"


class _Anchored(SequenceMatcher[str]):
    """Compares lines between the ones that are the same for sure."""

    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        is_long = max(len(before), len(after)) >= _LONG
        super().__init__(None, [] if is_long else before, [] if is_long else after)
        if is_long:
            self.matching_blocks = _matching_blocks(before, after)


def _matching_blocks(before: Sequence[str], after: Sequence[str]) -> list[Match]:
    """The runs of equal lines, as ``SequenceMatcher`` gives them."""
    found: list[Match] = []
    start, other_start = 0, 0
    for place, other in [*_anchors(before, after), (len(before), len(after))]:
        gap = SequenceMatcher(None, before[start:place], after[other_start:other])
        for match in gap.get_matching_blocks():
            _add(found, start + match.a, other_start + match.b, match.size)
        if place < len(before):
            _add(found, place, other, 1)
        start, other_start = place + 1, other + 1
    return [*found, Match(len(before), len(after), 0)]


def _add(found: list[Match], place: int, other: int, size: int) -> None:
    """Add a run, to the one before it where it goes on."""
    if not size:
        return
    if found and (last := found[-1]).a + last.size == place and last.b + last.size == other:
        found[-1] = Match(last.a, last.b, last.size + size)
    else:
        found.append(Match(place, other, size))


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """The most lines that occur once in both and stand in the same order; a longest increasing subsequence."""
    counts, other_counts = Counter(before), Counter(after)
    places = {line: place for place, line in enumerate(after) if other_counts[line] == 1}
    pairs = [(place, places[line]) for place, line in enumerate(before) if counts[line] == 1 and line in places]
    ends: list[int] = []  # by length: the smallest place where a sequence of it ends
    holders: list[int] = []  # by length: which pair that is
    previous: list[int] = []  # by pair: the one before it in its sequence
    for index, (_, other) in enumerate(pairs):
        length = bisect_left(ends, other)
        previous.append(holders[length - 1] if length else -1)
        ends[length : length + 1] = [other]
        holders[length : length + 1] = [index]
    chain = []
    index = holders[-1] if holders else -1
    while index >= 0:
        chain.append(pairs[index])
        index = previous[index]
    return chain[::-1]
