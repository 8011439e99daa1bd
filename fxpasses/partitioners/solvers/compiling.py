"""How searches are compiled by numba, and what they draw: the same code and the same numbers on every machine.

What is compiled stays on disk. Importing numba takes a fifth of a second, so what uses this module is imported where a
search starts.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["Random", "below", "cached", "chance", "inlined", "unsigned"]

P = ParamSpec("P")
T = TypeVar("T")
Random = NDArray[np.uint64]
"""The two words of a generator, not both 0."""
UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""No references are counted, since no array is made or kept: with counts all of it takes five times as long."""


def inlined(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function into those that call it."""
    return njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **UNCOUNTED)(function)  # type: ignore[call-overload]  # not in its types


def cached(*parts: ModuleType) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Compile a function, and keep the result on disk for other processes, if there is anywhere to write.

    Numba makes it anew when the file of the function has changed, but does not look at other files.

    Args:
        parts: The other modules that are compiled with it.
    """

    def compiled(function: Callable[P, T]) -> Callable[P, T]:
        try:
            source = "".join(inspect.getsource(part) for part in parts)
            function.__qualname__ += "_" + hashlib.sha256(source.encode()).hexdigest()[:16]  # names the file on disk
            return njit(cache=True, nogil=True, **UNCOUNTED)(function)
        except (OSError, RuntimeError):  # there are no sources, or numba found no folder
            return njit(nogil=True, **UNCOUNTED)(function)

    return compiled


@inlined
def unsigned(number: int) -> int:
    """A number as compiled code keeps indices, of which it need not ask whether they count from the end.

    What takes numbers is compiled anew for each of their types, so it should be given one.
    """
    return np.uint32(number)  # type: ignore[return-value]  # an int to numba


@inlined
def _next(random: Random) -> np.uint64:
    """Xoroshiro128+ (Blackman & Vigna, "Scrambled linear pseudorandom number generators", ACM TOMS 47, 2021)."""
    a, b = random[0], random[1]
    result = a + b
    b ^= a
    random[0] = ((a << np.uint64(24)) | (a >> np.uint64(40))) ^ b ^ (b << np.uint64(16))
    random[1] = (b << np.uint64(37)) | (b >> np.uint64(27))
    return result


@inlined
def chance(random: Random) -> float:
    """A number from 0 to 1."""
    return float(_next(random) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inlined
def below(random: Random, count: int) -> int:
    """A number from 0 to ``count - 1``."""
    return np.int64(((_next(random) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))  # type: ignore[return-value]  # an int to numba
