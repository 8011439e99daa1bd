"""unflatten: the original hierarchy, names, state and behaviour, from a flat exported program."""

from __future__ import annotations

import copy
import gc
import inspect
import linecache
import threading
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from shapes import SHAPES, Shape, assert_same_behaviour, behaviour
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxpasses import SplitError
from fxpasses.errors import InputError
from fxpasses.metadata import module_stack
from fxpasses.passes.interpreter_modules import FlatArgsAdapter, InterpreterModule, InterpreterModuleDispatcher
from fxpasses.passes.unflattening import UnflattenedModule, swap_modules, unflatten

EXPORTABLE = sorted(name for name, shape in SHAPES.items() if shape.by != "dynamo")
DECOMPOSED = [name for name in EXPORTABLE if name[0].isupper()]  # the modules: those with state
CASES = [*((name, False) for name in EXPORTABLE), *((name, True) for name in DECOMPOSED)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4), persistent=False)

    def forward(self, x: Tensor, shifted: bool = False) -> Tensor:
        return self.linear(x).relu() + self.offset if shifted else self.linear(x)


class Model(nn.Module):
    """Slices of lists, a shared module, one called in two ways, nested containers, what is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.shared = self.blocks[0]
        self.sequence = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Dropout()), nn.ReLU())
        self.weight = nn.Parameter(torch.ones(4))
        self.unused = nn.Linear(2, 2)
        self.constant = torch.ones(4)

    def forward(self, x: Tensor, *, y: Tensor | None = None) -> dict[str, Any]:
        for block in self.blocks[1:]:
            x = block(x)
        x = self.blocks[0](self.shared(x), True)
        x = self.sequence(self.sequence(x))
        x = x if y is None else x + y
        return {"out": x * self.weight + self.constant, "nothing": None}


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 4)


def reference(make: Callable[[], torch.export.ExportedProgram], shape: Shape) -> tuple[dict[str, Any], Shape]:
    """What the program's own module does; without gradients where torch's decomposition has lost them."""
    try:
        return behaviour(make().module(), shape), shape
    except RuntimeError:
        shape = attrs.evolve(shape, gradients=False)
        return behaviour(make().module(), shape), shape


@pytest.mark.parametrize(("name", "decomposed"), CASES)
def test_every_shape_of_graph_means_the_same_unflattened(name: str, decomposed: bool) -> None:
    """Complaints 18, 22 and 31: outputs, mutated state and inputs, gradients, for a table of graph shapes."""
    shape = SHAPES[name]

    def make() -> torch.export.ExportedProgram:
        program = shape.program()
        return program.run_decompositions() if decomposed else program

    expected, shape = reference(make, shape) if decomposed else (behaviour(shape.module(), shape), shape)

    actual = behaviour(unflatten(make()), shape)

    assert_same_behaviour(expected, actual)


def test_names_types_and_state_are_the_originals(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))

    assert list(model.state_dict()) == list(unflattened.state_dict())
    assert {name for name, _ in model.named_buffers()} == {name for name, _ in unflattened.named_buffers()}
    assert "torch.nn.modules.linear.Linear" == unflattened.get_submodule("sequence.0.0").type_name()
    assert "unused" in dict(unflattened.named_children())
    assert torch.equal(model.constant, unflattened.constant)


def test_parameters_are_the_programs_own_unless_clone_is_asked_for(model: Model, x: Tensor) -> None:
    program = torch.export.export(model, (x,))

    shared, cloned = unflatten(program), unflatten(program, clone=True)

    assert all(p is model.get_parameter(name) for name, p in shared.named_parameters())
    assert not any(p is model.get_parameter(name) for name, p in cloned.named_parameters())
    assert cloned.blocks[0].linear.weight is cloned.shared.linear.weight


def test_slices_and_lists_can_be_indexed(model: Model, x: Tensor) -> None:
    """Complaint 31: modules reached through a slice keep their own place."""
    unflattened = unflatten(torch.export.export(model, (x,)))

    assert 3 == len(unflattened.blocks)
    assert [unflattened.blocks[1], unflattened.blocks[2]] == unflattened.blocks[1:]
    assert ["0", "1", "2"] == [name for name, _ in unflattened.blocks.named_children()]


def test_a_module_called_twice_alike_has_one_graph_and_called_differently_two(x: Tensor) -> None:
    """Complaint 31: no @1 names appear; the caller says which way it means."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.block(self.block(x)), True)

    model = Twice()
    unflattened = unflatten(torch.export.export(model, (x,)))

    assert isinstance(unflattened.block, InterpreterModuleDispatcher)
    assert 2 == len(unflattened.block.graphs)
    assert 2 == len(unflattened.block.call_modules())
    assert list(model.state_dict()) == list(unflattened.state_dict())
    assert torch.equal(model(x), unflattened(x))


