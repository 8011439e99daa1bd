from __future__ import annotations

import copy
import re

import pytest
import torch
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.traceback import NodeSource

from fxpasses.editing import extract_submodule, inline_submodule, replace_node
from fxpasses.errors import GraphError, MissingMetadataError, user_line
from fxpasses.metadata import (
    MetaKey,
    copy_metadata,
    current_pass,
    drop_stale_entries,
    merge_provenance,
    module_stack,
    registered_keys,
    running_pass,
    source_of,
    value_of,
)
from fxpasses.partitioners.assignment import Assignment
from fxpasses.passes import fuse_by_partitions
from fxpasses.passes.splitting import split
from fxpasses.passes.unflattening import unflatten


@torch.fx.wrap
def kernel(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


SIZE = MetaKey[int]("tests.size_bytes", made_by="MeasureSizes()")
TAG = MetaKey[str]("tests.tag", made_by="TagNodes()", depends_on_value=False)


def two_nodes() -> tuple[Node, Node]:
    graph = Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    graph.output(relu)
    return x, relu


@pytest.mark.parametrize("strict", [False, True])
def test_what_torch_made_itself_is_of_no_module(strict: bool) -> None:
    class Sized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * x.shape[0]

    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Sized(), (torch.ones(4, 3),), dynamic_shapes={"x": {0: batch}}, strict=strict)
    paths = {node.name: [path for path, _ in module_stack(node).values()] for node in program.graph.nodes}

    assert "metadata_hook" in str(next(node.meta for node in program.graph.nodes if node.name == "sym_size_int_1"))
    assert [] == paths["sym_size_int_1"]
    assert ["", "linear"] == paths["linear"]
    assert [""] == paths["mul"]


def test_a_written_entry_is_read_back() -> None:
    """A key reads what was written under it, and says whether it is there."""
    x, relu = two_nodes()

    SIZE.write(relu, 16)

    assert SIZE.read(relu) == 16
    assert SIZE.get(relu) == 16
    assert SIZE.has(relu)
    assert not SIZE.has(x)
    assert SIZE.get(x) is None
    assert SIZE.get(x, 0) == 0


def test_a_missing_entry_names_the_pass_to_run() -> None:
    """Reading a missing entry is a KeyError that names node, key, source line and the pass that writes it."""
    _, relu = two_nodes()
    relu.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    return x.relu()'

    with pytest.raises(MissingMetadataError) as caught:
        SIZE.read(relu)

    assert (
        "node 'relu' (from model.py:7 in forward: return x.relu()) has no 'tests.size_bytes'; run MeasureSizes() first"
    ) == str(caught.value)
    assert caught.value.node is relu
    assert isinstance(caught.value, KeyError)


def test_a_key_cannot_take_the_name_of_torchs_own_entries() -> None:
    """A key named like an entry of torch is refused with a better name."""
    message = "node.meta['val'] is torch's own entry; choose another name, such as 'mypackage.val'"
    with pytest.raises(GraphError, match=re.escape(message)):
        MetaKey[int]("val", made_by="Mine()")


def test_two_passes_cannot_write_the_same_key() -> None:
    """A second writer of a name is refused; the same definition again is the same key."""
    MetaKey[int]("tests.size_bytes", made_by="MeasureSizes()")

    with pytest.raises(GraphError, match=re.escape("the key 'tests.size_bytes' is already written by MeasureSizes()")):
        MetaKey[int]("tests.size_bytes", made_by="Other()")


def test_stale_entries_are_dropped_and_others_stay() -> None:
    """A change of value drops the entries that depend on it, and only those."""
    _, relu = two_nodes()
    SIZE.write(relu, 16)
    TAG.write(relu, "mine")

    drop_stale_entries(relu)

    assert not SIZE.has(relu)
    assert TAG.read(relu) == "mine"


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda gm: GraphModule(gm, copy.deepcopy(gm.graph))])
def test_entries_survive_copies_of_graph_and_module(make_copy) -> None:
    """Deep copies of a module and copies of its graph keep typed entries."""
    graph_module = symbolic_trace(torch.nn.ReLU())
    TAG.write(graph_module.graph.output_node(), "last")

    copied = make_copy(graph_module)

    assert TAG.read(copied.graph.output_node()) == "last"


def test_the_registry_lists_keys_in_a_fixed_order() -> None:
    """registered_keys() is sorted by name, so that files written from it are the same in every process."""
    names = [key.name for key in registered_keys()]

    assert sorted(names) == names
    assert "tests.tag" in names


def test_value_of_reads_val_or_example_value() -> None:
    """value_of gives val, then dynamo's example_value, then None."""
    x, relu = two_nodes()
    x.meta["val"] = 1
    relu.meta["example_value"] = 2

    assert (1, 2, None) == (value_of(x), value_of(relu), value_of(relu.graph.output_node()))


