"""Stages in processes of their own: tied weights, sent parameters, batches of any size, checkpoints."""

import warnings

import pytest
import torch
from pipeline_models import tied_llama
from pipeline_processes import run_in_processes
from torch import nn
from torch.nn import functional

from fxpasses import StageError
from fxpasses.pipelining import (
    MultiUseParameterConfig,
    SplitPoint,
    TrivialLossWrapper,
    build_schedule,
    parameters_on_meta,
    pipeline,
)

BEGINNING = SplitPoint.BEGINNING
TRANSMIT, REPLICATE = MultiUseParameterConfig.TRANSMIT, MultiUseParameterConfig.REPLICATE
MICRO_BATCHES, STEPS = 4, 3


class TiedModel(nn.Module):
    """An embedding that is the head too, with a table that is no parameter and a counter that learns."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(8.0).cos(), persistent=False)

    def forward(self, ids):
        x = self.embed(ids) + self.table
        for layer in self.layers:
            x = torch.relu(layer(x)) + self.table
        return self.head(self.norm(x.flatten(0, 1)).unflatten(0, ids.shape))


def tied_model():
    torch.manual_seed(0)
    return TiedModel().double().train()  # sums of any order are the same to ten digits


def loss_of(output, target):
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch(rows, width=8, values=16):
    ids = torch.arange(rows * width).reshape(rows, width) * 7 % values
    return ids, ids.roll(1, dims=1)


def optimizer_of(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train_here(model, *batches):
    """Gradients of each step under all names, and the last state."""
    optimizer, gradients, losses = optimizer_of(model.parameters()), [], []
    for ids, target in batches * STEPS if len(batches) == 1 else batches:
        optimizer.zero_grad()
        for part, wanted in zip(ids.tensor_split(MICRO_BATCHES), target.tensor_split(MICRO_BATCHES), strict=True):
            loss = loss_of(model(part), wanted)
            (loss / MICRO_BATCHES).backward()
            losses.append(loss.item())
        named = model.named_parameters(remove_duplicate=False)
        gradients.append({key: value.grad.clone() for key, value in named})
        optimizer.step()
    return gradients, dict(model.state_dict()), losses


def train_stages(rank, pipe, *batches, ranks=2, resize=False):
    """The same on this rank's stages."""
    from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B

    stages = [pipe.build_stage(index, "cpu") for index in range(rank, pipe.num_stages, ranks)]
    several = pipe.num_stages > ranks
    kind = ScheduleInterleaved1F1B if several else Schedule1F1B
    schedule = kind(stages if several else stages[0], MICRO_BATCHES, loss_fn=loss_of)
    tied = pipe.tie_parameters(stages)
    modules = [stage.submod for stage in stages]
    parameters = dict.fromkeys(value for module in modules for value in module.parameters())
    optimizer, gradients, losses = optimizer_of(parameters), [], []
    for ids, target in batches * STEPS if len(batches) == 1 else batches:
        optimizer.zero_grad()
        for stage in stages if resize else ():
            stage.expect_batch(len(ids))
        found = []
        last = any(stage.is_last for stage in stages)
        schedule.step(*([ids] if rank == 0 else []), **({"target": target, "losses": found} if last else {}))
        tied.synchronize_gradients()
        losses += [loss.item() for loss in found]
        named = {key: value.grad for module in modules for key, value in module.named_parameters()}
        gradients.append({key: value.clone() for key, value in named.items() if value is not None})
        optimizer.step()
    state = {key: value for module in modules for key, value in module.state_dict().items()}
    return {"gradients": gradients, "state": state, "losses": losses, "tied": tied, "stages": stages}


def plain(found):
    return {key: found[key] for key in ("gradients", "state", "losses")} | {"names": found["tied"].names}


def check(expected, found):
    gradients, state, losses = expected
    torch.testing.assert_close(losses, [loss for rank in found for loss in rank["losses"]], rtol=1e-4, atol=1e-5)
    for step in range(STEPS):
        assert set(gradients[step]) >= {key for rank in found for key in rank["gradients"][step]}
        for rank in found:  # every copy has the sum
            for key, value in rank["gradients"][step].items():
                torch.testing.assert_close(gradients[step][key], value, rtol=1e-3, atol=1e-6)
    for rank in found:
        for key, value in rank["state"].items():
            torch.testing.assert_close(state[key], value, rtol=1e-3, atol=1e-5)
    assert set(state) == {key for rank in found for key in rank["state"]}