def test_threads_may_run_one_module_at_the_same_time(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))
    inputs = [torch.randn(2, 4) for _ in range(8)]
    found: list[Any] = [None] * len(inputs)

    def run(index: int) -> None:
        for _ in range(20):
            found[index] = unflattened(inputs[index])["out"]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for value, result in zip(inputs, found, strict=True):
        assert torch.equal(model(value)["out"], result)


def test_it_exports_again_to_the_same_program(model: Model, x: Tensor) -> None:
    """Complaint 31 (171964): export, unflatten, export gives equal programs, dynamic shapes too."""
    batch = torch.export.Dim("batch", min=2, max=32)
    shapes = {"x": {0: batch}}
    program = torch.export.export(model, (x,), dynamic_shapes=shapes)

    again = torch.export.export(unflatten(program), (x,), dynamic_shapes=shapes)

    assert program.graph_module.code == again.graph_module.code
    assert list(map(str, program.range_constraints.values())) == list(map(str, again.range_constraints.values()))
    assert [spec.target for spec in program.graph_signature.input_specs] == [
        spec.target for spec in again.graph_signature.input_specs
    ]


def test_a_strict_export_of_it_has_the_original_hierarchy(x: Tensor) -> None:
    """Nothing ran before, so that its code has to be there when torch asks for it."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    program = torch.export.export(unflatten(torch.export.export(model, (x,))), (x,), strict=True)
    again = unflatten(program)

    paths = {path for node in program.graph.nodes for path, _ in module_stack(node).values()}
    assert not any("forward" in path for path in paths)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in again.named_modules()]
    assert torch.equal(model(x), again(x))


class Branching(nn.Module):
    """A branch inside of a module, beside a module that is called as torch calls the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.true_graph_0 = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.true_graph_0(torch.cond(x.sum() > 0, self.linear, torch.sin, (x,)))


@pytest.mark.parametrize("strict", [False, True])
def test_bodies_of_control_flow_are_called_as_no_module_is_and_stay_when_it_is_exported_again(strict: bool) -> None:
    model, x = nn.Sequential(Branching(), nn.Linear(4, 4)), torch.ones(2, 4)
    once = unflatten(torch.export.export(model, (x,)))
    twice = unflatten(torch.export.export(once, (x,), strict=strict))

    for unflattened in (once, twice):
        assert torch.equal(model(x), unflattened(x))
        assert torch.equal(model(-x), unflattened(-x))
        assert list(model.state_dict()) == list(unflattened.state_dict())
    assert isinstance(once.get_submodule("0.true_graph_0_1"), torch.fx.GraphModule)


def test_modules_that_generated_code_reads_by_number_keep_their_names(x: Tensor) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    graph = torch.fx.Graph()
    first = graph.call_module("0", (graph.placeholder("x"),))
    graph.output(graph.call_module("1", (first,)))

    unflattened = unflatten(torch.export.export(torch.fx.GraphModule(model, graph), (x,), strict=True))

    assert [name for name, _ in model.named_modules()] == [name for name, _ in unflattened.named_modules()]
    assert torch.equal(model(x), unflattened(x))


def test_it_is_compiled_whole_before_it_has_run(model: Model, x: Tensor) -> None:
    compiled = torch.compile(unflatten(torch.export.export(model, (x,))), backend="eager", fullgraph=True)

    assert torch.equal(model(x)["out"], compiled(x)["out"])


def test_edited_graphs_are_run_after_finalize(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))
    plain = unflattened(x)["out"]
    (add,) = unflattened.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    add.target = torch.ops.aten.sub.Tensor
    unflattened.finalize()

    assert torch.allclose(plain - 2 * model.constant, unflattened(x)["out"])
    assert torch.allclose(plain - 2 * model.constant, copy.deepcopy(unflattened)(x)["out"])

    relu = unflattened.get_submodule("sequence.1")
    (call,) = relu.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    call.target = torch.ops.aten.neg.default
    unflattened.finalize()
    assert torch.equal(-x, relu(x))


