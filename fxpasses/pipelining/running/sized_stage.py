"""torch's stage for micro-batches of different sizes: buffers for what each of them receives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from fxpasses.pipelining.running.micro_batches import StageSizes
from fxpasses.pipelining.sizes import Symbols

__all__ = ["SizedStage"]


class SizedStage(PipelineStage):
    """A stage of which each micro-batch may have sizes of its own.

    Attributes:
        sizes: What goes in and out, at any sizes.
    """

    sizes: StageSizes | None = None
    _expected: list[dict[Any, int]] | None = None
    _batch: int | None = None

    def expect_batch(self, size: int) -> None:
        """Say how many rows the next steps have in all micro-batches together; on every rank the same.

        Schedules cut them as evenly as can be: 10 rows in 4 micro-batches are 3, 3, 2 and 2.

        Args:
            size: The number of rows of the whole batch, until it is called again.

        Raises:
            StageError: The model was captured for one batch size, or there are fewer rows than micro-batches.
        """
        assert self.sizes is not None  # build_stage gives them
        self.sizes.of_batch(size, self.chunks or 1)
        self._batch = size
        self._expected = None
        if self.args_recv_info:
            self._resize()

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_forward_infra(num_microbatches, *args, **kwargs)
        self.chunks = num_microbatches
        self._resize()
        return prepared

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_backward_infra(num_microbatches, *args, **kwargs)
        self._resize()
        return prepared

    def _sizes_of(self, chunk: int) -> Symbols:
        """The sizes that one micro-batch is expected to have."""
        assert self.sizes is not None
        if self._batch is None:
            return self.sizes.captured
        if self._expected is None:
            self._expected = self.sizes.of_batch(self._batch, self.chunks or 1)
        return self._expected[chunk]

    def _resize(self) -> None:
        """Make buffers of the expected sizes, for what comes forward and for the gradients that come back."""
        if self.sizes is None or self.sizes.is_fixed:
            return
        for chunk, infos in self.args_recv_info.items():
            if not self.is_first:
                for info, like in zip(infos, self.sizes.inputs(self._sizes_of(chunk)), strict=True):
                    info.buffer = torch.empty(like.shape, dtype=like.dtype, device=self.device)
        for chunk, infos in self.grad_recv_info.items():
            if self.is_last:
                break
            for info, like in zip(infos, self.sizes.outputs(self._sizes_of(chunk)), strict=True):
                if info.buffer is not None:
                    info.buffer = torch.empty(like.shape, dtype=like.dtype, device=self.device)

    def _validate_stage_tensors(self, desc: str, expected: Any, actual: Any) -> None:
        """Under ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` torch compares with the sizes of the example."""
        if self.sizes is None or self.sizes.is_fixed:
            super()._validate_stage_tensors(desc, expected, actual)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """The first messages between neighbours; torch 2.11 lets a rank of two neighbours send to itself."""
        return [message for message in super()._get_init_p2p_neighbors_ops() if message.peer != dist.get_rank()]

    def _validate_fwd_input(self, args: Any, kwargs: Any) -> None:
        """Torch 2.11 always compares with the example, strides too; the contract of the model says what fits."""

    def _validate_fwd_outputs(self, outputs: Any) -> None:
        """Torch 2.11 takes the results of the last stage for tensors; here they have any structure."""

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        """What came, as leaves of this stage's graph; all that travels may have a gradient."""
        is_trained = self.has_backward and torch.is_grad_enabled()
        return tuple(value.requires_grad_(is_trained) for value in super()._retrieve_recv_activations(fwd_chunk_id))

    def forward_one_chunk(
        self, fwd_chunk_id: int, args: Any, kwargs: Any = None, save_forward_output: bool = True
    ) -> Any:
        """Run one micro-batch, if its sizes are those that the other ranks expect."""
        if self.is_first and self.sizes is not None:
            self.sizes.refuse_other(args, kwargs or {}, fwd_chunk_id, self._sizes_of(fwd_chunk_id))
        return super().forward_one_chunk(fwd_chunk_id, args, kwargs, save_forward_output)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run one backward; what has no gradient gets zeros of the size that was received."""
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        gradients = self.bwd_cache.get(bwd_chunk_id)
        if self.sizes is None or self.is_first or not gradients:
            return
        likes = self.sizes.inputs(self._sizes_of(bwd_chunk_id))
        self.bwd_cache[bwd_chunk_id] = tuple(
            torch.zeros(like.shape, dtype=like.dtype, device=self.device) if gradient is None else gradient
            for gradient, like in zip(gradients[: len(likes)], likes, strict=True)  # 2.11: then those of keyword inputs
        )