def refused(call):
    with pytest.raises(StageError) as caught:
        call()
    return str(caught.value)


# --- what two processes do -----------------------------------------------------------------------------------------


def on_two_ranks(rank, folder):
    found = {}
    for spec in (REPLICATE, TRANSMIT):
        found["llama", spec] = plain(train_llama(rank, spec))
    found["dynamic"], found["errors"] = batches_of_any_size(rank)
    found["saved"] = checkpoints(rank, folder)
    found["own loss"] = own_loss(rank)
    for name in ("interleaved", "zero-bubble"):
        found[name] = sent_parameters(name)
    for name in ("1f1b", "zero-bubble", "zbv"):
        found["shared", name] = shared_layers(name)
    found["loss by schedule"] = loss_by_schedule()
    for name in ("1f1b", "loopedbfs"):
        found["masked", name] = masked(name)
    return found


class Masked(nn.Module):
    """A mask between positions, which has no batch, and one of each row."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, between, *, rows):
        for layer in self.layers:
            x = between @ layer(x) * rows
        return x


def masked_model():
    torch.manual_seed(0)
    return Masked().double(), torch.randn(8, 3, 4).double(), torch.randn(3, 3).double(), torch.randn(8, 1, 1).double()


def masked(name):
    from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate

    model, x, between, rows = masked_model()
    cuts = [2] if name == "1f1b" else [1, 2, 3]
    spec = {f"layers.{number}": BEGINNING for number in cuts}
    pipe = pipeline(model, (x[:2], between), {"rows": rows[:2]}, spec)
    specs = {
        "args_chunk_spec": (TensorChunkSpec(0), _Replicate()),
        "kwargs_chunk_spec": {"rows": TensorChunkSpec(0)},
    }
    part = build_schedule(pipe, name, num_microbatches=MICRO_BATCHES, loss_fn=functional.mse_loss, **specs)
    part.step(x, between, rows=rows, target=x)
    refusal = refused(lambda: build_schedule(pipe, name, num_microbatches=MICRO_BATCHES, chunks=3))
    return refusal, {key: value.grad for module in part.modules for key, value in module.named_parameters()}


class SharedLayers(nn.Module):
    """Two layers that are called over and over, as ALBERT's are, and an output that the last stage uses again."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        for _ in range(8):
            x = x + self.second(self.first(x).relu())
        return {"logits": self.head(x), "hidden": x, "count": 3}


def shared_model():
    torch.manual_seed(0)
    return SharedLayers().double(), torch.randn(8, 8, dtype=torch.float64)


def of_both(output, target):
    return functional.mse_loss(output["logits"], target) + output["hidden"].square().mean()


def shared_layers(name):
    model, x = shared_model()
    pipe = pipeline(model, (x[:2],), split_spec="auto", num_stages=2 if name == "1f1b" else 4)
    part = build_schedule(pipe, name, num_microbatches=MICRO_BATCHES, loss_fn=of_both)
    output = part.step(x, target=x[:, :4])
    return output, [{key: value.grad for key, value in module.named_parameters()} for module in part.modules]


def loss_by_schedule():
    """The model computes its loss, and a number for each micro-batch is what the schedule returns."""
    model, x, wanted = model_with_loss()
    pipe = pipeline(model, (x[:2], wanted[:2]), None, {"module.1": BEGINNING})
    part = build_schedule(pipe, "1f1b", num_microbatches=MICRO_BATCHES, loss_fn=pipe.loss_fn)
    output = part.step(x, wanted, target=wanted)
    return output, {key: value.grad for key, value in part.modules[0].named_parameters()}