def test_what_was_generated_goes_with_its_module(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))
    unflattened(x)
    graph = weakref.ref(unflattened.graph)
    file = unflattened.forward.__code__.co_filename

    assert linecache.getline(file, 2)
    del unflattened
    gc.collect()
    assert graph() is None
    assert not linecache.getline(file, 2)


def test_the_signature_is_the_users_and_keywords_come_in_any_order(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,), {"y": x}))

    assert ["x", "y"] == list(inspect.signature(unflattened.forward).parameters)
    assert torch.equal(model(x, y=x)["out"], unflattened(y=x, x=x)["out"])


def test_a_preserved_call_signature_takes_what_the_original_took() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, pair: tuple[Tensor, Tensor], *, scale: Tensor) -> dict[str, Tensor]:
            return {"sum": self.linear(pair[0] + pair[1]) * scale, "difference": pair[0] - pair[1]}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            found = self.inner((x, x + 1), scale=x.mean())
            return found["sum"] - found["difference"]

    outer, x = Outer(), torch.randn(2, 4)
    program = torch.export.export(outer, (x,), preserve_module_call_signature=("inner",))
    unflattened = unflatten(program)

    assert torch.equal(outer(x), unflattened(x))
    expected = outer.inner((x, x), scale=x.mean())
    actual = unflattened.inner((x, x), scale=x.mean())
    assert pytree.tree_structure(expected) == pytree.tree_structure(actual)
    assert torch.equal(expected["sum"], actual["sum"])

    other = Inner()
    swapped = swap_modules(program, {"inner": other})
    outer.inner = other
    assert swapped.inner is other
    assert torch.equal(outer(x), swapped(x))


def test_swapping_needs_a_preserved_signature(model: Model, x: Tensor) -> None:
    program = torch.export.export(model, (x,))

    with pytest.raises(SplitError, match=r"^The call of 'shared' was not preserved; export with preserve_module_call"):
        swap_modules(program, {"shared": Block()})
    with pytest.raises(SplitError, match=r"^The program has no module 'nothing'; it has blocks, "):
        swap_modules(program, {"nothing": Block()})


def test_a_copy_runs_on_its_own_state(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))
    copied = copy.deepcopy(unflattened)

    with torch.no_grad():
        copied.weight.zero_()

    assert torch.equal(model(x)["out"], unflattened(x)["out"])
    assert torch.equal(model.constant.expand(2, 4), copied(x)["out"])


def test_an_error_names_the_line_of_the_model(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))
    unflattened.blocks[1].linear.weight = nn.Parameter(torch.ones(4, 5))

    with pytest.raises(RuntimeError) as caught:
        unflattened(x)

    assert any("in forward: return self.linear(x).relu() + self.offset" in note for note in caught.value.__notes__)


def test_inputs_of_another_structure_or_shape_are_refused_and_an_adapter_takes_them(model: Model, x: Tensor) -> None:
    program = torch.export.export(model, (x,))
    plain = unflatten(program)

    with pytest.raises(InputError, match=r"has shape \(3, 4\), but the model was captured for \(2, 4\)") as shaped:
        plain(torch.randn(3, 4))
    assert isinstance(shaped.value, RuntimeError)  # what torch's raises
    with pytest.raises(InputError, match=r"^The model takes 1 input \(x\), but 2 came\.") as caught:
        plain(x, x)
    assert ["A FlatArgsAdapter given to unflatten can take calls of another structure."] == caught.value.__notes__

    class First(FlatArgsAdapter):
        def adapt(self, target_spec, input_spec, input_args, metadata=None, obj=None):  # type: ignore[no-untyped-def]
            return input_args[: target_spec.num_leaves]

    assert torch.equal(model(x)["out"], unflatten(program, First())(x, x)["out"])


def test_an_adapter_is_called_as_torch_calls_it_and_not_for_the_order_of_keywords(model: Model, x: Tensor) -> None:
    class Named(FlatArgsAdapter):
        def adapt(self, *, target_spec, input_spec, input_args, metadata, obj):  # type: ignore[no-untyped-def]
            asked.append(obj)
            modules.append(metadata["unflattened_module"])
            return input_args[: target_spec.num_leaves]

    class Keywords(nn.Module):
        def forward(self, *, a: Tensor, b: Tensor) -> Tensor:
            return a - b

    asked: list[Any] = []
    modules: list[nn.Module] = []
    unflattened = unflatten(torch.export.export(model, (x,)), Named())
    assert torch.equal(model(x)["out"], unflattened(x, 7)["out"])
    assert [(x, 7)] == asked
    assert [unflattened] == modules

    program = torch.export.export(Keywords(), (), {"a": x, "b": x.clone()})
    assert torch.equal(x - 2, unflatten(program, Named())(b=torch.full_like(x, 2), a=x))
    assert 1 == len(asked)


