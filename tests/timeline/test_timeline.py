"""A timeline adds up busy and idle time and memory, and becomes a trace, a picture and a table."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import attrs
import pytest
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from work import lines_run

from fxpasses import InputError
from fxpasses.timeline import COLUMNS, Flow, Span, Timeline, lanes_of
from fxpasses.units import MiB, format_seconds


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


def assert_well_formed(trace: dict[str, Any]) -> None:
    """The rules of the trace event format, as its description states them."""
    assert {"traceEvents", "displayTimeUnit"} == trace.keys()
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = json.loads(json.dumps(trace))["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["ph"] in "MXCsf"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert [type(value) for value in event["args"].values()] == [str if "name" in event["args"] else int]
            continue
        assert 0 <= event["ts"]
        if event["ph"] == "X":
            assert 0 <= event["dur"]
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert slices.keys() <= named
    for lane in slices.values():  # nothing overlaps on a thread, to the nanosecond
        nanoseconds = sorted((round(ts * 1000), round(dur * 1000)) for ts, dur in lane)
        assert all(ts + dur <= after for (ts, dur), (after, _) in itertools.pairwise(nanoseconds))
    counters: dict[int, list[float]] = {}
    for event in events:
        if event["ph"] == "C":
            counters.setdefault(event["pid"], []).append(event["ts"])
    assert all(times == sorted(times) for times in counters.values())
    arrows: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in arrows.setdefault(event["id"], {})
            arrows[event["id"]][event["ph"]] = event
            inside = slices[event["pid"], event["tid"]]
            assert any(ts <= event["ts"] <= ts + dur for ts, dur in inside)
    for arrow in arrows.values():
        assert {"s", "f"} == arrow.keys()
        assert (arrow["s"]["name"], arrow["s"]["cat"]) == (arrow["f"]["name"], arrow["f"]["cat"])
        assert "e" == arrow["f"]["bp"]
        assert arrow["s"]["ts"] <= arrow["f"]["ts"]


def test_an_arrow_leads_from_span_to_span(timeline: Timeline) -> None:
    first, copy, _, second = timeline.spans
    drawn = attrs.evolve(timeline, flows=[Flow(first, copy), Flow(copy, second)])
    events = drawn.chrome_trace()["traceEvents"]
    arrows = [(event["ph"], event["id"], event["pid"], event["ts"]) for event in events if event["ph"] in "sf"]

    assert [("s", 1, 1, 0.0), ("f", 1, 4, 2000.0), ("s", 2, 4, 2000.0), ("f", 2, 3, 3000.0)] == arrows
    assert_well_formed(drawn.chrome_trace())


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e-3), st.floats(0, 1e-3), st.sampled_from("abc")), max_size=30))
def test_every_trace_is_well_formed(given_spans: list[tuple[float, float, str]]) -> None:
    spans = [Span(track, f"s{index}", start, took) for index, (start, took, track) in enumerate(given_spans)]
    flows = [Flow(a, b) for a, b in itertools.combinations(spans, 2) if a.end <= b.start]

    assert_well_formed(Timeline(spans, memory={"a": [(0.0, 1), (1e-4, 5)]}, flows=flows).chrome_trace())


def test_spans_that_follow_each_other_do_not_overlap_by_rounding() -> None:
    starts = [index * 1.2345e-9 for index in range(200)]
    spans = [Span("t", "s", start, after - start) for start, after in itertools.pairwise(starts)]

    assert_well_formed(Timeline(spans).chrome_trace())


def test_a_sum_of_seconds_that_ends_a_hair_late_overlaps_nothing() -> None:
    """Seconds are added up in one order for a part and in another for its operators; between whole nanoseconds."""
    early = Span("t", "early", 0.0, 30.1865e-6 * (1 + 4e-13))
    late = Span("t", "late", 30.1865e-6 * (1 - 4e-13), 1e-6)

    assert early.end > late.start
    assert [1, 1] == [event["tid"] for event in Timeline([early, late]).chrome_trace()["traceEvents"] if "dur" in event]
    assert_well_formed(Timeline([early, late]).chrome_trace())


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


def test_a_curve_falls_back_at_once_to_what_it_was() -> None:
    memory = [(0.0, 100), (1.0, 200), (1.0, 100), (1.5, 150)]
    picture = ElementTree.fromstring(Timeline((Span("gpu", "all", 0.0, 2.0),), {"gpu": memory}).svg())

    (polygon,) = (each for each in picture.iter() if each.tag.endswith("polygon"))
    points = [point.split(",") for point in polygon.attrib["points"].split()]
    assert all(here[0] == there[0] or here[1] == there[1] for here, there in itertools.pairwise(points))


def test_a_timeline_without_spans_is_drawn_too() -> None:
    assert ElementTree.fromstring(Timeline((), tracks=("cpu",)).svg()) is not None


def test_a_file_is_a_picture_or_a_trace_by_its_ending(timeline: Timeline, tmp_path: Path) -> None:
    timeline.save(tmp_path / "run.svg")
    timeline.save(tmp_path / "run.json")

    assert timeline.svg() == (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert timeline.chrome_trace() == json.loads((tmp_path / "run.json").read_text())


def test_a_file_of_another_ending_is_refused(timeline: Timeline) -> None:
    with pytest.raises(InputError) as caught:
        timeline.save("run.png")

    assert "A timeline is written to a .json file (a trace) or to a .svg file (a picture), not to 'run.png'." == str(
        caught.value
    )


@pytest.mark.parametrize("question", ["peak", "busy", "idle", "on"])
def test_a_track_that_is_not_there_is_refused(timeline: Timeline, question: str) -> None:
    """It was said to hold nothing, and to do nothing."""
    with pytest.raises(InputError) as caught:
        getattr(timeline, question)("gpus")

    assert "The timeline has no track 'gpus'; there are gpu, spare, cpu, gpu:cpu; did you mean 'gpu'?" == str(
        caught.value
    )


def test_names_of_tracks_are_written_as_they_are(tmp_path: Path) -> None:
    """Perfetto shows an escape in the name of a process or thread as it stands."""
    Timeline([Span("a → b", "x", 0.0, 1.0)]).save(tmp_path / "run.json")

    assert '"name": "a → b"' in (tmp_path / "run.json").read_text(encoding="utf-8")


def test_long_names_of_tracks_keep_both_ends_of_a_link_and_their_numbers() -> None:
    hosts = [f"accelerator_of_the_second_rack_{number}" for number in (17, 18)]
    tracks = [*hosts, " → ".join(hosts), " → ".join(reversed(hosts)), f"{hosts[0]} → b", f"b → {hosts[0]}"]
    picture = ElementTree.fromstring(Timeline([Span(track, "x", 0.0, 1.0) for track in tracks]).svg())
    texts = [text for text in picture.itertext() if "…" in text]

    assert 6 == len(set(texts)) == len(texts)
    assert all(len(text) <= 30 for text in texts)
    assert {"accelerator_of_…second_rack_17", "accelerator_o…cond_rack_17 → b"} <= set(texts)


def test_names_that_no_file_can_have_are_written_with_other_letters(tmp_path: Path) -> None:
    timeline = Timeline((Span("gpu\x1b", "half\udcff", 0.0, 1.0),))
    timeline.save(tmp_path / "run.json")
    picture = ElementTree.fromstring(timeline.svg(title="model\udcff\0"))

    assert timeline.chrome_trace() == json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert {"gpu\N{REPLACEMENT CHARACTER}", "model" + 2 * "\N{REPLACEMENT CHARACTER}"} <= set(picture.itertext())


def test_a_timeline_is_written_to_a_path(timeline: Timeline) -> None:
    with pytest.raises(InputError, match=r"The path of a timeline is a text or a pathlib\.Path, not 3\."):
        timeline.save(3)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("tracks", [10, 40])
def test_many_tracks_are_told_apart_once(tracks: int) -> None:
    """All spans were gone through again for each track: 250,000 on 127 tracks took 20 seconds."""
    names = [f"device {number}" for number in range(tracks)]
    timeline = Timeline(Span(name, "part", float(sample), 0.5) for sample in range(400 // tracks) for name in names)

    assert lines_run(timeline.table) < 30 * len(timeline.spans) + 200 * tracks
    assert {format_seconds(400 // tracks / 2)} == {row[1] for row in timeline.table()}
