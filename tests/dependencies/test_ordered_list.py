"""The list that knows who stands first."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st

import fxpasses.dependencies.ordered_list
from fxpasses.dependencies.ordered_list import OrderedList


def ascends(order: OrderedList) -> bool:
    return all(order.label[a] < order.label[b] for a, b in pairwise(order.items()))


@settings(max_examples=150 * FUZZ, deadline=None)
@given(data=st.data(), gap=st.sampled_from([1, 2, 16, 1 << 20]))
def test_a_list_with_moves_and_removals_is_a_plain_list_with_labels(data: st.DataObject, gap: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fxpasses.dependencies.ordered_list, "_GAP", gap)
        plain = data.draw(st.permutations(range(12)))
        order = OrderedList(plain, 12)
        for _ in range(data.draw(st.integers(0, 25))):
            items = data.draw(st.lists(st.sampled_from(plain), max_size=4, unique=True))
            rest = [item for item in plain if item not in items]
            place = data.draw(st.sampled_from([None, *rest]))
            order.move_after(place, items)
            cut = 0 if place is None else rest.index(place) + 1
            plain = [*rest[:cut], *items, *rest[cut:]]

            assert plain == order.items()
            assert ascends(order)


def test_an_item_can_take_the_place_of_another() -> None:
    order = OrderedList([3, 1, 2], size=5)
    order.replace(1, 4)

    assert [3, 4, 2] == order.items()
    assert ascends(order)


def test_the_item_before_the_first_is_none() -> None:
    order = OrderedList([3, 1], size=4)

    assert order.previous(3) is None
    assert order.previous(1) == 3


def test_ten_thousand_items_fit_in_at_one_place() -> None:
    order = OrderedList([0], size=10_001)
    for item in range(1, 10_001):
        order.insert_after(0, [item])

    assert [0, *range(10_000, 0, -1)] == order.items()
    assert ascends(order)
    assert max(order.label).bit_length() < 60
