"""What operators make is followed from when it is made until nobody holds it, without looking through all there is."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from fxpasses.partitioners.costs.kernels.followed_storages import FollowedStorages

KIB = 1024


class Asked(dict[int, Any]):
    """Storages that are there, and how often somebody looks at each."""

    looks = 0

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


def test_what_a_view_or_autograd_holds_is_there_until_it_lets_go() -> None:
    x = torch.ones(256, requires_grad=True)
    with FakeTensorMode(allow_non_fake_inputs=True), FollowedStorages() as followed:
        doubled = x * 2
        view = doubled[:128]
        del doubled
        followed.forget_gone()
        held_by_a_view = followed.held
        del view
        followed.forget_gone()
        nobody = followed.held
        result = x.sigmoid().sum()  # which saves what it sums up
        followed.forget_gone()
        saved = followed.held
        del result
        followed.forget_gone()

    assert [KIB, 0, KIB + 4, 0] == [held_by_a_view, nobody, saved, followed.held]
    assert KIB + 4 == followed.peak


def test_a_storage_that_went_before_it_is_followed_is_forgotten() -> None:
    with FollowedStorages() as followed:
        kept = torch.ones(256)
        ((key, (reference, size)),) = followed.alive.items()
        followed.restart()
        del kept
        followed.follow(key, reference, size)
        followed.forget_gone()

    assert (0, KIB) == (followed.held, size)


def test_following_takes_time_in_proportion_to_what_is_made() -> None:
    """All that autograd saved is there to the end of a forward; nobody looks through it for each operator."""
    followed = FollowedStorages()
    followed.alive = asked = Asked()
    x = torch.ones(4, requires_grad=True)
    with FakeTensorMode(allow_non_fake_inputs=True), followed:
        for _ in range(100):
            x = x.sigmoid()

    assert 100 == len(followed.alive)
    assert 100 >= asked.looks
