from __future__ import annotations

import copy
import functools
import gc
import operator
import warnings

import psutil
import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim, ExportedProgram, export
from torch.fx import Graph, GraphModule, symbolic_trace

from fxpasses.editing import create_node, erase_nodes, insert_after, replace_node
from fxpasses.journal import Snapshot
from fxpasses.metadata import MetaKey
from fxpasses.programs import add_buffer, add_input, remove_input, rename_input, replace_output, retype_input

aten = torch.ops.aten


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        self.count.add_(1)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (self.second(x),))


@functools.cache
def exported() -> ExportedProgram:
    return export(Net().requires_grad_(False), (torch.randn(2, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))


def program() -> ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own copying of tree specs warns about itself
        return copy.deepcopy(exported())


def everything(root: GraphModule | ExportedProgram) -> list[object]:
    """All that a rollback has to bring back, as comparable data."""
    graph_module = root.graph_module if isinstance(root, ExportedProgram) else root
    found: list[object] = []
    for path, module in graph_module.named_modules():
        found.append((path, id(module), list(module._parameters), list(module._buffers), list(module._modules)))
        found.append([id(each) for each in (*module._parameters.values(), *module._buffers.values())])
        if isinstance(module, GraphModule):
            graph = module.graph
            found += [
                id(graph),
                str(graph),
                module.code,
                id(graph._insert.__self__),
                len(graph.nodes),
                dict(module.meta),
            ]
            found.append([list(map(id, node.users)) for node in graph.nodes])
            found.append([(id(node), id(node.meta), node.name, node.type, node._sort_key) for node in graph.nodes])
            found.append([{key: repr(entry) for key, entry in node.meta.items()} for node in graph.nodes])
            found.append(
                {key: list(map(id, table)) for key, table in graph._find_nodes_lookup_table.table.items() if table}
            )
            found.append((sorted(graph._graph_namespace._used_names), dict(graph._graph_namespace._base_count)))
    if isinstance(root, ExportedProgram):
        found += [str(root.graph_signature), repr(root.module_call_graph), repr(root.example_inputs)]
        found += [{key: id(entry) for key, entry in table.items()} for table in (root.state_dict, root.constants)]
        found += [list(root.state_dict), dict(root.range_constraints), id(root.graph_signature)]
    return found


def test_an_untouched_program_has_not_changed() -> None:
    """Right after taking, nothing has changed, and restoring changes nothing."""
    root = program()
    before = everything(root)
    snapshot = Snapshot.take(root)

    assert not snapshot.changed()
    assert not snapshot.metadata_changed()
    assert str(snapshot.changes()) == "no changes"

    snapshot.restore()

    assert before == everything(root)


def relu_of(graph: Graph):
    return next(node for node in graph.nodes if "relu" in node.name)


def retarget(root: ExportedProgram) -> None:
    relu_of(root.graph).target = aten.tanh.default


def rename(root: ExportedProgram) -> None:
    relu_of(root.graph).name = "activated"


def change_argument(root: ExportedProgram) -> None:
    node = relu_of(root.graph)
    node.args = (root.graph.find_nodes(op="placeholder")[-1],)


def add_and_replace(root: ExportedProgram) -> None:
    node = relu_of(root.graph)
    replace_node(node, insert_after(node, aten.tanh.default, (node.args[0],)))


def reorder(root: ExportedProgram) -> None:
    relu_of(root.graph).next.append(relu_of(root.graph))


def erase(root: ExportedProgram) -> None:
    added = next(node for node in root.graph.nodes if node.name == "add_")
    erase_nodes([added])


def edit_branch(root: ExportedProgram) -> None:
    graph = root.graph_module.true_graph_0.graph
    node = next(node for node in graph.nodes if node.op == "call_function")
    node.target = aten.cos.default


def replace_branch(root: ExportedProgram) -> None:
    root.graph_module.true_graph_0 = copy.deepcopy(root.graph_module.false_graph_0)


def attach(root: ExportedProgram) -> None:
    root.graph_module.register_buffer("extra", torch.ones(2))


def attach_plain(root: ExportedProgram) -> None:
    root.graph_module.extra = 5


def change_output(root: ExportedProgram) -> None:
    replace_output(root, 0, relu_of(root.graph))


def exchange_parameter(root: ExportedProgram) -> None:
    root.state_dict["first.weight"] = torch.nn.Parameter(torch.zeros(4, 4))


def add_to_signature(root: ExportedProgram) -> None:
    add_input(root, "extra", torch.ones(3))
    add_buffer(root, "more", torch.ones(3))


def rename_in_signature(root: ExportedProgram) -> None:
    rename_input(root, "x", "image")
    rename_input(root, "first.weight", "a.b")


def retype_parameter(root: ExportedProgram) -> None:
    retype_input(root, "count", torch.float64)


def new_graph(root: ExportedProgram) -> None:
    root.graph_module.graph = copy.deepcopy(root.graph_module.graph)


EDITS = [
    retarget, rename, change_argument, add_and_replace, reorder, erase, edit_branch, replace_branch, attach,
    attach_plain, change_output, exchange_parameter, add_to_signature, rename_in_signature, retype_parameter, new_graph,
]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("compile_after", [False, True])
def test_every_edit_is_seen_and_rolled_back_exactly(edit, compile_after: bool) -> None:
    """Text, meta, attributes, order, names, tables, identities and code come back after any edit."""
    root = program()
    before = everything(root)
    snapshot = Snapshot.take(root)

    edit(root)
    if compile_after:
        root.graph_module.recompile()

    assert snapshot.changed()
    assert snapshot.changes()

    snapshot.restore()

    assert before == everything(root)
    assert not snapshot.changed()
    assert not snapshot.metadata_changed()
    root.validate()


def test_a_restored_program_runs_as_before() -> None:
    """After a rollback, the compiled forward is the one that was there."""
    graph_module = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()))
    x = torch.randn(2, 3)
    want = graph_module(x)
    snapshot = Snapshot.take(graph_module)
    node = graph_module.graph.output_node().args[0]
    replace_node(node, insert_after(node, torch.neg, (node.args[0],)))
    graph_module.recompile()
    assert not torch.equal(want, graph_module(x))

    snapshot.restore()

    assert torch.equal(want, graph_module(x))


