"""What is known of the ideals of a core as flat arrays, for compiled code that goes through pairs of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.refined.spare import Fluid, Question
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Facts", "Indices", "facts_of"]

Bools = NDArray[np.bool_]
Counts = NDArray[np.int16]
Indices = NDArray[np.uint32]
"""Without a sign, as of others compiled code asks whether they count from the end."""


class Facts(NamedTuple):
    """Ideals, values and devices; the list of entry ``i`` is from ``start[i]`` to ``start[i + 1]``."""

    words: Words  # (f, w)
    position: Floats  # (f,), what each weighs
    parent: Ints  # (f,), the ideal of the coarser core that each comes from
    coarse_start: Ints
    coarse: Indices  # the ideals of the coarser core to which a device can run from each
    child_start: Ints
    children: Indices  # those that come from each ideal of the coarser core, rising
    open_start: Ints
    open: Indices  # values that each ideal makes, and not all of their users are inside
    open_held: Counts  # how many users of each are inside
    along: Floats  # the weight of units left out through which each goes
    toll: Floats  # (c, q), what a device pays for any of these while a value passes it by
    cheapest: Indices  # (c, n), the entries of each ideal, those first for which the toll is least for the weight
    back_start: Ints
    back: Indices  # values that each ideal uses, and does not make
    made: Bools  # (f, q)
    held: Counts  # (f, q), the users inside
    users: Counts  # (q,)
    leaving: Floats  # (c, q), what a value costs that leaves a device, each way to charge once
    entering: Floats  # (c, q)
    charge: Ints  # (k,), in which way each class of devices charges
    saved: Floats  # (c,), while a pair is looked at
    ends: Floats  # (f, k), the seconds of an ideal and of what is sent from it
    begins: Floats  # (f, k), the seconds of an ideal without those of what it needs
    banned: Floats  # (f, k), how many units a device cannot run
    counts_bytes: bool
    memory: Floats  # (k,)
    kept: Floats  # (f,)
    key_start: Ints
    keys: Indices  # the shared keys that not all of their users in an ideal name
    named: Counts  # (f, s), the users of each key inside
    key_bytes: Floats  # (s,)
    by_live: Words  # (f, w), the units of an ideal, from the most bytes alive to the fewest
    live: Floats  # (m,), those bytes; empty where no unit needs any
    load_pays: Floats  # (k,), what a second is worth
    byte_pays: Floats  # (k,), what a byte is
    room: Floats  # (f, k), what a device takes along at each ideal that runs nothing else
    sums: Floats  # (b,), the most weight that some of all units left out have, up to each bin
    bins: float  # for a unit of weight
    below: float  # the threshold on the load
    reach: float  # how much more than the first ideal of a pair the last one weighs at most
    needed: Floats  # (f,), the weight of units left out that each ideal needs
    ready: Floats  # (f,), that of those that it allows
    total: float  # that of all
    enough: float  # what both sides of a pair take along with it at least
    slack: float
    state_start: Ints
    state: Indices  # the states that each ideal may be in, rising
    state_before: Indices  # (s, k), before a device of each class; s where it has used none
    state_after: Indices  # (s, k), after a device of each class more
    going_to: Indices  # (n,), the states after those that go on from an ideal, by class
    going_with: Floats  # (n,), what was taken along
    going_stop: Ints  # (k,), where those of each class end
    going_most: Floats  # (k,), the most of those
    amount: Floats  # (s + 1,), what is taken along in each state, while an ideal is looked at
    lacking: Floats  # (s + 1,), what has to be taken along behind it


def facts_of(question: Question) -> Facts:
    """Lay out a question. Time O((units + values) × ideals)."""
    spans, pays, (parent, start, coarse) = question.spans, question.pays, _coarse(question)
    sizes, values, family, classes = spans.bytes, spans.transfers.values, spans.family, spans.classes
    fluid, (before, after) = question.fluid, _neighbours(question)
    children = np.argsort(parent, kind="stable")
    ways = {group.charges: group for group in classes}
    numbers = {key: number for number, key in enumerate(ways)}
    made, held = np.ascontiguousarray(values.made.T), np.ascontiguousarray(values.count.T)
    named = np.ascontiguousarray(sizes.shared.count.T)
    opened = made & (held < values.users)
    open_start, open_values = _lists(opened)
    owner = np.repeat(np.arange(family.count), np.diff(open_start))
    along, toll = (
        _along(fluid, open_values, owner),
        np.stack([fluid.toll[classes.index(group)] for group in ways.values()]),
    )
    back_start, back_values = _lists(~made & (held > 0))
    key_start, keys = _lists(named < sizes.shared.users)
    return Facts(
        words=family.words,
        position=family.position,
        parent=parent,
        coarse_start=start,
        coarse=coarse,
        child_start=np.searchsorted(parent[children], np.arange(len(start))),
        children=children.astype(np.uint32),
        open_start=open_start,
        open=open_values,
        open_held=held[opened],
        along=along,
        toll=toll,
        cheapest=_cheapest(owner, along, toll[:, open_values]),
        back_start=back_start,
        back=back_values,
        made=made,
        held=held,
        users=values.users,
        leaving=np.stack([group.leaving for group in ways.values()]),
        entering=np.stack([group.entering for group in ways.values()]),
        charge=np.array([numbers[group.charges] for group in classes]),
        saved=np.zeros(len(ways)),
        ends=np.ascontiguousarray((spans.weight + spans.transfers.ends).T),
        begins=np.ascontiguousarray((spans.weight - spans.transfers.starts).T),
        banned=_banned(spans),
        counts_bytes=spans.is_tight,
        memory=np.array([group.memory for group in classes], dtype=np.float64),
        kept=sizes.kept,
        key_start=key_start,
        keys=keys,
        named=named,
        key_bytes=sizes.key_bytes,
        by_live=np.zeros((0, 0), dtype=np.uint64) if sizes.by_live is None else sizes.by_live,
        live=np.zeros(0) if sizes.by_live is None else sizes.live,
        load_pays=pays.load,
        byte_pays=pays.byte,
        room=np.tile(pays.room, (family.count, 1)),
        sums=fluid.sums.most,
        bins=fluid.sums.scale,
        below=question.below,
        reach=question.reach,
        needed=fluid.needed,
        ready=fluid.ready,
        total=fluid.total,
        enough=fluid.enough,
        slack=fluid.slack,
        state_start=question.allowed.indptr.astype(np.int64),
        state=question.allowed.indices.astype(np.uint32),
        state_before=before,
        state_after=after,
        going_to=np.zeros(after.size, dtype=np.uint32),
        going_with=np.zeros(after.size),
        going_stop=np.zeros(len(classes), dtype=np.int64),
        going_most=np.zeros(len(classes)),
        amount=np.full(len(before) + 1, -np.inf),
        lacking=np.full(len(before) + 1, np.inf),
    )


def _neighbours(question: Question) -> tuple[Indices, Indices]:
    """The state before each one's last device, if that is of a class, and after one more; else the number of states."""
    moves = question.states.moves
    before = np.full((len(moves), len(question.spans.classes)), len(moves), dtype=np.uint32)
    after = before.copy()
    for state, following in enumerate(moves):
        for kind, there in following:
            after[state, kind], before[there, kind] = there, state
    return before, after


