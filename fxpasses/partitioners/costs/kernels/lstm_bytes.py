"""What an LSTM on the CPU keeps for its backward, and needs for itself while it runs: oneDNN's sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.processor_blocks import (
    LARGEST_VECTOR,
    has_tiles,
    may_use_tiles,
    round_up,
    vector_size,
)
from fxpasses.partitioners.tensor_sizes import concrete_size, is_half, tensor_bytes

__all__ = ["lstm_backward_scratch_bytes", "lstm_scratch_bytes", "lstm_workspace_bytes"]

_PAGE, _LINE, _TABLES = 4096, 64, 26_000
_FLOAT, _GATES = torch.float32.itemsize, 4
_OF_ALL, _OF_THREAD = 704, 160
"""Bytes of tables, and of those of each thread."""
_FLOATS, _MOST_FLOATS = 2560, 1_150_000
_TILE_ROW, _TILE_COLUMN = 256, 5
"""What a thread with tiles has for each row that is multiplied at once, and for each column of the longest rows."""


def lstm_workspace_bytes(given: Tensor, *, hidden: int) -> int:
    """What oneDNN keeps of one layer of an LSTM in one direction: gates, states and their gradients, which are floats.

    The input is ``(steps, batch, width)`` whatever the module is given, as torch turns it before. It is exact.

    Source: oneDNN, ``src/cpu/rnn/rnn_utils.hpp``: ``set_workspace_sizes`` and ``get_good_ld``.
    """
    steps, batch, width = map(concrete_size, given.shape)
    element, widest = given.element_size(), max(width, hidden)
    states = 2 * (steps + 1) * batch
    gradients = 2 * _pages(states * _row(widest, _FLOAT)) + _pages(states * hidden * _FLOAT)
    outputs = _pages(steps * batch * _row(hidden, element))
    gates = _pages(steps * batch * _row(_GATES * hidden, element))
    return gates + _states_bytes(given, hidden) + outputs + gradients


def _states_bytes(given: Tensor, hidden: int) -> int:
    """What goes into each step from before it, and from the layer below."""
    steps, batch, width = map(concrete_size, given.shape)
    element, states = given.element_size(), 2 * (steps + 1) * batch
    return _pages(states * _row(max(width, hidden), element)) + _pages(states * hidden * element)


def lstm_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """What oneDNN needs to run one layer of an LSTM in one direction, without a backward.

    Both weights in its own layout, the sum of the biases, states, and as floats the gates of one step; of all steps,
    where they are multiplied at once: those of one sample, and with tiles, of which the sizes are not known so well.
    """
    given, weight, hidden = args[0], args[1], args[10]
    if torch.is_grad_enabled():  # as large as what is kept for the backward, and counted there
        return 0
    steps, batch, width = map(concrete_size, given.shape)
    element = given.element_size()
    gates = _pages(_steps_at_once(given) * batch * _row(_GATES * hidden, _FLOAT)) + _pages(
        batch * _row(hidden, element)
    )
    of_thread = _OF_THREAD
    if given.dtype is torch.float16:  # each thread has some weights as floats
        of_thread += min(_MOST_FLOATS, _FLOATS * max(width, hidden) + _PAGE)
    elif has_tiles(given.dtype):
        rows = steps if batch == 1 else batch
        of_thread += _TILE_ROW * rows + _TILE_COLUMN * max(width, hidden)
    tables = _PAGE + _OF_ALL + torch.get_num_threads() * of_thread
    vector = LARGEST_VECTOR if batch == 1 else vector_size()  # one sample has blocks of the longest everywhere
    weights = sum(_in_blocks(each, hidden, weight, vector) for each in (width, hidden))
    biases = _GATES * hidden * element
    dense = 0 if given.is_contiguous() else tensor_bytes(given)
    return int(weights + biases + _states_bytes(given, hidden) + gates + tables + dense)


def _in_blocks(width: int, hidden: int, weight: Tensor, vector: int) -> int:
    """The weights of each gate in whole blocks of two vectors; in half precision in pairs."""
    pairs = round_up(width, 2) if is_half(weight) else width
    return _GATES * round_up(hidden, 2 * vector) * pairs * weight.element_size()


def lstm_backward_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """What oneDNN needs for the backward of one layer of an LSTM in one direction, beside all gradients.

    Both weights by the rows of what goes in, unless they are so, and by those of the gates; the gradients of the gates
    of all steps; those of the output, which may not be dense, and of states and biases.
    """
    given, hidden = args[0], args[2].shape[1]
    steps, batch, width = given.shape
    gates = _GATES * hidden
    if is_half(given):
        return _half_backward_bytes(given, hidden)
    weights = sum(each * _row(gates, _FLOAT) + _laid_out(each, gates) for each in (width, hidden))
    few = 3 * batch * hidden * _FLOAT + 3 * gates * _FLOAT + _TABLES
    return int(weights + steps * batch * (_row(gates, _FLOAT) + hidden * _FLOAT) + few)


def _half_backward_bytes(given: Tensor, hidden: int) -> int:
    """The same in half precision: all gradients come as floats, too, but the gates only those of one step."""
    steps, batch, width = map(concrete_size, given.shape)
    element, gates = given.element_size(), _GATES * hidden
    both = element + _FLOAT
    weights = sum(
        gates * round_up(each, 2 * vector_size()) * element + each * _row(gates, _FLOAT) for each in (width, hidden)
    )
    at_once = steps if may_use_tiles() else 1
    one_step = _pages(at_once * batch * _row(gates, _FLOAT)) + _TABLES
    return weights + (steps + 2) * batch * hidden * both + gates * (both + _FLOAT) + one_step


def _steps_at_once(given: Tensor) -> int:
    """Gates of all steps are computed at once for one sample, and with tiles, of which less is known."""
    steps, batch, _ = map(concrete_size, given.shape)
    return steps if batch == 1 or (is_half(given) and may_use_tiles()) else 1


def _laid_out(width: int, rows: int) -> int:
    """Bytes of a copy with rows as oneDNN likes them; none where they are so."""
    row = _row(width, _FLOAT)
    return 0 if row == width * _FLOAT else rows * row


def _row(width: int, element: int) -> int:
    """Bytes of a row: whole cache lines, and no multiple of 256 elements, which would share places in the cache."""
    padded = round_up(width * element, _LINE)
    return padded + _LINE if padded % (256 * element) == 0 else padded


def _pages(size: int) -> int:
    return round_up(size, _PAGE)
