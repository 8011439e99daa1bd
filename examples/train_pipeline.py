"""Train a small Llama on several processes, each with some of its layers.

On one machine, with two processes on the CPU::

    torchrun --nproc-per-node 2 examples/train_pipeline.py

On two hosts, the same on both (any free port; ``host0`` is the first one's name)::

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint host0:29400 examples/train_pipeline.py

The weights are random, the text is made up, and nothing is downloaded. Every process calls the same functions: which
stages it runs, who sends what to whom, and where the inputs and the loss are is the schedule's business.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from fxpasses.pipelining import build_schedule, find_schedule, pipeline, preview


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default="1f1b", help="gpipe, 1f1b, interleaved, zero-bubble, zbv, ...")
    parser.add_argument("--stages", type=int, help="how many stages; as many as the schedule needs by default")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--microbatches", type=int, help="micro-batches a step; two a process by default")
    parser.add_argument("--rows", type=int, default=2, help="rows of a micro-batch")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-2, help="learning rate")
    parser.add_argument("--tied", action="store_true", help="the embedding is the output layer, too")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a silent process is given up")
    parser.add_argument("--device", default="cpu", help="cpu (gloo), or cuda (NCCL; each process takes its own)")
    return parser.parse_args(arguments)


def build_model(options: argparse.Namespace) -> torch.nn.Module:
    """The same weights in every process, which keeps its own stages' part of them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        use_cache=False,
        tie_word_embeddings=options.tied,
    )
    model: torch.nn.Module = LlamaForCausalLM(config)
    return model


def make_batch(step: int, rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up text in which each token follows from the one before, and what comes next."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, 128, (rows, 1), generator=generator)
    text = (start + 3 * torch.arange(17)) % 128
    return text[:, :-1].to(device), text[:, 1:].to(device)


def loss_of(output: Any, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.logits.flatten(0, 1), target.flatten())


def train(options: argparse.Namespace) -> None:
    """Train; the first process prints the mean loss of each step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if options.device == "cuda" else torch.device("cpu")
    microbatches = options.microbatches or 2 * ranks
    stages = options.stages or ranks * (find_schedule(options.schedule).per_rank or 2)

    model = build_model(options).to(device)
    ids, _ = make_batch(0, options.rows, device)
    pipe = pipeline(model, (), {"input_ids": ids}, "auto", num_stages=stages)
    if rank == 0:
        print(preview(pipe, options.schedule, num_microbatches=microbatches, ranks=ranks), flush=True)

    part = build_schedule(pipe, options.schedule, num_microbatches=microbatches, loss_fn=loss_of, device=device)
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.rate)
    for step in range(options.steps):
        ids, target = make_batch(step, options.rows * microbatches, device)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        part.step(input_ids=ids, target=target, losses=losses)  # adds up the gradients of tied weights, too
        optimizer.step()
        mean = torch.stack(losses).mean() if part.has_last else torch.zeros((), device=device)
        dist.all_reduce(mean)  # one process has the losses, the first one prints them
        if rank == 0:
            print(f"step {step}: loss {mean.item():.4f}", flush=True)


def main() -> None:
    options = parse()
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=options.timeout))
    try:
        train(options)
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
