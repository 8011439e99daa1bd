"""Try all ways to share the atoms of a small graph out over devices: one that fits, or the proof that none does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from fxpasses.devices import Device

from .bookkeeping import memory_of
from .refusing import shared_out_in_vain
from .workload import Group, Workload

__all__ = ["try_all"]

MOST_ATOMS = 64
MOST_STEPS = 100_000
"""How often an atom is put on a device."""


def try_all(workload: Workload, devices: Sequence[Device]) -> list[Group] | None:
    """Groups that fit their devices; None if none were found in as many steps as are allowed.

    One group for each device is preferred; where such groups wait for each other, devices take turns. A device needs
    the results and the state of what is on it, and what that reads from other devices: no mode counts less.

    Raises:
        InfeasibleError: There is no way.
    """
    if len(workload.atoms) > MOST_ATOMS:
        return None
    search = _Search(workload, devices)
    if search.goes_on_from(0):
        return _with_devices(search.groups(), devices)
    if search.in_turns is not None:
        home = search.in_turns
        return _with_devices([(workload.group(run), home[run[0]]) for run in _turns(workload, home)], devices)
    if search.steps < 0:
        return None
    raise shared_out_in_vain(workload, devices)


class _Search:
    """Branch and bound over the atoms in their order.

    What an atom adds to a device is final as soon as it is put there: all that it reads has been put somewhere before.
    """

    def __init__(self, workload: Workload, devices: Sequence[Device]) -> None:
        self.workload = workload
        self.memory = [memory_of(device) for device in devices]
        self.used = [0] * len(devices)
        self.held: list[Counter[Hashable]] = [Counter() for _ in devices]
        self.home: list[int] = []
        """The device of each atom that has been put on one."""
        self.steps = MOST_STEPS
        self.in_turns: list[int] | None = None
        """The first answer in which devices wait for each other."""
        self.rest = _least_rest(workload)

    def goes_on_from(self, atom: int) -> bool:
        """Whether this atom and all later ones find room, in groups that do not wait for each other."""
        if atom == len(self.workload.atoms):
            return self._is_answer()
        if sum(self.used) + self.rest[atom] > sum(self.memory):
            return False
        for device in self._candidates():
            self.steps -= 1
            if self.steps < 0:
                return False
            extra = self._extra(atom, device)
            if self.used[device] + extra > self.memory[device]:
                continue
            self.used[device] += extra
            self.held[device].update(self.workload.items[atom].keys())
            self.home.append(device)
            if self.goes_on_from(atom + 1):
                return True
            self.home.pop()
            self.held[device].subtract(self.workload.items[atom].keys())
            self.used[device] -= extra
        return False

    def groups(self) -> list[tuple[Group, int]]:
        """What is on each device, with the place of the device."""
        atoms: dict[int, list[int]] = {}
        for atom, device in enumerate(self.home):
            atoms.setdefault(device, []).append(atom)
        return [(self.workload.group(found), device) for device, found in atoms.items()]

    def _extra(self, atom: int, device: int) -> int:
        fresh = sum(size for key, size in self.workload.items[atom].items() if not self.held[device][key])
        outside = sum(size for source, size in self.workload.reads[atom].items() if self.home[source] != device)
        return self.workload.own[atom] + fresh + outside

    def _candidates(self) -> Iterator[int]:
        """The device of the atom before, then all others; of empty ones with equal memory the first."""
        last = self.home[-1:]
        yield from last
        empty: set[float] = set()
        used = set(self.home)
        for device, memory in enumerate(self.memory):
            if device in used:
                if device not in last:
                    yield device
            elif memory not in empty:
                empty.add(memory)
                yield device

    def _is_answer(self) -> bool:
        if self.workload.order([group for group, _device in self.groups()]) is not None:
            return True
        if self.in_turns is None:
            self.in_turns = list(self.home)
        return False


def _least_rest(workload: Workload) -> list[int]:
    """For each atom, what it and all later ones add at least: results, and state that no atom before has."""
    seen: set[Hashable] = set()
    adds = []
    for atom, own in enumerate(workload.own):
        items = workload.items[atom]
        adds.append(own + sum(size for key, size in items.items() if key not in seen))
        seen.update(items)
    return [sum(adds[atom:]) for atom in range(len(adds))]


def _turns(workload: Workload, home: Sequence[int]) -> list[list[int]]:
    """Runs of atoms of one device each; a run goes on while an atom of its device has all that it waits for."""
    waiting = [len(before) for before in workload.before]
    ready = [atom for atom, count in enumerate(waiting) if not count]
    turns: list[list[int]] = []
    while ready:
        atom = min(ready, key=lambda atom: (not turns or home[atom] != home[turns[-1][0]], atom))
        ready.remove(atom)
        if not turns or home[turns[-1][0]] != home[atom]:
            turns.append([])
        turns[-1].append(atom)
        for other in workload.behind[atom]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return turns


def _with_devices(found: Sequence[tuple[Group, int]], devices: Sequence[Device]) -> list[Group]:
    for group, device in found:
        group.device_ids = [devices[device].logical_id]
    return [group for group, _device in found]
