"""What units need and what devices hold, as flat arrays for compiled annealing; :mod:`.rooms` works on them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.flat_lists import flat_floats, flat_lists
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Needs", "Rooms", "needs_of", "rooms_of"]


class Needs(NamedTuple):
    """What does not change: bytes, and lists of what unit ``u`` has, from ``start[u]`` on."""

    banned: NDArray[np.bool_]  # (m, k)
    kept: Floats
    memory: Floats
    hold_start: Ints
    hold: Ints
    shared: Floats
    rank: Ints  # of each unit's live bytes among the sizes
    sizes: Floats
    earlier_start: Ints  # for pipelines, units that must not be on later devices
    earlier: Ints
    later_start: Ints
    later: Ints
    is_bounded: bool  # whether bytes matter at all
    flows: bool  # whether devices have to form a pipeline


class Rooms(NamedTuple):
    """An assignment of units with its sums, and with changes that can be taken back."""

    home: Ints
    bytes: Floats  # bytes of each device but for what is live
    holders: Ints  # (s, k)
    ranks: Ints  # (k, sizes)
    top: Ints  # the highest rank on each device
    crossing: Ints  # (k, k): pairs of units (before, after) on two devices
    givers: Ints  # (k,): how many devices each device needs values of
    takers: Ints  # (k,): how many need values of it
    is_new: NDArray[np.bool_]  # (1,): whether values flow between two devices after a change that did not before
    moved: Ints  # the units of a change, and where they were
    was: Ints
    changed: Ints  # (1,): how many these are
    most: Floats  # (1,): the shares by which a change may pass the budgets
    waits: Ints  # (k,): how many of the givers are not in an order yet
    ready: Ints  # (k,): devices in an order


def needs_of(model: LoadModel, flow: Ints | None) -> Needs:
    """Take what units need, and where they may be.

    Args:
        model: The units.
        flow: For pipelines, pairs of units (before, after), ``(e, 2)``.
    """
    sizes, rank = np.unique(np.concatenate([np.zeros(1), model.live]), return_inverse=True)
    pairs = np.zeros((0, 2), dtype=np.int64) if flow is None else flow[flow[:, 0] != flow[:, 1]]
    holder = np.repeat(np.arange(model.size), [len(blocks) for blocks in model.holds])
    return Needs(
        np.ascontiguousarray(model.banned),
        flat_floats(model.kept),
        flat_floats(model.memory),
        *flat_lists(holder, np.concatenate([*model.holds, np.zeros(0, dtype=np.int64)]), model.size),
        flat_floats(model.shared),
        np.ascontiguousarray(rank[1:], dtype=np.int64),
        sizes,
        *flat_lists(pairs[:, 1], pairs[:, 0], model.size),
        *flat_lists(pairs[:, 0], pairs[:, 1], model.size),
        bool(np.isfinite(model.memory).any()),
        flow is not None,
    )


def rooms_of(needs: Needs, home: Ints) -> Rooms:
    """An assignment of units; its sums are made when it is annealed."""
    units, kinds = needs.banned.shape
    return Rooms(
        home=home.astype(np.int64),
        bytes=np.zeros(kinds),
        holders=_zeros(len(needs.shared), kinds),
        ranks=_zeros(kinds, len(needs.sizes)),
        top=_zeros(kinds),
        crossing=_zeros(kinds, kinds),
        givers=_zeros(kinds),
        takers=_zeros(kinds),
        is_new=np.zeros(1, dtype=np.bool_),
        moved=_zeros(units),
        was=_zeros(units),
        changed=_zeros(1),
        most=np.zeros(1),
        waits=_zeros(kinds),
        ready=_zeros(kinds),
    )


def _zeros(*shape: int) -> Ints:
    return np.zeros(shape, dtype=np.int64)