def test_running_pass_names_nest() -> None:
    """The name of the running pass is the innermost one, and is gone afterwards."""
    seen = []
    with running_pass("outer"):
        with running_pass("inner"):
            seen.append(current_pass())
        seen.append(current_pass())
    seen.append(current_pass())

    assert ["inner", "outer", None] == seen


def test_provenance_merges_all_replaced_nodes() -> None:
    """A node that stands for two others lists both, with the pass, and lies in the module that holds both."""
    graph = Graph()
    x = graph.placeholder("x")
    conv = graph.call_function(torch.relu, (x,), name="conv")
    norm = graph.call_function(torch.relu, (conv,), name="norm")
    new = graph.call_function(torch.relu, (x,), name="fused")
    conv.meta = {
        "stack_trace": "conv line",
        "torch_fn": ("conv2d_1", "conv2d"),
        "nn_module_stack": {"root": ("", "Net"), "block": ("block", "Block"), "c": ("block.conv", "Conv2d")},
        "custom": {"a": 1},
    }
    norm.meta = {
        "stack_trace": "norm line",
        "torch_fn": ("batch_norm_1", "batch_norm"),
        "nn_module_stack": {"root": ("", "Net"), "block": ("block", "Block"), "n": ("block.norm", "Norm")},
        "custom": {"b": 2},
        "val": 3,
    }

    with running_pass("FuseConvNorm"):
        merge_provenance(new, [conv, norm])

    assert [("conv", "FuseConvNorm"), ("norm", "FuseConvNorm")] == [
        (source.name, source.pass_name) for source in new.meta["from_node"]
    ]
    assert new.meta["stack_trace"] == "norm line"
    assert new.meta["torch_fn"] == ("batch_norm_1", "batch_norm")
    assert {"root": ("", "Net"), "block": ("block", "Block")} == new.meta["nn_module_stack"]
    assert {"a": 1, "b": 2} == new.meta["custom"]
    assert "val" not in new.meta


def test_merging_twice_lists_each_node_once() -> None:
    """Creating with ``replaces`` and replacing afterwards does not list the old node twice."""
    x, relu = two_nodes()
    new = x.graph.call_function(torch.tanh, (x,))

    merge_provenance(new, [relu])
    merge_provenance(new, [relu])

    assert [relu.name] == [source.name for source in new.meta["from_node"]]


def test_histories_stay_bounded_and_keep_where_they_began() -> None:
    """A node rewritten a thousand times names its origin, and its history does not grow without end."""
    graph = Graph()
    node = graph.placeholder("origin")
    for step in range(1000):
        new = graph.call_function(torch.relu, (node,), name=f"step_{step}")
        merge_provenance(new, [node, node.args[0]] if node.args else [node], "Rewrite")
        node = new

    names, waiting = [], list(node.meta["from_node"])
    while waiting:
        source = waiting.pop()
        names.append(source.name)
        waiting.extend(source.from_node)

    assert "origin" in names
    assert len(names) < 1000


def test_what_is_merged_one_by_one_into_the_same_node_is_listed_once() -> None:
    """Also where a node stands for more than a few, and a copy that was made in between keeps its own list."""
    graph = Graph()
    x = graph.placeholder("x")
    relus = [graph.call_function(torch.relu, (x,)) for _ in range(100)]
    new = graph.call_function(torch.tanh, (x,))
    for relu in relus[:80]:
        merge_provenance(new, [relu])
    copy = Graph().node_copy(new, lambda node: node)
    for relu in relus:
        merge_provenance(new, [relu])
    merge_provenance(copy, [relus[0], relus[99]])

    assert [relu.name for relu in relus] == [source.name for source in new.meta["from_node"]]
    assert [*(relu.name for relu in relus[:80]), "relu_99"] == [source.name for source in copy.meta["from_node"]]


def test_a_list_that_somebody_else_writes_is_read_again() -> None:
    """What was taken out of a long ``from_node`` is listed again."""
    graph = Graph()
    x = graph.placeholder("x")
    relus = [graph.call_function(torch.relu, (x,)) for _ in range(100)]
    new = graph.call_function(torch.tanh, (x,))
    merge_provenance(new, relus)
    new.meta["from_node"].pop()
    merge_provenance(new, [relus[-1]])

    assert [relu.name for relu in relus] == [source.name for source in new.meta["from_node"]]


