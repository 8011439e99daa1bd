"""Coverage: how much is inside, why not more, and what to support next."""

from __future__ import annotations

import json
import operator

import torch
from partition_graphs import supports, trace

from fxpasses.partitioners import measure_coverage
from fxpasses.report.coverage_section import render_coverage


def function(x):
    start = x + 1
    left = torch.sin(torch.relu(start)) * 2
    right = torch.relu(torch.cos(left)) * start
    return torch.relu(right) + torch.exp(start)


def coverage():
    module, node = trace(function)
    for each in module.graph.nodes:
        each.meta["val"] = torch.empty(10)
    return measure_coverage(module, supports(operator.add, operator.mul, torch.sin)), node


def test_complaint_14_every_outside_node_and_every_cut_has_a_reason() -> None:
    """Complaint 14: each unassigned node has a reason, and each edge across a border tells why it is cut."""
    found, node = coverage()
    facts = found.to_dict()

    assert facts["outside"] == dict.fromkeys(["relu", "cos", "relu_1", "relu_2", "exp"], "unsupported by is_wanted")
    assert {"producer": "add", "user": "relu", "reason": "relu is outside: unsupported by is_wanted"} in facts["cuts"]
    assert {
        "producer": "add",
        "user": "mul_1",
        "reason": "merging 0 and 2 would close a cycle: add -> relu -> sin -> mul -> cos -> relu_1 -> mul_1",
    } in facts["cuts"]
    assert found.assignment.explain(node["sin"], node["mul"]) == "both are in partition 1"


def test_what_to_implement_next() -> None:
    """Unsupported operators are ranked by the parts that they would merge, then by the bytes saved at borders."""
    found, _ = coverage()

    assert [("torch.relu", 3, 2), ("torch.cos", 1, 0), ("torch.exp", 1, 0)] == [
        (each.name, each.calls, each.parts_merged) for each in found.implement_next
    ]
    assert found.implement_next[0].bytes_saved > found.implement_next[1].bytes_saved


def test_counts() -> None:
    """Operators are counted inside and outside, with the reasons."""
    found, _ = coverage()
    relu = found.operators[0]

    assert (5, 10) == (found.inside, found.calls)
    assert ("torch.relu", 0, 3, {"unsupported by is_wanted": 3}) == (relu.name, relu.inside, relu.outside, relu.reasons)
    assert found.border_bytes == 40 * 9  # nine values of forty bytes cross, the last one to the output


def test_table_and_json() -> None:
    """The report prints as two tables, and dumps as JSON with the same facts."""
    found, _ = coverage()

    text = found.to_table()

    assert text.splitlines()[0].strip() == "5 of 10 calls (50.0 %) in 4 parts"
    assert "implement next" in text
    assert "unsupported by is_wanted (3x)" in text
    assert json.loads(found.to_json()) == found.to_dict()


def test_an_empty_graph_is_covered() -> None:
    """A graph without calls has nothing to cover, and says so."""
    module, _ = trace(lambda x: x)

    found = measure_coverage(module, supports())

    assert (0, 0, ()) == (found.inside, found.calls, found.implement_next)
    assert "0 of 0 calls (nothing) in 0 parts" in found.to_table()


def test_html_section() -> None:
    """The HTML section says the same, with names escaped."""
    found, _ = coverage()

    section = render_coverage(found)

    assert "5 of 10 calls are in 4 parts; 360 B cross borders." in section
    assert '<td><code>torch.relu</code></td><td class="n">3</td><td class="n">2</td>' in section
    assert "merging 0 and 2 would close a cycle: add -&gt; relu" in section