def sent_parameters(name):
    """Four stages on two ranks, of which one sends its weight to the last."""
    cuts = dict.fromkeys(("layers.0", "layers.1", "norm"), BEGINNING)
    pipe = pipeline(tied_model(), (batch(2)[0],), None, cuts, multi_use_param_spec=TRANSMIT)
    part = build_schedule(pipe, name, num_microbatches=MICRO_BATCHES, loss_fn=loss_of)
    optimizer, gradients, losses = optimizer_of(part.parameters()), [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        ids, target = batch(8)
        found = []
        part.step(ids, target=target, losses=found)
        losses += [loss.item() for loss in found]
        named = {key: value.grad for module in part.modules for key, value in module.named_parameters()}
        gradients.append({key: value.clone() for key, value in named.items() if value is not None})
        optimizer.step()
    return {"gradients": gradients, "state": dict(part.state_dict()), "losses": losses}


def train_llama(rank, spec):
    model, _, kwargs = tied_llama()
    pipe = pipeline(model, (kwargs["input_ids"],), None, {"model.layers.2": BEGINNING}, multi_use_param_spec=spec)
    return train_stages(rank, pipe, batch(8, values=64))


def batches_of_any_size(rank):
    model = tied_model()
    pipe = pipeline(model, (batch(3)[0],), None, {"layers.1": BEGINNING}, dynamic_shapes="batch")
    trained = train_stages(rank, pipe, batch(10), batch(7), batch(12), resize=True)
    errors = {"twice": refused(trained["tied"].synchronize_gradients)}
    stage = trained["stages"][0]
    errors["few"] = refused(lambda: stage.expect_batch(3))
    if rank == 0:
        chunk = batch(5)[0]
        errors["other"] = refused(lambda: stage.forward_one_chunk(1, (chunk,)))
        fixed = pipeline(model, (batch(3)[0],), None, {"layers.1": BEGINNING}).build_stage(0, "cpu")
        errors["fixed"] = refused(lambda: fixed.forward_one_chunk(2, (chunk,)))
        errors["no batch"] = refused(lambda: fixed.expect_batch(10))
    return plain(trained), errors


def checkpoints(rank, folder):
    """Each rank makes its own stage of a model on meta, saves it, and loads it back."""
    import torch.distributed.checkpoint as dcp

    full = tied_model().state_dict()
    with parameters_on_meta():
        empty = TiedModel().double()
    pipe = pipeline(empty, (batch(2)[0],), None, {"layers.1": BEGINNING})
    stage = pipe.materialize(rank, "cpu", full)
    dcp.save({"model": stage.state_dict()}, checkpoint_id=f"{folder}/checkpoint")
    state = {"model": {key: torch.zeros_like(value) for key, value in stage.state_dict().items()}}
    dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
    stage.load_state_dict(state["model"])
    real = {key: value for key, value in pipe.named_parameters() if value.device.type != "meta"}
    size = sum(value.numel() for value in real.values())
    loaded = {key: value.clone() for key, value in stage.state_dict().items()}
    return loaded, size, plain(train_stages(rank, pipe, batch(8)))


def model_with_loss():
    """A model that computes its loss, and what it takes."""
    torch.manual_seed(0)
    model = TrivialLossWrapper(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.MSELoss())
    return model, torch.ones(8, 4), torch.zeros(8, 4)


def own_gradients():
    """Its loss, and the gradients of its parameters, in this process."""
    model, *inputs = model_with_loss()
    loss = model(*inputs)
    loss.backward()
    return loss, {key: value.grad for key, value in model.named_parameters()}


def own_loss(rank):
    """The model computes its loss; the schedule's target is not looked at."""
    from torch.distributed.pipelining import ScheduleGPipe

    model, x, wanted = model_with_loss()
    pipe = pipeline(model, (x[:2], wanted[:2]), None, {"module.1": BEGINNING})
    stage = pipe.build_stage(rank, "cpu")
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=pipe.loss_fn)
    losses = []
    schedule.step(
        *([x, wanted] if rank == 0 else []), **({"target": x, "losses": losses} if rank else {}), return_outputs=False
    )
    return [loss.item() for loss in losses], {key: value.grad for key, value in stage.submod.named_parameters()}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("two")
    return [*run_in_processes(on_two_ranks, 2, folder, str(folder)), folder]


