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


ENDING = "terminate called without an active exception"
"""What a process says that ends while a thread of gloo's is still there: rare, and after all is done."""


def printed(*arguments):
    """What the script prints on two processes, and the losses; once more where a process died of its own ending."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for _attempt in range(2):
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=240, env=environment, cwd=ROOT, check=False
        )
        if not done.stderr.startswith(ENDING):
            break
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
