"""Stages on torch's own schedules, in two and three processes over gloo: losses and gradients are one process's."""

import datetime
import functools
import logging
import os
import signal
import time
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pipeline_models import MODELS
from pipeline_processes import START
from torch.nn import functional

from fxpasses.errors import StageError
from fxpasses.pipelining import SplitPoint, build_schedule, pipeline

STEPS, RATE = 3, 0.1
CASES = {  # of so many processes: model, schedule, stages, micro-batches
    2: [
        ("llama", "gpipe", 2, 4),
        ("llama", "1f1b", 2, 4),
        ("llama", "interleaved", 4, 4),
        ("llama", "zero-bubble", 4, 4),
        ("tied_llama", "gpipe", 2, 4),
        ("tied_llama", "1f1b", 2, 4),
        ("tied_llama", "interleaved", 4, 4),
        ("tied_llama", "zbv", 4, 4),
    ],
    3: [
        ("llama", "gpipe", 3, 3),
        ("llama", "1f1b", 3, 5),
        ("llama", "interleaved", 6, 3),
        ("llama", "loopedbfs", 6, 3),
        ("llama", "zero-bubble", 3, 6),
        ("llama", "zbv", 6, 6),
        ("llama", "dualpipev", 6, 6),
        ("gpt2", "1f1b", 3, 3),
        ("gpt2", "interleaved", 6, 3),
        ("mixtral", "gpipe", 3, 3),
        ("mixtral", "interleaved", 6, 3),
        ("t5", "1f1b", 3, 3),
        ("t5", "interleaved", 6, 3),
        ("residual_net", "gpipe", 3, 3),
        ("residual_net", "1f1b", 3, 3),
    ],
}


LAYERS = ["layers.0.post_attention_layernorm", "layers.1", "layers.2", "layers.3", "layers.3.post_attention_layernorm"]
LLAMA = [f"model.{name}" for name in LAYERS]
POINTS = {  # five places to cut at; two, three, four or six stages take some of them
    "llama": LLAMA,
    "tied_llama": LLAMA,
    "mixtral": LLAMA,
    "gpt2": [f"transformer.h.{name}" for name in ("0.mlp", "1", "2", "3", "3.mlp")],
    "t5": ["encoder.block.0.layer.1", "encoder.block.1", "decoder", "decoder.block.1", "decoder.block.1.layer.1"],
}
CHOSEN = {2: [2], 3: [1, 3], 4: [1, 2, 3], 6: range(5)}


def made(name):
    """The model as it is trained: no dropout; for the residual net batch statistics, which magnify what is rounded."""
    model, args, kwargs = MODELS[name][0]()
    if name == "residual_net":
        return model.train().double(), tuple(value.double() for value in args), kwargs
    return model, args, kwargs


def batch(name, count):
    """The inputs and the target of a whole batch."""
    _, args, kwargs = made(name)
    torch.manual_seed(1)

    def longer(value):
        if value.is_floating_point():
            return torch.randn(count * value.shape[0], *value.shape[1:], dtype=value.dtype)
        return (
            torch.randint(1, 64, (count * value.shape[0], *value.shape[1:]))
            if value.max() > 1
            else value.repeat(count, 1)
        )

    args, kwargs = tuple(map(longer, args)), {key: longer(value) for key, value in kwargs.items()}
    if name == "residual_net":
        return args, kwargs, torch.arange(len(args[0])) % 10
    return args, kwargs, kwargs.get("decoder_input_ids", (*args, *kwargs.values())[0]).roll(1, dims=1)


def loss_of(output, target):
    if isinstance(output, torch.Tensor):
        return functional.cross_entropy(output, target)
    return functional.cross_entropy(output.logits.flatten(0, 1), target.flatten())


def update(parameters, scale=1):
    """Plain gradient descent; gives the gradients."""
    gradients = []
    with torch.no_grad():
        for parameter in parameters:
            gradients.append(None if parameter.grad is None else parameter.grad / scale)
            parameter -= 0 if parameter.grad is None else RATE * gradients[-1]
            parameter.grad = None
    return gradients