@pytest.mark.slow
@pytest.mark.parametrize("spec", [REPLICATE, TRANSMIT])
def test_complaint_25_a_tied_llama_learns_as_in_one_process(two, spec):
    """Complaint 25: gradients of both copies are the model's, or the one that sends its value gets both."""
    model, _, _ = tied_llama()
    found = [rank["llama", spec] for rank in two[:2]]

    check(train_here(model, batch(8, values=64)), found)
    assert [["lm_head.weight"]] * 2 if spec is REPLICATE else [[], []] == [rank["names"] for rank in found]
    held = [rank["state"]["lm_head.weight"] for rank in found if "lm_head.weight" in rank["state"]]
    assert (2 if spec is REPLICATE else 1) == len(held)
    assert torch.equal(held[0], held[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interleaved", "zero-bubble"])
def test_a_sent_parameter_learns_under_every_kind_of_schedule(two, name):
    """Four stages on two ranks; a backward in halves, too."""
    check(train_here(tied_model(), batch(8)), [rank[name] for rank in two[:2]])


@pytest.mark.slow
def test_a_batch_of_another_size_is_cut_unevenly(two):
    """10, 7 and 12 rows in 4 micro-batches of a model that was captured with 3."""
    check(train_here(tied_model(), batch(10), batch(7), batch(12)), [rank["dynamic"] for rank in two[:2]])


@pytest.mark.slow
def test_what_does_not_fit_is_said_before_anything_is_sent(two):
    """The value, both shapes, and what to do."""
    first, second = (rank["errors"] for rank in two[:2])

    assert (
        "the gradients of 'head.weight' are added up already and would count twice; call synchronize_gradients() once "
        "after each step, and zero_grad() before the next" == first["twice"] == second["twice"]
    )
    assert "a batch of 3 rows cannot be cut into 4 micro-batches" == first["few"] == second["few"]
    assert (
        "micro-batch 1: the input 'ids' has the shape (5, 8), but the other ranks expect (3, 8); call expect_batch() "
        "with the size of the whole batch on the stages of every rank before this step" == first["other"]
    )
    assert (
        "micro-batch 2 does not fit: The input 'ids' has shape (5, 8), but the model was captured for (3, 8): "
        "dimension 0 is fixed at 3. All micro-batches of a step need the captured sizes: give batches that the number "
        "of micro-batches divides, or call pipeline() with dynamic_shapes" == first["fixed"]
    )
    assert (
        "the model was captured for one batch size; call pipeline() with dynamic_shapes, for example "
        'dynamic_shapes="batch"' == first["no batch"]
    )


@pytest.mark.slow
def test_stages_save_one_checkpoint_that_the_model_loads(two):
    """Saved by two ranks with torch.distributed.checkpoint; no rank held more than its own stage."""
    import torch.distributed.checkpoint as dcp

    expected = tied_model().state_dict()
    states, sizes, _ = zip(*(rank["saved"] for rank in two[:2]), strict=True)
    model = TiedModel().double()
    state = {"model": model.state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that one process loads what two have saved
        dcp.load(state, checkpoint_id=f"{two[2]}/checkpoint", no_dist=True)
    model.load_state_dict(state["model"])

    assert all(torch.equal(value, expected[key]) for held in states for key, value in held.items())
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
    assert (16 * 8 + 72, 16 * 8 + 2 * 72 + 16) == sizes


@pytest.mark.slow
def test_stages_that_were_filled_on_their_own_rank_learn_as_one_model(two):
    """Neither rank ever held the other's stage; the tied weight is kept in step all the same (complaint 25)."""
    found = [rank["saved"][2] for rank in two[:2]]

    check(train_here(tied_model(), batch(8)), found)
    assert [["head.weight"]] * 2 == [rank["names"] for rank in found]


@pytest.mark.slow
def test_a_model_that_computes_its_loss(two):
    """``pipe.loss_fn`` takes it from the output; targets travel to the last stage like any input."""
    loss, expected = own_gradients()
    gradients = {key: value for rank in two[:2] for key, value in rank["own loss"][1].items()}

    torch.testing.assert_close([loss.item()] * 4, two[1]["own loss"][0])
    torch.testing.assert_close(expected, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "zero-bubble", "zbv"])
def test_layers_that_are_called_again_learn_under_a_backward_in_halves(two, name):
    """Torch cannot take the backward apart where a weight is used twice, nor where an output is used again."""
    model, x = shared_model()
    for rows in x.split(2):
        (of_both(model(rows), rows[:, :4]) / MICRO_BATCHES).backward()
    expected = {key: value.grad for key, value in model.named_parameters()}
    held = [module for rank in two[:2] for module in rank["shared", name][1]]

    assert set(expected) == {key for module in held for key in module}
    for found in held:
        torch.testing.assert_close(found, {key: expected[key] for key in found})
    outputs = [rank["shared", name][0] for rank in two[:2] if rank["shared", name][0] is not None]
    torch.testing.assert_close([model(x)], outputs)
    assert not outputs[0]["logits"].requires_grad


@pytest.mark.slow
def test_a_schedule_returns_the_losses_that_a_model_computes(two):
    """One for each micro-batch; gradients are averaged before that."""
    loss, expected = own_gradients()
    gradients = {key: value for rank in two[:2] for key, value in rank["loss by schedule"][1].items()}

    assert two[0]["loss by schedule"][0] is None
    torch.testing.assert_close(loss.detach().expand(4), two[1]["loss by schedule"][0])
    torch.testing.assert_close(expected, gradients)


@pytest.mark.parametrize("name", ["1f1b", "loopedbfs"])
def test_inputs_without_a_batch_are_given_to_each_micro_batch_under_every_schedule(two, name):
    """torch's looped schedule does not take what says so; an option that none takes is refused."""
    model, x, between, rows = masked_model()
    loss = functional.mse_loss(model(x, between, rows=rows), x)
    expected = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, model.parameters()), strict=True))
    gradients = {key: value for rank in two[:2] for key, value in rank["masked", name][1].items()}
    kind = "Schedule1F1B" if name == "1f1b" else "ScheduleLoopedBFS"

    torch.testing.assert_close(expected, {key: gradients[key] for key in expected})
    assert all(rank["masked", name][0].startswith(f"{kind} takes no 'chunks'; its options are ") for rank in two[:2])
    assert all("args_chunk_spec, kwargs_chunk_spec" in rank["masked", name][0] for rank in two[:2])


