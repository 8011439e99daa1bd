"""Run a function in several processes over gloo, for the tests of pipeline stages."""

import datetime
import os
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

START = "forkserver"
mp.get_context(START).set_forkserver_preload(["fxpasses.pipelining", "pipeline_models"])  # they take long to import


def run_in_processes(function, count, folder, *args):
    """What ``function(rank, *args)`` gave on each rank."""
    mp.start_processes(_one_process, (count, str(folder), function, args), nprocs=count, start_method=START)
    return [torch.load(f"{folder}/rank{rank}.pt", weights_only=False) for rank in range(count)]


def _one_process(rank, count, folder, function, args):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", count)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timeout)
    found = function(rank, *args)
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.barrier()
    os._exit(0)  # a thread of gloo that frees a tensor while Python ends would abort the process
