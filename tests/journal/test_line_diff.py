"""Unified diffs of texts of any length: what difflib gives, and in time that grows with the lines."""

from __future__ import annotations

import difflib

import pytest
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from work import lines_run

from fxpasses.journal import line_diff
from fxpasses.journal.line_diff import unified_lines

LINES = st.lists(st.sampled_from("abcdefghij"), max_size=12)


@settings(max_examples=examples(200), deadline=None)
@given(LINES, LINES)
def test_short_texts_are_compared_as_difflib_does(before, after):
    assert list(difflib.unified_diff(before, after, "before", "after", lineterm="", n=2)) == list(
        unified_lines(before, after)
    )


@settings(max_examples=examples(200), deadline=None)
@given(LINES, LINES)
def test_long_texts_give_diffs_that_lead_from_one_to_the_other(before, after):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_diff, "_LONG", 0)
        diff = list(unified_lines(before, after, context=100))

    if before == after:
        assert [] == diff
    else:
        assert before == [line[1:] for line in diff[3:] if line[0] in " -"]
        assert after == [line[1:] for line in diff[3:] if line[0] in " +"]


def test_every_changed_line_of_a_long_text_is_shown_beside_those_that_stayed():
    before = [f"line {number}" for number in range(1000)]
    after = [f"other {number}" if number == 500 else line for number, line in enumerate(before)]

    assert [
        "--- before", "+++ after", "@@ -499,5 +499,5 @@",
        " line 498", " line 499", "-line 500", "+other 500", " line 501", " line 502",
    ] == list(unified_lines(before, after))  # fmt: skip


def test_many_changes_cost_time_in_proportion_to_the_lines():
    def compare(count):
        before = [f"line {number}" for number in range(count)]
        return list(unified_lines(before, [f"other {line}" if line[-1] in "02468" else line for line in before]))

    lines = {count: lines_run(lambda count=count: compare(count)) for count in (1000, 4000)}

    assert lines[4000] < 5 * lines[1000]
