"""Levels of ``torch.vmap`` and of derivatives that a graph has left open are closed."""

from __future__ import annotations

import pytest
import torch
from torch._C import _functorch

from fxpasses.values.vmap_levels import Levels, close_levels, open_levels


def test_levels_are_closed_down_to_those_that_are_kept() -> None:
    assert Levels(0, None) == open_levels()
    _functorch._vmap_increment_nesting(2, "error")
    kept = open_levels()
    _functorch._grad_increment_nesting()
    _functorch._jvp_increment_nesting()

    close_levels(kept)
    assert 1 == open_levels().depth

    close_levels(Levels(0, None))
    assert Levels(0, None) == open_levels()


def test_hooks_of_saved_tensors_are_taken_again() -> None:
    """A derivative refuses them as long as it is open; one that fails on the way did so from then on."""
    before = open_levels()
    torch._C._autograd._saved_tensors_hooks_disable("not inside of a derivative")
    inside = open_levels()
    _functorch._grad_increment_nesting()

    close_levels(inside)
    with pytest.raises(RuntimeError, match="not inside of a derivative"), torch.autograd.graph.save_on_cpu():
        pass

    close_levels(before)
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        (x * x).sum().backward()
    assert torch.equal(torch.full((2,), 2.0), x.grad)  # type: ignore[arg-type]


def test_the_level_of_tangents_is_closed() -> None:
    """A derivative that failed on the way left it open, and each later one was refused."""
    before = open_levels()
    torch._C._enter_dual_level()
    inside = open_levels()

    close_levels(inside)
    assert open_levels().has_tangents

    close_levels(before)
    assert before == open_levels()
