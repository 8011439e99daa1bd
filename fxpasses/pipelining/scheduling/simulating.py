"""Let ranks run their orders against each other on paper: when each action and each transfer begins and ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from fxpasses.errors import StageError
from fxpasses.pipelining.scheduling.actions import Action, Kind, Orders, needs_of

__all__ = ["Move", "Run", "Simulation", "simulate"]


@attrs.frozen
class Run:
    """An action and when it runs, in seconds."""

    rank: int
    action: Action
    start: float
    end: float


@attrs.frozen
class Move:
    """What an action made, on its way to another rank, in seconds."""

    source: int
    target: int
    action: Action
    start: float
    end: float


@attrs.frozen
class Simulation:
    """What happened.

    Args:
        runs: For each rank its actions, in their order.
        moves: The transfers, in the order in which they were sent off.
    """

    runs: tuple[tuple[Run, ...], ...]
    moves: tuple[Move, ...]

    @property
    def seconds(self) -> float:
        """When the last action is over."""
        return max((runs[-1].end for runs in self.runs if runs), default=0.0)

    def busy(self, rank: int) -> float:
        """Seconds in which a rank computes."""
        return sum(run.end - run.start for run in self.runs[rank])


@attrs.define
class _State:
    """Where the simulation is: the next action of each rank, when it is free, and what has arrived where."""

    position: list[int]
    free: list[float]
    link_free: dict[tuple[int, int], float]
    ready: dict[tuple[Action, int], float]
    waiting: dict[Action, dict[int, None]]


def simulate(
    orders: Orders,
    num_stages: int,
    seconds: Callable[[Action], float],
    transfer: Callable[[Action, int, int], float],
) -> Simulation:
    """Run the orders: a rank begins its next action when it is free and what the action needs has arrived.

    What goes to another rank is sent at once while the rank computes on; each direction between two ranks carries one
    thing at a time. Time O(actions).

    Args:
        orders: For each rank its actions; see :func:`~fxpasses.pipelining.scheduling.actions.check_orders`.
        num_stages: How many stages there are.
        seconds: How long an action takes.
        transfer: How long what an action made takes from one rank to another.

    Raises:
        StageError: Ranks that would wait for each other for ever.
    """
    home = {action.stage: rank for rank, actions in enumerate(orders) for action in actions}
    state = _State([0] * len(orders), [0.0] * len(orders), {}, {}, {})
    runs: list[list[Run]] = [[] for _ in orders]
    moves: list[Move] = []
    able = deque(range(len(orders)))
    while able:
        rank = able.popleft()
        if state.position[rank] == len(orders[rank]):
            continue
        action = orders[rank][state.position[rank]]
        start = _start_of(action, rank, num_stages, state)
        if start is None:
            continue
        run = Run(rank, action, start, start + seconds(action))
        runs[rank].append(run)
        state.position[rank] += 1
        state.free[rank] = run.end
        state.ready[action, rank] = run.end
        if (target := _goes_to(action, num_stages, home)) not in (None, rank):
            moves.append(_send(run, target, transfer(action, rank, target), state))
        able.append(rank)
        able.extend(state.waiting.pop(action, ()))
    _refuse_deadlock(orders, num_stages, state)
    return Simulation(tuple(map(tuple, runs)), tuple(moves))


def _start_of(action: Action, rank: int, num_stages: int, state: _State) -> float | None:
    """When an action can begin; None, and the rank is noted as waiting, while something is missing."""
    start = state.free[rank]
    for group in needs_of(action, num_stages):
        arrived = [state.ready[needed, rank] for needed in group if (needed, rank) in state.ready]
        if not arrived:
            for needed in group:
                state.waiting.setdefault(needed, {})[rank] = None
            return None
        start = max(start, *arrived)
    return start


def _goes_to(action: Action, num_stages: int, home: dict[int, int]) -> int | None:
    """The rank that waits for what an action makes."""
    if action.kind is Kind.FORWARD:
        return home[action.stage + 1] if action.stage + 1 < num_stages else None
    return home[action.stage - 1] if action.kind.sends_gradients and action.stage else None


def _send(run: Run, target: int, seconds: float, state: _State) -> Move:
    link = (run.rank, target)
    start = max(run.end, state.link_free.get(link, 0.0))
    state.link_free[link] = start + seconds
    state.ready[run.action, target] = start + seconds
    return Move(run.rank, target, run.action, start, start + seconds)


def _refuse_deadlock(orders: Orders, num_stages: int, state: _State) -> None:
    stuck: Sequence[tuple[int, Action]] = [
        (rank, actions[at])
        for (rank, actions), at in zip(enumerate(orders), state.position, strict=True)
        if at < len(actions)
    ]
    if stuck:
        waits = "; ".join(
            f"rank {rank} with {action} for "
            + ", ".join(
                str(group[0])
                for group in needs_of(action, num_stages)
                if not any((n, rank) in state.ready for n in group)
            )
            for rank, action in stuck
        )
        raise StageError(f"the ranks wait for each other for ever: {waits}")
