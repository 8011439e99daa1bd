"""A timeline adds up busy and idle time and memory, and becomes a trace, a picture and a table."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpasses import InputError
from fxpasses.timeline import COLUMNS, Span, Timeline, lanes_of
from fxpasses.units import MiB


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(
        (
            Span("gpu", "first", 0.0, 2e-3),
            Span("gpu:cpu", "h", 2e-3, 1e-3, "copy"),
            Span("gpu:cpu", "g", 2.5e-3, 1e-3, "copy"),
            Span("cpu", "second <&>", 3e-3, 5e-3),
        ),
        memory={"gpu": [(0, 2 * MiB), (1e-3, 9 * MiB), (2e-3, 0)], "cpu": [(0, 1 * MiB)]},
        budgets={"gpu": 8 * MiB, "cpu": None},
        tracks=("gpu", "spare", "cpu"),
    )


def test_the_makespan_is_the_end_of_the_last_span(timeline: Timeline) -> None:
    assert 8e-3 == timeline.makespan
    assert 0 == Timeline(()).makespan


def test_what_overlaps_is_busy_once(timeline: Timeline) -> None:
    assert pytest.approx(1.5e-3) == timeline.busy("gpu:cpu")
    assert pytest.approx(6.5e-3) == timeline.idle("gpu:cpu")
    assert timeline.idle("spare") == timeline.makespan


def test_the_peak_is_the_highest_step(timeline: Timeline) -> None:
    assert 9 * MiB == timeline.peak("gpu")
    assert 0 == timeline.peak("gpu:cpu")


def test_tracks_stand_as_given_then_as_they_appear(timeline: Timeline) -> None:
    assert ("gpu", "spare", "cpu", "gpu:cpu") == timeline.tracks


def test_the_table_has_a_row_for_each_track(timeline: Timeline) -> None:
    rows = timeline.table()

    assert ("track", "busy", "idle", "peak memory", "budget") == COLUMNS
    assert ("gpu", "2.00 ms", "75%", "9.00 MiB", "8.00 MiB") == rows[0]
    assert ("spare", "0 s", "100%", "", "") == rows[1]
    assert ("cpu", "5.00 ms", "38%", "1.00 MiB", "no limit") == rows[2]


def test_a_trace_has_a_process_for_each_track_with_its_memory(timeline: Timeline) -> None:
    events = timeline.chrome_trace()["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = [event for event in events if event["ph"] == "X"]
    counters = [event for event in events if event["ph"] == "C"]

    assert ["gpu", "spare", "cpu", "gpu:cpu"] == list(names.values())
    assert {"first": ("gpu", 0.0, 2000.0), "second <&>": ("cpu", 3000.0, 5000.0)} == {
        event["name"]: (names[event["pid"]], event["ts"], event["dur"]) for event in spans if event["cat"] == "compute"
    }
    assert [2 * MiB, 9 * MiB, 0, MiB] == [event["args"]["bytes"] for event in counters]


def test_spans_of_one_track_that_overlap_are_on_threads_of_their_own(timeline: Timeline) -> None:
    copies = [event for event in timeline.chrome_trace()["traceEvents"] if event.get("cat") == "copy"]

    assert [1, 2] == [event["tid"] for event in copies]


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=40))
def test_no_two_spans_of_a_lane_overlap(given_spans: list[tuple[int, int]]) -> None:
    spans = sorted((Span("t", "s", float(a), float(b)) for a, b in given_spans), key=lambda s: (s.start, s.end))
    ends: dict[int, float] = {}

    for lane, span in lanes_of(spans):
        assert ends.get(lane, 0.0) <= span.start
        ends[lane] = span.end


def test_a_picture_is_well_formed_and_runs_no_script(timeline: Timeline) -> None:
    picture = timeline.svg(title="a <b>")
    texts = [element.text for element in ElementTree.fromstring(picture).iter() if element.text]

    assert "<script" not in picture
    assert "a <b>" in texts
    assert "peak 9.00 MiB of 8.00 MiB (over)" in texts
    assert any(text.startswith("second <&>: compute, 5.00 ms from 3.00 ms to 8.00 ms") for text in texts)


def test_bars_too_narrow_to_see_are_drawn_as_one() -> None:
    timeline = Timeline([Span("cpu", f"op{i}", i * 1e-6, 1e-6) for i in range(10_000)])

    picture = timeline.svg()

    assert "10000 x compute" in picture
    assert len(picture) < 10_000


def test_a_timeline_without_spans_is_drawn_too() -> None:
    assert ElementTree.fromstring(Timeline((), tracks=("cpu",)).svg()) is not None


def test_a_file_is_a_picture_or_a_trace_by_its_ending(timeline: Timeline, tmp_path: Path) -> None:
    timeline.save(tmp_path / "run.svg")
    timeline.save(tmp_path / "run.json")

    assert timeline.svg() == (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert timeline.chrome_trace() == json.loads((tmp_path / "run.json").read_text())


def test_a_file_that_cannot_be_written_is_refused(timeline: Timeline, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere/run\.json' cannot be written: No such file or directory\.$"):
        timeline.save(tmp_path / "nowhere" / "run.json")


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "soon"])
def test_a_span_has_times_that_make_sense(value: float) -> None:
    with pytest.raises(InputError, match="of a span is a number of seconds from 0 on, not"):
        Span("cpu", "op", 0.0, value)


def test_memory_does_not_go_back_in_time() -> None:
    with pytest.raises(InputError, match=r"^The memory of 'cpu' goes back in time; give its steps in the order"):
        Timeline((), memory={"cpu": [(2.0, 1), (1.0, 2)]})