def test_merging_thousands_into_one_node_looks_at_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that are listed already are not read again for each node, and the list ends at its limit."""
    looked: list[str] = []
    name = NodeSource.name.fget
    monkeypatch.setattr(NodeSource, "name", property(lambda source: looked.append("") or name(source)))
    monkeypatch.setattr("fxpasses.metadata._SOURCES_LIMIT", 1000)
    graph = Graph()
    x = graph.placeholder("x")
    new = graph.call_function(torch.tanh, (x,))
    for _ in range(1200):
        merge_provenance(new, [graph.call_function(torch.relu, (x,))])

    assert 1000 == len(new.meta["from_node"])
    assert len(looked) < 5000


def test_source_of_shares_history_instead_of_copying_it() -> None:
    """The history of a source is the recorded one itself: a chain of passes costs linear memory."""
    x, relu = two_nodes()
    relu.meta["from_node"] = [source_of(x)]

    made = source_of(relu, "P")

    assert made.from_node[0] is relu.meta["from_node"][0]
    assert (made.name, made.pass_name) == ("relu", "P")


def test_what_stands_for_a_wrapped_function_is_not_wrapped() -> None:
    """Code that wraps ``torch.relu`` makes each later trace in the process fail with ``KeyError: 'torch.relu'``."""
    module = symbolic_trace(lambda x: kernel(x))
    (called,) = module.graph.find_nodes(op="call_function", target=kernel)
    with module.graph.inserting_before(called):
        replace_node(called, module.graph.call_function(torch.relu, called.args))
    module.recompile()

    assert "wrap(" not in module.code


def test_copied_metadata_of_a_wrapped_function_goes_to_its_copies_only() -> None:
    called = symbolic_trace(lambda x: kernel(x)).graph.find_nodes(op="call_function", target=kernel)[0]
    graph = Graph()
    again, other = graph.call_function(kernel), graph.call_function(torch.relu)
    copy_metadata(called, again)
    copy_metadata(called, other)

    assert [True, None] == [node.meta.get("is_wrapped") for node in (again, other)]


def test_copied_metadata_shares_no_containers() -> None:
    """Writing into a copied dict leaves the original alone."""
    x, relu = two_nodes()
    relu.meta = {"nn_module_stack": {"a": 1}, "val": 5, "custom": {"k": 1}}

    copy_metadata(relu, x)
    x.meta["nn_module_stack"]["b"] = 2

    assert {"a": 1} == relu.meta["nn_module_stack"]
    assert x.meta["val"] == 5


def test_copied_metadata_can_leave_values_out() -> None:
    """Without values, neither val nor the entries that depend on it are copied."""
    x, relu = two_nodes()
    relu.meta["val"] = 5
    SIZE.write(relu, 4)
    TAG.write(relu, "t")

    copy_metadata(relu, x, values=False, provenance=True)

    assert {"tests.tag", "from_node"} == set(x.meta)
    assert x.meta["from_node"][0].name == "relu"


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).sin()


def tagged() -> tuple[torch.export.ExportedProgram, GraphModule]:
    program = torch.export.export(Blocks(), (torch.randn(2, 4),))
    module = program.module()
    for graph in (program.graph, module.graph):
        for node in graph.nodes:
            TAG.write(node, node.name)
            SIZE.write(node, 4)
    return program, module


def split_in_two(program: torch.export.ExportedProgram, module: GraphModule) -> torch.nn.Module:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return split(module, Assignment.of(module, [calls[:2], calls[2:]])).graph_module


def fuse_two(program: torch.export.ExportedProgram, module: GraphModule) -> torch.nn.Module:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return fuse_by_partitions(module, [dict.fromkeys(calls[:2])])


def unflatten_it(program: torch.export.ExportedProgram, module: GraphModule) -> torch.nn.Module:
    return unflatten(program)


def out_and_back(program: torch.export.ExportedProgram, module: GraphModule) -> torch.nn.Module:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    inline_submodule(extract_submodule(module, calls[1:3], "part"))
    return module


@pytest.mark.parametrize(
    "transform", [split_in_two, fuse_two, unflatten_it, out_and_back, lambda _, module: copy.deepcopy(module)]
)
def test_typed_entries_go_where_their_nodes_go(transform) -> None:
    """Entries of compute nodes are kept through split, fuse, unflatten, extract, inline and copy."""
    program, module = tagged()
    want = {node.name: (node.name, 4) for node in module.graph.nodes if node.op == "call_function"}

    result = transform(program, module)
    graphs = {id(each.graph): each.graph for each in result.modules() if hasattr(each, "graph")}
    found = {
        node.name: (TAG.get(node), SIZE.get(node))
        for graph in graphs.values()
        for node in graph.nodes
        if node.op == "call_function"
    }

    assert want == found


def test_the_users_line_is_not_one_of_generated_code() -> None:
    """The trace of a conditional ends in code that torch made."""
    node = torch.fx.Graph().placeholder("x")
    node.meta["stack_trace"] = (
        'File "/home/me/model.py", line 7, in forward\n    x = torch.cond(p, f, g, (x,))\n'
        '  File "<eval_with_key>.5", line 13, in forward\n    cond = torch.ops.higher_order.cond(l_x_, true_0)\n'
    )

    assert "/home/me/model.py:7 in forward: x = torch.cond(p, f, g, (x,))" == user_line(node)