def test_an_edit_that_is_undone_is_no_change() -> None:
    """changed() compares what is there: setting equal arguments, or undoing an edit by hand, does not count."""
    root = program()
    snapshot = Snapshot.take(root)
    node = relu_of(root.graph)

    node.args = tuple(node.args)
    node.target = aten.tanh.default
    node.target = aten.relu.default

    assert not snapshot.changed()


def test_metadata_alone_is_no_change_but_is_rolled_back() -> None:
    """Writing meta says modified=False, is listed in the record, and is undone exactly, deep containers included."""
    key = MetaKey[list]("tests.journal", made_by="Test()")
    root = program()
    node = relu_of(root.graph)
    key.write(node, [1, {"deep": [2]}])
    before = everything(root)
    snapshot = Snapshot.take(root)

    key.read(node)[1]["deep"].append(3)
    node.meta["nn_module_stack"]["new"] = ("", "X")
    node.meta.pop("stack_trace")
    root.graph_module.meta["note"] = 1
    root.graph.output_node().meta = {"other": 1}

    assert not snapshot.changed()
    assert snapshot.metadata_changed()
    assert ("relu", "output") == snapshot.changes().metadata

    snapshot.restore()

    assert before == everything(root)
    assert [1, {"deep": [2]}] == key.read(node)


def test_changes_name_what_happened() -> None:
    """The record names added, removed, altered and moved nodes, nested ones with their path, and attributes."""
    root = program()
    snapshot = Snapshot.take(root)

    add_and_replace(root)
    edit_branch(root)
    attach(root)
    changes = snapshot.changes()

    assert ("tanh_default",) == changes.added
    assert ("relu",) == changes.removed
    assert changes.altered["true_graph_0/sin"] == "target"
    assert {"extra": "added"} == changes.attributes
    assert () == changes.moved
    assert str(changes).startswith("1 added, 1 removed, ")


