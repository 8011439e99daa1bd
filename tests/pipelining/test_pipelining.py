"""Pipeline stages: the cut, the values that travel, the state of each stage, and what is refused."""

import copy
import pickle
import re

import pytest
import torch
from pipeline_models import MODELS, llama, residual_net, skips, tied_llama
from torch import nn
from torch.utils import _pytree as pytree

from fxpasses import CaptureError, Device, StageError
from fxpasses.pipelining import PipeInfo, PipeSequential, SplitPoint, annotate_split_points, pipe_split, pipeline
from fxpasses.pipelining.running.merging import merge_outputs
from fxpasses.pipelining.stage_costs import stage_figures
from fxpasses.pipelining.weight_uses import uses_weights_once
from fxpasses.programs import capture

BEGINNING, END = SplitPoint.BEGINNING, SplitPoint.END


def equal(expected, found):
    expected, structure = pytree.tree_flatten(expected)
    leaves, other = pytree.tree_flatten(found)
    return structure == other and all(
        torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(expected, leaves, strict=True)
    )


class Chain(nn.Module):
    def __init__(self, count=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


X = torch.arange(8.0).reshape(2, 4)


@pytest.mark.parametrize("name", MODELS)
def test_complaint_11_stages_give_exactly_the_model_s_output(name):
    """Complaint 11: decoders with RoPE, masks and tied weights, by hand and automatically, in 2 and 4 stages."""
    make, points = MODELS[name]
    model, args, kwargs = make()
    expected = model(*args, **kwargs)
    two = pipeline(model, args, kwargs, {points[1]: BEGINNING})
    four = pipeline(model, args, kwargs, dict.fromkeys(points, BEGINNING))
    automatic = pipeline(model, args, kwargs, "auto", num_stages=4)

    assert [2, 4, 4] == [pipe.num_stages for pipe in (two, four, automatic)]
    assert all(equal(expected, pipe(*args, **kwargs)) for pipe in (two, four, automatic))


@pytest.mark.parametrize(
    "points",
    [
        ("encoder.block.0.layer.1", "encoder.final_layer_norm"),
        ("decoder.block.0.layer.1", "decoder.block.1.layer.2"),
        ("encoder.block.1.layer.0", "decoder.block.0.layer.2", "decoder.final_layer_norm"),
    ],
)
def test_an_encoder_decoder_is_cut_in_both_halves(points):
    """Inside blocks of the encoder, of the decoder, and of both."""
    model, args, kwargs = MODELS["t5"][0]()
    pipe = pipeline(model, args, kwargs, dict.fromkeys(points, BEGINNING))

    assert len(points) + 1 == pipe.num_stages
    assert equal(model(*args, **kwargs), pipe(*args, **kwargs))


def test_values_of_every_kind_travel_bit_by_bit():
    """Masks, large integers, layouts and skip connections cross several stages without a change."""
    model, args, kwargs = skips()
    pipe = pipeline(model, args, kwargs, dict.fromkeys(("second", "third", "fourth"), BEGINNING))
    seen = [[traveller.dtype for traveller in pipe.get_stage_module(i).route.received] for i in range(4)]

    assert equal(model(*args, **kwargs), pipe(*args, **kwargs))
    assert torch.bool in seen[3]
    assert torch.int64 in seen[3]


def test_each_value_a_stage_receives_gets_a_gradient():
    """Schedules send a gradient back for whatever came; what is not used gets zeros."""
    model, args, kwargs = skips()
    pipe = pipeline(model, args, kwargs, dict.fromkeys(("second", "third", "fourth"), BEGINNING))
    values = pipe.get_stage_module(0)(*args, **kwargs)
    received = tuple(value.detach().requires_grad_() for value in values)
    sent = pipe.get_stage_module(1)(*received)
    sum(value.sum() for value in sent if value.requires_grad).backward()

    assert all(value.grad is not None for value in received)
    assert any(not value.grad.any() for value in received)


def test_what_is_repeated_is_sent_once_and_laid_out_as_before():
    """A mask that ``expand`` made arrives with its strides, on which kernels may depend; so does a transpose."""

    class Repeating(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            wide, turned = x[:1].exp().expand(3, -1), self.first(x).t()
            y = self.second(x)
            return wide, turned, y.t() @ y

    model, x = Repeating(), torch.randn(5, 4)
    pipe = pipeline(model, (x,), None, {"second": BEGINNING})
    sent = pipe.get_stage_module(0)(x)
    expected, found = model(x), pipe(x)

    assert [(4, 1), (5, 4), (5, 4)] == sorted(tuple(value.shape) for value in sent)
    assert [value.stride() for value in expected] == [value.stride() for value in found]
    assert all(map(torch.equal, expected, found))


def test_what_has_no_gradient_in_the_model_has_none_in_a_stage():
    """Some operators refuse inputs that require a gradient, as a sum of counts into integers does."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.first(x)
            counts = torch.histc(y.argmax(1).float(), bins=4)
            return self.second(y) * counts.cumsum(0, dtype=torch.int32)

    model = Counting()
    pipe = pipeline(model, (X,), None, {"second": BEGINNING})

    assert torch.equal(model(X), pipe(X))


def test_gradients_are_the_model_s():
    """A backward through all stages gives the gradients of the unsplit model."""
    model, args, kwargs = tied_llama()
    model.train()
    model(*args, **kwargs).logits.square().mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    pipe = pipeline(model, args, kwargs, {"model.layers.2": BEGINNING})
    pipe(*args, **kwargs).logits.square().mean().backward()

    for name, parameter in model.named_parameters():
        torch.testing.assert_close(expected[name], parameter.grad)


def test_dropout_draws_what_the_model_draws():
    """Random operators keep their order, so that the same seed gives the same numbers."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4), nn.Dropout()).train()
    pipe = pipeline(model, (X,), None, {"2": BEGINNING})
    torch.manual_seed(1)
    expected = model(X)
    torch.manual_seed(1)

    assert torch.equal(expected, pipe(X))


def test_batch_norm_in_training_writes_the_model_s_buffers():
    """Buffers that a stage writes are the model's own, as they are when the model runs."""
    model, args, kwargs = residual_net()
    model.train()
    other = copy.deepcopy(model)
    pipe = pipeline(model, args, kwargs, dict.fromkeys(("layers.1", "layers.2", "layers.3"), BEGINNING))
    before = copy.deepcopy(model.state_dict())
    for _ in range(3):
        assert torch.equal(other(*args), pipe(*args))
    states = {name: value for i in range(4) for name, value in pipe.get_stage_module(i).state_dict().items()}
    assert all(torch.equal(value, states[name]) for name, value in other.state_dict().items())
    assert not torch.equal(before["bn1.running_mean"], states["bn1.running_mean"])


def test_the_caller_s_module_is_left_as_it_was():
    """Neither pipeline() nor annotate_split_points() adds a hook, a forward or an attribute."""
    model = Chain()
    before = [{key: copy.copy(value) for key, value in vars(part).items()} for part in model.modules()]
    annotate_split_points(model, {"layers.2": BEGINNING})
    pipe = pipeline(model, (X,))

    assert 2 == pipe.num_stages
    assert before == [vars(part) for part in model.modules()]
    assert torch.equal(model(X), pipe(X))


def test_pipe_split_in_a_forward_begins_a_stage():
    """The marker does nothing in eager mode and survives torch.export."""

    class Marked(nn.Sequential):
        def forward(self, x):
            for layer in self:
                x = layer(x)
                pipe_split()
            return x + 1

    model = Marked(nn.Linear(4, 4), nn.Linear(4, 4))
    pipe = pipeline(model, (X,))

    assert 3 == pipe.num_stages
    assert torch.equal(model(X), pipe(X))


def test_each_module_of_a_pipe_sequential_is_a_stage():
    """The compatible face of a sequential model."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    pipe = pipeline(PipeSequential.from_sequential(model), (X,))

    assert 3 == pipe.num_stages
    assert torch.equal(model(X), pipe(X))


def test_a_stage_that_needs_nothing_from_the_one_before():
    """The last stage takes no tensors and is not mistaken for the first."""

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.first(x)
            pipe_split()
            return self.second(torch.ones(2, 4)), y.shape[0]

    model = Apart()
    pipe = pipeline(model, (X,))

    assert equal(model(X), pipe(X))


def test_a_split_policy_marks_the_graph():
    """A policy gets the captured graph and puts markers into it."""
    pipe_split()

    def before_each_relu(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[1:]:
            with graph_module.graph.inserting_before(node):
                graph_module.graph.call_function(torch.ops.fxpasses.pipe_split.default)
        return graph_module

    model = Chain()
    pipe = pipeline(model, (X,), split_policy=before_each_relu)

    assert 4 == pipe.num_stages
    assert torch.equal(model(X), pipe(X))


@pytest.mark.parametrize(
    "marker",
    [
        lambda: pipe_split,
        lambda: torch.ops.fxpasses.pipe_split,
        lambda: torch.ops.fxpasses.pipe_split.default,
        lambda: torch_pipelining().pipe_split,
        lambda: torch_pipelining() and torch.ops.pippy._pipe_split,
        lambda: torch_pipelining() and torch.ops.pippy._pipe_split.default,
    ],
)
def test_a_policy_may_write_every_marker(marker):
    """Our function and operator, torch's function and operator, with and without the overload."""

    def before_the_last(graph_module):
        with graph_module.graph.inserting_before(graph_module.graph.output_node().all_input_nodes[0]):
            graph_module.graph.call_function(marker(), ())
        return graph_module

    model = Chain()
    pipe = pipeline(model, (X,), split_policy=before_the_last)

    assert 2 == pipe.num_stages
    assert torch.equal(model(X), pipe(X))


def torch_pipelining():
    """Imported where it is used, as it is heavy."""
    import torch.distributed.pipelining

    return torch.distributed.pipelining


def test_a_marker_that_a_policy_wrote_is_no_dead_code():
    """The function stays when the policy cleans the graph up."""

    def marked_and_cleaned(graph_module):
        with graph_module.graph.inserting_before(graph_module.graph.output_node().all_input_nodes[0]):
            graph_module.graph.call_function(pipe_split, ())
        graph_module.graph.eliminate_dead_code()
        return graph_module

    assert 2 == pipeline(Chain(), (X,), split_policy=marked_and_cleaned).num_stages


def test_a_policy_that_marks_nothing_is_told_so():
    """One stage is what there is without a marker, and the warning says which markers count."""
    message = (
        "The split policy put no marker into the graph, and so there is one stage. Markers are calls of "
        "fxpasses.pipelining.pipe_split and of torch.ops.fxpasses.pipe_split."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$") as seen:
        pipe = pipeline(Chain(), (X,), split_policy=lambda graph_module: graph_module)

    assert 1 == pipe.num_stages
    assert __file__ == seen[0].filename


def test_torch_s_split_points_are_told_apart():
    """They print as ours do, and the message asked for what was there."""
    torchs = pytest.importorskip("torch.distributed.pipelining").SplitPoint
    with pytest.raises(StageError, match=r"or SplitPoint\.END of fxpasses\.pipelining: torch's is another$"):
        annotate_split_points(Chain(), {"layers.1": torchs.BEGINNING})


def test_torch_s_exceptions_are_caught_as_before():
    """An ``except`` clause that was written for torch's pipelining catches our errors."""
    pipe = pipeline(Chain(), (X,), split_spec={"layers.1": END})
    with pytest.raises(ValueError, match="there is no stage 9"):
        pipe.get_stage_module(9)
    with pytest.raises(ValueError, match="not both"):
        pipeline(Chain(), (X,), split_spec={"layers.1": END}, split_policy=lambda graph: graph)
    with pytest.raises(AttributeError, match="names no module"):
        pipeline(Chain(), (X,), split_spec={"layer.2": END})
    with pytest.raises(ValueError, match=r"write SplitPoint\.BEGINNING"):
        annotate_split_points(Chain(), {"layers.1": "before"})


def test_end_of_one_and_beginning_of_the_next_is_one_cut():
    """Split points at the same place count once."""
    pipe = pipeline(Chain(), (X,), split_spec={"layers.1": BEGINNING, "layers.0": END})

    assert 3 == pipe.num_stages  # the relu between them is a stage of its own


def test_a_stage_holds_its_own_state_under_the_model_s_names():
    """A full checkpoint loads into the stages, and the stages' states make a full checkpoint (complaint 25)."""
    model, args, kwargs = tied_llama()
    pipe = pipeline(model, args, kwargs, {"model.layers.2": BEGINNING})
    full = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
    stages = [pipe.get_stage_module(index) for index in range(2)]
    for stage in stages:
        stage.load_state_dict({name: full[name] for name in stage.state_dict()})
    union = {name: value for stage in stages for name, value in stage.state_dict().items()}

    assert set(union) == set(model.state_dict())
    assert all(torch.equal(full[name], value) for name, value in union.items())
    assert not any(name.startswith("model.layers.0") for name in stages[1].state_dict())
    assert [{"submod_pp_0": "lm_head.weight", "submod_pp_1": "lm_head.weight"}] == pipe.replicated_params


def test_moving_a_stage_moves_what_it_runs_with():
    """The stage and its part share parameters and buffers, so that ``to`` reaches both."""
    model, args, kwargs = llama()
    stage = pipeline(model.double(), args, kwargs, {"model.layers.2": BEGINNING}).get_stage_module(1)
    stage.to(torch.float16)

    assert {torch.float16} == {parameter.dtype for parameter in stage.part.parameters()}


def test_info_says_what_a_pipe_is(capsys):
    """The parts of the compatible face."""
    pipe = pipeline(Chain(), (X,), split_spec={"layers.1": BEGINNING})
    pipe.print_readable()

    assert PipeInfo(pipe.split_gm.graph, 2, False) == pipe.info()
    assert pipe.loss_spec is None
    assert not pipe.has_loss_and_backward
    assert [] == pipe.replicated_params
    assert "submod_pp_1" in capsys.readouterr().out
    assert "Pipe(2 stages: 0 values in, 20 parameters, 1 values in, 60 parameters)" == repr(pipe)


def test_without_split_points_there_is_one_stage():
    """A pipe of one stage takes and gives what the model does."""
    model, args, kwargs = skips()
    pipe = pipeline(model, args, kwargs)

    assert 1 == pipe.num_stages
    assert equal(model(*args, **kwargs), pipe(*args, **kwargs))


def test_complaint_26_the_automatic_cut_is_balanced():
    """Complaint 26: equal layers are shared out equally, and devices with budgets are respected."""
    pipe = pipeline(Chain(8), (X,), split_spec="auto", num_stages=4)
    limited = pipeline(Chain(8), (X,), split_spec="auto", devices=[Device("a", 1024), Device("b", 1024)])

    assert [40] * 4 == [sum(p.numel() for p in pipe.get_stage_module(i).parameters()) for i in range(4)]
    assert torch.equal(limited(X), Chain.forward(limited_model(limited), X))


def limited_model(pipe):
    model = Chain(8)
    state = {name: value for i in range(2) for name, value in pipe.get_stage_module(i).state_dict().items()}
    model.load_state_dict(state)
    return model


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.relu(self.layer(x)))


class SharedBlock(nn.Module):
    """A block that runs twice, with a layer inside."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        return self.block(self.block(x))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.second(self.first(x)) + 1


class Refusing(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


BAD = {
    "no such module": (
        lambda: pipeline(Chain(), (X,), split_spec={"layer.2": BEGINNING}),
        "the split point 'layer.2' names no module of Chain; the nearest names are 'layers.2', 'layers.3', 'layers.1'",
    ),
    "no such module of a program": (
        lambda: pipeline(capture(Chain(), (X,)), split_spec={"layer.2": BEGINNING}),
        "the split point 'layer.2' names no module of ExportedProgram; the nearest names are 'layers.2', 'layers.3', "
        "'layers.1'",
    ),
    "nothing near": (
        lambda: pipeline(Chain(), (X,), split_spec={"qqq": BEGINNING}),
        "the split point 'qqq' names no module of Chain; no name comes near",
    ),
    "no split point": (
        lambda: annotate_split_points(Chain(), {"layers.1": "before"}),
        "the split point 'layers.1' is 'before'; write SplitPoint.BEGINNING or SplitPoint.END",
    ),
    "both": (
        lambda: pipeline(Chain(), (X,), split_spec={"layers.1": END}, split_policy=lambda graph: graph),
        "pipeline() takes split_spec or split_policy, not both; they would cut twice",
    ),
    "called twice": (
        lambda: pipeline(Twice(), (X,), split_spec={"layer": END}),
        "the split point 'layer' runs 2 times, and so a cut there is no single place; "
        "call pipe_split() in the forward instead",
    ),
    "inside a shared module": (
        lambda: pipeline(SharedBlock(), (X,), split_spec={"block.1": BEGINNING}),
        "the split point 'block.1' runs 2 times, and so a cut there is no single place; "
        "call pipe_split() in the forward instead",
    ),
    "no process group": (
        lambda: pipeline(Chain(), (X,), split_spec={"layers.1": END}).build_stage(1, "cpu"),
        "there is no process group; start the script with torchrun and call torch.distributed.init_process_group()",
    ),
    "index of a running stage": (
        lambda: pipeline(Chain(), (X,), split_spec={"layers.1": END}).build_stage(-1, "cpu"),
        "there is no stage -1; the stages are 0 to 1",
    ),
    "never called": (
        lambda: pipeline(Twice(), (X,), split_spec={"unused": END}),
        "the split point 'unused' runs no operator of its own in the graph; cut at the module around it",
    ),
    "before everything": (
        lambda: pipeline(Chain(), (X,), split_spec={"layers.0": BEGINNING}),
        "a split point lies before the first operator of the model, and so one stage would be empty",
    ),
    "too many": (
        lambda: pipeline(Chain(1), (X,), split_spec="auto", num_stages=9),
        "the model has 2 operators and cannot be cut into 9 stages",
    ),
    "no number": (
        lambda: pipeline(Chain(), (X,), split_spec="auto"),
        'split_spec="auto" needs num_stages, a number from 1 on, or devices; not None',
    ),
    "a number for nothing": (
        lambda: pipeline(Chain(), (X,), num_stages=2),
        'num_stages is for split_spec="auto"; split points say themselves how many',
    ),
    "another word": (
        lambda: pipeline(Chain(), (X,), split_spec="even"),
        "split_spec is a dict of split points or \"auto\", not 'even'",
    ),
    "a list": (
        lambda: pipeline(Chain(), (X,), split_spec=["layers.1"]),
        "split_spec is a dict of split points or \"auto\", not ['layers.1']",
    ),
    "index": (
        lambda: pipeline(Chain(), (X,), split_spec={"layers.1": END}).get_stage_module(2),
        "there is no stage 2; the stages are 0 to 1",
    ),
    "no spec to annotate": (
        lambda: annotate_split_points(Chain(), None),
        "annotate_split_points takes a model and a dict of split points by the names of its modules, not Chain and "
        "NoneType",
    ),
    "a policy that is no function": (
        lambda: pipeline(Chain(), (X,), split_policy=3),
        "split_policy is 3; give a function that puts pipe_split calls into the graph module it gets, and gives that "
        "back",
    ),
    "policy": (
        lambda: pipeline(Chain(), (X,), split_policy=lambda graph: None),
        "the split policy gave back a NoneType; it must put pipe_split calls into the graph module it gets, "
        "and give that back",
    ),
}


@pytest.mark.parametrize(("name", "why"), [("in", "which torch cannot write"), ("graph", "and so is something that")])
def test_a_name_of_which_torch_makes_no_graph_is_refused(name, why):
    """A ``ModuleDict`` with ``in`` and ``out`` gave a syntax error in generated code."""
    model = nn.Sequential()
    model.add_module(name, nn.Linear(4, 4))

    with pytest.raises(CaptureError, match=f"^The model has a module, parameter or buffer called '{name}', {why}"):
        pipeline(model, (torch.ones(2, 4),))


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name):
    """What is wrong, where, and what to do."""
    call, message = BAD[name]
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        call()


def test_a_cut_before_an_in_place_write_is_refused():
    """Stages do not share memory; the message names both sides."""
    with pytest.raises(
        StageError, match=r"relu_.* writes in place to what stage 0 holds \(linear\), but runs in stage 1"
    ):
        pipeline(InPlace(), (X,), split_spec={"first": END})


def test_what_export_refuses_is_a_capture_error():
    """The user's own line is in the message."""
    with pytest.raises(CaptureError, match=r"return x \+ 1 if x\.sum\(\) > 0 else x"):
        pipeline(Refusing(), (X,))


def test_another_shape_is_refused_in_words():
    """Micro-batches have one shape; values between stages are counted."""
    pipe = pipeline(Chain(), (X,), split_spec={"layers.1": END})
    with pytest.raises(ValueError, match=r"^The input 'x' has shape \(3, 4\), but the model was captured for \(2, 4\)"):
        pipe(torch.ones(3, 4))
    with pytest.raises(StageError, match=r"^the stage takes 1 tensors from the one before \(linear_1\), but 0 came$"):
        pipe.get_stage_module(1)()


def test_a_copy_of_a_stage_stands_on_its_own():
    """``deepcopy`` keeps a stage and its part together."""
    stage = pipeline(Chain(), (X,), split_spec={"layers.2": BEGINNING}).get_stage_module(0)
    other = copy.deepcopy(stage)
    other.load_state_dict({name: torch.zeros_like(value) for name, value in stage.state_dict().items()})

    assert not any(value.any() for value in other(X))
    assert any(value.any() for value in stage(X))


class Shifted(nn.Module):
    """A buffer at the top, which torch moves by putting another in its place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return self.second(self.first(x) + self.shift)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda stage: pickle.loads(pickle.dumps(stage))])
def test_a_copy_of_a_stage_is_moved_as_a_whole(copied):
    """What it runs with has the tables of the stage, in a copy, too."""
    model, x = Shifted(), torch.ones(2, 4)
    stage = copied(pipeline(model, (x,), None, {"second": BEGINNING}).get_stage_module(0)).double()

    assert all(value.dtype == torch.float64 for value in stage.part.state_dict().values())
    assert stage.part.get_buffer("shift") is stage.get_buffer("shift")


def test_a_pipe_can_be_copied_and_put_into_another_mode():
    """As torch's can; operators keep the mode in which they were captured."""
    model, x = Shifted(), torch.ones(2, 4)
    pipe = pipeline(model, (x,), None, {"second": BEGINNING})
    other = copy.deepcopy(pipe)
    other.eval()
    other.train()
    other(x).sum().backward()

    assert torch.equal(model(x), other(x))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert other.get_stage_module(1).part is other.split_gm.get_submodule("submod_pp_1")
    assert other.info().num_stages == 2


def test_state_that_nothing_uses_is_in_a_stage_too():
    """A batch norm in eval mode does not use its counter, which a checkpoint has all the same."""
    model, args, _ = residual_net()
    pipe = pipeline(model, args, None, {"layers.1": BEGINNING, "layers.3": BEGINNING})
    states = [set(pipe.get_stage_module(index).state_dict()) for index in range(3)]

    assert set(model.state_dict()) == set.union(*states)
    assert "layers.1.0.bn1.num_batches_tracked" in states[1]


def test_a_stage_on_another_kind_of_device_is_refused():
    """Exported graphs name the device that they were captured on."""
    pipe = pipeline(Chain(), (X,), split_spec={"layers.2": BEGINNING})
    message = (
        "the model was captured on cpu, and a stage was asked for on meta; "
        "move the model and its inputs there before calling pipeline()"
    )
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        pipe.build_stage(0, "meta")


def test_a_buffer_that_one_stage_writes_is_not_read_by_another():
    """Each process has its own copy of a buffer."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return self.second(torch.relu(self.first(x) + self.count)) * self.count

    with pytest.raises(
        StageError, match=r"^mul.* in stage 1 reads a buffer that add_ writes in stage 0; move the split"
    ):
        pipeline(Counting(), (X,), split_spec={"second": BEGINNING})


@pytest.mark.parametrize("name", ["contract", "out_spec", "part", "route", "aliases"])
def test_a_model_may_call_its_layers_as_a_stage_calls_what_it_needs(name):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Linear(4, 4))
            self.last = nn.Linear(4, 4)
            self.last.weight = getattr(self, name).weight

        def forward(self, x):
            return self.last(getattr(self, name)(x))

    model = Named()
    pipe = pipeline(model, (X,), split_spec={"last": BEGINNING})

    torch.testing.assert_close(pipe(X), model(X))
    assert {f"{name}.weight", f"{name}.bias", "last.weight"} == set(pipe.get_stage_module(0).state_dict())


def test_outputs_of_micro_batches_are_merged_whatever_they_are():
    chunks = [{"rows": torch.full((2, 1), float(n)), "loss": torch.tensor(n), "same": 3, "each": n} for n in range(3)]

    merged = merge_outputs(chunks)

    assert [0.0, 0.0, 1.0, 1.0, 2.0, 2.0] == merged["rows"].flatten().tolist()
    assert [0, 1, 2] == merged["loss"].tolist()
    assert 3 == merged["same"]
    assert [0, 1, 2] == merged["each"]


class Weights(nn.Module):
    """Two stages; in the second the weight meets the input in a way of its own."""

    def __init__(self, use, trained=True):
        super().__init__()
        self.first, self.weight, self.use = nn.Linear(4, 4), nn.Parameter(torch.eye(4), requires_grad=trained), use

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.use(x, self.weight)


@pytest.mark.parametrize(
    ("use", "is_once"),
    [
        (lambda x, weight: x @ weight, True),
        (lambda x, weight: x @ weight.t().exp(), True),
        (lambda x, weight: (x @ weight).sin() @ weight, False),
        (lambda x, weight: (lambda made: (x @ made).sin() @ made)(weight.exp()), False),
    ],
)
def test_whether_a_backward_can_be_taken_apart_is_seen_in_what_uses_weights(use, is_once):
    pipe = pipeline(Weights(use), (X,), None, {"first": SplitPoint.END})
    frozen = pipeline(Weights(use, trained=False), (X,), None, {"first": SplitPoint.END})

    assert [True, is_once] == [uses_weights_once(pipe.get_stage_module(index)) for index in range(2)]
    assert uses_weights_once(frozen.get_stage_module(1))
    [first, second] = [figures.cost(1.0, 2.0) for figures in stage_figures(pipe)]
    assert 1.0 == first.backward_weights == first.backward_inputs
    assert ((1.0, 1.0) if is_once else (2.0, 0.0)) == (second.backward_inputs, second.backward_weights)