def _coarse(question: Question) -> tuple[Ints, Ints, Indices]:
    """The parents, and where a device can run from each; one parent of all where nothing is known of that."""
    if question.coarse is None:
        parent = np.zeros(question.spans.family.count, dtype=np.int64)
        return parent, np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.uint32)
    start, coarse = question.coarse.indptr.astype(np.int64), question.coarse.indices.astype(np.uint32)
    return question.parent.astype(np.int64), start, coarse


def _lists(table: Bools) -> tuple[Ints, Indices]:
    """The columns that each row of a table names."""
    row, column = np.nonzero(table)
    return np.searchsorted(row, np.arange(len(table) + 1)), column.astype(np.uint32)


def _along(fluid: Fluid, values: Indices, owner: Ints) -> Floats:
    """The weight of the units left out through which each of some values goes, at the ideal that lists it."""
    place = np.minimum(np.searchsorted(fluid.passing, values), max(0, len(fluid.passing) - 1))
    found = np.zeros(len(values))
    if len(fluid.passing):
        is_passing = fluid.passing[place] == values
        found[is_passing] = fluid.along[place[is_passing], owner[is_passing]]
    return found


def _cheapest(owner: Ints, along: Floats, toll: Floats) -> Indices:
    """The entries of each list by toll for weight, for each way to charge; last those that go through no units."""
    price = np.full(toll.shape, np.inf)
    np.divide(toll, along, out=price, where=along > 0)
    return np.stack([np.lexsort((own, owner)) for own in price]).astype(np.uint32)


def _banned(spans: Spans) -> Floats:
    none = np.zeros(spans.family.count)
    return np.stack([none if banned is None else banned for banned in spans.banned], axis=1)