def test_moved_nodes_are_the_fewest_that_explain_the_order() -> None:
    """Moving one node of a long graph is reported as one moved node."""
    graph = Graph()
    x = graph.placeholder("x")
    nodes = [graph.call_function(torch.relu, (x,), name=f"n{index}") for index in range(20)]
    graph.output(tuple(nodes))
    graph_module = GraphModule({}, graph)
    snapshot = Snapshot.take(graph_module)

    nodes[15].append(nodes[2])

    assert ("n2",) == snapshot.changes().moved


def test_writing_into_a_tensor_is_recorded_and_cannot_be_undone() -> None:
    """An in-place write to a weight counts as a change, is named in the record, and stays after a rollback."""
    root = program()
    snapshot = Snapshot.take(root)

    with torch.no_grad():
        root.state_dict["first.weight"].zero_()

    assert snapshot.changed()
    assert ("state_dict['first.weight']",) == snapshot.changes().written_in_place

    snapshot.restore()

    assert not root.state_dict["first.weight"].any()


def test_plain_modules_and_their_training_mode_are_covered() -> None:
    """Replaced parameters, removed submodules and the training flag of submodules come back."""
    graph_module = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout()))
    linear = graph_module.get_submodule("0")
    weight = linear.weight
    snapshot = Snapshot.take(graph_module)

    linear.weight = torch.nn.Parameter(torch.zeros(3, 3))
    graph_module.get_submodule("1").eval()
    graph_module.delete_submodule("1")
    assert {"0.weight": "replaced", "1": "removed"} == dict(snapshot.changes().attributes)
    snapshot.restore()

    assert linear.weight is weight
    assert graph_module.get_submodule("1").training


def test_the_insert_point_comes_back() -> None:
    """A pass that fails inside inserting_before leaves the insert point at the end."""
    graph_module = symbolic_trace(torch.nn.ReLU())
    graph = graph_module.graph
    snapshot = Snapshot.take(graph_module)
    graph.inserting_before(next(iter(graph.nodes)))

    snapshot.restore()
    graph.erase_node(graph.output_node())
    added = graph.call_function(torch.neg, (next(iter(graph.nodes)),))

    assert list(graph.nodes)[-1] is added


def test_names_are_free_again_after_a_rollback() -> None:
    """A name taken by a rolled-back node can be taken again."""
    graph_module = symbolic_trace(torch.nn.ReLU())
    x = next(iter(graph_module.graph.nodes))
    snapshot = Snapshot.take(graph_module)
    first = insert_after(x, torch.neg, (x,), name="fresh").name
    snapshot.restore()

    assert first == insert_after(x, torch.neg, (x,), name="fresh").name


def test_renewed_keeps_the_snapshot_while_nothing_happens() -> None:
    """A snapshot serves many no-op passes, and a new one is taken after any edit, of metadata too."""
    root = program()
    snapshot = Snapshot.take(root)
    assert snapshot.renewed() is snapshot

    relu_of(root.graph).meta["x"] = 1
    after = snapshot.renewed()

    assert after is not snapshot
    assert not after.metadata_changed()


def test_constant_arguments_that_cannot_be_compared_count_as_changed() -> None:
    """A tensor inside of the arguments that is exchanged for another is a change, not an error."""
    graph = Graph()
    x = graph.placeholder("x")
    node = graph.call_function(operator.getitem, (x, 0))
    graph.output(node)
    graph_module = GraphModule({}, graph)
    object.__setattr__(node, "_args", (x, torch.ones(2)))
    snapshot = Snapshot.take(graph_module)
    object.__setattr__(node, "_args", (x, torch.zeros(2)))

    assert snapshot.changed()
    assert {"getitem": "args"} == dict(snapshot.changes().altered)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aremiw"), st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_random_edits_are_rolled_back(steps: list[tuple[str, int, int]]) -> None:
    """Any sequence of adding, erasing, moving, renaming and rewiring is undone to the same nodes and tables."""
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(8):
        x = graph.call_function(torch.relu, (x,))
    graph.output(x)
    root = GraphModule({}, graph)
    before = everything(root)
    snapshot = Snapshot.take(root)
    for kind, first, second in steps:
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        node, other = nodes[first % len(nodes)], nodes[second % len(nodes)]
        if kind == "a":
            with graph.inserting_after(node):
                graph.call_function(torch.add, (node, other))
        elif kind == "r":
            node._rename(f"name_{second}")
        elif kind == "e" and not node.users and len(nodes) > 1:
            graph.erase_node(node)
        elif kind == "m" and node is not other:
            node.append(other)
        elif kind == "i":
            node.replace_all_uses_with(other, delete_user_cb=lambda user, other=other: user is not other)
        elif kind == "w":
            node.kwargs = {"alpha": second}
    snapshot.restore()

    assert before == everything(root)
    graph.lint()


