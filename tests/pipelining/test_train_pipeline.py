"""The example that trains on several processes, started as a user starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_pipeline.py"


def train_alone(example, options, microbatches):
    """The same steps of the same model in this process."""
    model = example.build_model(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    history = []
    for step in range(options.steps):
        ids, target = example.make_batch(step, options.rows * microbatches, torch.device("cpu"))
        losses = []
        optimizer.zero_grad()
        for part, wanted in zip(ids.chunk(microbatches), target.chunk(microbatches), strict=True):
            loss = example.loss_of(model(input_ids=part), wanted)
            (loss / microbatches).backward()
            losses.append(loss.detach())
        optimizer.step()
        history.append(torch.stack(losses).mean().item())
    return history


def printed(*arguments):
    """What the script prints on two processes, and the losses."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=240, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)$", done.stdout, re.MULTILINE)]


@pytest.mark.slow
def test_the_script_learns_as_one_process_does():
    """Under torchrun on two processes, tied weights and two stages each: the losses fall, and are one process's."""
    pytest.importorskip("transformers")
    from examples import train_pipeline

    arguments = ["--schedule", "interleaved", "--tied", "--steps", "4", "--microbatches", "4"]
    text, losses = printed(*arguments)

    assert "ScheduleInterleaved1F1B, 4 micro-batches: " in text
    assert losses[-1] < losses[0] - 0.3
    alone = train_alone(train_pipeline, train_pipeline.parse(arguments), 4)
    torch.testing.assert_close(losses, alone, rtol=0, atol=2e-4)  # four digits are printed


ENDS = """
import os
import time
import torch.distributed as dist
import fxpasses.pipelining

def threads():
    return set(os.listdir("/proc/self/task"))

assert fxpasses.pipelining.build_schedule  # it is imported where it is used first
before = threads()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
import torch.distributed.nn.functional  # as transformers does, and whoever imports it after the group is there
dist.barrier()
own = threads() - before
dist.destroy_process_group()
for _ in range(100):  # a thread that was waited for is listed a moment longer
    if threads() & own:
        time.sleep(0.1)
print(len(own) > 0, len(threads() & own))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_the_threads_of_a_process_group_end_with_it():
    """No thread is left that aborts a process while Python ends ("terminate called without an active exception")."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=240, check=False)

    assert done.stdout.split() == ["True", "0"], done.stderr[-3000:]
