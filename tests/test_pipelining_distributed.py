"""Stages on torch's own schedules, in two processes over gloo: losses and gradients are the single process's."""

import datetime
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pipeline_models import llama
from torch.nn import functional

from fxpasses.pipelining import SplitPoint, pipeline

MICRO_BATCHES, STEPS, RATE = 4, 3, 0.1
SCHEDULES = {"ScheduleGPipe": 2, "Schedule1F1B": 2, "ScheduleInterleaved1F1B": 4}


def loss_of(output, target):
    return functional.cross_entropy(output.logits.flatten(0, 1), target.flatten())


def batch():
    ids = torch.arange(MICRO_BATCHES * 16).reshape(MICRO_BATCHES * 2, 8) % 64
    return ids, ids.roll(1, dims=1)


def train_here(model):
    """The same steps in one process, one micro-batch after the other."""
    ids, target = batch()
    losses = []
    for _ in range(STEPS):
        for part, wanted in zip(ids.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES), strict=True):
            loss = loss_of(model(input_ids=part), wanted)
            loss.backward()
            losses.append(loss.item())
        step(model.parameters(), scale=MICRO_BATCHES)
    return losses


def step(parameters, scale=1):
    with torch.no_grad():
        for parameter in parameters:
            parameter -= RATE * parameter.grad / scale
            parameter.grad = None


def train_stages(rank, name, tied):
    """This process's stages on one schedule; gives the losses (on the rank with the last stage) and its parameters."""
    import torch.distributed.pipelining as torch_pipelining

    model, args, kwargs = llama(tied=tied)
    model.train()
    count = SCHEDULES[name]
    cuts = {f"model.layers.{4 // count * index}": SplitPoint.BEGINNING for index in range(1, count)}
    pipe = pipeline(model, args, kwargs, cuts)
    mine = list(range(rank, count, 2))
    stages = [pipe.build_stage(index, "cpu") for index in mine]
    schedule_type = getattr(torch_pipelining, name)
    schedule = schedule_type(stages if count > 2 else stages[0], MICRO_BATCHES, loss_fn=loss_of)
    ids, target = batch()
    losses = []
    for _ in range(STEPS):
        found = []
        if rank == 0:
            schedule.step(input_ids=ids)
        else:
            schedule.step(target=target, losses=found)
        losses += [loss.item() for loss in found]
        modules = [pipe.get_stage_module(index) for index in mine]
        for group in pipe.replicated_params:  # each process has a copy
            dist.all_reduce(
                dict(modules[0 if rank == 0 else -1].named_parameters())[group[f"submod_{mine[-rank]}"]].grad
            )
        step([parameter for module in modules for parameter in module.parameters()])
    return losses, {key: value for module in modules for key, value in module.state_dict().items()}


def one_process(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    found = {(name, tied): train_stages(rank, name, tied) for name in SCHEDULES for tied in (False, True)}
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_losses_and_parameters_of_three_steps_are_the_single_process_s(tmp_path):
    """GPipe, 1F1B and interleaved 1F1B; tied weights (complaint 25) with their gradients added up."""
    pytest.importorskip("transformers")
    mp.spawn(one_process, (str(tmp_path),), nprocs=2)
    first, last = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    for tied in (False, True):
        model, _, _ = llama(tied=tied)
        model.train()
        losses = train_here(model)
        for name in SCHEDULES:
            states = {**first[name, tied][1], **last[name, tied][1]}
            torch.testing.assert_close(losses, last[name, tied][0], rtol=1e-6, atol=1e-6)
            assert set(states) == set(model.state_dict())
            for key, value in model.state_dict().items():
                torch.testing.assert_close(value, states[key], rtol=1e-5, atol=1e-6)
