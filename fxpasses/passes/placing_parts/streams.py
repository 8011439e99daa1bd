"""Streams of a device as a small set of verbs, so that the order of copies can be tested without the hardware."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from fxpasses.devices import same_torch_device

__all__ = ["CudaStreams", "Streams", "streams_for"]

Stream = Any
Event = Any


class Streams(Protocol):
    """What overlapping copies with computation needs from a kind of device."""

    def overlaps(self, device: torch.device) -> bool:
        """Whether work on this device is queued on streams; on others it is done when a call returns."""

    def queues(self, source: torch.device, target: torch.device) -> bool:
        """Whether a copy between these is queued on side streams."""

    def compute(self, device: torch.device) -> Stream:
        """The stream on which operators run now."""

    def lane(self, device: torch.device, direction: str) -> Stream:
        """The side stream for what comes ``in`` to a device, or goes ``out`` of it; always the same one."""

    def on(self, lanes: Iterable[Stream]) -> contextlib.AbstractContextManager[None]:
        """Queue, and allocate, on these streams of their devices inside."""

    def record(self, stream: Stream) -> Event:
        """An event that happens when all that is queued on a stream so far is done."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what is queued on a stream from now on wait for an event."""

    def synchronize(self, event: Event) -> None:
        """Let the host wait for an event."""

    def hold(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep the memory of a tensor, once it is freed, until what is queued on a stream by then is done."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in memory that copies can be queued from; itself if it is there."""

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Queue a copy to a device on the current streams; autograd passes through it."""


class CudaStreams:
    """CUDA devices: two side streams each, made when they are first needed."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, str], torch.cuda.Stream] = {}

    def overlaps(self, device: torch.device) -> bool:
        """Every CUDA device, and nothing else."""
        return device.type == "cuda"

    def queues(self, source: torch.device, target: torch.device) -> bool:
        """Every copy from or to a CUDA device; from a device to itself there is nothing to send."""
        return (self.overlaps(source) or self.overlaps(target)) and not same_torch_device(source, target)

    def compute(self, device: torch.device) -> torch.cuda.Stream:
        """The current stream: users may have set one."""
        return torch.cuda.current_stream(device)

    def lane(self, device: torch.device, direction: str) -> torch.cuda.Stream:
        """One stream a device and direction."""
        index = torch.cuda.current_device() if device.index is None else device.index
        found = self._lanes.get((index, direction))
        if found is None:
            made = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            found = self._lanes.setdefault((index, direction), made)  # another thread may have been first
        return found

    @contextlib.contextmanager
    def on(self, lanes: Iterable[torch.cuda.Stream]) -> Any:
        """Make each the current stream of its device."""
        with contextlib.ExitStack() as stack:
            for lane in lanes:
                stack.enter_context(torch.cuda.stream(lane))
            yield

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """An event on a stream."""
        event: torch.cuda.Event = stream.record_event()
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """The stream waits, the host does not."""
        stream.wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        """The host waits."""
        event.synchronize()

    def hold(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Tell the caching allocator of a use on another stream."""
        tensor.record_stream(stream)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Page-locked memory, from torch's cache of it, laid out as a copy on another device is.

        ``pin_memory`` keeps the strides, and fails for what shares memory with itself, as a broadcast mask does.
        """
        if tensor.is_pinned():
            return tensor
        if tensor.layout != torch.strided:
            return tensor.pin_memory()
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A copy that the host does not wait for; to the host it lands in pinned memory."""
        copy: torch.Tensor = torch.ops.aten._to_copy.default(tensor, device=device, non_blocking=True)
        return copy


def streams_for(devices: Iterable[torch.device]) -> Streams | None:
    """The streams of the devices that have some; None where all work is done when a call returns."""
    return CudaStreams() if any(device.type == "cuda" for device in devices) else None
