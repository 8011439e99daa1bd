"""Watching a run: times, texts, dumps, drawings, statistics, remarks, the log; and nothing when nobody watches."""

import io
import json
import subprocess
import sys

import pytest
import torch
from torch import fx

from fxpasses import FixedPoint, PassError, PassManager, PipelineError, Stage
from fxpasses.instruments import (
    BisectLimit,
    DrawGraphs,
    DumpFolder,
    Instrument,
    JsonLog,
    Remarks,
    ShowGraph,
    Statistics,
    Timing,
    graph_diff,
    observe,
    remark,
    statistic,
)


def traced():
    return fx.symbolic_trace(lambda x: torch.relu(torch.relu(x)) + 1)


def nothing(graph_module):
    pass


def drop_one_relu(graph_module):
    nodes = graph_module.graph.find_nodes(op="call_function", target=torch.relu)
    if nodes:
        remark(nodes[0], "dropped: idempotent")
        statistic("relus dropped")
        nodes[0].replace_all_uses_with(nodes[0].args[0])
        graph_module.graph.erase_node(nodes[0])


def fails(graph_module):
    graph_module.graph.find_nodes(op="call_function", target=torch.relu)[0].target = torch.sin
    raise ValueError("bad")


LOOP = [nothing, FixedPoint([drop_one_relu])]


def test_timing_shows_passes_as_they_are_nested():
    timing = Timing()
    PassManager([Stage("front", LOOP)], instruments=[timing])(traced())

    assert [
        ("front", 0, 0),
        ("nothing", 1, 0),
        ("FixedPoint", 1, 0),
        ("drop_one_relu", 2, 0),
        ("drop_one_relu", 2, 1),
        ("drop_one_relu", 2, 2),
    ] == [(entry.name, entry.depth, entry.step) for entry in timing.entries]
    lines = timing.tree().splitlines()
    assert lines[2].startswith("front")
    assert lines[5].startswith("    drop_one_relu  0.1.0#0")
    assert lines[-1].startswith("total")
    assert (
        timing.total == timing.entries[0].seconds >= sum(entry.seconds for entry in timing.entries if entry.depth == 1)
    )


def test_timing_notes_failures():
    timing = Timing()
    with pytest.raises(PassError):
        PassManager([Stage("front", [fails])], instruments=[timing])(traced())

    assert [True, True] == [entry.failed for entry in timing.entries]
    assert "fails (failed)" in timing.tree()


def test_the_graph_is_shown_after_each_pass_that_changed_it():
    stream = io.StringIO()
    PassManager(LOOP, instruments=[ShowGraph("text", stream=stream)])(traced())
    shown = stream.getvalue()

    assert 2 == shown.count("--- after pass 'drop_one_relu'")
    assert "nothing" not in shown
    assert "(position 1.0, step 1)" in shown

    stream = io.StringIO()
    PassManager(LOOP, instruments=[ShowGraph("text", when="always", stream=stream)])(traced())
    assert 4 == stream.getvalue().count("--- after pass")


def test_a_diff_shows_what_changed_and_is_coloured_on_demand():
    plain, coloured = io.StringIO(), io.StringIO()
    PassManager(LOOP, instruments=[ShowGraph(stream=plain), ShowGraph(stream=coloured, colour=True)])(traced())

    assert "-    %relu : [num_users=1] = call_function[target=torch.relu]" in plain.getvalue()
    assert "+    %relu_1 : [num_users=1] = call_function[target=torch.relu](args = (%x,)" in plain.getvalue()
    assert "\x1b[31m-    %relu" in coloured.getvalue()
    assert "\x1b[" not in plain.getvalue()
    assert graph_diff("same", "same") == ""


def test_complaint_15_dumps_are_numbered_and_no_round_overwrites_another(tmp_path):
    """Complaint 15: dump overwritten on the second iteration; here each file carries its round."""
    PassManager(LOOP, instruments=[DumpFolder(tmp_path / "dump")])(traced())

    assert [
        "000-input.txt",
        "001-1.0-step0-drop_one_relu.txt",
        "002-1.0-step1-drop_one_relu.txt",
    ] == sorted(file.name for file in (tmp_path / "dump").iterdir())
    assert "relu_1" in (tmp_path / "dump" / "001-1.0-step0-drop_one_relu.txt").read_text()

    with pytest.raises(PassError):
        PassManager([fails], instruments=[DumpFolder(tmp_path / "failed")])(traced())
    text = (tmp_path / "failed" / "001-0-step0-fails-failed.txt").read_text()
    assert "torch.sin" in text
    assert "ValueError: bad" in text


def test_drawings_mark_what_changed(tmp_path):
    PassManager(LOOP, instruments=[DrawGraphs(tmp_path)])(traced())

    names = sorted(file.name for file in tmp_path.iterdir())
    assert ["000-1.0-step0-drop_one_relu.dot", "001-1.0-step1-drop_one_relu.dot"] == names
    text = (tmp_path / names[0]).read_text()
    assert "cluster_before" in text
    assert "cluster_after" in text
    assert 1 == text.count("fillcolor=salmon")
    assert 2 == text.count("fillcolor=khaki")
    assert 0 == text.count("fillcolor=palegreen")