def test_a_converted_module_takes_inputs_of_the_new_type(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)), clone=True).double()
    expected = copy.deepcopy(model).double()
    expected.constant = expected.constant.double()

    for converted in (unflattened, copy.deepcopy(unflattened)):
        assert torch.allclose(expected(x.double())["out"], converted(x.double())["out"])
        with pytest.raises(InputError, match=r"^The input 'x' has dtype torch\.float32, but the model takes"):
            converted(x)


def test_checks_of_inputs_are_left_out_where_they_are_not_wanted(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))
    unflattened.check_input_constraints = False

    assert torch.equal(model(x[:1])["out"], unflattened(x[:1])["out"])
    with pytest.raises(InputError, match="but 2 came"):
        unflattened(x, x)


def test_the_class_takes_a_program_and_tells_its_facts(model: Model, x: Tensor) -> None:
    class First(FlatArgsAdapter):
        def adapt(self, target_spec, input_spec, input_args, metadata=None, obj=None):  # type: ignore[no-untyped-def]
            return input_args[: target_spec.num_leaves]

    shapes = {"x": {0: torch.export.Dim("batch", min=2)}}
    program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    unflattened = UnflattenedModule(program, First())

    assert torch.equal(model(x)["out"], unflattened(x, x)["out"])
    assert program.graph_signature is unflattened.graph_signature
    assert program.range_constraints == unflattened.range_constraints
    assert program.module_call_graph == unflattened.module_call_graph
    assert isinstance(unflattened.flat_args_adapter, First)

    unflattened.flat_args_adapter = None
    with pytest.raises(TypeError, match=r"^The model takes 1 input \(x\), but 2 came\.") as caught:
        copy.deepcopy(unflattened)(x, x)
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((), {"z": 1}), (((1, 2),), {})])
def test_arguments_that_do_not_fit_are_a_type_error_as_of_any_function(model: Model, args: Any, kwargs: Any) -> None:
    unflattened = unflatten(torch.export.export(model, (torch.ones(2, 4),)))

    with pytest.raises(TypeError) as caught:
        unflattened(*args, **kwargs)
    assert isinstance(caught.value, InputError)


def test_what_is_no_adapter_is_refused_at_once(model: Model, x: Tensor) -> None:
    with pytest.raises(InputError, match=r"^flat_args_adapter is an object with a method adapt, .* not 3$") as caught:
        unflatten(torch.export.export(model, (x,)), 3)

    assert isinstance(caught.value, TypeError)


def test_an_adapter_that_gives_too_little_is_told_so(model: Model, x: Tensor) -> None:
    class Nothing(FlatArgsAdapter):
        def adapt(self, *_given: Any, **_more: Any) -> list[Any]:
            return []

    with pytest.raises(InputError, match=r"^Nothing\.adapt gave 0 leaves, but the program takes 1: it has to give"):
        unflatten(torch.export.export(model, (x,)), Nothing())(x, x)


def test_a_node_without_a_module_stack_is_refused_by_name(model: Model, x: Tensor) -> None:
    program = torch.export.export(model, (x,))
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    del node.meta["nn_module_stack"]

    with pytest.raises(SplitError, match=r"^linear \(aten\.linear\.default\) has no nn_module_stack, so it is not"):
        unflatten(program)


def test_sizes_that_torch_reads_itself_stand_in_the_model_and_add_no_module() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * x.shape[0]

    sized, x = Sized(), torch.randn(5, 3)
    shapes = {"x": {0: torch.export.Dim("batch", min=2)}}
    unflattened = unflatten(torch.export.export(sized, (torch.randn(4, 3),), dynamic_shapes=shapes))

    assert ["", "linear"] == [name for name, _ in unflattened.named_modules()]
    assert torch.equal(sized(x), unflattened(x))