def train_here(name, count, steps=STEPS):
    """The same steps in one process, one micro-batch after the other."""
    model, _, _ = made(name)
    args, kwargs, target = batch(name, count)
    parts = [value.chunk(count) for value in (*args, *kwargs.values(), target)]
    losses, gradients = [], []
    for _ in range(steps):
        for *values, wanted in zip(*parts, strict=True):
            given = dict(zip(kwargs, values[len(args) :], strict=True))
            loss = loss_of(model(*values[: len(args)], **given), wanted)
            loss.backward()
            losses.append(loss.item())
        held = dict(zip(model.parameters(), update(model.parameters(), count), strict=True))
        gradients.append({key: held[value] for key, value in model.named_parameters(remove_duplicate=False)})
    return losses, gradients, model.state_dict()


@functools.cache
def piped(name, stages):
    """The model in stages, and what its state is at first."""
    model, args, kwargs = made(name)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if name not in POINTS:
        return pipeline(model, args, kwargs, "auto", num_stages=stages), model, state
    spec = {POINTS[name][at]: SplitPoint.BEGINNING for at in CHOSEN[stages]}
    return pipeline(model, args, kwargs, spec), model, state


def train_stages(name, schedule, stages, count):
    """This process's stages on one schedule: losses (where the last stage is), gradients and state."""
    pipe, model, state = piped(name, stages)
    model.load_state_dict(state)
    part = build_schedule(pipe, schedule, num_microbatches=count, loss_fn=loss_of)
    args, kwargs, target = batch(name, count)
    losses, gradients = [], []
    for _ in range(STEPS):
        found = []
        part.step(*args, target=target, losses=found, **kwargs)
        losses += [loss.item() for loss in found]
        names = {value: key for module in part.modules for key, value in module.named_parameters()}
        gradients.append(dict(zip(map(names.get, part.parameters()), update(part.parameters()), strict=True)))
    return losses, gradients, {key: value.clone() for key, value in part.state_dict().items()}


def accumulate(count=4):
    """Two steps without emptying the gradients; of tied parameters, too."""
    pipe, model, state = piped("tied_llama", 2)
    model.load_state_dict(state)
    part = build_schedule(pipe, "1f1b", num_microbatches=count, loss_fn=loss_of)
    args, kwargs, target = batch("tied_llama", count)
    for parameter in part.parameters():
        parameter.grad = None
    for _ in range(2):
        part.step(*args, target=target, **kwargs)
    return {key: value.grad for module in part.modules for key, value in module.named_parameters()}


def evaluate(count=4):
    """The output without a target, and the losses with one."""
    pipe, model, state = piped("llama", 2)
    model.load_state_dict(state)
    part = build_schedule(pipe, "1f1b", num_microbatches=count, loss_fn=loss_of)
    args, kwargs, target = batch("llama", count)
    losses = []
    output = part.eval(*args, **kwargs)
    part.eval(*args, target=target, losses=losses, **kwargs)
    return None if output is None else output.logits, [loss.item() for loss in losses]


