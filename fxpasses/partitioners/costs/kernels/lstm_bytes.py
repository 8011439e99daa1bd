"""What an LSTM on the CPU keeps for its backward, and needs for itself while it runs: oneDNN's sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["lstm_backward_scratch_bytes", "lstm_scratch_bytes", "lstm_workspace_bytes"]

_PAGE, _LINE, _BYTES = 4096, 16, 4  # floats in a cache line
_TABLES = 26_000
_FLOATS, _MOST_FLOATS = 2560, 1_150_000
_GATES, _BLOCK = 4, 32  # the weights of each gate are laid out in whole blocks


def lstm_workspace_bytes(given: Tensor, *, hidden: int) -> int:
    """At least what oneDNN keeps of one layer of an LSTM in one direction: gates, states and their gradients.

    The input is ``(steps, batch, width)`` whatever the module is given, as torch turns it before.

    It is exact for most layers, and 1.1 times as much for narrow ones; in half the precision 1.5 times.

    Source: oneDNN, ``src/cpu/rnn/rnn_utils.hpp``: ``set_workspace_sizes`` and ``get_good_ld``.
    """
    steps, batch, _ = given.shape
    states = 2 * (steps + 1) * batch
    wide, narrow = _row(max(given.shape[2], hidden)), _row(hidden)
    sizes = (steps * batch * _row(4 * hidden), *3 * [states * wide], *2 * [states * narrow], steps * batch * narrow)
    return sum(-(-size // _PAGE) * _PAGE for size in sizes)


def lstm_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """About what oneDNN needs to run one layer of an LSTM in one direction, without a backward.

    Both weights in its own layout, the gates of all steps, rows of states (of all steps, where the input is wider), and
    the input with its steps first. The layout is exact; rows and pages are fitted to what was allocated, with a margin:
    docs/lowering.md says how near that is for models which were not looked at.
    """
    given, weight, hidden = args[0], args[1], args[10]
    if torch.is_grad_enabled():  # as large as what is kept for the backward, and counted there
        return 0
    steps, batch, width = given.shape
    weights = _GATES * -(-hidden // _BLOCK) * _BLOCK * (width + hidden) * weight.element_size()
    gates = steps * batch * _row(_GATES * hidden) * (2 if 1 in (steps, batch) else 1)
    rows, pages = (2.2 - hidden / width) * (steps + 1) if width > hidden else 13, 8 if width > hidden else 5
    states = rows * batch * _row(max(width, hidden)) + pages * _PAGE
    if given.dtype is torch.float16:  # each thread has some weights as floats
        states += torch.get_num_threads() * min(_MOST_FLOATS, _FLOATS * max(width, hidden) + _PAGE)
    return int(weights + gates + states + (0 if given.is_contiguous() else given.nbytes))


def lstm_backward_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """What oneDNN needs for the backward of one layer of an LSTM in one direction, beside all gradients.

    Both weights by the rows of what goes in, unless they are so, and by those of the gates; the gradients of the gates
    of all steps; those of the output, which may not be dense, and of states and biases.
    """
    given, hidden = args[0], args[2].shape[1]
    steps, batch, width = given.shape
    gates = _GATES * hidden
    weights = sum(each * _row(gates) + _laid_out(each, gates) for each in (width, hidden))
    few = 3 * batch * hidden * _BYTES + 3 * gates * _BYTES + _TABLES
    return int(weights + steps * batch * (_row(gates) + hidden * _BYTES) + few)


def _laid_out(width: int, rows: int) -> int:
    """Bytes of a copy with rows as oneDNN likes them; none where they are so."""
    return 0 if _row(width) == width * _BYTES else rows * _row(width)


def _row(width: int) -> int:
    """Bytes of a row: whole cache lines, and no multiple of 256 elements, which would share places in the cache."""
    padded = -(-width // _LINE) * _LINE
    return _BYTES * (padded + _LINE if padded % 256 == 0 else padded)