# --- what three processes do ---------------------------------------------------------------------------------------


def on_three_ranks(rank):
    found = {}
    for name, spec, cuts in (
        ("copied", None, ("layers.1", "layers.2")),
        ("sent", {"embed.weight": TRANSMIT}, ("layers.1", "layers.2")),
        ("several", None, ("layers.0", "layers.1", "layers.2", "norm", "head")),
    ):
        pipe = pipeline(tied_model(), (batch(2)[0],), None, dict.fromkeys(cuts, BEGINNING), multi_use_param_spec=spec)
        found[name] = plain(train_stages(rank, pipe, batch(8), ranks=3))
    two_stages = pipeline(tied_model(), (batch(2)[0],), None, {"norm": BEGINNING})
    found["too few"] = refused(lambda: two_stages.build_stage(rank % 2, "cpu"))
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return run_in_processes(on_three_ranks, 3, tmp_path_factory.mktemp("three"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "holders"), [("copied", [0, 2]), ("sent", []), ("several", [0, 2])])
def test_three_processes_learn_as_one(three, name, holders):
    """Tied weights on the first and the last of three ranks; only they take part in the sum (complaint 25)."""
    found = [rank[name] for rank in three]

    check(train_here(tied_model(), batch(8)), found)
    assert holders == [rank for rank in range(3) if found[rank]["names"]]


@pytest.mark.slow
def test_a_rank_without_a_stage_is_refused(three):
    """How many there are, and the two ways out."""
    ways = "start 2 processes, or cut the model into 3 stages"
    message = f"there are 2 stages for 3 processes, and so 1 would have none; {ways}"

    assert [message] * 3 == [rank["too few"] for rank in three]