def stop_in_the_middle(rank, how):
    """What the ranks tell when rank 1 raises in its second micro-batch, or is killed there."""
    pipe, _, _ = piped("llama", 3)
    part = build_schedule(pipe, "gpipe", num_microbatches=3, loss_fn=loss_of)
    args, kwargs, target = batch("llama", 3)
    calls = iter(range(3))

    def fail(*_):
        if next(calls) == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("out of ideas")

    hook = part.modules[0].register_forward_pre_hook(fail) if rank == 1 else None
    try:
        part.step(*args, target=target, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        if hook is not None:
            hook.remove()
    return None


def refusals(rank):
    """What a rank without a stage is told, and all of them."""
    pipe, _, _ = piped("llama", 2)
    try:
        build_schedule(pipe, "1f1b", num_microbatches=3, loss_fn=loss_of)
    except StageError as error:
        return str(error)


def one_process(rank, ranks, folder):
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
    found = {case: train_stages(*case) for case in CASES[ranks]}
    if ranks == 2:
        found["accumulated"] = accumulate()
        found["evaluated"] = evaluate()
    else:
        found["refused"] = refusals(rank)
    torch.save(found, f"{folder}/rank{rank}.pt")
    if ranks == 3:
        told = {}
        for number, how in enumerate(("raised", "killed")):
            store = dist.FileStore(f"{folder}/store-{how}", ranks)
            dist.destroy_process_group()
            timeout = datetime.timedelta(seconds=(6, 10)[number])
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
            begin = time.monotonic()
            told[how] = stop_in_the_middle(rank, how), time.monotonic() - begin
            torch.save(told, f"{folder}/told{rank}.pt")
    os._exit(0)  # the group is broken, and nothing is left to be tidied up


def run_processes(ranks, folder):
    """Start the processes once for all cases; gives their exit codes."""
    context = mp.get_context(START)
    processes = [context.Process(target=one_process, args=(rank, ranks, str(folder))) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        if process.is_alive():
            process.kill()
    return [process.exitcode for process in processes]


def check_training(ranks, found):
    single = {}
    for case in CASES[ranks]:
        name, _, _, count = case
        if (name, count) not in single:
            single[name, count] = train_here(name, count)
        losses, gradients, state = single[name, count]
        seen = [loss for part in found for loss in part[case][0]]
        torch.testing.assert_close(losses, seen, rtol=1e-5, atol=1e-6, msg=lambda text, case=case: f"{case}: {text}")
        for step in range(STEPS):
            for key, value in (pair for part in found for pair in part[case][1][step].items()):
                torch.testing.assert_close(
                    gradients[step][key], value, rtol=1e-4, atol=1e-6, msg=lambda text, at=(case, key): f"{at}: {text}"
                )
        together = {key: value for part in found for key, value in part[case][2].items()}
        assert set(together) == set(state), case
        for key, value in state.items():
            torch.testing.assert_close(value, together[key], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """Losses and gradients of three steps, on every kind of schedule; tied weights (complaint 25); accumulation."""
    pytest.importorskip("transformers")
    codes = run_processes(2, tmp_path)

    assert [0, 0] == codes
    found = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in range(2)]
    check_training(2, found)
    output, losses = found[1]["evaluated"]
    assert (None, []) == found[0]["evaluated"]
    torch.testing.assert_close(train_here("llama", 4, steps=1)[0], losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made("llama")[0](**batch("llama", 4)[1]).logits, output, rtol=1e-5, atol=1e-5)
    gradients = train_here("tied_llama", 4, steps=1)[1][0]
    for key, value in (pair for part in found for pair in part["accumulated"].items()):
        torch.testing.assert_close(2 * gradients[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_three_processes_train_as_one_and_tell_when_one_stops(tmp_path):
    """All schedules of torch's and other kinds of models; then rank 1 raises in the middle of a step, or is killed."""
    pytest.importorskip("transformers")
    codes = run_processes(3, tmp_path)

    assert [0, -signal.SIGKILL, 0] == codes
    found = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=False) for rank in range(3)]
    check_training(3, found)
    lone = "rank 2 has no stage: there are 2 stages for 3 ranks; start 2 processes, or cut the model into 3 stages"
    every = "Schedule1F1B cannot run this: 2 stages leave 1 of 3 ranks without one"
    assert [every, every, lone] == [part["refused"] for part in found]

    told = [torch.load(tmp_path / f"told{rank}.pt", weights_only=False) for rank in range(3)]
    (kind, text), _ = told[1]["raised"]
    assert kind == "RuntimeError"  # torch's runtime wraps what a stage raises, with the cause behind it
    assert "failed to run forward" in text
    for rank in (0, 2):
        (kind, text), seconds = told[rank]["raised"]
        assert kind == "StageError"
        assert text.startswith(f"rank {rank} (stage {rank}) cannot go on: ")  # by timeout, or since rank 1 closed
        assert text.endswith("; rank 1 (stage 1) stopped with ValueError: out of ideas")
        assert seconds < 30
        (kind, text), seconds = told[rank]["killed"]
        assert (kind, text) == (
            "StageError",
            f"rank {rank} (stage {rank}) cannot go on: connection closed; "
            "look at the log of rank 1 (stage 1): killed, out of memory, stuck, or not started",
        )
        assert seconds < 30