def test_statistics_and_op_counts_are_summed():
    statistics = Statistics()
    manager = PassManager(LOOP, instruments=[statistics])
    manager(traced())
    manager(traced())

    assert 4 == statistics.counts["drop_one_relu", "relus dropped"]
    assert -4 == statistics.ops["relu"]
    assert "4      drop_one_relu  relus dropped" in statistics.table()


def test_remarks_carry_node_pass_and_line():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)

    program = torch.export.export(Model(), (torch.ones(2),))

    def explain(graph_module):
        remark(graph_module.graph.output_node().all_input_nodes[0], "not fused: has two users")
        remark(None, "about the graph")

    stream = io.StringIO()
    remarks = Remarks(stream)
    result = PassManager([explain], instruments=[remarks])(program)

    about_node, about_graph = remarks.remarks
    assert ("relu", "explain") == (about_node.node, about_node.pass_name)
    assert "return torch.relu(x)" in about_node.line
    assert str(about_graph) == "about the graph"
    assert tuple(remarks.remarks) == result.report.remarks
    assert "explain: relu: not fused: has two users (" in stream.getvalue()


def test_outside_of_a_pipeline_remarks_are_logged(caplog):
    with caplog.at_level("INFO", logger="fxpasses.instruments.events"):
        remark(None, "by itself")
        statistic("things", 2)

    assert ["by itself", "things: 2"] == [record.getMessage() for record in caplog.records]


def test_the_log_is_a_line_of_json_an_event(tmp_path):
    stream = io.StringIO()
    PassManager([nothing], instruments=[JsonLog(stream), JsonLog(tmp_path / "log.jsonl")])(traced())
    with pytest.raises(PassError):
        PassManager([fails], instruments=[JsonLog(stream)])(traced())

    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert ["start", "before", "after", "finish", "start", "before", "failed", "finish"] == [e["event"] for e in events]
    assert {"name": "nothing", "modified": False}.items() <= events[2]["record"].items()
    assert "bad" in events[6]["error"]
    assert 4 == len((tmp_path / "log.jsonl").read_text().splitlines())


def test_any_object_with_some_of_the_methods_is_an_instrument():
    class Partial:
        def __init__(self):
            self.seen = []

        def after(self, event):
            self.seen.append((event.name, event.label, event.is_group))

    mine = Partial()
    with observe(mine):
        PassManager(LOOP)(traced())
    PassManager(LOOP)(traced())

    assert [("nothing", "0", False), ("drop_one_relu", "1.0", False), ("FixedPoint", "1", True)] == [
        mine.seen[0],
        mine.seen[1],
        mine.seen[-1],
    ]
    assert 5 == len(mine.seen)


def test_an_instrument_may_forbid_a_pass():
    class No(Instrument):
        def should_run(self, event):
            return event.name != "nothing"

    result = PassManager([nothing], instruments=[No()])(traced())

    assert "an instrument said no" == result.records[0].skipped


def test_a_limit_stops_after_so_many_passes():
    limit = BisectLimit(2)
    result = PassManager(LOOP, instruments=[limit])(traced())

    assert "drop_one_relu (position 1.0, step 0)" == limit.last
    assert 1 == len(result.graph_module.graph.find_nodes(op="call_function", target=torch.relu))
    assert BisectLimit().last is None


@pytest.mark.parametrize("wrong", [{"when": "never"}, {"how": "picture"}])
def test_wrong_options_are_errors(wrong):
    with pytest.raises(PipelineError, match="; use '"):
        ShowGraph(**wrong)


def test_rich_and_graphviz_are_imported_only_where_they_are_used():
    code = "import fxpasses.instruments, sys; print(sorted({'rich', 'graphviz'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


def calls_of_watchers(size):
    """How often a run without instruments enters the modules that watch."""
    watchers = ("fxpasses/instruments/observers.py", "fxpasses/instruments/events.py")
    counted = 0

    def count(frame, event, _argument):
        nonlocal counted
        counted += event == "call" and frame.f_code.co_filename.endswith(watchers)

    def deep(x):
        for _ in range(size):
            x = torch.relu(x)
        return x

    graph_module = fx.symbolic_trace(deep)
    manager = PassManager([nothing, nothing])
    sys.setprofile(count)
    try:
        manager(graph_module)
    finally:
        sys.setprofile(None)
    return counted


def test_without_instruments_a_run_pays_the_same_few_calls_however_large_the_graph_is():
    """Complaint 15: watching costs nothing when it is off: no call for a node, less than 20 for a pass."""
    few = calls_of_watchers(3)

    assert few == calls_of_watchers(300)
    assert few < 2 * 20