def test_complaint_05_modified_is_established_not_believed() -> None:
    """Complaint 5: what changed is read off the program: a no-op is unchanged, a signature-only edit is a change."""
    root = program()
    snapshot = Snapshot.take(root)
    for node in root.graph.nodes:
        node.args = node.args
    root.graph_module.recompile()
    assert not snapshot.changed()

    root.graph_signature.input_specs[0].target = "other.weight"

    assert snapshot.changed()
    assert {"graph_signature": "changed"} == dict(snapshot.changes().attributes)


def test_complaint_37_snapshots_copy_no_tensors() -> None:
    """Complaint 37: a 10 GB state dict is snapshotted, edited and rolled back with less than 100 MB more memory."""
    with torch._subclasses.FakeTensorMode():
        layers = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384, bias=False) for _ in range(10)))
    graph_module = symbolic_trace(layers)
    assert sum(each.numel() * each.element_size() for each in graph_module.parameters()) > 10e9
    gc.collect()
    before = psutil.Process().memory_info().rss
    snapshot = Snapshot.take(graph_module)
    for index in range(10):
        node = next(node for node in graph_module.graph.nodes if node.name == f"_{index}")
        with graph_module.graph.inserting_after(node):
            create_node(graph_module.graph, "call_function", torch.relu, (node,))
        snapshot.changed()
        snapshot.changes()
        snapshot.restore()

    assert psutil.Process().memory_info().rss - before < 100e6


def test_removed_inputs_come_back_with_their_tensors() -> None:
    """Removing an unused buffer and rolling back puts the same tensor object back under its name."""
    root = program()
    add_buffer(root, "unused", torch.ones(3))
    tensor = root.state_dict["unused"]
    snapshot = Snapshot.take(root)

    remove_input(root, "unused")
    assert "unused" not in root.state_dict
    snapshot.restore()

    assert root.state_dict["unused"] is tensor
    root.validate()


def test_an_equal_argument_of_another_type_is_a_change():
    graph_module = symbolic_trace(lambda x: x + 1)
    node = graph_module.graph.find_nodes(op="call_function", target=operator.add)[0]
    for value in (1.0, True, 1):
        before = Snapshot.take(graph_module)
        node.args = (node.args[0], value)

        assert before.changed()
        assert before.changes().altered == {"add": "args"}


def test_a_flag_of_a_tensor_is_seen_and_put_back() -> None:
    """requires_grad is a change that can be undone; memory exchanged through .data is one that cannot, and is named."""
    graph_module = symbolic_trace(torch.nn.Linear(2, 2))
    snapshot = Snapshot.take(graph_module)

    graph_module.weight.requires_grad_(False)
    assert snapshot.changed()
    assert {"weight": "requires_grad changed"} == dict(snapshot.changes().attributes)
    snapshot.restore()
    assert graph_module.weight.requires_grad
    assert not snapshot.changed()

    graph_module.weight.data = torch.zeros(2, 2)
    assert snapshot.changed()
    assert ("weight",) == snapshot.changes().written_in_place


def test_a_replaced_parameter_is_not_called_written() -> None:
    """Another tensor under the same name is a replacement, whatever was written into it before."""
    graph_module = symbolic_trace(torch.nn.Linear(2, 2))
    other = torch.nn.Parameter(torch.zeros(2, 2))
    with torch.no_grad():
        other.add_(1)
    snapshot = Snapshot.take(graph_module)

    graph_module.weight = other

    assert {"weight": "replaced"} == dict(snapshot.changes().attributes)
    assert () == snapshot.changes().written_in_place