def test_views_that_a_decomposition_adds_behind_the_model_stand_in_the_model() -> None:
    """torch gives them an empty module stack: they are of no module, and no pass is to blame."""

    class Cache(nn.Module):
        def forward(self, cache: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            cache[0].add_(x)
            y = cache.sum(0) * 2
            cache[1].copy_(y)
            return y + cache[1], cache.view(-1)[:3]

    program = torch.export.export(Cache(), (torch.ones(2, 3), torch.ones(3))).run_decompositions()
    expected, actual = torch.ones(2, 3), torch.ones(2, 3)

    results = unflatten(program)(actual, torch.ones(3))

    assert [] == [*program.graph.output_node().all_input_nodes[-1].meta["nn_module_stack"]]
    for one, other in zip(Cache()(expected, torch.ones(3)), results, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(expected, actual)


def test_a_missing_tensor_is_refused_by_name(model: Model, x: Tensor) -> None:
    program = torch.export.export(model, (x,))
    del program.state_dict["weight"]

    with pytest.raises(SplitError, match=r"^The program has no tensor 'weight', which its graph takes as p_weight;"):
        unflatten(program)


def test_what_is_no_program_is_refused(model: Model) -> None:
    with pytest.raises(SplitError, match=r"^unflatten takes a torch\.export\.ExportedProgram, not Model\.$"):
        unflatten(model)  # type: ignore[arg-type]


def test_a_module_is_printed_with_all_its_graphs(model: Model, x: Tensor) -> None:
    unflattened = unflatten(torch.export.export(model, (x,)))

    text = unflattened.print_readable(print_output=False)

    assert "self.sequence(" in text
    assert isinstance(unflattened, UnflattenedModule)
    assert ["x"] == unflattened.arg_names
    assert isinstance(unflattened.shared, InterpreterModule)
    assert "aten.linear" in unflattened.shared.linear.graph_module.code


def test_a_deep_tree_of_a_thousand_modules_is_unflattened_without_recursion() -> None:
    """Complaint 38: nothing recurses over nodes, and the time grows with the modules."""

    class Tree(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.children_ = nn.ModuleList(Tree(depth - 1) for _ in range(4)) if depth else nn.ModuleList()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            for child in self.children_:
                x = child(x)
            return x * self.weight

    tree, x = Tree(4), torch.ones(2)
    unflattened = unflatten(torch.export.export(tree, (x,)))

    assert torch.equal(tree(x), unflattened(x))
    assert list(tree.state_dict()) == list(unflattened.state_dict())


@pytest.mark.parametrize("name", ["graph", "graph_module", "arg_names", "range_constraints", "flat_args_adapter"])
def test_a_name_that_the_new_module_needs_for_itself_is_refused_in_a_sentence(name: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            layer: nn.Module = getattr(self, name)
            result: Tensor = layer(x)
            return result

    program = torch.export.export(Named(), (torch.ones(2),))

    message = f"'{name}' of the model cannot be called '{name}' here, because a UnflattenedModule has an attribute of"
    with pytest.raises(SplitError, match=message):
        unflatten(program)


class Shadowing(nn.Module):
    """Modules and inputs that are called like what generated code uses."""

    def __init__(self) -> None:
        super().__init__()
        self.self = nn.Linear(4, 4)  # as BERT's attention does
        self.torch = nn.Linear(4, 4)

    def forward(self, torch: Tensor, operator: Tensor) -> Tensor:
        return self.get_submodule("torch")(self.get_submodule("self")(torch) + 1).relu() + operator


def test_a_name_that_code_cannot_have_is_refused_in_a_sentence(x: Tensor) -> None:
    model = nn.Sequential()
    model.add_module("in", nn.Linear(4, 4))

    with pytest.raises(SplitError, match=r"^The model has a module, parameter or buffer called 'in', which torch"):
        unflatten(torch.export.export(model, (x,)))


@pytest.mark.parametrize("preserved", [(), ("inner",)], ids=["", "preserved"])
def test_modules_and_inputs_may_be_called_like_what_code_uses(preserved: tuple[str, ...]) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Shadowing()

        def forward(self, torch: Tensor, operator: Tensor) -> Tensor:
            result: Tensor = self.inner(torch, operator=operator) * 2
            return result

    model, x, y = Around(), torch.randn(2, 4), torch.randn(2, 4)
    program = torch.export.export(model, (x,), {"operator": y}, preserve_module_call_signature=preserved)

    unflattened = unflatten(program)

    assert torch.equal(unflattened(x, operator=y), model(x, y))
    assert torch.equal(unflattened(torch=x, operator=y), model(x, y))
    assert {"self", "torch"} == {name for name, _ in unflattened.inner.named_children()}
    if preserved:
        assert torch.equal(unflattened.inner(x, operator=y), model.inner(x, y))
