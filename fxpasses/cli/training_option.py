"""``--training``: for which optimizer a placement keeps its budgets, as a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxpasses.errors import InputError, PlacementError

if TYPE_CHECKING:
    from fxpasses.partitioners import Training

__all__ = ["OPTIMIZERS", "parse_training"]

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer_slots": 0},
    "momentum": {"optimizer_slots": 1, "step_slots": 0, "counts_steps": False},
    "rmsprop": {"optimizer_slots": 1},
    "adagrad": {"optimizer_slots": 1, "step_slots": 2},
    "adadelta": {"optimizer_slots": 2, "step_slots": 2},
    "rprop": {"optimizer_slots": 2, "step_slots": 3},
    "adam": {"optimizer_slots": 2},
    "adamw": {"optimizer_slots": 2},
}
"""What torch's optimizers keep for each trained element, and make while they step, as ``Training`` takes it."""

_KEYS = ("optimizer_slots", "step_slots")


def parse_training(text: str) -> Training:
    """Read the name of an optimizer, or what it keeps.

    >>> parse_training("adam,step_slots=0")
    Training(optimizer_slots=2, step_slots=0.0, counts_steps=True)
    >>> parse_training("optimizer_slots=0.5").optimizer_slots
    0.5

    Args:
        text: ``adam``, or ``optimizer_slots=2``; then, if wanted, ``,step_slots=1``.

    Raises:
        InputError: it does not read so.
    """
    from fxpasses.partitioners import Training

    name, *rest = text.split(",")
    slots = dict(OPTIMIZERS.get(name, {}))
    if name not in OPTIMIZERS:
        rest.insert(0, name)
    given: set[str] = set()
    for entry in rest:
        key, equals, number = entry.partition("=")
        if not equals or key not in _KEYS:
            raise InputError(
                f"--training {text!r}: {entry!r} is neither an optimizer ({', '.join(OPTIMIZERS)}) nor "
                f"{' or '.join(f'{known}=NUMBER' for known in _KEYS)}; write it like adam or optimizer_slots=2."
            )
        if key in given:
            raise InputError(f"--training {text!r} gives {key} twice; take one out.")
        given.add(key)
        try:
            slots[key] = float(number)
        except ValueError:
            raise InputError(f"--training {text!r}: {key} is the number {number!r}, which does not parse.") from None
    try:
        return Training(**slots)
    except PlacementError as error:
        raise InputError(f"--training {text!r}: {error}") from error
