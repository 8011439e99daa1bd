"""A bound that knows transfers: the most work that any one device can take in a given time, whatever it has to send.

All devices together take all the work. So the largest load is at least the time in which the most that each device can
take, added up, is all of it. What one device takes at most is a dynamic program over the units in one order: its state
is which of the open units, those with neighbours still to come, are on the device, and how much work it has taken. It
is a relaxation, for two devices may take the same units. How much each device takes at most also says which ideals a
set of devices can have run, and which ones it leaves to the others.

Work is measured in whole parts of the price of a unit (see
:class:`~fxpasses.partitioners.solvers.proofs.bounds.Prices`); any measure gives a bound, and this one makes it no
weaker than the fractional one, up to its coarseness.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs
import numpy as np

from fxpasses.partitioners.solvers.proofs.bounds import Prices
from fxpasses.partitioners.solvers.proofs.fronts import narrowest_order
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Rooms", "covering_bound"]

PARTS = 300
"""Parts of the work for each device."""
UNIT_SECONDS, CELL_SECONDS = 5e-5, 5e-9
"""About how long a unit takes, and a cell of the table."""
LEAST_PRICE = 1e-100
"""Price of a second below which bytes are not counted in seconds; no price of bytes is wrong."""
OPEN = 10
"""The most units that are open at a time; those with the cheapest values left are closed early, which is optimistic."""


def covering_bound(model: LoadModel, prices: Prices, below: float, budget: float) -> float:
    """What no assignment can be below; at most ``below``, when there is nothing better than that.

    It is 0 where it would take more than about a quarter of a budget of seconds.
    """
    rooms = Rooms.of(model, prices, below, 0.5 + budget / 4)
    return 0.0 if rooms is None else rooms.bound()


@attrs.frozen(eq=False)
class Rooms:
    """How much work each device can take in a given time.

    Args:
        work: What each unit counts, in parts, ``(m,)``.
        least: For each device the least time for each amount of work; the last one stands for all that is more.
        below: Times from here on are not told apart.
    """

    work: Ints
    least: tuple[Floats, ...]
    below: float

    @classmethod
    def of(cls, model: LoadModel, prices: Prices, below: float, seconds: float) -> Rooms | None:
        """None where it would take more than about so many seconds, or where nothing is sent.

        Time O(kinds of devices × units × 2^open × parts), where the open units are at most 10.
        """
        if model.by_bytes or not len(model.source) or not math.isfinite(below) or not prices.weight.sum() > 0:
            return None
        order, openness = narrowest_order(model, OPEN + 4)
        cells = openness * PARTS * CELL_SECONDS
        seconds -= model.devices * model.size * UNIT_SECONDS
        if cells > seconds:
            return None
        work = np.zeros(model.size, dtype=np.int64)
        share = np.cumsum(prices.weight[order]) / prices.weight.sum() * PARTS * model.devices
        work[order] = np.diff(np.rint(share).astype(np.int64), prepend=0)
        every = [_Covering.of(model, prices, device, work, below) for device in range(model.devices)]
        keys = [covering.key() for covering in every]
        kinds = dict(zip(keys, every, strict=True))
        if len(kinds) * cells > seconds:
            return None
        known = {key: covering.least_times(order) for key, covering in kinds.items()}
        least = [known[key] for key in keys]
        return cls(work, tuple(least), below)

    def within(self, time: float) -> Ints:
        """The most parts that each device can take in a time, ``(k,)``; all there are where that is not known."""
        total = int(self.work.sum())
        found = []
        for least in self.least:
            fits = np.flatnonzero(least <= time * (1 + 1e-12))
            is_open = time > self.below or (fits.size and fits[-1] == len(least) - 1)
            found.append(total if is_open else int(fits.max(initial=0)))
        return np.array(found, dtype=np.int64)

    def bound(self) -> float:
        """The smallest time in which the devices can take all the work; at most ``below``."""
        total = int(self.work.sum())
        times = np.unique(np.concatenate([least[np.isfinite(least)] for least in self.least]))
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            covers = int(self.within(float(times[middle])).sum()) >= total
            low, high = (low, middle) if covers else (middle + 1, high)
        return min(self.below, float(times[low])) if low < len(times) else self.below


@attrs.frozen(eq=False)
class _Covering:
    """What one device would need for its share.

    Args:
        time: Seconds of each unit here, with what its bytes are worth, ``(m,)``; ``inf`` where it cannot run.
        spare: What the device's memory is worth.
        work: What each unit counts, in parts.
        neighbours: For each unit the others with which it exchanges values: the seconds if only it is here, and if
            only the other is.
        most: Cells of the table; the last one stands for so much work and more.
        below: Times from here on do not count.
    """

    time: Floats
    spare: float
    work: Ints
    neighbours: tuple[dict[int, tuple[float, float]], ...]
    most: int
    below: float

    @classmethod
    def of(cls, model: LoadModel, prices: Prices, device: int, work: Ints, below: float) -> _Covering:
        per_byte = float(prices.byte[device] / prices.load[device]) if prices.load[device] > LEAST_PRICE else 0.0
        spare = per_byte * float(model.memory[device]) if per_byte else 0.0
        time = np.where(model.banned[:, device], np.inf, model.weight[:, device] + per_byte * model.kept)
        pays = prices.load[device] * (below + spare)  # for so much work at the prices
        share = pays / float(prices.weight.sum()) * float(work.sum()) if prices.load[device] > 0 else math.inf
        most = int(min(1.2 * share + PARTS / 4, float(work.sum()))) + 1
        return cls(time, spare, work, _neighbours(model, device), most, below)

    def key(self) -> bytes:
        """Devices for which it is the same share their answer."""
        crossing = np.array([list(pair) for near in self.neighbours for pair in near.values()])
        return b"".join([self.time.tobytes(), crossing.tobytes(), np.array([self.spare, self.most]).tobytes()])

    def least_times(self, order: Ints) -> Floats:
        """The least time for each amount of work, ``(most,)``."""
        table = np.full(self.most, np.inf)
        table[0] = -self.spare
        opened: list[int] = []
        left: list[dict[int, tuple[float, float]]] = [dict(near) for near in self.neighbours]
        for unit in order.tolist():
            table = np.stack([table, self._with(table, unit)])
            opened.insert(0, unit)
            self._charge(table, opened, left)
            for closed in self._closing(opened, left):
                table = table.min(axis=opened.index(closed))
                opened.remove(closed)
        least: Floats = table.reshape(-1, self.most).min(axis=0)
        return least

    def _with(self, table: Floats, unit: int) -> Floats:
        """The table when the unit is here."""
        moved = np.full_like(table, np.inf)
        work = min(int(self.work[unit]), self.most - 1)
        if math.isfinite(self.time[unit]):
            moved[..., work:] = table[..., : self.most - work]
            if work:
                moved[..., -1] = table[..., self.most - 1 - work :].min(axis=-1)
            moved += self.time[unit]
            moved[moved > self.below] = np.inf
        return moved

    def _charge(self, table: Floats, opened: list[int], left: list[dict[int, tuple[float, float]]]) -> None:
        """The values between the newest unit, along the first axis, and those that are open."""
        unit = opened[0]
        for axis, other in enumerate(opened[1:], 1):
            if (pair := left[unit].pop(other, None)) is None:
                continue
            del left[other][unit]
            for here, seconds in zip((1, 0), pair, strict=True):
                table[tuple({0: here, axis: 1 - here}.get(place, slice(None)) for place in range(axis + 1))] += seconds

    def _closing(self, opened: list[int], left: list[dict[int, tuple[float, float]]]) -> Iterable[int]:
        """Units whose neighbours have all been seen; where too many are open, those with the least to pay."""
        done = [unit for unit in opened if not left[unit]]
        still = [unit for unit in opened if left[unit]]
        still.sort(key=lambda unit: (sum(map(sum, left[unit].values())), unit))
        for unit in still[: max(0, len(still) - OPEN)]:
            for other in left[unit]:
                del left[other][unit]
            left[unit].clear()
            done.append(unit)
        return done


def _neighbours(model: LoadModel, device: int) -> tuple[dict[int, tuple[float, float]], ...]:
    """What is paid between two units when only one is here: the user's share of the value, over the best link.

    A value that any user needs elsewhere is paid once, so no more than the sum of shares of those users.
    """
    others = np.flatnonzero(np.arange(model.devices) != device)
    near: tuple[dict[int, tuple[float, float]], ...] = tuple({} for _ in range(model.size))
    if not others.size:
        return near
    users = np.bincount(model.uses[:, 0], minlength=len(model.source))
    leaving = model.send[:, device, others].min(axis=1) / users
    entering = model.send[:, others, device].min(axis=1) / users
    for value, user in model.uses.tolist():
        maker = int(model.source[value])
        for unit, other, pair in (
            (maker, user, (leaving[value], entering[value])),
            (user, maker, (entering[value], leaving[value])),
        ):
            only, apart = near[unit].get(other, (0.0, 0.0))
            near[unit][other] = (only + float(pair[0]), apart + float(pair[1]))
    return near
